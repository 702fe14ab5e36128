"""Layers in the form in which the kernel reads them: one call answers about any number of entities.

A prepared layer refers to the arrays of the layer. It is made at the first read of a set of features, and
lives as long as the layer.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.kernel import ABSENT, BYTES, FOUND, NAMES, NUMBERS, WITH_WEIGHTS, RowReader
from feast_sketch_store.kernel.binary import from_parts
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import Answer, begin_unknown

# Prepared forms that a layer keeps, one for each set of requested features.
_MAX_QUESTIONS = 64

NO_LIMIT = 1 << 62  # of items
ADDED_UP = 0  # instead of the microseconds of a tick: the numbers of equal values are added

# A feature by its name; by the codec of what accompanies its values, their counts, times or attribute; a
# list by its own codec, whose items are read with stamps; or none of the layers'.
WantedFeature = str | FeatureCodec | None


def stored_name(wanted: WantedFeature) -> str | None:
    """The name of the feature that has what is wanted; None if no layer has it."""
    return (wanted.source or wanted.feature) if isinstance(wanted, FeatureCodec) else wanted


class Wanted(NamedTuple):
    """What a read requests from layers."""

    features: tuple[WantedFeature, ...]  # a layer may lack some of them
    # set if the rows of an entity add up: for each feature, how many items its list shows, the microseconds
    # within which it shows a value once, or `ADDED_UP`, and how many items a seal keeps. None if the newest
    # layer with an entity answers
    lists: tuple[tuple[int, int, int], ...] | None = None
    # how many of the features the answers have, if rows add up; further lists keep a row alive by their items
    num_shown: int = 0


class LayerAnswer(NamedTuple):
    """The entities of a batch that have rows."""

    found: NDArray[np.int64]  # int64[p], ascending positions of the rows to return
    # int64[p], microseconds since 1970 in UTC; never newer than those of the rows
    event_timestamps: NDArray[np.int64]
    features: Mapping[str, Answer]  # an answer for each requested feature that a layer knows


class Layer(ABC):
    """Immutable rows that can be read. Safe to read from any number of threads."""

    @property
    @abstractmethod
    def codecs(self) -> Mapping[str, FeatureCodec]:
        """The codecs of all features, by name."""

    @abstractmethod
    def numbering(self, feature: str) -> Vocabulary | None:
        """The values of a feature in the order of their ids; None if its values have no ids."""

    def row_reader(self, features: tuple[WantedFeature, ...]) -> RowReader:
        """The rows and some features in the form that the kernel reads, perhaps made earlier."""
        known = self._forms.get(features)
        if known is None:
            if len(self._forms) >= _MAX_QUESTIONS:
                self._forms.clear()
            known = self._forms[features] = self._prepare(features)
        return known

    @cached_property
    def _forms(self) -> dict[tuple[WantedFeature, ...], RowReader]:
        return {}

    @abstractmethod
    def _prepare(self, features: tuple[WantedFeature, ...]) -> RowReader:
        """The rows and some features in the form that the kernel reads."""

    @property
    def decides(self) -> tuple[NDArray[np.uint64] | None, NDArray[np.bool_] | None]:
        """The entities that it alone is asked about, uint64[n, 2], and which of them were deleted; None for
        all."""
        return None, None

    def read(
        self, entity_hashes: NDArray[np.uint64], features: Sequence[str], expire_before: int = NO_TIMESTAMP
    ) -> LayerAnswer:
        """The rows of a batch in this layer alone.

        Parameters
        ----------
        entity_hashes : uint64[n, 2]
        features : names; features that the layer does not know are left out of the answer.
        expire_before : microseconds since 1970; a row is withheld once its whole bucket is older.

        Raises
        ------
        DamagedFileError : a block that the read needs does not match its checksum.
        ValueError : parts of a layer from a file contradict each other.
        """
        known = tuple(name for name in features if name in self.codecs)
        columns = [Column(name, self.codecs[name], self.numbering(name)) for name in known]
        return read(stack([self], Wanted(known)), columns, entity_hashes, expire_before)


def stack(
    layers: Sequence[Layer],
    wanted: Wanted,
    names: Sequence[NDArray[np.int32] | None] | None = None,
    shards: Sequence[int | None] = (),
) -> RowReader:
    """Combine layers so that one call reads them all.

    Parameters
    ----------
    layers : from the newest to the oldest; the first that lists an entity answers.
    wanted : the requested features.
    names : for each layer, int32[V], the ids in answers of its first feature's ids; None if they are equal.
    shards : if entities are divided by the highest bits of their hashes, how many layers each part has, one
        part after the other; None for a part that is not read here.
    """
    prepared = kernel.RowReader()
    for number, layer in enumerate(layers):
        prepared.layer(layer.row_reader(wanted.features), names[number] if names else None, *layer.decides)
    if not layers:
        prepared.layer(_no_rows(len(wanted.features)), None, None, None)
        served = [number is not None for number in shards]
        shards = [
            int(place == served.index(True)) if is_served else None for place, is_served in enumerate(served)
        ]
    if wanted.lists is not None:
        limits, resolutions, most_sealed = np.array(wanted.lists, np.int64).reshape(-1, 3).T.copy()
        prepared.limits(limits, resolutions, most_sealed, wanted.num_shown, names is not None, kernel.SEED)
    if len(shards) > 1:
        first_layers = np.cumsum([0, *(number or 0 for number in shards)])
        is_served = np.array([number is not None for number in shards])
        prepared.shards(64 - (len(shards) - 1).bit_length(), first_layers, is_served)
    return prepared


def _no_rows(num_features: int) -> RowReader:
    rows = kernel.RowReader()
    rows.exact(np.zeros((0, 2), np.uint64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
    rows.fenced(np.zeros(0, np.bool_))
    for _ in range(num_features):
        begin_unknown(rows)
    return rows


class Column:
    """A feature of an answer.

    Parameters
    ----------
    name : of the feature.
    codec : None if no layer has it.
    vocabulary : whose ids all layers have, and the answer; None to number the values that are read.
    known : of values that are read, those of interest, whose ids the answer has; -1 for others.
    """

    def __init__(
        self,
        name: str,
        codec: FeatureCodec | None,
        vocabulary: Vocabulary | None = None,
        known: Vocabulary | None = None,
    ):
        self.name, self.codec, self.vocabulary, self.known = name, codec, vocabulary, known
        # whether the values have times or counts
        self.is_weighted = codec is not None and (codec.is_list or codec.is_counted)
        is_number = codec is None or pa.types.is_int64(codec.storage_type)
        # elements, kind: what the kernel returns, without and with the weights
        self.elements = NAMES if vocabulary is not None else NUMBERS if is_number else BYTES
        self.kind = self.elements + WITH_WEIGHTS * self.is_weighted


def find(
    rows: RowReader, entity_hashes: NDArray[np.uint64], expire_before: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Whether entities have rows: ABSENT, FOUND or EXPIRED, uint8[n]; and the timestamps of rows,
    int64[n]."""
    statuses, timestamps = (
        np.full(len(entity_hashes), ABSENT, np.uint8),
        np.zeros(len(entity_hashes), np.int64),
    )
    rows.found(np.ascontiguousarray(entity_hashes), expire_before, statuses, timestamps)
    return statuses, timestamps


