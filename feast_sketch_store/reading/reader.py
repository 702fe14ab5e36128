"""`SketchReader`: a feature view as arrays, for serving code that needs neither protos nor Feast objects.

reader = SketchReader("feature_repo", "user_history")
reader.ids("viewed", user)                                  articles that this user has viewed
answer = reader.csr("viewed", users)                        articles that each user has viewed
reader.contains("viewed", [user], candidates)               whether this user has seen the candidates
reader.scores("viewed", users, weights)                     X @ w of a linear model
"""

from __future__ import annotations  # else each read evaluates the annotations of inner functions

import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from operator import is_not
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from feast_sketch_store.errors import RowError, SettingsError, UnsupportedFeatureError, require_names, shown
from feast_sketch_store.kernel import FOUND, NAMES, SEED, WITH_WEIGHTS, RowReader, to_bits
from feast_sketch_store.layers import LayerAnswer, SealedRows
from feast_sketch_store.layers.row_reader import NO_LIMIT, Column
from feast_sketch_store.reading.entities import Entities, EntityColumns, alone, hashes_of
from feast_sketch_store.reading.ragged import (
    Jagged,
    Moments,
    RaggedLists,
    column_of,
    question_of_lists,
)
from feast_sketch_store.reading.repository import find_view
from feast_sketch_store.reading.values import Candidates, Numbering, shape_of
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.entity_keys import JOIN_KEY_TYPES, SingleKeys
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.settings.resolve import microseconds_of_ttl
from feast_sketch_store.settings.values import seconds, shard_numbers
from feast_sketch_store.structures.base import weighted_sums
from feast_sketch_store.view.live_shard import expire_before_of
from feast_sketch_store.view.opening import ReadOnlyView
from feast_sketch_store.view.state import State

_Key: TypeAlias = int | str | bytes | np.integer[Any]
Entity: TypeAlias = _Key | Mapping[str, _Key]

_FLOATS, _IDS = np.dtype(np.float64), np.dtype(np.int32)  # faster to pass than the types


@dataclass(frozen=True)
class CsrMatrix:
    """A sparse matrix of ones with a row per entity: ``scipy.sparse.csr_matrix((ones, ids, indptr))``.

    Entity ``i`` has the values ``vocabulary[ids[indptr[i]:indptr[i + 1]]]``; an entity without a row has
    none.

    Parameters
    ----------
    indptr : int64[n + 1]
    ids : int32[nnz]
    vocabulary : the values in the order of their ids.
    counts : int64[nnz], how often each value was counted, for
        ``scipy.sparse.csr_matrix((counts, ids, indptr))``; None if not requested.
    """

    indptr: NDArray[np.int64]
    ids: NDArray[np.int32]
    vocabulary: pa.Array
    counts: NDArray[np.int64] | None = None


