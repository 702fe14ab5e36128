"""Codecs: how the values of one feature travel between Feast, the row log and the sketch.

    feast Value  --to_arrow-->  Arrow column  --to_storage-->  vocabulary values  (write, seal)
    feast Value  <------------  kernel (`layers.row_reader`)  <-----------------  (read)

    membership   Array, Set   a read gives the possibly-present elements
    categorical  scalars      ... one value of the vocabulary
    binned       numbers      ... the representative of the bin that the number falls into
    exact        all          ... the value, as it was written: order, repetitions, bits
    list         Array        ... items with times, newest first (`rows.lists`)
    times        Array        ... the times of a list's items; stored with the list
    attribute    Array        ... an attribute of a list's items; stored with the list
    counts       Array        ... the elements, each once, and how often each was counted (`rows.count_log`)
    counts_of    Array        ... these counts; stored with the elements
    backing      all          ... the value, from another store; sealed rows know only whether there is one
    score        Float64      ... the sum of weights of the row's values; computed (`rows.formulas`)

A codec identifies the type of a feature by the field of Feast's ``Value`` that carries it, so a value comes
back in the field in which it was written.

Feast takes seconds to import. It is imported only where its objects are made, so array readers never load it.
"""

import json
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.errors import RowError, UnsupportedFeatureError, shown
from feast_sketch_store.rows.binning import Binning, Ends, Numbers
from feast_sketch_store.rows.counting import Counting
from feast_sketch_store.rows.limits import FIRST_MOMENT, LAST_MOMENT
from feast_sketch_store.rows.listing import Attribute, Listing

if TYPE_CHECKING:
    from feast.protos.feast.types.Value_pb2 import Value
    from feast.types import FeastType

# The states of a feature in a row, as a key-value store distinguishes them. The order matters: if a sketch
# leaves several possible, the highest one is reported, so a written value is never lost.
MISSING: Final = 0  # the row was written without this feature
NULL: Final = 1  # written as null
EMPTY: Final = 2  # written as a list or set without elements
VALUE: Final = 3  # written with a value

MEMBERSHIP: Final = "membership"
CATEGORICAL: Final = "categorical"
BINNED: Final = "binned"
EXACT: Final = "exact"
LIST: Final = "list"
TIMES: Final = "times"
ATTRIBUTE: Final = "attribute"
BACKING: Final = "backing"
COUNTS: Final = "counts"
COUNTS_OF: Final = "counts_of"
SCORE: Final = "score"

_MICROSECONDS: Final = 1_000_000
_MAX_TIMESTAMP_SECONDS: Final = (2**63 - 1) // _MICROSECONDS
_NULL_SECONDS: Final = -(2**63)  # a null among moments: in what Feast writes, in vocabularies, in answers

