"""An HBase in this process with the real Thrift protocol, as far as Feast's store and this one use it."""

import itertools
import socket
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.helpers.ports import free_port


def _bytes(text):
    return text.encode() if isinstance(text, str) else text


class _Tables:
    """The methods of the protocol, on dictionaries."""

    def __init__(self, types):
        self._types = types
        self._tables = {}
        self._scans = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def getTableNames(self):
        return list(self._tables)

    def createTable(self, name, families):
        self._tables[_bytes(name)] = {}

    def mutateRows(self, name, batches, attributes):
        with self._lock:
            for batch in batches:
                row = self._tables[_bytes(name)].setdefault(_bytes(batch.row), {})
                row.update({_bytes(change.column): _bytes(change.value) for change in batch.mutations})

    def getRows(self, name, keys, attributes):
        return [found for key in keys for found in self._row(name, _bytes(key))]

    def getRowsWithColumns(self, name, keys, columns, attributes):
        return self.getRows(name, keys, attributes)

    def scannerOpenWithScan(self, name, scan, attributes):
        keys = sorted(self._tables[_bytes(name)])
        first = _bytes(scan.startRow or b"")
        number = next(self._numbers)
        self._scans[number] = name, iter([key for key in keys if key >= first])
        return number

    def scannerGetList(self, number, count):
        name, keys = self._scans[number]
        return [found for key in itertools.islice(keys, count) for found in self._row(name, key)]

    def scannerClose(self, number):
        self._scans.pop(number, None)

    def _row(self, name, key):
        cells = self._tables[_bytes(name)].get(key)
        if not cells:
            return []
        columns = {column: self._types.TCell(value=value, timestamp=1) for column, value in cells.items()}
        return [self._types.TRowResult(row=key, columns=columns)]


@contextmanager
def running_hbase():
    """The port of a server."""
    happybase = pytest.importorskip("happybase", reason="needs happybase")
    import thriftpy2
    from thriftpy2.rpc import make_server

    protocol = str(Path(happybase.__file__).parent / "Hbase.thrift")
    types = thriftpy2.load(protocol, "Hbase_thrift")
    port = free_port()
    server = make_server(types.Hbase, _Tables(types), "127.0.0.1", port, client_timeout=None)
    server.daemon = True
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    _await(port)
    try:
        yield port
    finally:
        server.close()
        _await(port)  # it looks at that behind the next connection
        thread.join()
        server.trans.sock.close()


def _await(port):
    """Connect as soon as somebody listens."""
    deadline = time.monotonic() + 60
    while True:
        with suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)  # no event tells
