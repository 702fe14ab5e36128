"""`SketchReader`: a feature view as arrays, for serving code that needs neither protos nor Feast objects.

reader = SketchReader("feature_repo", "user_history")
reader.ids("viewed", user)                                  articles that this user has viewed
answer = reader.csr("viewed", users)                        articles that each user has viewed
reader.contains("viewed", [user], candidates)               whether this user has seen the candidates
reader.scores("viewed", users, weights)                     X @ w of a linear model
"""

from __future__ import annotations  # else each read evaluates the annotations of inner functions

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from feast_sketch_store.errors import RowError, SettingsError, UnsupportedFeatureError
from feast_sketch_store.kernel import SEED, ReadableRows
from feast_sketch_store.layers import LayerAnswer, Shards
from feast_sketch_store.reading.candidates import Asked, Candidates, as_wanted
from feast_sketch_store.reading.entities import Entities, EntityColumns
from feast_sketch_store.reading.numbering import Numbering
from feast_sketch_store.reading.ragged import RaggedLists, read_lists, since_of
from feast_sketch_store.reading.repository import find_view
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.entity_keys import JOIN_KEY_TYPES, SingleKeys
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.answer import Answer, weighted_sums
from feast_sketch_store.view.live import expire_before_of
from feast_sketch_store.view.opening import open_live
from feast_sketch_store.view.sharded_live import ShardedLiveView
from feast_sketch_store.view.sharded_state import AnyState
from feast_sketch_store.view.state import NO_LIMIT, items_of

Entity: TypeAlias = int | str | bytes | Mapping[str, int | str | bytes]

