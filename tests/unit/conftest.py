"""Fixtures that make encoded rows, read layers, and open row logs."""

from datetime import UTC, datetime, timedelta

import pytest

from feast_sketch_store.row_log import RowLog
from feast_sketch_store.rows.encoding import encode, newest_rows, to_arrow
from feast_sketch_store.storage.local import LocalStorage
from tests.helpers.keys import user_hashes, user_key
from tests.oracle.messages import feast_values

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def storage(tmp_path):
    """The storage of a view in a folder."""
    return LocalStorage(tmp_path / "view")


@pytest.fixture
def log(storage):
    """The row log in a storage, by default in a folder."""
    return RowLog(storage)


@pytest.fixture(scope="session")
def at():
    """Makes a datetime of microseconds since 1970."""

    def make(microseconds):
        return EPOCH + timedelta(microseconds=microseconds)

    return make


@pytest.fixture(scope="session")
def make_table(at):
    """Makes a table of the row log of ``(user, values, event[, created])``; times in microseconds."""

    def make(rows, codecs):
        feast_rows = [
            (user_key(user), values, at(event), at(created[0]) if created else None)
            for user, values, event, *created in rows
        ]
        return to_arrow(feast_rows, codecs)

    return make


@pytest.fixture(scope="session")
def make_rows(make_table):
    """Makes encoded rows, the newest of each entity, of the same tuples as ``make_table``."""

    def make(rows, codecs):
        return encode(*newest_rows(make_table(rows, codecs)), codecs)

    return make


@pytest.fixture(scope="session")
def read():
    """Reads users from a layer: ``{user: (event in microseconds, {feature: Value or None})}``."""

    def run(layer, users, features, expire_before=None):
        limit = {} if expire_before is None else {"expire_before": expire_before}
        answer = layer.read(user_hashes(users), features, **limit)
        values = {name: feast_values(feature) for name, feature in answer.features.items()}
        return {
            users[position]: (int(answer.event_timestamps[row]), {n: v[row] for n, v in values.items()})
            for row, position in enumerate(answer.found)
        }

    return run
