"""Rows and vectors of Feast, made in Python from the arrays of an answer, to compare the kernel's with."""

from datetime import timedelta

import numpy as np
import pytest
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus, GetOnlineFeaturesResponse
from feast.protos.feast.types.Value_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp

from feast_sketch_store.adapter import responses
from feast_sketch_store.adapter.responses import EPOCH, row_of
from feast_sketch_store.kernel import row_hashes
from feast_sketch_store.layers.listed import ListedRows
from feast_sketch_store.layers.prepared import Wanted, stack
from feast_sketch_store.layers.sketch import SketchLayer
from feast_sketch_store.rows.codecs import MISSING
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from feast_sketch_store.succinct import FingerprintIndex

STATUSES = responses._STATUSES


def to_rows(answer, num_entities):
    """The rows of a batch of entities, as ``online_read`` returns them, from an answer."""
    rows = [(None, None)] * num_entities
    columns = {
        name: feature.decoder.values(feature.states, feature.indptr, feature.symbols)
        for name, feature in answer.features.items()
    }
    for place, position in enumerate(answer.found.tolist()):
        values = {
            name: column[place]
            for name, column in columns.items()
            if answer.features[name].states[place] != MISSING
        }
        moment = EPOCH + timedelta(microseconds=int(answer.event_timestamps[place]))
        rows[position] = moment, values
    return rows


def read_row(rows, entity_hash, features, expire_before):
    """The row of an entity as the kernel writes it; None if it has expired."""
    ((row,), num_found) = rows.rows(entity_hash, expire_before)
    assert num_found == bool(row)
    return None if row is False else row_of(row, features)


def assert_vectors(rows, features, hashes, answer, expire_before):
    """The kernel's vectors of a response are those of the rows of an answer."""
    expected = GetOnlineFeaturesResponse()
    wanted, expired = to_rows(answer, len(hashes)), set(answer.expired.tolist())
    num_present = 0
    for name in features:
        vector = expected.results.add()
        for place, (moment, values) in enumerate(wanted):
            has = values is not None and name in values
            num_present += has
            vector.values.append(values[name] if has else Value())
            absent = FieldStatus.OUTSIDE_MAX_AGE if place in expired else FieldStatus.NOT_FOUND
            vector.statuses.append(FieldStatus.PRESENT if has else absent)
            stamp = Timestamp()
            if moment is not None:
                stamp.FromDatetime(moment)
            vector.event_timestamps.append(stamp)
    message, *numbers = rows.vectors(hashes.tobytes(), expire_before, STATUSES, 2**31 - 1)
    assert numbers == [num_present, len(answer.found), len(expired)]
    assert GetOnlineFeaturesResponse.FromString(message) == expected


def read_structure(structure, name, rows, num_rows):
    """A feature of a structure that is read by row number: the answer about some rows."""
    hashes, salt = np.random.default_rng(0).integers(0, 2**64, (num_rows, 2), np.uint64), (1, 2)
    own = row_hashes(hashes, salt)
    order = np.argsort(own)
    index = FingerprintIndex.build(own[order], 1e-9)
    listed = ListedRows.build(salt, index, np.zeros(num_rows, np.int64), np.zeros((0, 2), np.int64), {})
    return SketchLayer(listed, [structure], num_rows, 0).read(hashes[order][rows], [name]).features[name]


def assert_agrees(layer, name, hashes):
    """All questions about the values of a feature of a layer, which have ids, give the same ones."""
    rows, vocabulary = stack([layer], Wanted((name,))), layer.numbering(name)
    hashes = np.ascontiguousarray(hashes)
    answer = layer.read(hashes, [name])
    matrix = np.zeros((len(hashes), len(vocabulary)), np.bool_)
    own = answer.features[name]
    matrix[np.repeat(answer.found, np.diff(own.indptr)), np.asarray(own.symbols)] = True
    indptr = np.empty(len(hashes) + 1, np.int64)
    words = np.zeros((len(hashes), -(-len(vocabulary) // 64)), np.uint64)
    ids, num_found = rows.csr(hashes, NO_TIMESTAMP, indptr)
    assert num_found == rows.bits(hashes, NO_TIMESTAMP, words.shape[1], words) == len(answer.found)
    by_csr = np.zeros_like(matrix)
    by_csr[np.repeat(np.arange(len(hashes)), np.diff(indptr)), np.frombuffer(ids, np.int32)] = True
    np.testing.assert_array_equal(by_csr, matrix)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    np.testing.assert_array_equal(bits[:, : len(vocabulary)].astype(bool), matrix)
    assert not bits[:, len(vocabulary) :].any()
    weights = np.arange(1.0, len(vocabulary) + 1)
    sums, wanted = np.empty(len(hashes)), np.arange(-1, len(vocabulary), dtype=np.int32)
    assert rows.scores(hashes, NO_TIMESTAMP, weights, sums) == num_found
    np.testing.assert_allclose(sums, matrix @ weights)
    for many in (wanted, np.broadcast_to(wanted, (len(hashes), len(wanted))).copy()):
        out, per_entity = np.ones((len(hashes), len(wanted)), np.bool_), len(wanted) if many.ndim > 1 else 0
        rows.contains(hashes, NO_TIMESTAMP, words.shape[1], many, per_entity, out)
        np.testing.assert_array_equal(out[:, 1:], matrix)
        assert not out[:, 0].any()
    names = np.arange(len(vocabulary), dtype=np.int32)
    for entity, row in zip(hashes, matrix, strict=True):
        ask, has = (entity.tobytes(), NO_TIMESTAMP), np.zeros(len(vocabulary), np.bool_)
        assert np.frombuffer(rows.ids(*ask) or b"", np.int32).tolist() == row.nonzero()[0].tolist()
        assert (rows.score(*ask, weights) or 0.0) == pytest.approx(weights[row].sum())
        rows.contains_ids(*ask, names, names.astype(np.int64), has)
        np.testing.assert_array_equal(has, row)
