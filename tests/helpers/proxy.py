"""A proxy between a store and an object store that delays, cuts and corrupts answers."""

import random
import socket
import threading
import time
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

_CHUNK_BYTES = 1 << 16


class Proxy:
    """Passes connections on to a port of this host. Its faults are attributes, which may change at any time.

    Parameters
    ----------
    port : of the server.
    seed : of the faults.

    Attributes
    ----------
    is_down : whether connections are refused, and open ones ended.
    delay_seconds : before each chunk of an answer.
    cut_share, corrupt_share : shares of the answers' chunks after which the connection ends, and in which a
        byte is changed.
    bytes_down, num_faults : bytes of answers passed on so far, and faults made.
    """

    def __init__(self, port, seed=0):
        self.is_down = False
        self.delay_seconds = 0.0
        self.cut_share = self.corrupt_share = 0.0
        self.bytes_down = self.num_faults = 0
        self._server = port
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._open = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def options(self, options):
        """Storage options that lead through the proxy."""
        host = urlsplit(options["endpoint"]).netloc
        return {**options, "endpoint": options["endpoint"].replace(host, f"127.0.0.1:{self.port}")}

    def heal(self):
        """End all faults."""
        self.is_down, self.delay_seconds, self.cut_share, self.corrupt_share = False, 0.0, 0.0, 0.0

    def take_down(self):
        """Refuse connections and end those that are open."""
        self.is_down = True
        self._end_all()

    def close(self):
        self._listener.close()
        self.take_down()

    def _end_all(self):
        with self._lock:
            ended, self._open = self._open, set()
        for each in ended:
            _end(each)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            if self.is_down:
                _end(client)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._server), timeout=60)
            except OSError:
                _end(client)
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, True), daemon=True).start()

    def _pass_on(self, source, target, is_answer):
        with suppress(OSError):
            while chunk := source.recv(_CHUNK_BYTES):
                is_cut = False
                if is_answer:
                    chunk, is_cut = self._with_faults(chunk)
                target.sendall(chunk)
                if is_cut:
                    break
        with self._lock:
            self._open -= {source, target}
        for each in (source, target):
            _end(each)

    def _with_faults(self, chunk):
        """A chunk as it is passed on, and whether the connection ends after it."""
        if self.delay_seconds:
            time.sleep(self.delay_seconds)
        with self._lock:
            self.bytes_down += len(chunk)
            is_cut = self._random.random() < self.cut_share
            is_corrupt = self._random.random() < self.corrupt_share
            self.num_faults += is_cut + is_corrupt
            offset = self._random.randrange(len(chunk))
        if is_corrupt:
            chunk = bytearray(chunk)
            chunk[offset] ^= 1 << offset % 8
        return (chunk[:offset] if is_cut else chunk), is_cut


def _end(connection):
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@contextmanager
def proxy(port, seed=0):
    """A proxy to a port of this host."""
    running = Proxy(port, seed)
    try:
        yield running
    finally:
        running.close()