def read(
    rows: RowReader,
    columns: Sequence[Column],
    entity_hashes: NDArray[np.uint64],
    expire_before: int | NDArray[np.int64],
    limit: int | None = None,
    cut: NDArray[np.bool_] | None = None,
) -> LayerAnswer:
    """The rows of a batch of entities.

    Parameters
    ----------
    rows : with the features of ``columns``.
    entity_hashes : uint64[n, 2]
    expire_before : microseconds since 1970, before which rows and items have expired; or int64[n, 2], of each
        entity that time, and a time in the first tick that is too new to be shown.
    limit : the most items of a list; None for as many as the lists have.
    cut : bool[features, n], receives which lists end where a seal dropped older items; None if not needed.
    """
    n, kinds = len(entity_hashes), bytes(column.kind for column in columns)
    statuses, timestamps = np.empty(n, np.uint8), np.empty(n, np.int64)
    states, indptrs = np.empty((len(columns), n), np.uint8), np.empty((len(columns), n + 1), np.int64)
    parts = rows.columns(
        np.ascontiguousarray(entity_hashes), expire_before, limit or NO_LIMIT, kinds, statuses, timestamps,
        states, indptrs, cut,
    )  # fmt: skip
    found = np.flatnonzero(statuses == FOUND)
    features = {}
    for column, of_column, own_states, indptr in zip(columns, parts, states, indptrs, strict=True):
        if column.codec is not None:
            vocabulary, ids = _elements(column, *of_column[:2])
            weights = np.frombuffer(of_column[2], np.int64) if column.is_weighted else None
            # Entities without a row have no elements.
            own = Csr(np.append(indptr[found], indptr[-1]), ids, weights)
            features[column.name] = Answer(column.codec, vocabulary, own_states[found], own)
    return LayerAnswer(found, timestamps[found], features)


def read_items(
    rows: RowReader,
    column: Column,
    entity_hashes: NDArray[np.uint64],
    expire_before: int | NDArray[np.int64],
    limit: int | None = None,
    cut: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], Vocabulary, int]:
    """The items of each entity, none without a row; parameters as those of `read`.

    ``column`` is the first feature of ``rows``, one with weights. Returns where the items of each entity
    begin, int64[n + 1], their ids, int32[nnz], and times, int64[nnz], the vocabulary of the ids, and the
    number of rows.
    """
    indptr = np.empty(len(entity_hashes) + 1, np.int64)
    elements, ends, weights, num_found = rows.csr(
        entity_hashes, expire_before, limit or NO_LIMIT, column.kind, indptr, cut
    )
    vocabulary, ids = _elements(column, elements, ends)
    assert weights is not None
    return indptr, ids, np.frombuffer(weights, np.int64), vocabulary, num_found


def _elements(column: Column, elements: Any, ends: Any) -> tuple[Vocabulary, NDArray[Any]]:
    """A vocabulary, and the ids of elements in it."""
    if column.vocabulary is not None:
        return column.vocabulary, np.frombuffer(elements, np.int32)
    if column.elements == NUMBERS:
        values = pa.array(np.frombuffer(elements, np.int64))
    else:
        offsets = np.append(np.int64(0), np.frombuffer(ends, np.int64))
        values = from_parts(offsets, np.frombuffer(elements, np.uint8))
        assert column.codec is not None
        column.codec.check_storage(values)
    if column.known is not None:
        return column.known, column.known.find(values)
    encoded = values.dictionary_encode()
    return Vocabulary(encoded.dictionary), encoded.indices.to_numpy(zero_copy_only=False)
