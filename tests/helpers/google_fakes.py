"""Clients of Datastore and Bigtable that keep everything in this process.

Their classes for keys, entities, rows and filters are Google's own, so Feast's stores run unchanged.
"""

import re
import threading
from contextlib import contextmanager
from types import SimpleNamespace


class DatastoreInMemory:
    """The part of `google.cloud.datastore.Client` that Feast's store and this one use."""

    entities = {}  # of the server that all clients share
    _lock = threading.Lock()

    def __init__(self, project=None, namespace=None, database=None, client_info=None):
        self.project = project

    def key(self, *path):
        from google.cloud.datastore import Key

        return Key(*path, project=self.project)

    def put(self, entity):
        self.put_multi([entity])

    def put_multi(self, entities):
        with self._lock:
            self.entities.update({(self.project, *entity.key.flat_path): entity for entity in entities})

    def get_multi(self, keys):
        found = [self.entities.get((self.project, *key.flat_path)) for key in keys]
        return [entity for entity in reversed(found) if entity is not None]  # in no order

    @contextmanager
    def transaction(self):
        yield

    def query(self, kind, ancestor):
        return _Query(self, kind, ancestor)

    def close(self):
        pass


class _Query:
    def __init__(self, client, kind, ancestor):
        self._client, self._kind = client, kind
        self._path = (client.project, *ancestor.flat_path)
        self._after = None

    def key_filter(self, key, operator):
        assert operator == ">"
        self._after = (self._client.project, *key.flat_path)

    def fetch(self, limit=None):
        paths = sorted(
            path
            for path in list(self._client.entities)
            if path[: len(self._path)] == self._path
            and path[-2] == self._kind
            and len(path) > len(self._path)
        )
        found = [path for path in paths if self._after is None or path > self._after]
        return [self._client.entities[path] for path in found[:limit]]


class BigtableInMemory:
    """The part of `google.cloud.bigtable.Client` that Feast's store and this one use."""

    tables = {}  # of the server that all clients share

    def __init__(self, project=None, admin=False):
        self.project = project

    def instance(self, instance_id):
        return SimpleNamespace(table=lambda name: _Table(self.tables, (self.project, instance_id, name)))

    def close(self):
        pass


class _Table:
    def __init__(self, tables, name):
        self._tables, self._name = tables, name

    def exists(self):
        return self._name in self._tables

    def create(self):
        self._tables[self._name] = {}

    def list_column_families(self):
        return {"features": None}

    def direct_row(self, row_key):
        cells = []
        return SimpleNamespace(row_key=row_key, cells=cells, set_cell=lambda *cell: cells.append(cell))

    def mutate_rows(self, rows):
        for row in rows:
            stored = self._tables[self._name].setdefault(row.row_key, {})
            for family, column, value in row.cells:
                column = column if isinstance(column, bytes) else column.encode()
                versions = stored.setdefault((family, column), [])
                versions.insert(0, value)  # the newest first
                del versions[2:]

    def read_rows(self, start_key=None, limit=None, filter_=None, row_set=None):
        stored = self._tables[self._name]
        keys = sorted(row_set.row_keys if row_set is not None else stored)
        keys = [key for key in keys if key in stored and (start_key is None or key >= start_key)]
        if row_set is None:
            keys = [key for key in keys if _matches(filter_, key)]
        for key in keys[:limit]:
            cells = {}
            for (family, column), values in stored[key].items():
                cells.setdefault(family, {})[column] = [SimpleNamespace(value=value) for value in values]
            yield SimpleNamespace(row_key=key, cells=cells)


def _matches(filter_, key):
    """Whether a chain of filters lets a row through, by the expressions for row keys in it."""
    expressions = [each.regex for each in filter_.filters if hasattr(each, "regex")]
    assert expressions
    return all(re.fullmatch(expression, key) for expression in expressions)
