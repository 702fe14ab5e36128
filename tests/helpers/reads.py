"""Reads of prepared rows, and what they must give: Feast's rows and vectors, made of arrays of an answer."""

from datetime import timedelta

import numpy as np
import pytest
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus, GetOnlineFeaturesResponse
from feast.protos.feast.types.Value_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp

from feast_sketch_store.adapter import responses
from feast_sketch_store.adapter.responses import EPOCH, rows_of
from feast_sketch_store.kernel import EXPIRED, FOUND, NAMES, SEED, WITH_WEIGHTS, RowReader, row_hashes
from feast_sketch_store.kernel import _compiled as compiled
from feast_sketch_store.layers import Goal, presence
from feast_sketch_store.layers.row_reader import NO_LIMIT, Wanted, find, stack
from feast_sketch_store.layers.sketch import SketchLayer
from feast_sketch_store.rows.codecs import MISSING, VALUE
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, deletions
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.succinct import FingerprintIndex, PackedInts
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_key
from tests.oracle.messages import feast_values

STATUSES = responses._STATUSES


def view_of_sets(folder, codecs):
    """A view of users in a folder, whose collections are kept in sets."""
    goal = Goal("error_rate", 1e-6, "sets")
    features = {
        codec.feature: FeatureSettings(codec, goal if codec.is_collection else 1e-6, 10**6)
        for codec in codecs
    }
    settings = ViewSettings("users", 1e-9, features, join_keys={"user_id": "int64_val"})
    return View(LocalStorage(folder), settings)


def delete(view, users, moment):
    """Delete rows of users."""
    view.delete(deletions([user_key(user) for user in users], moment, {"user_id": "int64_val"}))


def to_rows(answer, num_entities):
    """The rows of a batch of entities, as ``online_read`` returns them, from an answer."""
    rows = [(None, None)] * num_entities
    columns = {name: feast_values(feature) for name, feature in answer.features.items()}
    for index, position in enumerate(answer.found.tolist()):
        values = {
            name: column[index]
            for name, column in columns.items()
            if answer.features[name].states[index] != MISSING
        }
        moment = EPOCH + timedelta(microseconds=int(answer.event_timestamps[index]))
        rows[position] = moment, values
    return rows


def read_row(rows, entity_hash, features, expire_before):
    """The row of an entity as the kernel writes it; None if it has expired."""
    ((row,), num_found) = rows.rows(entity_hash, expire_before)
    assert num_found == bool(row)
    return None if row is False else rows_of([row], features)[0]


def expired_of(rows, hashes, expire_before):
    """The positions of entities whose rows have expired."""
    statuses, _ = find(rows, hashes, expire_before)
    return set(np.flatnonzero(statuses == EXPIRED).tolist())


def assert_rows(state, features, hashes, expire_before=NO_TIMESTAMP):
    """Rows read alone are those of one read; returns how many there are, and how many have expired."""
    rows = state.row_reader(tuple(features))
    wanted = to_rows(state.read(hashes, features, expire_before), len(hashes))
    expired = expired_of(rows, hashes, expire_before)
    for index, entity in enumerate(hashes):
        row = read_row(rows, entity.tobytes(), features, expire_before)
        assert (row is None) is (index in expired)
        assert (row or (None, None)) == wanted[index]
    return sum(values is not None for _, values in wanted), len(expired)


def assert_vectors(rows, features, hashes, answer, expire_before):
    """The kernel's vectors of a response are those of the rows of an answer."""
    expected = GetOnlineFeaturesResponse()
    wanted, expired = to_rows(answer, len(hashes)), expired_of(rows, hashes, expire_before)
    num_present = 0
    for name in features:
        vector = expected.results.add()
        for index, (moment, values) in enumerate(wanted):
            has = values is not None and name in values
            num_present += has
            vector.values.append(values[name] if has else Value())
            absent = FieldStatus.OUTSIDE_MAX_AGE if index in expired else FieldStatus.NOT_FOUND
            vector.statuses.append(FieldStatus.PRESENT if has else absent)
            stamp = Timestamp()
            if moment is not None:
                stamp.FromDatetime(moment)
            vector.event_timestamps.append(stamp)
    message, *numbers = rows.vectors(hashes.tobytes(), expire_before, STATUSES, 2**31 - 1)
    assert numbers == [num_present, len(answer.found), len(expired)]
    assert GetOnlineFeaturesResponse.FromString(message) == expected


def csr_of(rows, hashes, expire_before=NO_TIMESTAMP, limit=NO_LIMIT, has_weights=False):
    """The first feature of entities, uint64[n, 2]: ids, their weights, indptr, and the number of rows."""
    indptr = np.full(len(hashes) + 1, -1)
    kind = NAMES + WITH_WEIGHTS * has_weights
    ids, _, weights, num_found = rows.csr(
        np.ascontiguousarray(hashes), expire_before, limit, kind, indptr, None
    )
    return np.frombuffer(ids, np.int32), np.frombuffer(weights or b"", np.int64), indptr, num_found


