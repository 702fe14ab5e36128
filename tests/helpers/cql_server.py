"""A Cassandra in this process that speaks CQL's native protocol, as far as Feast's stores and this one use
it.

It supports only tables of Feast's shape. Source: "CQL Binary Protocol v4" of the Apache Cassandra project.
"""

import re
import socketserver
import struct
import threading
import uuid
from contextlib import contextmanager, suppress

import mmh3
import pytest

_BIGINT, _BLOB, _TIMESTAMP, _UUID, _TEXT, _INET = 0x02, 0x03, 0x0B, 0x0C, 0x0D, 0x10
_TEXTS = (0x22, _TEXT)  # a set of texts
_VOID, _ROWS, _KEYSPACE, _PREPARED, _SCHEMA = range(1, 6)
_ERROR, _READY, _SUPPORTED, _RESULT = 0x00, 0x02, 0x06, 0x08
_STARTUP, _OPTIONS, _QUERY, _PREPARE, _EXECUTE, _REGISTER = 0x01, 0x05, 0x07, 0x09, 0x0A, 0x0B
_TYPES = {
    "entity_key": _TEXT,
    "feature_name": _TEXT,
    "value": _BLOB,
    "event_ts": _TIMESTAMP,
    "created_ts": _TIMESTAMP,
    "token(entity_key)": _BIGINT,
}
_ID = uuid.UUID(int=7).bytes
_LOCALHOST = bytes([127, 0, 0, 1])
_LOCAL = {
    "key": (_TEXT, b"local"),
    "cluster_name": (_TEXT, b"tests"),
    "data_center": (_TEXT, b"datacenter1"),
    "rack": (_TEXT, b"rack1"),
    "host_id": (_UUID, _ID),
    "partitioner": (_TEXT, b"org.apache.cassandra.dht.Murmur3Partitioner"),
    "release_version": (_TEXT, b"4.1.0"),
    "schema_version": (_UUID, _ID),
    "rpc_address": (_INET, _LOCALHOST),
    "listen_address": (_INET, _LOCALHOST),
    "broadcast_address": (_INET, _LOCALHOST),
    "tokens": (_TEXTS, struct.pack(">ii", 1, 1) + b"0"),
}


def _string(text):
    content = text.encode()
    return struct.pack(">H", len(content)) + content


def _value(content):
    return struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content


def _type(kind):
    return struct.pack(">HH", *kind) if isinstance(kind, tuple) else struct.pack(">H", kind)


def _columns(columns):
    return b"".join(_string(name) + _type(kind) for name, kind in columns)


def _rows(columns, rows, keyspace="system", table="local", state=None):
    flags = 1 | (2 if state else 0)  # one table for all columns; more pages
    head = struct.pack(">iii", _ROWS, flags, len(columns)) + (_value(state) if state else b"")
    head += _string(keyspace) + _string(table) + _columns(columns)
    return head + struct.pack(">i", len(rows)) + b"".join(_value(cell) for row in rows for cell in row)


def _token(key):
    """Nearly Cassandra's, whose MurmurHash3 takes bytes above 127 for negative; here keys are digits."""
    return int.from_bytes(mmh3.mmh3_x64_128_digest(key)[:8], "little", signed=True)