class SketchReader:
    """Reads one feature view of a store, without Feast. Safe to use from several threads.

    A read sees what Feast's reads see, and refreshes as they do, with one exception: only Feast's registry
    knows how long rows live, so you pass the view's ``ttl`` here.

    The ids of values are those of the newest snapshot, followed by unsealed values. **They change with every
    seal.** If a model was trained with fixed ids, pass them as ``vocabularies``.

    With ``read_only: true`` in ``feature_store.yaml``, a thread polls for changes, and no read waits for it.
    With a ``cache_path`` as well, the reader can start while the bucket is down, from the files last cached
    on its host.

    Parameters
    ----------
    path : a ``feature_store.yaml``, a folder with one, or the folder or URL of a store.
    feature_view : its name; for a version after the first, with the version, as in ``history@v2``.
    project : needed with the folder of a store that has several.
    vocabularies : for some features, the values in the order of their ids, as a list or array. Other values
        are left out of answers.
    ttl : rows whose event timestamp is older are not returned; None for no limit.
    refresh_interval_seconds : how old the answers may be; by default the value in ``feature_store.yaml``, or
        one second.
    storage_options : options for the object store of a URL, see ``feature_store.yaml``.
    serve_shards : open only these shards of the view; by default those in ``feature_store.yaml``, or all.

    Raises
    ------
    SettingsError : the view does not exist; or it has no rows yet, and its definition does not declare the
        types of its join keys; or a parameter has a value that cannot work.
    RowError : a vocabulary has values of another type than its feature.
    DamagedFileError : a file of the view cannot be read.
    ShardError : from reads, if the shard of an entity is not served.
    """

    def __init__(
        self,
        path: str | Path,
        feature_view: str,
        project: str | None = None,
        *,
        vocabularies: Mapping[str, Sequence[Any] | NDArray[Any] | pa.Array] | None = None,
        ttl: timedelta | None = None,
        refresh_interval_seconds: float | None = None,
        storage_options: Mapping[str, str] | None = None,
        serve_shards: Sequence[int] | None = None,
    ):
        require_names(feature_view=feature_view, **({} if project is None else {"project": project}))
        if vocabularies is not None and not isinstance(vocabularies, Mapping):
            raise SettingsError(
                f"vocabularies of feature view {feature_view!r} are a {type(vocabularies).__name__}; give a "
                "mapping of features to their values"
            )
        storage, configured = find_view(os.fspath(path), feature_view, project, storage_options)
        interval, served = configured.refresh_interval_seconds, configured.serve_shards
        if refresh_interval_seconds is not None:
            interval = _read(seconds, refresh_interval_seconds, "refresh_interval_seconds")
        if serve_shards is not None:
            served = _read(shard_numbers, serve_shards, "serve_shards")
        self._name = feature_view
        self._ttl_microseconds = microseconds_of_ttl(feature_view, ttl)
        self._view = ReadOnlyView(storage, feature_view, interval, configured.is_replica, served)
        file = self._view.file
        if not file.has_join_keys:
            raise SettingsError(
                f"{storage.location}: feature view {feature_view!r} has no rows yet, and its definition does "
                "not declare the types of its join keys; materialize or push rows"
            )
        self._codecs = {codec.feature: codec for codec in file.codecs if not codec.is_derived}
        self._sources = {codec.feature: codec.source for codec in file.codecs if codec.is_derived}
        self._join_keys = {
            name: JOIN_KEY_TYPES[kind] for name, kind in (file.join_keys or {}).items() if kind is not None
        }
        self._view.current()  # so that damage is found now, and the first read is as fast as others
        self._vocabularies = {
            name: Numbering(self._codec(name), values) for name, values in (vocabularies or {}).items()
        }
        self._unions: dict[str, tuple[tuple[Vocabulary, ...], Numbering]] = {}
        self._entities = EntityColumns(feature_view, self._join_keys)
        self._keys = SingleKeys(self._join_keys)
        self._single: tuple[State | None, dict[str | FeatureCodec, _Single]] = None, {}

    @property
    def name(self) -> str:
        """The name of the view."""
        return self._name

    @property
    def features(self) -> list[str]:
        """The features of the view."""
        return list(self._codecs)

    @property
    def join_keys(self) -> list[str]:
        """The join keys of the view's entities."""
        return list(self._join_keys)

    @property
    def sealed(self) -> SealedRows | None:
        """The rows of the newest snapshot, as of now; None before the first seal."""
        return self._view.with_state(lambda state: state.sealed)

    def vocabulary(self, feature: str) -> pa.Array:
        """The values of a feature in the order of their ids, as of now."""
        return self._view.with_state(lambda state: self._numbering(feature, state)).values

    def hash(self, entities: Entities) -> NDArray[np.uint64]:
        """The hashes by which the store knows entities: uint64[n, 2]. Every method takes them for entities.

        Parameters
        ----------
        entities : an array of values of the join key; with several join keys, a mapping with an array for
            each. Values are numbers for integers, strings, or bytes. Timestamps are seconds, or an Arrow or
            NumPy timestamp type.

        Raises
        ------
        RowError : a value is null, or is not of its join key's type.
        """
        return self._entities.hash(entities)

    def exists(self, entities: Entities) -> NDArray[np.bool_]:
        """Which entities have a row: bool[n]."""
        hashes, expire_before = self.hash(entities), expire_before_of(self._ttl_microseconds)
        statuses, _ = self._view.with_state(lambda state: state.find(hashes, expire_before))
        found: NDArray[np.bool_] = statuses == FOUND
        self._view.metrics.count_read(len(hashes), int(found.sum()))
        return found

    def csr(self, feature: str, entities: Entities, *, counts: bool = False) -> CsrMatrix:
        """The possibly-present values of each entity, as a sparse matrix.

        Parameters
        ----------
        feature : its name.
        entities : see `hash`.
        counts : whether to return how often each value was counted.

        Raises
        ------
        UnsupportedFeatureError : the feature does not exist. Or it is kept exactly, so its values have no
            ids, and ``vocabularies`` does not list it. Or you asked for counts and it has none.
        RowError : see `hash`.
        """
        if counts:
            self._check_counted(feature)
        hashes = self.hash(entities)
        return self._view.with_state(self._csr, feature, hashes, counts)

    def _csr(self, state: State, feature: str, hashes: NDArray[np.uint64], counts: bool = False) -> CsrMatrix:
        single, indptr = self._single_of(state, feature), np.empty(len(hashes) + 1, np.int64)
        values, expire_before = single.numbering.values, expire_before_of(self._ttl_microseconds)
        if single.rows is None:
            rows = self._named(state, feature, hashes, single.numbering, counts)
            return CsrMatrix(rows.indptr, rows.ids, values)
        kind = NAMES + WITH_WEIGHTS * counts
        ids, _, weights, num_found = single.rows.csr(hashes, expire_before, NO_LIMIT, kind, indptr, None)
        self._view.metrics.count_read(len(hashes), num_found)
        of_values = None if weights is None else np.frombuffer(weights, np.int64)
        return CsrMatrix(indptr, np.frombuffer(ids, _IDS), values, of_values)

    def _named(
        self,
        state: State,
        feature: str,
        hashes: NDArray[np.uint64],
        numbering: Numbering,
        counts: bool = False,
    ) -> Csr:
        """The ids of values that only the vocabulary numbers which was given. Rows are those of entities."""
        if counts:
            raise UnsupportedFeatureError(
                f"feature {feature!r} of view {self._name!r} was sealed before it had counts; seal the view"
            )
        answer = self._answer(state, feature, hashes)
        part = answer.features.get(feature)
        parts = [] if part is None else [(answer.found, numbering.translate(part))]
        return Csr.placed(parts, len(hashes))

    def _answer(self, state: State, feature: str, hashes: NDArray[np.uint64]) -> LayerAnswer:
        self._check_here(feature, feature in state.backed)
        answer = state.read(hashes, (feature,), expire_before_of(self._ttl_microseconds))
        self._view.metrics.count_read(len(hashes), len(answer.found))
        return answer

    def ids(self, feature: str, entity: Entity) -> NDArray[np.int32]:
        """The ids of the possibly-present values of one entity: int32[p], as `csr` has them.

        Parameters
        ----------
        feature : its name.
        entity : the value of the join key; with several join keys, a mapping with the value of each.

        Raises
        ------
        UnsupportedFeatureError, RowError : see `csr`.
        """
        entity_hash = self._keys.hash(entity)
        if entity_hash is None:
            return self.csr(feature, alone(entity)).ids
        return self._view.with_state(self._ids, feature, entity_hash)

    def _ids(self, state: State, feature: str, entity_hash: bytes) -> NDArray[np.int32]:
        single = self._single_of(state, feature)
        if single.rows is None:
            return self._csr(state, feature, hashes_of(entity_hash)).ids
        expire_before = expire_before_of(self._ttl_microseconds)
        ids, _, _, num_found = single.rows.csr(entity_hash, expire_before, NO_LIMIT, NAMES, None, None)
        self._view.metrics.count_read(1, num_found)
        return np.frombuffer(ids, _IDS)

    def bits(self, feature: str, entities: Entities) -> NDArray[np.uint64]:
        """The possibly-present values of each entity as bits: uint64[n, ceil(V / 64)].

        Bit ``i % 64`` of word ``i // 64`` is the value with id ``i``. Parameters and errors are those of
        `csr`.
        """
        hashes = self.hash(entities)
        return self._view.with_state(self._bits, feature, hashes)

    def _bits(self, state: State, feature: str, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        single, expire_before = self._single_of(state, feature), expire_before_of(self._ttl_microseconds)
        num_values = len(single.numbering)
        if single.rows is None:
            rows = self._named(state, feature, hashes, single.numbering)
            return to_bits(rows.indptr, rows.ids, num_values)
        words = np.zeros((len(hashes), -(-num_values // 64)), np.uint64)
        found = single.rows.bits(hashes, expire_before, words.shape[1], words)
        self._view.metrics.count_read(len(hashes), found)
        return words

    def multi_hot(self, feature: str, entities: Entities, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The possibly-present values of each entity as ones in a row of zeros.

        Parameters
        ----------
        feature, entities : see `csr`.
        out : an array of any number type to fill, with n rows and at least V columns; by default a new
            float32[n, V]. Without ``vocabularies``, V can grow from one read to the next.

        Raises
        ------
        ValueError : ``out`` has too few rows or columns, or too many rows.
        TypeError : ``out`` is not an array.
        UnsupportedFeatureError, RowError : see `csr`.
        """
        answer = self.csr(feature, entities)
        num_entities, num_values = len(answer.indptr) - 1, len(answer.vocabulary)
        if out is None:
            out = np.zeros((num_entities, num_values), np.float32)
        elif not hasattr(out, "ndim"):
            raise TypeError(f"out is a {type(out).__name__}; an array is needed")
        elif out.ndim != 2 or len(out) != num_entities or out.shape[1] < num_values:
            raise ValueError(f"out has the shape {out.shape}; {(num_entities, num_values)} or more is needed")
        else:
            out[:] = 0
        out[np.repeat(np.arange(num_entities), np.diff(answer.indptr)), answer.ids] = 1
        return out

    def candidates(self, feature: str, values: ArrayLike | pa.Array) -> Candidates:
        """Values to pass to `contains` many times. They are looked up only once.

        Raises
        ------
        RowError : the values are not of the feature's type.
        UnsupportedFeatureError : the feature does not exist.
        """
        candidates = Candidates(self._codec(feature), values)
        assert len(candidates.values) == len(candidates)  # converted now, and not by the first read
        return candidates

    def contains(
        self, feature: str, entities: Entities | Entity, values: ArrayLike | pa.Array | Candidates
    ) -> NDArray[np.bool_]:
        """Whether entities possibly have values, as a ranker asks about its candidates.

        Parameters
        ----------
        feature : its name.
        entities : several, see `hash`; or a single one, see `ids`.
        values : m values or `candidates`, asked about every entity; or n rows of m values, one row for each
            entity.

        Returns
        -------
        bool[n, m]; for a single entity bool[m].

        Raises
        ------
        RowError : the values are not of the feature's type, or their rows differ in length; or see `hash`.
        UnsupportedFeatureError : the feature does not exist.
        """
        codec, entity_hash = self._codec(feature), self._keys.hash(entities)
        hashes = self.hash(entities) if entity_hash is None else entity_hash
        number = len(hashes) if entity_hash is None else 1
        given: Any = values
        per_entity = 0  # values for each entity in turn; 0 if all are for all
        if isinstance(values, Candidates):
            asked = values
            asked.check_feature(codec)
        elif entity_hash is not None or isinstance(given, pa.Array) or len(shape := shape_of(given)) == 1:
            asked = Candidates(codec, given)
        elif len(shape) == 2 and shape[0] == number:
            # NumPy would cut zeros off the end of text and bytes.
            flat = given.reshape(-1) if isinstance(given, np.ndarray) else [*chain.from_iterable(given)]
            asked, per_entity = Candidates(codec, flat), shape[1]
        else:
            raise RowError(
                f"values have the shape {shape}; give m values, or m for each of {number} entities"
            )
        num_values = per_entity or len(asked)
        out = bytearray(number * num_values)  # the kernel takes it faster than a new array
        # Compare the values of one entity, which are fewer than those of the vocabulary.
        is_by_value = codec.is_exact or feature in self._vocabularies  # given values may lack others
        is_by_value |= asked is not values and number == 1
        arguments = feature, is_by_value, hashes, asked, per_entity, out
        num_found = self._view.with_state(self._contains, *arguments)
        self._view.metrics.count_read(number, num_found)
        answers = np.frombuffer(out, np.bool_)
        return answers.reshape(number, num_values) if entity_hash is None else answers

    def _contains(
        self,
        state: State,
        feature: str,
        is_by_value: bool,
        hashes: bytes | NDArray[np.uint64],
        asked: Candidates,
        per_entity: int,
        out: bytearray,
    ) -> int:
        self._check_here(feature, feature in state.backed)
        expire_before = expire_before_of(self._ttl_microseconds)
        if not is_by_value:
            try:
                single = self._single_of(state, feature)
            except UnsupportedFeatureError:
                pass  # a layer keeps it in a column, whose values have no ids
            else:
                assert single.rows is not None
                ids = asked.ids(single.numbering)
                return single.rows.contains(hashes, expire_before, single.shape[0], ids, per_entity, out)
        ask = partial(state.row_reader((feature,)).contains_values, hashes, expire_before, SEED)
        if len(out) == len(asked) and not per_entity and (objects := asked.objects) is not None:
            with suppress(TypeError):  # they are of another type, and may be converted
                return ask(None, None, None, objects, asked.is_text, 0, out)
        numbers = asked.numbers
        offsets, data = (None, None) if numbers is not None else asked.parts
        return ask(numbers, offsets, data, None, False, per_entity, out)

    @overload
    def scores(  # type: ignore[overload-overlap]
        self, feature: str, entities: Entity, weights: NDArray[np.floating], *, counts: bool = False
    ) -> float: ...

    @overload
    def scores(
        self, feature: str, entities: Entities, weights: NDArray[np.floating], *, counts: bool = False
    ) -> NDArray[np.float64]: ...

    def scores(
        self,
        feature: str,
        entities: Entities | Entity,
        weights: NDArray[np.floating],
        *,
        counts: bool = False,
    ) -> NDArray[np.float64] | float:
        """``X @ weights`` of multi-hot rows: the sum of the weights of the possibly-present values.

        Parameters
        ----------
        feature : its name.
        entities : several, see `hash`; or a single one, see `ids`.
        weights : float[V], by id; see `vocabulary`.
        counts : multiply each weight by how often the value was counted.

        Returns
        -------
        float64[n]; for a single entity a float.

        Raises
        ------
        ValueError : the number of weights is not the number of values.
        UnsupportedFeatureError, RowError : see `csr`.
        """
        if counts:
            self._check_counted(feature)
        entity_hash = self._keys.hash(entities)
        hashes = self.hash(entities) if entity_hash is None else entity_hash
        out = array("d", bytes(8 * (len(hashes) if entity_hash is None else 1)))  # see `contains`
        given: NDArray[Any] = weights if type(weights) is np.ndarray else np.asarray(weights)
        if (given.dtype is not _FLOATS and given.dtype != _FLOATS) or not given.flags.c_contiguous:
            given = np.ascontiguousarray(given, _FLOATS)
        self._view.with_state(self._scores, feature, hashes, given, counts, out)
        return np.frombuffer(out) if entity_hash is None else out[0]

    def _scores(
        self,
        state: State,
        feature: str,
        hashes: bytes | NDArray[np.uint64],
        weights: NDArray[np.float64],
        counts: bool,
        out: array[float],
    ) -> None:
        single = self._single_of(state, feature)
        if weights.shape != single.shape:
            raise ValueError(
                f"weights have the shape {weights.shape}, but {feature!r} has {single.shape[0]} values"
            )
        if single.rows is None:
            rows = self._named(state, feature, hashes_of(hashes), single.numbering, counts)
            np.frombuffer(out)[:] = weighted_sums(rows, weights)
            return
        expire_before = expire_before_of(self._ttl_microseconds)
        num_found = single.rows.scores(hashes, expire_before, weights, counts, out)
        self._view.metrics.count_read(len(out), num_found)

    def arrow(self, feature: str, entities: Entities) -> pa.Array:
        """The values of each entity as an Arrow array; an array of lists if the feature is an Array or a Set.

        A value is null if there is no row, or if the feature is missing or null in it. Errors are those of
        `contains`.
        """
        codec, hashes = self._codec(feature), self.hash(entities)
        return column_of(self._view.with_state(self._answer, feature, hashes), codec, len(hashes))

    def lists(
        self,
        feature: str,
        entities: Entities | Entity,
        min_timestamp: datetime | None = None,
        limit: int | None = None,
        *,
        until: Moments | None = None,
        inclusive: bool = False,
        attributes: Sequence[str] = (),
    ) -> RaggedLists:
        """The items of each entity's list, newest first; `csr` has each value of a list once, by its id.

        Parameters
        ----------
        feature : its name.
        entities : several, see `hash`; or a single one, see `ids`.
        min_timestamp : of the oldest item; UTC if naive. None for all items.
        limit : the most items per entity; None for all.
        until : read each list as of a moment: one datetime for all entities, or n of them, or a column of
            timestamps; they have a time zone. Items of earlier ticks are shown that had not expired then. The
            answer says which lists are ``complete``. None for now.
        inclusive : show the tick of ``until``, too.
        attributes : features that are attributes of the items, to be read with them.

        Raises
        ------
        UnsupportedFeatureError : the feature does not exist, or is not a list, or lacks an attribute.
        RowError : ``limit`` is not a whole number from 1; ``min_timestamp`` is no datetime; a moment of
            ``until`` has no time zone; or see `hash`.
        """
        codec, entity_hash = self._codec(feature), self._keys.hash(entities)
        if not codec.is_list:
            raise UnsupportedFeatureError(f"feature {feature!r} of view {self._name!r} is not a list")
        hashes = self.hash(entities) if entity_hash is None else hashes_of(entity_hash)
        question = question_of_lists(
            f"list {feature!r} of feature view {self._name!r}",
            codec,
            self._ttl_microseconds,
            len(hashes),
            min_timestamp,
            limit,
            until,
            inclusive,
            attributes,
        )

        def read(state: State) -> RaggedLists:
            single = self._single_of(state, feature, codec if attributes else None)
            assert single.rows is not None
            lists, num_found = question.read(state, single.rows, single.column, hashes)
            self._view.metrics.count_read(len(hashes), num_found)
            return lists

        return self._view.with_state(read)

    def jagged(
        self,
        feature: str,
        entities: Entities,
        limit: int | None = None,
        *,
        until: Moments | None = None,
        inclusive: bool = False,
    ) -> Jagged:
        """The ids of the values of each entity for a tensor library; those of a list newest first.

        Parameters
        ----------
        feature : an Array or Set that has ids, or a list.
        entities : see `hash`.
        limit, until, inclusive : of a list, see `lists`.

        Raises
        ------
        UnsupportedFeatureError : see `csr`; or the feature is not a list, and you gave what only lists have.
        RowError : see `lists`; or there are 2**31 values or more.
        """
        if self._codec(feature).is_list or limit is not None or until is not None or inclusive:
            items = self.lists(feature, self.hash(entities), limit=limit, until=until, inclusive=inclusive)
            return Jagged.of(items.indptr, items.ids, items.vocabulary, items.complete)
        rows = self.csr(feature, entities)
        return Jagged.of(rows.indptr, rows.ids, rows.vocabulary)

    def close(self) -> None:
        """Release files and threads. Do not use the reader afterwards."""
        self._view.close()

    # -- parts ---------------------------------------------------------------------------------

    def _codec(self, feature: object) -> FeatureCodec:
        name = feature if isinstance(feature, str) else ""  # such as entities, if arguments are swapped
        codec = self._codecs.get(name)
        if name in self._sources:
            raise UnsupportedFeatureError(
                f"feature {feature!r} of view {self._name!r} is read with {self._sources[name]!r}: times "
                "and attributes of a list by `lists`, counts by `csr`"
            )
        if codec is None:
            raise UnsupportedFeatureError(
                f"there is no feature {shown(feature)!r} of view {self._name!r}; it has {self.features}"
            )
        self._check_here(name, codec.is_backed)
        return codec

    def _check_here(self, feature: str, is_backed: bool) -> None:
        """Refuse a feature whose values are in a backing store, or were when the view was sealed."""
        if is_backed:
            raise UnsupportedFeatureError(
                f"the values of feature {feature!r} of view {self._name!r} are in the backing store; read it "
                "with `get_online_features`"
            )

    def _check_counted(self, feature: str) -> None:
        if not self._codec(feature).is_counted:
            raise UnsupportedFeatureError(
                f"feature {feature!r} of view {self._name!r} has no counts; give it the tag "
                '"sketch.codec": "counts"'
            )

    def _single_of(self, state: State, feature: str, stamped: FeatureCodec | None = None) -> _Single:
        """The rows of a state with one feature, whose ids are those of the vocabulary; or by its codec a list
        with stamps."""
        known = self._single
        if known[0] is not state:  # a refresh replaced the state
            known = self._single = state, {}
        try:
            single = known[1].get(stamped or feature)
        except TypeError:  # no name at all: the error is below
            single = None
        if single is None:
            single = known[1][stamped or feature] = self._prepare(feature, state, stamped)
        return single

    def _prepare(self, feature: str, state: State, stamped: FeatureCodec | None) -> _Single:
        codec = self._codec(feature)
        self._check_here(feature, feature in state.backed)
        numbering, names = self._numbering(feature, state), []
        column = Column(feature, codec, numbering.vocabulary)
        for layer in state.newest_first:
            is_known = feature in layer.codecs
            vocabulary = layer.numbering(feature) if is_known else None
            if self._codec(feature).is_exact or (is_known and vocabulary is None):
                return _Single(None, numbering, (len(numbering),), column)
            names.append(None if vocabulary is None else numbering.map_of(vocabulary))
        return _Single(state.row_reader((stamped or feature,), names), numbering, (len(numbering),), column)

    def _numbering(self, feature: str, state: State) -> Numbering:
        """The ids of the feature's values in a state."""
        codec = self._codec(feature)
        if feature in self._vocabularies:
            return self._vocabularies[feature]
        numberings = tuple(layer.numbering(feature) for layer in state.layers if feature in layer.codecs)
        vocabularies = tuple(vocabulary for vocabulary in numberings if vocabulary is not None)
        # Unsealed rows number any values.
        if codec.is_exact or len(vocabularies) < len(numberings):
            sealed = [layer for shard in state.shards.values() for layer in shard.sealed_layers]
            if codec.is_exact and any(not layer.codecs.get(feature, codec).is_exact for layer in sealed):
                raise UnsupportedFeatureError(
                    f"feature {feature!r} of view {self._name!r} was kept exactly when this reader was "
                    "opened, and no longer is; open the reader again"
                )
            raise UnsupportedFeatureError(
                f"feature {feature!r} of view {self._name!r} is kept exactly, so its values have no ids; "
                "read it with `arrow`, or give the reader a list of its values as `vocabularies`"
            )
        known = self._unions.get(feature)
        # Compare identity, not equality: comparing a million values would take longer than the read.
        if known is None or len(known[0]) != len(vocabularies) or any(map(is_not, known[0], vocabularies)):
            known = vocabularies, Numbering.of_all(codec, vocabularies)
            self._unions[feature] = known
        return known[1]


class _Single(NamedTuple):
    """One feature prepared for reads by id."""

    # None if the values have no ids in the layers, only in the vocabulary that was given
    rows: RowReader | None
    numbering: Numbering  # of the values
    shape: tuple[int]  # of an array with one number for each value
    column: Column  # how answers show it


def _read(read: Callable[[Any], Any], given: Any, name: str) -> Any:
    """A parameter of a reader as an option is read."""
    try:
        return read(given)
    except ValueError as error:
        raise SettingsError(f"{name} is {given!r}: {error}") from error