def ids_of(rows, entity_hash, expire_before=NO_TIMESTAMP):
    """The ids of one entity, given by its hash as bytes or array; None without a row."""
    ids, *_, num_found = rows.csr(
        np.frombuffer(entity_hash, np.uint64), expire_before, NO_LIMIT, NAMES, None, None
    )
    return np.frombuffer(ids, np.int32) if num_found else None


def assert_joined(ids, indptr, rows):
    """Arrays are those of rows, one after the other; None stands for an entity without a row."""
    rows = [np.zeros(0, np.int32) if row is None else row for row in rows]
    np.testing.assert_array_equal(indptr, [0, *np.cumsum([len(row) for row in rows])])
    np.testing.assert_array_equal(ids, np.concatenate([np.zeros(0, np.int32), *rows]))


def score_of(rows, entity_hash, weights, expire_before=NO_TIMESTAMP):
    """The sum of the weights of the ids of one entity."""
    out = np.full(1, -1.0)
    rows.scores(entity_hash, expire_before, weights, False, out)
    return out[0]


def has_names(rows, hashes, num_names, wanted, expire_before=NO_TIMESTAMP):
    """Whether entities have names, int32[m] or int32[n, m]: bool[n, m]."""
    out = np.ones((len(hashes), wanted.shape[-1]), np.bool_)
    per_entity = out.shape[1] if wanted.ndim > 1 else 0
    rows.contains(np.ascontiguousarray(hashes), expire_before, num_names, wanted, per_entity, out)
    return out


def has_values(rows, hashes, values, per_entity=0, expire_before=NO_TIMESTAMP):
    """Whether entities have int64 numbers, binary values as their parts, or those of a list: bool[n, m]."""
    numbers, parts, objects, is_text = None, (None, None), None, False
    if isinstance(values, list):
        objects, number, is_text = values, len(values), bool(values) and isinstance(values[0], str)
    elif isinstance(values, tuple):
        parts, number = values, len(values[0]) - 1
    else:
        numbers, number = values, len(values)
    out = np.ones((len(hashes), per_entity or number), np.bool_)
    asked = np.ascontiguousarray(hashes), expire_before, SEED, numbers, *parts, objects, is_text
    rows.contains_values(*asked, per_entity, out)
    return out


def take_ascending(numbers, indices):
    """The ascending numbers with some indexes: uint64[n]."""
    taken = np.empty(len(indices), np.uint64)
    compiled.take_ascending(*numbers.arguments[:7], indices, taken)
    return taken


def find_rows(index, hashes):
    """The rows of entities by an index of fingerprints: int64[n], -1 for an entity without a row."""
    listed, stacked = RowReader(), RowReader()
    numbers = PackedInts.pack(np.arange(len(index))).arguments  # as timestamps of the rows
    listed.listed(0, 0, *index.fingerprints.arguments, index.range, index.twins, *numbers, None, None)
    stacked.layer(listed, None, None, None)
    keys = np.stack((np.zeros_like(hashes), unmixed(hashes)), axis=1)  # whose row hashes these are
    statuses, rows = np.empty(len(hashes), np.uint8), np.empty(len(hashes), np.int64)
    stacked.found(keys, NO_TIMESTAMP, statuses, rows)
    return np.where(statuses == FOUND, rows, -1)


def unmixed(hashes):
    """The reverse of `mix64`: uint64[n]."""
    hashes = hashes ^ hashes >> np.uint64(31) ^ hashes >> np.uint64(62)
    hashes = hashes * np.uint64(0x319642B2D24D8EC3)
    hashes = hashes ^ hashes >> np.uint64(27) ^ hashes >> np.uint64(54)
    hashes = hashes * np.uint64(0x96DE1B173F119089)
    return hashes ^ hashes >> np.uint64(30) ^ hashes >> np.uint64(60)


def look_up(function, hashes):
    """The number of each key by a static function: int64[n], -1 for an unknown key."""
    numbers = look_up_slots(function.words, function.width, function.num_slots, hashes).view(np.int64)
    numbers = np.where(numbers < function.num_symbols, numbers, -1)
    left = dict(zip(function.left_hashes.tolist(), function.left_numbers.tolist(), strict=True))
    return np.array([left.get(one, own) for one, own in zip(hashes.tolist(), numbers.tolist(), strict=True)])


def look_up_slots(words, width, num_slots, hashes):
    """The number of each hash by the slots alone: uint64[n]."""
    numbers = np.empty(len(hashes), np.uint64)
    compiled.look_up(words, width, num_slots, np.ascontiguousarray(hashes), numbers)
    return numbers


