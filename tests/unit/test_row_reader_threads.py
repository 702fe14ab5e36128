"""Threads read prepared rows while refreshes and seals replace them."""

import threading
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from feast.protos.feast.types.Value_pb2 import Int64Set, Value

from feast_sketch_store.rows.codecs import EXACT, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.length import by_length
from tests.helpers.reads import csr_of, read_row, view_of_sets

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
NUM_USERS, NUM_THREADS = 40, 4
NUM_VERSIONS = by_length(6, 8)
FEATURES = ("version", "values")


@pytest.mark.slow
@pytest.mark.has_long_form
def test_every_read_sees_a_whole_row_and_none_goes_back(tmp_path):
    """Version v of a row has the set {v, ..., v + 9}; a thread that has seen it never sees an older one."""
    codecs = [FeatureCodec("version", "int64_val", EXACT), FeatureCodec("values", "int64_set_val")]
    view = view_of_sets(tmp_path, codecs)

    def write(version):
        values = {
            "version": Value(int64_val=version),
            "values": Value(int64_set_val=Int64Set(val=range(version, version + 10))),
        }
        moment = FIRST + timedelta(seconds=version)
        view.write([(user_key(user), values, moment, None) for user in range(NUM_USERS)])

    hashes = user_hashes(range(NUM_USERS))
    wrong, is_over, num_reads = [], threading.Event(), [0] * NUM_THREADS

    def read(thread):
        seen = -1
        while not is_over.is_set() or not num_reads[thread]:
            state = view.current()
            rows, sets = state.row_reader(FEATURES), state.row_reader(("values",))
            for user in range(thread, NUM_USERS, NUM_THREADS):
                row = read_row(rows, hashes[user].tobytes(), FEATURES, NO_TIMESTAMP)
                version = row[1]["version"].int64_val
                values = sorted(row[1]["values"].int64_set_val.val)
                if version < seen or values != list(range(version, version + 10)):
                    wrong.append((user, seen, version, values))
                seen = max(seen, version)
            _, _, indptr, _ = csr_of(sets, hashes)
            if (indptr != np.arange(NUM_USERS + 1) * 10).any():
                wrong.append((thread, indptr))
            num_reads[thread] += 1

    write(0)
    threads = [threading.Thread(target=read, args=(thread,)) for thread in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for version in range(1, NUM_VERSIONS):
        write(version)
        if version % (NUM_VERSIONS // 3) == 0:
            view.seal()
    is_over.set()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert min(num_reads) > 0
