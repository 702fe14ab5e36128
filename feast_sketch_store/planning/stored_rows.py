"""Bytes of sampled rows in the form in which Feast's other online stores keep them.

Feast keeps a row as the serialized entity key and, for each feature, a serialized ``Value``. Its size follows
from the wire format of protocol buffers: a field with the length of an inner message. In it numbers are
packed, and strings have a tag and a length each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.kernel import row_sums
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary

_FIXED_BYTES = {"bool": 1, "float": 4, "double": 8}


@dataclass(frozen=True, eq=False)
class StoredRows:
    """n sampled rows as another store would keep them.

    Parameters
    ----------
    project, view : their names.
    key_bytes : int64[n], of the serialized entity keys.
    value_bytes : per feature int64[n], of the serialized values.
    has_created : whether rows have created timestamps.
    """

    project: str
    view: str
    key_bytes: NDArray[np.int64]
    value_bytes: Mapping[str, NDArray[np.int64]]
    has_created: bool

    def __len__(self) -> int:
        return len(self.key_bytes)


def value_sizes(
    element_kind: str,
    field_number: int,
    vocabulary: Vocabulary,
    rows: Csr,
    num_elements: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Bytes of the ``Value`` of each row: int64[n].

    Parameters
    ----------
    element_kind : see `FeatureCodec`.
    field_number : of the feature's field in the ``Value`` message.
    vocabulary, rows : the values, and the distinct values of each row.
    num_elements : int64[n], the number of values with which each row was written. Repeated values are assumed
        to have the mean length of the row's distinct ones.

    Source: protobuf.dev/programming-guides/encoding.
    """
    distinct = row_sums(rows.indptr, _element_sizes(element_kind, vocabulary)[rows.ids])
    content = np.rint(distinct * (num_elements / np.maximum(1, rows.lengths))).astype(np.int64)
    if not _is_delimited(vocabulary):  # numbers are packed into one field of the inner message
        content = np.where(content > 0, 1 + varint_sizes(content) + content, 0)
    tag = int(varint_sizes(np.array([field_number << 3]))[0])
    return np.asarray(tag + varint_sizes(content) + content, np.int64)


def varint_sizes(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Bytes of integers as varints, ten for a negative one: int64[n]."""
    sizes = np.ones(len(numbers), np.int64)
    for bits in range(7, 63, 7):
        sizes += numbers >= 1 << bits
    return np.where(numbers < 0, 10, sizes)


def _element_sizes(kind: str, vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Bytes of each value of a vocabulary as an element of a list: int64[V]."""
    if kind in _FIXED_BYTES:
        return np.full(len(vocabulary), _FIXED_BYTES[kind], np.int64)
    if _is_delimited(vocabulary):
        lengths = pc.binary_length(vocabulary.values).to_numpy(zero_copy_only=False).astype(np.int64)
        return np.asarray(1 + varint_sizes(lengths) + lengths, np.int64)
    return varint_sizes(vocabulary.values.to_numpy(zero_copy_only=False))


def _is_delimited(vocabulary: Vocabulary) -> bool:
    """Whether elements are strings, bytes or messages, each with a tag and a length of its own."""
    return bool(vocabulary.values.type == pa.large_binary())