class ListedRows:
    """Rows that are read by their numbers: ``layer`` takes their features, one of which is read."""

    def __init__(self, num_rows):
        hashes, salt = np.random.default_rng(0).integers(0, 2**64, (num_rows, 2), np.uint64), (1, 2)
        own = row_hashes(hashes, salt)
        order = np.argsort(own)
        self.hashes, index = hashes[order], FingerprintIndex.build(own[order], 1e-9)
        self.listed = presence.ListedRows.build(
            salt, index, np.zeros(num_rows, np.int64), np.zeros((0, 2), np.int64), {}
        )
        self.layer = self.listed.prepare()

    def read(self, rows, limit=NO_LIMIT, since=NO_TIMESTAMP):
        """The states of some rows, and their ids and weights as arrays for each row."""
        stacked, number = RowReader(), len(rows)
        stacked.layer(self.layer, None, None, None)
        statuses, times, states = (
            np.zeros(number, np.uint8),
            np.zeros(number, np.int64),
            np.zeros(number, np.uint8),
        )
        indptr, kinds = np.zeros(number + 1, np.int64), bytes([NAMES + WITH_WEIGHTS])
        asked = np.ascontiguousarray(self.hashes[rows]), since, limit, kinds
        ((ids, _, weights),) = stacked.columns(*asked, statuses, times, states, indptr, None)
        parts = np.frombuffer(ids, np.int32), np.frombuffer(weights, np.int64)
        return states, *(np.split(part, indptr[1:-1]) if number else [] for part in parts)


def read_structure(structure, name, rows, num_rows):
    """A feature of a structure that is read by row number: the answer about some rows."""
    numbered = ListedRows(num_rows)
    layer = SketchLayer(numbered.listed, [structure], num_rows, 0)
    return layer.read(numbered.hashes[rows], [name]).features[name]


def read_sets(arguments, num_rows, num_symbols, feature, no_set, rows, own_ids=None):
    """Headers and ids of sets of some rows, in the form that the kernel takes."""
    numbered = ListedRows(num_rows)
    numbered.layer.sets(*arguments)
    numbered.layer.feature(b"", True, 0, np.arange(num_symbols if own_ids is None else 2**12), None, None)
    numbered.layer.from_set(feature, own_ids)
    states, ids, _ = numbered.read(rows)
    sizes = [len(own) for own in ids]
    headers = [
        state if state < no_set else no_set + size for state, size in zip(states.tolist(), sizes, strict=True)
    ]
    return headers, [own.tolist() for own in ids]


def read_items(lists, rows, limit=NO_LIMIT, oldest=None):
    """The items of lists of some rows: pairs of an age and an id."""
    numbered = ListedRows(lists.num_rows)
    numbered.layer.feature(b"", True, 0, None, None, None)
    numbered.layer.from_list(*lists.arguments, 0, 1, None, 0)
    numbered.layer.states(np.zeros(0, np.uint64), 0, VALUE, lists.num_rows, None, 0)
    _, ids, times = numbered.read(rows, limit, NO_TIMESTAMP if oldest is None else -oldest)
    return [
        list(zip((-own_times).tolist(), own.tolist(), strict=True))
        for own, own_times in zip(ids, times, strict=True)
    ]


def assert_agrees(layer, name, hashes):
    """All questions about the values of a feature of a layer, which have ids, give the same ones."""
    rows, vocabulary = stack([layer], Wanted((name,))), layer.numbering(name)
    hashes = np.ascontiguousarray(hashes)
    answer = layer.read(hashes, [name])
    matrix = np.zeros((len(hashes), len(vocabulary)), np.bool_)
    own = answer.features[name]
    matrix[np.repeat(answer.found, np.diff(own.indptr)), np.asarray(own.symbols)] = True
    words = np.zeros((len(hashes), -(-len(vocabulary) // 64)), np.uint64)
    ids, _, indptr, num_found = csr_of(rows, hashes)
    assert num_found == rows.bits(hashes, NO_TIMESTAMP, words.shape[1], words) == len(answer.found)
    by_csr = np.zeros_like(matrix)
    by_csr[np.repeat(np.arange(len(hashes)), np.diff(indptr)), ids] = True
    np.testing.assert_array_equal(by_csr, matrix)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    np.testing.assert_array_equal(bits[:, : len(vocabulary)].astype(bool), matrix)
    assert not bits[:, len(vocabulary) :].any()
    weights = np.arange(1.0, len(vocabulary) + 1)
    sums, wanted = np.empty(len(hashes)), np.arange(-1, len(vocabulary), dtype=np.int32)
    assert rows.scores(hashes, NO_TIMESTAMP, weights, False, sums) == num_found
    np.testing.assert_allclose(sums, matrix @ weights)
    for many in (wanted, np.broadcast_to(wanted, (len(hashes), len(wanted))).copy()):
        out = has_names(rows, hashes, len(vocabulary), many)
        np.testing.assert_array_equal(out[:, 1:], matrix)
        assert not out[:, 0].any()
    few = wanted[1:][-2:].copy()  # whose own bits are read, where values are in a filter
    np.testing.assert_array_equal(has_names(rows, hashes, len(vocabulary), few), matrix[:, few])
    for entity, row in zip(hashes, matrix, strict=True):
        ids = ids_of(rows, entity)
        assert (np.zeros(0) if ids is None else ids).tolist() == row.nonzero()[0].tolist()
        assert score_of(rows, entity, weights) == pytest.approx(weights[row].sum())
        np.testing.assert_array_equal(has_names(rows, entity[None], len(vocabulary), wanted[1:])[0], row)