_ARROW_TYPES: Final = {
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.large_string(),
    "bytes": pa.large_binary(),
    "message": pa.large_binary(),
}
# Texts that mean something else, by a part of the names of their fields.
_READ_BY_FEAST: Final[dict[str, Callable[[str], Any]]] = {
    "uuid": UUID,
    "decimal": Decimal,
    "json": json.loads,
}
_ATTRIBUTE_KINDS: Final = ("int32", "int64", "string")
# The integers, which are varints in protobuf's wire format; the least and the greatest number of each kind.
_INTEGERS: Final = {
    "bool": (0, 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "timestamp": (-(2**63), 2**63 - 1),
}
_NUMBER_KINDS: Final = ("int32", "int64", "timestamp", "float", "double")
_FLOAT_BITS: Final[dict[str, np.dtype[Any]]] = {"float": np.dtype("<i4"), "double": np.dtype("<i8")}
_DELIMITED_KINDS: Final = ("string", "bytes", "message")

# The fields of Feast's ``Value`` that a feature can have: field number, and kind of element.
_VALUE_FIELDS: Final = {
    "bytes_val": (1, "bytes"),
    "string_val": (2, "string"),
    "int32_val": (3, "int32"),
    "int64_val": (4, "int64"),
    "double_val": (5, "double"),
    "float_val": (6, "float"),
    "bool_val": (7, "bool"),
    "unix_timestamp_val": (8, "timestamp"),
    "bytes_list_val": (11, "bytes"),
    "string_list_val": (12, "string"),
    "int32_list_val": (13, "int32"),
    "int64_list_val": (14, "int64"),
    "double_list_val": (15, "double"),
    "float_list_val": (16, "float"),
    "bool_list_val": (17, "bool"),
    "unix_timestamp_list_val": (18, "timestamp"),
    "map_val": (20, "message"),
    "map_list_val": (21, "message"),
    "bytes_set_val": (22, "bytes"),
    "string_set_val": (23, "string"),
    "int32_set_val": (24, "int32"),
    "int64_set_val": (25, "int64"),
    "double_set_val": (26, "double"),
    "float_set_val": (27, "float"),
    "bool_set_val": (28, "bool"),
    "unix_timestamp_set_val": (29, "timestamp"),
    "json_val": (32, "string"),
    "json_list_val": (33, "string"),
    "struct_val": (34, "message"),
    "struct_list_val": (35, "message"),
    "uuid_val": (36, "string"),
    "time_uuid_val": (37, "string"),
    "uuid_list_val": (38, "string"),
    "time_uuid_list_val": (39, "string"),
    "uuid_set_val": (40, "string"),
    "time_uuid_set_val": (41, "string"),
    "list_val": (42, "message"),
    "set_val": (43, "message"),
    "decimal_val": (44, "string"),
    "decimal_list_val": (45, "string"),
    "decimal_set_val": (46, "string"),
    "scalar_map_val": (47, "message"),
    "zoned_timestamp_val": (48, "message"),
}

# The numbers: bytes of an element in a packed list, 0 for a varint.
_PACKED_BYTES: Final = {**dict.fromkeys(_INTEGERS, 0), "float": 4, "double": 8}
_MANY_VALUES: Final = 16  # from here on a call of the kernel is faster

TOO_LARGE_FOR_FLOAT: Final = "which is too large for a 32-bit float"
ID_KINDS: Final = ("int64", "string")  # of ids of what was counted

_WIRE_VARINT, _WIRE_FIXED64, _WIRE_DELIMITED, _WIRE_FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class FeatureCodec:
    """How one feature is kept.

    Raises ValueError: there is no such field, or the codec cannot have it.
    """

    feature: str  # the feature's name
    value_field: str  # the field of Feast's ``Value`` that carries it, such as ``"string_list_val"``
    name: str = ""  # of the codec, such as ``"membership"``; empty for the default of the field
    binning: Binning | None = None  # of a binned feature
    listing: Listing | None = None  # of a list
    times_of: str = ""  # the name of the list, if these are its times
    counting: Counting | None = None  # of counts
    counts_of: str = ""  # the name of the counted feature, if these are its counts
    ids_of: str = ""  # of a list, the name of the counted feature, if its items are ids of what was counted
    attribute_of: str = ""  # the name of the list, if this is an attribute of its items

    def __post_init__(self) -> None:
        if self.value_field not in _VALUE_FIELDS:
            raise ValueError(f"{self.value_field!r} is not a field of Feast's Value that a feature can have")
        if not self.name:
            object.__setattr__(self, "name", MEMBERSHIP if self.is_collection else CATEGORICAL)
        if self.name == LIST and self.listing is None:
            object.__setattr__(self, "listing", Listing())
        if self.name == COUNTS and self.counting is None:
            object.__setattr__(self, "counting", Counting())
        if (
            self.name not in self.possible_names
            or (self.name == BINNED) != (self.binning is not None)
            or (self.name == LIST) != (self.listing is not None)
            or (self.name == TIMES) != bool(self.times_of)
            or (self.name == ATTRIBUTE) != bool(self.attribute_of)
            or (self.name == COUNTS) != (self.counting is not None)
            or (self.name == COUNTS_OF) != bool(self.counts_of)
            or (self.ids_of and (self.name != LIST or self.element_kind not in ID_KINDS))
        ):
            raise ValueError(f"the codec {self.name!r} does not take {self.value_field}")

    @classmethod
    def for_feature(cls, feature: str, dtype: "FeastType") -> "FeatureCodec":
        """The codec of a feature with a Feast type.

        Raises UnsupportedFeatureError: Feast has no ``Value`` field for the type.
        """
        from feast.type_map import VALUE_TYPE_TO_PROTO_VALUE_MAP

        value_type = dtype.to_value_type()
        # PDF and image bytes travel in bytes_val (feast.type_map).
        field = "bytes_val" if value_type.name.endswith("_BYTES") else None
        field = field or VALUE_TYPE_TO_PROTO_VALUE_MAP.get(value_type, f"{value_type.name.lower()}_val")
        if field not in _VALUE_FIELDS:
            raise UnsupportedFeatureError(
                f"feature {feature!r} has type {dtype}, which no field of Feast's Value carries"
            )
        return cls(feature, field)

    @classmethod
    def of_attribute(cls, attribute: Attribute, of: str) -> "FeatureCodec":
        """The codec of an attribute of the items of a list."""
        return cls(attribute.feature, attribute.value_field, ATTRIBUTE, attribute_of=of)

    def attribute_values(self, feature: str) -> pa.Array:
        """The values of an attribute of this list, in the type of its column.

        Raises
        ------
        ValueError : the list has no such attribute.
        pyarrow.ArrowException : the values are of another type.
        """
        assert self.listing is not None
        attribute, _ = self.listing.digit_of(feature)
        return pa.array(attribute.values, self.of_attribute(attribute, self.feature).element_type)

    @cached_property
    def is_collection(self) -> bool:
        """Whether the feature is an Array or a Set."""
        return self.value_field.endswith(("list_val", "set_val"))

    @property
    def is_set(self) -> bool:
        """Whether the feature is a Set, whose order and repetitions do not matter."""
        return self.value_field.endswith("set_val")

    @property
    def type_text(self) -> str:
        """The type as Feast writes it, such as ``Set(String)``."""
        *element, last = self.value_field.removesuffix("_val").split("_")
        container = {"list": "Array", "set": "Set"}.get(last)
        name = "".join(map(str.capitalize, element if container else [*element, last]))
        name = {"Double": "Float64", "Float": "Float32", "": "Array or Set"}.get(name, name)
        return f"{container}({name})" if container else name

    @property
    def possible_names(self) -> tuple[str, ...]:
        """The codecs that the feature can have, the default first."""
        if self.is_set:
            return MEMBERSHIP, EXACT, BACKING
        if self.is_collection:
            times = [TIMES] if self.element_kind == "timestamp" else []
            counts = [COUNTS_OF] if self.element_kind == "int64" else []
            attribute = [ATTRIBUTE] if self.element_kind in _ATTRIBUTE_KINDS else []
            return MEMBERSHIP, EXACT, BACKING, LIST, COUNTS, *times, *counts, *attribute
        binned = (BINNED,) if self.element_kind in _NUMBER_KINDS else ()
        computed = (SCORE,) if self.value_field == "double_val" else ()
        return CATEGORICAL, EXACT, BACKING, *binned, *computed

    @cached_property
    def tag(self) -> bytes:
        """The bytes before a value in protobuf's wire format."""
        wire_type = _WIRE_DELIMITED if self.is_collection else self.element_wire_type
        return kernel.varint(_VALUE_FIELDS[self.value_field][0] << 3 | wire_type)

    @property
    def element_wire_type(self) -> int:
        """The wire type of an element in protobuf's wire format."""
        if self.element_kind in _INTEGERS:
            return _WIRE_VARINT
        if self.element_kind in _DELIMITED_KINDS:
            return _WIRE_DELIMITED
        return _WIRE_FIXED32 if self.element_kind == "float" else _WIRE_FIXED64

    @property
    def is_exact(self) -> bool:
        """Whether values come back as they were written."""
        return self.name in (EXACT, BACKING)

    @property
    def is_backed(self) -> bool:
        """Whether another store keeps the values of sealed rows."""
        return self.name == BACKING

    @property
    def is_list(self) -> bool:
        """Whether the values are items with times."""
        return self.name == LIST

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """Those of a list's items; none of other features."""
        return () if self.listing is None else self.listing.attributes

    @property
    def is_plain_list(self) -> bool:
        """Whether the feature is a list that is not one of ids."""
        return self.is_list and not self.ids_of

    @property
    def is_derived(self) -> bool:
        """Whether nothing is stored for the feature, because another feature has its values."""
        return self.name in (TIMES, COUNTS_OF, ATTRIBUTE)

    @property
    def source(self) -> str:
        """The feature that has the values of this one; empty if this one is stored itself."""
        return self.times_of or self.counts_of or self.attribute_of

    @property
    def is_counted(self) -> bool:
        """Whether each value has a count."""
        return self.name == COUNTS

    @property
    def is_weighted(self) -> bool:
        """Whether each value has a number with it: a time or a count."""
        return self.is_list or self.is_counted

    @property
    def is_computed(self) -> bool:
        """Whether the feature is computed from others of its row and never written; see `rows.formulas`."""
        return self.name == SCORE

    @property
    def may_repeat(self) -> bool:
        """Whether the values of a row keep their order, and may repeat."""
        return self.is_exact or self.is_list

    @cached_property
    def element_kind(self) -> str:
        """The kind of an element, a key of ``_ARROW_TYPES``."""
        return _VALUE_FIELDS[self.value_field][1]

    @property
    def element_type(self) -> pa.DataType:
        """The type of an element in the row log."""
        return _ARROW_TYPES[self.element_kind]

    @property
    def element_bits(self) -> int:
        """Bits of an element in the row log; 0 if they vary."""
        return 0 if self.element_kind in _DELIMITED_KINDS else int(self.element_type.bit_width)

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the feature's column in the row log."""
        return pa.large_list(self.element_type) if self.is_collection else self.element_type

    @property
    def storage_type(self) -> pa.DataType:
        """The type of the feature's vocabulary."""
        return pa.large_binary() if self.element_kind in _DELIMITED_KINDS else pa.int64()

    def to_arrow(self, values: "Sequence[Value | None]") -> tuple[pa.Array, list[int]]:
        """Turn one feature's values, one per row and None where the row lacks it, into a column of the row
        log. Returns it, and the numbers of the rows in which the feature was written as null.

        Raises RowError: a value does not fit the column, or is in another field than the feature's and cannot
        be converted (see `converted`).
        """
        if (usual := self._packed_lists(values)) is not None:
            return usual
        absent = np.zeros(len(values), np.bool_)
        ends = np.zeros(len(values) + 1, np.int64)
        elements: list[object] = []
        null_rows = []
        for row, value in enumerate(values):
            field = value.WhichOneof("val") if value is not None else None
            content = getattr(value, field) if field == self.value_field else None
            if field in (None, "null_val") or (content == _NULL_SECONDS and self.element_kind == "timestamp"):
                absent[row] = True
                if value is not None:
                    null_rows.append(row)
                if not self.is_collection:
                    elements.append(None)
            elif content is not None:
                if self.is_collection:
                    elements.extend(content.val[:])  # a slice is a list, which extends faster
                else:
                    elements.append(content)
            else:
                elements += self._converted(value, field, row)
            ends[row + 1] = len(elements)
        column = self._elements_to_arrow(elements)
        if self.is_collection:
            column = pa.LargeListArray.from_arrays(
                pa.array(ends), column, mask=pa.array(absent) if absent.any() else None
            )
        return column, null_rows

    def _packed_lists(self, values: "Sequence[Value | None]") -> tuple[pa.Array, list[int]] | None:
        """`to_arrow` without an object per element; None unless all values are plain lists of numbers."""
        width = _PACKED_BYTES.get(self.element_kind)
        if width is None or not self.is_collection or len(values) < _MANY_VALUES:
            return None
        messages = [b"" if value is None else value.SerializeToString() for value in values]
        parsed = kernel.parse_packed_lists(messages, _VALUE_FIELDS[self.value_field][0], width)
        if parsed is None:
            return None
        ends, numbers = parsed
        column = self._elements_to_arrow(numbers.view(f"<f{width}") if width else numbers)
        absent = np.fromiter(map(operator.not_, messages), np.bool_, len(messages))
        mask = pa.array(absent) if absent.any() else None
        null_rows = [row for row in np.flatnonzero(absent).tolist() if values[row] is not None]
        return pa.LargeListArray.from_arrays(pa.array(ends), column, mask=mask), null_rows

    def _converted(self, value: "Value | None", field: str, row: int) -> list[Any]:
        """The elements of a value that arrived in another field."""
        kind, reason, content = _VALUE_FIELDS.get(field, (0, ""))[1], "", getattr(value, field)
        is_alike = _container(field) == _container(self.value_field)
        if is_alike and kind in _PACKED_BYTES and self.element_kind in _PACKED_BYTES:
            elements = content.val[:] if self.is_collection else [content]
            try:
                return [converted(content := element, kind, self.element_kind) for element in elements]
            except ValueError as error:
                reason = f", {error}"
        given = f" {shown(repr(content))}" if kind not in ("", "message") else ""
        raise RowError(
            f"feature {self.feature!r} takes {self.value_field}, but row {row} of the batch "
            f"has {field}{given}{reason}; correct the feature's type or the source's column"
        )

    def _elements_to_arrow(self, elements: list[object] | NDArray[Any]) -> pa.Array:
        kind = self.element_kind
        if kind == "message":
            elements = [e and e.SerializeToString(deterministic=True) for e in elements]  # type: ignore[union-attr]
        try:
            if kind == "timestamp":
                seconds = _with_nulls(pa.array(elements, pa.int64()))
                is_before = pc.less(seconds, -_MAX_TIMESTAMP_SECONDS)
                too_far = seconds.filter(pc.or_(is_before, pc.greater(seconds, _MAX_TIMESTAMP_SECONDS)))
                if len(too_far):
                    raise RowError(
                        f"feature {self.feature!r} has a timestamp {too_far[0]} seconds from 1970; no Delta "
                        f"column holds more than {_MAX_TIMESTAMP_SECONDS}"
                    )
                return pc.multiply(seconds, _MICROSECONDS).cast(_ARROW_TYPES[kind])
            return pa.array(elements, _ARROW_TYPES[kind])
        except MemoryError:  # also Arrow's, which is an ArrowException, too
            raise
        except (pa.ArrowException, UnicodeError) as error:
            raise RowError(f"feature {self.feature!r} has a value that cannot be kept: {error}") from error

    def check_storage(self, values: pa.Array) -> None:
        """Check values of the storage type that come from a file: whether answers can contain them.

        Raises ValueError: a string is not UTF-8, or a message cannot be parsed.
        """
        if self.element_kind == "string":
            values.cast(pa.large_string())
        elif self.element_kind == "message":
            from feast.protos.feast.types.Value_pb2 import Value
            from google.protobuf.message import DecodeError
            from google.protobuf.message_factory import GetMessageClass

            field = Value.DESCRIPTOR.fields_by_name[self.value_field]
            if self.is_collection:
                field = field.message_type.fields_by_name["val"]
            message = GetMessageClass(field.message_type)
            try:
                for value in values.to_pylist():
                    message.FromString(value)
            except DecodeError as error:
                raise ValueError(
                    f"a value of feature {self.feature!r} is not a protobuf message: {error}"
                ) from error

    def check_texts(self, elements: pa.Array) -> None:
        """Check that texts are what Feast makes of them at a read, such as UUIDs.

        Raises ValueError: one is not.
        """
        for kind, read in _READ_BY_FEAST.items():
            for text in elements.unique().drop_null().to_pylist() if kind in self.value_field else ():
                try:
                    read(text)
                except (ValueError, ArithmeticError) as error:
                    raise ValueError(f"{shown(text)!r} is no {kind.upper()}") from error

    def to_storage(self, elements: pa.Array) -> pa.Array:
        """Turn elements of the row log, without nulls, into the vocabulary's storage type."""
        kind = self.element_kind
        if kind in _DELIMITED_KINDS:
            return elements.cast(pa.large_binary())
        if kind in _FLOAT_BITS:
            bits = elements.to_numpy(zero_copy_only=False).view(_FLOAT_BITS[kind])
            return pa.array(bits.astype(np.int64))
        if kind == "timestamp":
            return pc.divide(elements.cast(pa.int64()), _MICROSECONDS).fill_null(_NULL_SECONDS)
        return (elements.cast(pa.int8()) if kind == "bool" else elements).cast(pa.int64())

    def from_storage(self, values: pa.Array) -> pa.Array:
        """Elements of the row log, from values of the storage type."""
        kind = self.element_kind
        if kind in _FLOAT_BITS:
            bits = _FLOAT_BITS[kind]
            return pa.array(values.to_numpy().astype(bits).view(f"<f{bits.itemsize}"))
        if kind == "timestamp":
            return pc.multiply(_with_nulls(values), _MICROSECONDS).cast(_ARROW_TYPES[kind])
        return values.cast(_ARROW_TYPES[kind])

    def to_column(self, states: NDArray[np.uint8], indptr: NDArray[np.int64], storage: pa.Array) -> pa.Array:
        """Rows as an Arrow array, of lists if the feature is an Array or a Set; null without a value.

        Parameters
        ----------
        states : uint8[n] of MISSING, NULL, EMPTY, VALUE.
        indptr : int64[n + 1], row ``i`` owns ``storage[indptr[i]:indptr[i + 1]]``.
        storage : values of the storage type.
        """
        elements = self.from_storage(storage)
        if self.is_collection:
            return pa.LargeListArray.from_arrays(pa.array(indptr), elements, mask=pa.array(states < EMPTY))
        has_value = states == VALUE
        places = np.where(has_value, np.cumsum(has_value) - 1, 0)
        return elements.take(pa.array(places, mask=~has_value))

    @property
    def number_type(self) -> np.dtype[Any]:
        """The type of the numbers that `to_numbers` returns."""
        return np.dtype(np.float64 if self.element_kind in _FLOAT_BITS else np.int64)

    @property
    def ends(self) -> Ends:
        """The least and the greatest number that a read may return for another; of moments, those that
        readers can represent."""
        if self.element_kind == "timestamp":
            return FIRST_MOMENT // _MICROSECONDS, LAST_MOMENT // _MICROSECONDS
        if self.element_kind in _FLOAT_BITS:
            limits = np.finfo(np.float32 if self.element_kind == "float" else np.float64)
            return float(limits.min), float(limits.max)
        return _INTEGERS[self.element_kind]

    def to_numbers(self, values: pa.Array) -> Numbers:
        """The numbers that values of the storage type represent: int64[n] or float64[n]."""
        numbers = np.asarray(values.to_numpy(zero_copy_only=False), np.int64)
        bits = _FLOAT_BITS.get(self.element_kind)
        return numbers if bits is None else numbers.astype(bits).view(f"<f{bits.itemsize}").astype(np.float64)

    def from_numbers(self, numbers: Numbers) -> pa.Array:
        """Values of the storage type, from numbers; a float32 feature gets the nearest float32."""
        bits = _FLOAT_BITS.get(self.element_kind)
        if bits is not None:
            numbers = numbers.astype(f"<f{bits.itemsize}").view(bits).astype(np.int64)
        return pa.array(numbers)


def converted(number: Any, source: str, target: str) -> Any:
    """Convert a number that arrives in another field of Feast's ``Value`` than its feature's.

    A client may pass a double for a Float32 feature, or an int32 for an Int64 feature. Numbers that keep
    their meaning are converted: a float to the nearest float32, an integer to any wider type, 5.0 to 5.
    ``source`` and ``target`` are kinds of elements.

    Raises ValueError: it has a fraction that the target cannot hold, or is out of its range.
    """
    if source == target:
        return number
    if target in _INTEGERS:
        least, greatest = _INTEGERS[target]
        if not math.isfinite(number) or number != int(number):
            raise ValueError("which is not a whole number")
        if not least <= number <= greatest:
            raise ValueError(f"which is not between {least} and {greatest}")
        return bool(number) if target == "bool" else int(number)
    if target == "float":
        with np.errstate(over="ignore"):
            nearest = float(np.float32(number))
        if math.isinf(nearest) and not math.isinf(number):
            raise ValueError(TOO_LARGE_FOR_FLOAT)
        return nearest
    return float(number)


def _with_nulls(seconds: pa.Array) -> pa.Array:
    """Moments as Feast writes them, int64 seconds, with its nulls as those of Arrow."""
    return pc.if_else(pc.equal(seconds, _NULL_SECONDS), None, seconds)


def _container(field: str) -> str:
    """The message of a field of ``Value`` that holds elements; empty for a scalar."""
    return next((name for name in ("list", "set") if field.endswith(f"{name}_val")), "")