class _Database:
    """Tables of a partition per entity: key -> feature -> (value, event_ts)."""

    def __init__(self):
        self._tables = {}
        self._prepared = {}
        self._lock = threading.Lock()

    def prepare(self, query):
        number = mmh3.hash_bytes(query)
        self._prepared[number] = query
        keyspace, table = self._table_of(query)
        columns = [(name, _TYPES[name]) for name in self._bound(query)]
        head = struct.pack(">iH", _PREPARED, len(number)) + number
        head += struct.pack(">iii", 1, len(columns), 0) + _string(keyspace) + _string(table)
        return head + _columns(columns) + struct.pack(">ii", 4, 0)  # its results say what they are

    def execute(self, number, arguments, size, state):
        return self.run(self._prepared[number], arguments, size, state)

    def run(self, query, arguments=(), size=5000, state=None):
        words = query.split()
        verb = words[0].upper()
        if verb == "USE":
            return struct.pack(">i", _KEYSPACE) + _string(words[1].strip('";'))
        if "system" in query:
            if "system.local" in query:
                columns = [(name, kind) for name, (kind, _) in _LOCAL.items()]
                return _rows(columns, [[content for _, content in _LOCAL.values()]])
            if "peers_v2" in query:
                raise ValueError("unconfigured table peers_v2")
            return _rows([("peer", _INET)], [])
        if words[1].upper() == "KEYSPACE":
            return struct.pack(">i", _SCHEMA) + b"".join(map(_string, ("CREATED", "KEYSPACE", "features")))
        keyspace, name = self._table_of(query)
        if verb in ("CREATE", "DROP"):
            if verb == "CREATE":
                self._tables.setdefault((keyspace, name), {})
            else:
                self._tables.pop((keyspace, name), None)
            done = "CREATED" if verb == "CREATE" else "DROPPED"
            return struct.pack(">i", _SCHEMA) + b"".join(map(_string, (done, "TABLE", keyspace, name)))
        table = self._tables[keyspace, name]
        if verb == "INSERT":
            given = dict(zip(self._bound(query), arguments, strict=False))  # a time to live comes last
            with self._lock:
                row = table.setdefault(given["entity_key"], {})
                row[given["feature_name"]] = given["value"], given["event_ts"]
            return struct.pack(">i", _VOID)
        return self._select(query, table, arguments, size, state, (keyspace, name))

    def _select(self, query, table, arguments, size, state, name):
        text = re.search(r"SELECT\s+(.*?)\s+FROM", query, re.DOTALL)[1]
        columns = [(column.strip(), _TYPES[column.strip()]) for column in text.split(",")]
        keys = sorted(table, key=_token)
        if after := re.search(r"token\(entity_key\) > (-?\d+)", query):
            keys = [key for key in keys if _token(key) > int(after[1])]
        elif "WHERE" in query:
            keys = [key for key in arguments[:1] if key in table]
        cells = [
            {
                "token(entity_key)": struct.pack(">q", _token(key)),
                "entity_key": key,
                "feature_name": feature,
                "value": value,
                "event_ts": event,
            }
            for key in keys
            for feature, (value, event) in sorted(table[key].items())
        ]
        start = struct.unpack(">q", state)[0] if state else 0
        end = start + size
        rows = [[row[column] for column, _ in columns] for row in cells[start:end]]
        return _rows(columns, rows, *name, struct.pack(">q", end) if end < len(cells) else None)

    @staticmethod
    def _table_of(query):
        return re.search(r'"?(\w+)"?\."?(\w+)"?', query).groups()

    @staticmethod
    def _bound(query):
        if query.lstrip().upper().startswith("INSERT"):
            return [column.strip() for column in re.search(r"\(([^)]*)\)", query)[1].split(",")]
        return re.findall(r"(\w+) = \?", query)


class _Connection(socketserver.BaseRequestHandler):
    def handle(self):
        with suppress(EOFError, ConnectionError):
            while True:
                version, _, stream, opcode, length = struct.unpack(">BBhBi", self._received(9))
                body = self._received(length)
                if version & 0x7F != 4:
                    text = "Invalid or unsupported protocol version; the supported versions are (4/v4)"
                    self._send(stream, _ERROR, struct.pack(">i", 0x0A) + _string(text))
                    continue
                try:
                    answer = self._answer(opcode, body)
                except Exception as error:
                    answer = (_ERROR, struct.pack(">i", 0x2200) + _string(f"{type(error).__name__}: {error}"))
                self._send(stream, *answer)

    def _answer(self, opcode, body):
        database = self.server.database
        if opcode == _OPTIONS:
            options = {"CQL_VERSION": ["3.4.5"], "COMPRESSION": []}
            content = struct.pack(">H", len(options))
            for name, values in options.items():
                content += _string(name) + struct.pack(">H", len(values)) + b"".join(map(_string, values))
            return _SUPPORTED, content
        if opcode in (_STARTUP, _REGISTER):
            return _READY, b""
        if opcode == _PREPARE:
            return _RESULT, database.prepare(body[4:].decode())
        if opcode == _EXECUTE:
            (length,) = struct.unpack_from(">H", body)
            return _RESULT, database.execute(body[2 : 2 + length], *_parameters(body, 2 + length))
        assert opcode == _QUERY, opcode
        (length,) = struct.unpack_from(">i", body)
        return _RESULT, database.run(body[4 : 4 + length].decode(), *_parameters(body, 4 + length))

    def _received(self, count):
        content = b""
        while len(content) < count:
            part = self.request.recv(count - len(content))
            if not part:
                raise EOFError
            content += part
        return content

    def _send(self, stream, opcode, body):
        self.request.sendall(struct.pack(">BBhBi", 0x84, 0, stream, opcode, len(body)) + body)


def _parameters(body, offset):
    """The bound values, the rows of a page, and where the page begins."""
    _, flags = struct.unpack_from(">HB", body, offset)
    offset += 3
    arguments, size, state = [], 5000, None
    if flags & 1:
        (count,) = struct.unpack_from(">H", body, offset)
        offset += 2
        for _ in range(count):
            (length,) = struct.unpack_from(">i", body, offset)
            offset += 4
            arguments.append(None if length < 0 else body[offset : offset + length])
            offset += max(length, 0)
    if flags & 4:
        (size,) = struct.unpack_from(">i", body, offset)
        offset += 4
    if flags & 8:
        (length,) = struct.unpack_from(">i", body, offset)
        state = body[offset + 4 : offset + 4 + length]
    return arguments, size, state


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False


@contextmanager
def running_cql():
    """The port of a server."""
    pytest.importorskip("cassandra", reason="needs cassandra-driver")
    with _Server(("127.0.0.1", 0), _Connection) as server:
        server.database = _Database()
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