_FLOATS = np.dtype(np.float64)
_YAML = "feature_store.yaml"


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
        ``scipy.sparse.csr_matrix((counts, ids, indptr))``; None if not asked for.
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

    With ``role: replica`` in ``feature_store.yaml``, a thread looks for changes, so no read waits for it.
    With a ``cache_path`` as well, the reader can start while the bucket is down, from the files last cached
    on its host.

    Parameters
    ----------
    path : a ``feature_store.yaml``, a folder with one, or the folder or URL of a store.
    feature_view : its name.
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
    SettingsError : the view does not exist, or nothing was written to it yet.
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
        storage, configured = find_view(str(path), feature_view, project, storage_options)
        if refresh_interval_seconds is None:
            refresh_interval_seconds = configured.refresh_interval_seconds
        self._name = feature_view
        self._ttl_microseconds = ttl // timedelta(microseconds=1) if ttl else None
        is_replica = configured.is_replica
        served = configured.serve_shards if serve_shards is None else serve_shards
        self._view = open_live(storage, feature_view, refresh_interval_seconds, is_replica, served)
        if is_replica:
            self._view.current()  # keeps on this host what it reads; the join keys are noted there
        join_keys = self._view.known_join_keys()
        if join_keys is None:
            raise SettingsError(
                f"{storage.location}: feature view {feature_view!r} has no rows yet; materialize or push some"
            )
        self._codecs = {codec.feature: codec for codec in self._view.codecs}
        self._join_keys = {name: JOIN_KEY_TYPES[field] for name, field in join_keys.items()}
        self._vocabularies = {
            name: Numbering(self._codec(name), values) for name, values in (vocabularies or {}).items()
        }
        self._unions: dict[str, tuple[tuple[Vocabulary, ...], Numbering]] = {}
        self._entities = EntityColumns(feature_view, self._join_keys)
        self._keys = SingleKeys(self._join_keys)
        self._single: tuple[AnyState | None, dict[tuple[str, bool], _Single]] = None, {}

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
    def sealed(self) -> Shards | None:
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
        hashes = self.hash(entities)
        found = np.zeros(len(hashes), np.bool_)

        def read(state: AnyState) -> None:
            for answer in self._answers(state, hashes, ()):
                found[answer.found] = True

        self._view.with_state(read)
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
        at_once = None if counts else self._csr_at_once(feature, hashes)
        if at_once is not None:
            return at_once

        def read(state: AnyState) -> CsrMatrix:
            numbering = self._numbering(feature, state)
            parts = [
                (answer.found, numbering.translate(values))
                for answer, values in self._parts(state, hashes, feature)
            ]
            rows = Csr.placed(parts, len(hashes))
            if not counts:
                return CsrMatrix(rows.indptr, rows.ids, numbering.values)
            weights = np.zeros(0, np.int64) if rows.weights is None else rows.weights
            return CsrMatrix(rows.indptr, rows.ids, numbering.values, weights)

        return self._view.with_state(read)

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
        if entity_hash is not None:
            single = self._prepared(feature)
            if single.rows is not None:
                answer = single.rows.ids(entity_hash, expire_before_of(self._ttl_microseconds))
                if answer is not None:
                    self._view.metrics.count_read(1, answer is not False)
                    return np.frombuffer(answer or bytearray(), np.int32)
        return self.csr(feature, _alone(entity)).ids

    def bits(self, feature: str, entities: Entities) -> NDArray[np.uint64]:
        """The possibly-present values of each entity as bits: uint64[n, ceil(V / 64)].

        Bit ``i % 64`` of word ``i // 64`` is the value with id ``i``. Parameters and errors are those of
        `csr`.
        """
        hashes = self.hash(entities)

        def read(state: AnyState) -> NDArray[np.uint64]:
            numbering = self._numbering(feature, state)
            words = np.zeros((len(hashes), -(-len(numbering) // 64)), np.uint64)
            for answer, values in self._parts(state, hashes, feature):
                if numbering.is_same(values.decoder.vocabulary):
                    found = values.bits()  # without visiting each value
                else:
                    found = numbering.bits(numbering.translate(values))
                if len(found) == len(words) and found.shape == words.shape:
                    return found
                words[answer.found, : found.shape[1]] = found
            return words

        return self._view.with_state(read)

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
        UnsupportedFeatureError, RowError : see `csr`.
        """
        answer = self.csr(feature, entities)
        num_entities, num_values = len(answer.indptr) - 1, len(answer.vocabulary)
        if out is None:
            out = np.zeros((num_entities, num_values), np.float32)
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
        return Candidates(self._codec(feature), values)

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
        RowError : the values are not of the feature's type; or see `hash`.
        UnsupportedFeatureError : the feature does not exist.
        """
        codec, entity_hash = self._codec(feature), self._keys.hash(entities)
        candidates = values if isinstance(values, Candidates) else None
        asked: Any = values if candidates is None else candidates.of(codec)
        if entity_hash is not None:
            asked = asked if isinstance(asked, Asked) else Asked(codec, asked)
            found = self._contains_of_one(feature, entity_hash, asked, candidates)
            if found is not None:
                return found
            found = self._contains_of_many(feature, self.hash(_alone(entities)), asked.values, (len(asked),))
            return np.asarray(found[0])
        hashes = self.hash(entities)
        shape = (len(asked),) if isinstance(asked, Asked | pa.Array) else np.shape(asked)
        if len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != len(hashes)):
            raise RowError(
                f"values have the shape {shape}; give m values, or m for each of {len(hashes)} entities"
            )
        if len(shape) == len(hashes) == 1:
            asked = asked if isinstance(asked, Asked) else Asked(codec, asked)
            found = self._contains_of_one(feature, hashes.tobytes(), asked, candidates)
            if found is not None:
                return found[np.newaxis]
        if isinstance(asked, Asked):
            wanted = asked.values
        else:
            wanted = as_wanted(codec, asked if len(shape) == 1 else np.reshape(np.asarray(asked), -1))
        return self._contains_of_many(feature, hashes, wanted, shape)

    def _contains_of_many(
        self, feature: str, hashes: NDArray[np.uint64], wanted: pa.Array, shape: tuple[int, ...]
    ) -> NDArray[np.bool_]:
        """`contains` of any number of entities; the values, in one array, were given in the shape."""
        if len(shape) == 1 and isinstance(self._view, ShardedLiveView):
            at_once = self._contains_at_once(feature, hashes, wanted)
            if at_once is not None:
                return at_once

        def read(state: AnyState) -> NDArray[np.bool_]:
            found = None
            for answer, part in self._parts(state, hashes, feature):
                parts = part.numbered()
                symbols = parts.decoder.vocabulary.find(wanted).reshape(shape)
                if len(answer.found) == len(hashes):
                    return parts.contains(symbols)
                if found is None:
                    found = np.zeros((len(hashes), shape[-1]), np.bool_)
                if len(shape) == 2:
                    symbols = symbols[answer.found]
                found[answer.found] = parts.contains(symbols)
            return np.zeros((len(hashes), shape[-1]), np.bool_) if found is None else found

        return self._view.with_state(read)

    def _contains_at_once(
        self, feature: str, hashes: NDArray[np.uint64], wanted: pa.Array
    ) -> NDArray[np.bool_] | None:
        """`contains` from all values of each entity, in one kernel call; None if that is not possible."""
        single = None if feature in self._vocabularies else self._prepared(feature)
        if single is None or single.numbering is None or not len(wanted):
            return None
        matrix = self._csr_at_once(feature, hashes)
        if matrix is None or len(matrix.vocabulary) != len(single.numbering):
            return None
        columns = np.full(len(single.numbering) + 1, -1, np.int32)  # the last is for values without an id
        ids = single.numbering.vocabulary.find(wanted)
        columns[ids] = np.arange(len(ids))  # of repeated values, the last place
        columns[-1] = -1
        places = columns[matrix.ids]
        is_wanted = places >= 0
        rows = np.repeat(np.arange(len(hashes)), np.diff(matrix.indptr))
        found = np.zeros((len(hashes), len(ids) + 1), np.bool_)
        found[rows[is_wanted], places[is_wanted]] = True
        return found[:, columns[ids]]

    def _contains_of_one(
        self, feature: str, entity_hash: bytes, asked: Asked, candidates: Candidates | None
    ) -> NDArray[np.bool_] | None:
        """`contains` of one entity in one kernel call: bool[m]; None if that is not possible.

        Parameters
        ----------
        candidates : that ``asked`` is of, if any.
        """
        expire_before = expire_before_of(self._ttl_microseconds)
        out = np.zeros(len(asked), np.bool_)
        # Given vocabularies may lack values, so their ids cannot answer.
        is_named = not self._codec(feature).is_exact and feature not in self._vocabularies
        single, done = self._prepared(feature, candidates is not None and is_named), None
        if single.rows is not None and single.numbering is not None and candidates is not None:
            names, places = candidates.names(single.numbering)
            done = single.rows.contains_ids(entity_hash, expire_before, names, places, out)
        elif single.rows is not None and asked.objects is not None:
            is_text = asked.is_text
            done = single.rows.contains_objects(entity_hash, expire_before, SEED, asked.objects, is_text, out)
        elif single.rows is not None and asked.numbers is not None:
            done = single.rows.contains_numbers(entity_hash, expire_before, SEED, asked.numbers, out)
        elif single.rows is not None:
            done = single.rows.contains_bytes(entity_hash, expire_before, SEED, *asked.parts, out)
        if done is None:
            return None
        self._view.metrics.count_read(1, done)
        return out

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
        entity_hash = self._keys.hash(entities)
        if counts:
            self._check_counted(feature)
            if entity_hash is not None:
                return float(self.scores(feature, _alone(entities), weights, counts=True)[0])
        elif entity_hash is not None:
            return self._score_of_one(feature, entities, entity_hash, weights)
        hashes = self.hash(entities)
        at_once = None if counts else self._csr_at_once(feature, hashes)
        if at_once is not None and np.shape(weights) == (len(at_once.vocabulary),):
            return weighted_sums(Csr(at_once.indptr, at_once.ids), np.asarray(weights, np.float64))

        def read(state: AnyState) -> NDArray[np.float64]:
            numbering = self._numbering(feature, state)
            if np.shape(weights) != (len(numbering),):
                raise ValueError(
                    f"weights have the shape {np.shape(weights)}, but {feature!r} has {len(numbering)} values"
                )
            scores = np.zeros(len(hashes))
            for answer, values in self._parts(state, hashes, feature):
                scores[answer.found] = numbering.scores(values, np.asarray(weights, np.float64), counts)
            return scores

        return self._view.with_state(read)

    def _score_of_one(self, feature: str, entity: Any, entity_hash: bytes, given: ArrayLike) -> float:
        single = self._prepared(feature)
        if single.rows is not None and single.numbering is not None:
            weights = given if type(given) is np.ndarray else np.asarray(given)
            if (weights.dtype is not _FLOATS and weights.dtype != _FLOATS) or not weights.flags.c_contiguous:
                weights = np.ascontiguousarray(weights, _FLOATS)
            if weights.shape == single.shape:
                score = single.rows.score(entity_hash, expire_before_of(self._ttl_microseconds), weights)
                if score is not None:
                    self._view.metrics.count_read(1, score is not False)
                    return score or 0.0
        return float(self.scores(feature, _alone(entity), np.asarray(given))[0])

    def arrow(self, feature: str, entities: Entities) -> pa.Array:
        """The values of each entity as an Arrow array; an array of lists if the feature is an Array or a Set.

        A value is null if there is no row, or if the feature is missing or null in it. Errors are those of
        `hash`.
        """
        codec, hashes = self._codec(feature), self.hash(entities)

        def read(state: AnyState) -> pa.Array:
            parts, values, states = [], [], np.zeros(len(hashes), np.uint8)
            first = 0
            for answer, part in self._parts(state, hashes, feature):
                states[answer.found] = part.states
                parts.append((answer.found, Csr(part.indptr, np.arange(len(part.symbols)) + first)))
                values.append(part.decoder.vocabulary.values.take(pa.array(part.symbols)))
                first += len(part.symbols)
            rows = Csr.placed(parts, len(hashes))
            storage = pa.concat_arrays(values) if values else pa.array([], codec.storage_type)
            if len(parts) > 1:
                storage = storage.take(pa.array(rows.ids))
            return codec.to_column(states, rows.indptr, storage)

        return self._view.with_state(read)

    def lists(
        self,
        feature: str,
        entities: Entities | Entity,
        min_timestamp: datetime | None = None,
        limit: int | None = None,
    ) -> RaggedLists:
        """The items of each entity's list, newest first; `csr` returns the same without times.

        Parameters
        ----------
        feature : its name.
        entities : several, see `hash`; or a single one, see `ids`.
        min_timestamp : of the oldest item; UTC if naive. None for all items.
        limit : the most items per entity; None for all.

        Raises
        ------
        UnsupportedFeatureError : the feature does not exist, or is not a list.
        RowError : ``limit`` is below 1; or see `hash`.
        """
        codec, entity_hash = self._codec(feature), self._keys.hash(entities)
        if not codec.is_list:
            raise UnsupportedFeatureError(f"feature {feature!r} of view {self._name!r} is not a list")
        since = since_of(min_timestamp, self._ttl_microseconds)
        if entity_hash is not None and (limit is None or limit > 0):
            single = self._prepared(feature)
            found = None if single.rows is None else single.rows.items(entity_hash, since, limit or NO_LIMIT)
            if found is not None and single.numbering is not None:
                return RaggedLists(*items_of(found), single.numbering.vocabulary.values, codec)
        hashes = self.hash(entities if entity_hash is None else _alone(entities))

        def read(state: AnyState) -> RaggedLists:
            numbering = self._numbering(feature, state)
            return read_lists(state, codec, hashes, (since, limit), numbering.vocabulary)

        return self._view.with_state(read)

    def close(self) -> None:
        """Release files and threads. Do not use the reader afterwards."""
        self._view.close()

    # -- parts ---------------------------------------------------------------------------------

    def _codec(self, feature: str) -> FeatureCodec:
        codec = self._codecs.get(feature)
        if codec is None:
            raise UnsupportedFeatureError(
                f"nothing was written to a feature {feature!r} of view {self._name!r}; it has {self.features}"
            )
        if codec.is_backed:
            raise UnsupportedFeatureError(
                f"the values of feature {feature!r} of view {self._name!r} are in the backing store; read it "
                "with `get_online_features`"
            )
        return codec

    def _check_counted(self, feature: str) -> None:
        if not self._codec(feature).is_counted:
            raise UnsupportedFeatureError(
                f"feature {feature!r} of view {self._name!r} has no counts; give it the tag "
                '"sketch.codec": "counts"'
            )

    def _prepared(self, feature: str, by_name: bool = True) -> _Single:
        """Rows for reads of one entity. With ``by_name``, ids are those of the vocabulary."""
        state = self._view.current()
        known = self._single
        if known[0] is not state:  # a refresh replaced the state
            known = self._single = state, {}
        single = known[1].get((feature, by_name))
        if single is None:
            single = known[1][feature, by_name] = self._prepare(feature, by_name, state)
        return single

    def _prepare(self, feature: str, by_name: bool, state: AnyState) -> _Single:
        if not by_name or self._codec(feature).is_exact:  # rows of an exact feature may repeat a value
            return _Single(None if by_name else state.prepared((feature,)), None, (0,))
        numbering, names = self._numbering(feature, state), []
        for layer in state.newest_first:
            vocabulary = layer.numbering(feature) if feature in layer.codecs else None
            is_named = vocabulary is None or numbering.is_same(vocabulary)
            names.append(None if is_named or vocabulary is None else numbering.map_of(vocabulary))
        return _Single(state.prepared((feature,), names), numbering, (len(numbering),))

    def _csr_at_once(self, feature: str, hashes: NDArray[np.uint64]) -> CsrMatrix | None:
        """`csr` in one call of the kernel; None if that is not possible."""
        single = self._prepared(feature)
        if single.rows is None or single.numbering is None:
            return None
        indptr = np.empty(len(hashes) + 1, np.int64)
        hashes = np.ascontiguousarray(hashes)
        answer = single.rows.csr(hashes, expire_before_of(self._ttl_microseconds), indptr)
        if answer is None:
            return None
        self._view.metrics.count_read(len(hashes), answer[1])
        return CsrMatrix(indptr, np.frombuffer(answer[0], np.int32), single.numbering.values)

    def _answers(
        self, state: AnyState, hashes: NDArray[np.uint64], features: Sequence[str]
    ) -> list[LayerAnswer]:
        answers = state.read(hashes, features, expire_before_of(self._ttl_microseconds))
        self._view.metrics.count_read(len(hashes), sum(len(answer.found) for answer in answers))
        return answers

    def _parts(
        self, state: AnyState, hashes: NDArray[np.uint64], feature: str
    ) -> list[tuple[LayerAnswer, Answer]]:
        """The answers of the layers that know the feature."""
        answers = self._answers(state, hashes, (feature,))
        return [(answer, answer.features[feature]) for answer in answers if feature in answer.features]

    def _numbering(self, feature: str, state: AnyState) -> Numbering:
        """The ids of the feature's values in a state."""
        codec = self._codec(feature)
        if feature in self._vocabularies:
            return self._vocabularies[feature]
        numberings = tuple(layer.numbering(feature) for layer in state.layers if feature in layer.codecs)
        vocabularies = tuple(vocabulary for vocabulary in numberings if vocabulary is not None)
        if len(vocabularies) < len(numberings):
            raise UnsupportedFeatureError(
                f"feature {feature!r} of view {self._name!r} is kept exactly, so its values have no ids; "
                "read it with `arrow`, or give the reader a list of its values as `vocabularies`"
            )
        known = self._unions.get(feature)
        # Compare identity, not equality: comparing a million values would take longer than the read.
        if known is None or len(known[0]) != len(vocabularies) or any(map(_differ, known[0], vocabularies)):
            known = vocabularies, Numbering.of_all(codec, vocabularies)
            self._unions[feature] = known
        return known[1]


class _Single(NamedTuple):
    """One feature prepared for reads of one entity.

    Parameters
    ----------
    rows : None if the kernel cannot read them.
    numbering : of the values; None if they have no ids.
    shape : of an array with one number for each value.
    """

    rows: ReadableRows | None
    numbering: Numbering | None
    shape: tuple[int]


def _alone(entity: Any) -> Any:
    """One entity in the form of several."""
    return {name: [value] for name, value in entity.items()} if isinstance(entity, Mapping) else [entity]


def _differ(one: object, other: object) -> bool:
    return one is not other
