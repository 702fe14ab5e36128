"""A load generator for one URL over keep-alive connections: closed loop, or open loop at given moments.

Runs in a process of its own, on sockets and `select` alone: an event loop would round its timers up to a
millisecond, which is of the size of what is measured. Before a request is due it does not sleep but asks the
clock, and it runs before all others where it may (`prefer`), so that it is late only if it has no core.
"""

import gc
import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

_ASKS_CLOCK_SECONDS = 0.0005  # before a request is due
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Load:
    """What a run saw: seconds of each answer in order of arrival, bytes of all bodies, seconds in all, and
    how many seconds late the generator sent each request of an open loop that found a free connection.
    """

    latencies: list[float]
    num_bytes: int
    elapsed: float
    lateness: list[float]


def prefer(core: int | None) -> None:
    """Run this process before others if that is permitted, and on one core of its own if that is given."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    if core is not None:
        os.sched_setaffinity(0, {core})


def post(path: str, body: bytes, *headers: str) -> bytes:
    """An HTTP request, with more headers than it needs."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += "".join(f"{header}\r\n" for header in headers)
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def closed_loop(port: int, requests: Sequence[bytes], connections: int, seconds: float) -> Load:
    """Every connection sends the next request when it has its answer: the rate that a server reaches."""
    with _prepared(port, connections) as idle:
        start = time.perf_counter()
        busy = [c for c in idle if c.send(requests[c.number % len(requests)], start) is None]
        latencies, num_bytes, sent = [], 0, connections
        while busy:
            for connection in select.select(busy, [], [])[0]:
                if not connection.receive():
                    continue
                now = time.perf_counter()
                latencies.append(now - connection.since)
                num_bytes += connection.body_bytes
                if now - start < seconds:
                    connection.send(requests[sent % len(requests)], now)
                    sent += 1
                else:
                    busy.remove(connection)
        return Load(latencies, num_bytes, time.perf_counter() - start, [])


def open_loop(port: int, requests: Sequence[bytes], connections: int, moments: Sequence[float]) -> Load:
    """Requests are due at given moments, in seconds from the start, whether earlier ones are answered or not.

    A latency counts from when the request was due. One that finds no free connection waits here, and its
    latency counts the wait.
    """
    with _prepared(port, connections) as idle:
        latencies, lateness, num_bytes, sent = [], [], 0, 0
        busy: list[_Connection] = []
        start = time.perf_counter()
        while sent < len(moments) or busy:
            now = time.perf_counter() - start
            had_to_wait = not idle
            while idle and sent < len(moments) and moments[sent] <= now:
                connection = idle.popleft()
                connection.send(requests[sent % len(requests)], start + moments[sent])
                busy.append(connection)
                lateness += [] if had_to_wait else [now - moments[sent]]
                sent += 1
            pause = moments[sent] - (time.perf_counter() - start) if idle and sent < len(moments) else None
            if pause is not None:
                pause = max(0.0, pause - _ASKS_CLOCK_SECONDS)
            ready = select.select(busy, [], [], pause)[0]
            for connection in ready:
                if connection.receive():
                    latencies.append(time.perf_counter() - connection.since)
                    num_bytes += connection.body_bytes
                    busy.remove(connection)
                    idle.append(connection)  # at the end, so that all connections have their turn
        return Load(latencies, num_bytes, time.perf_counter() - start, lateness)


class _Connection:
    """A keep-alive connection with at most one request under way."""

    def __init__(self, port: int, number: int):
        self.number = number
        self.since = 0.0
        self.body_bytes = 0
        self._received = b""
        self._missing = 0
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.fileno = self._socket.fileno
        self.close = self._socket.close

    def send(self, request: bytes, since: float) -> None:
        self.since = since
        self._received, self._missing = b"", -1
        self._socket.sendall(request)

    def receive(self) -> bool:
        """Take what has come; whether the answer is complete."""
        piece = self._socket.recv(1 << 18)
        if not piece:
            raise ConnectionError("the server closed a connection")
        if self._missing >= 0:
            self._missing -= len(piece)
        else:
            self._received += piece
            head, end, body = self._received.partition(_HEAD_END)
            if end:
                self.body_bytes = _content_length(head)
                self._missing = self.body_bytes - len(body)
        return self._missing == 0


def _content_length(head: bytes) -> int:
    status, *fields = head.split(b"\r\n")
    if status.split()[1] != b"200":
        raise ConnectionError(f"the server answers {status.decode()}")
    return next(int(f.partition(b":")[2]) for f in fields if f.lower().startswith(b"content-length:"))


@contextmanager
def _prepared(port: int, connections: int) -> Iterator[deque[_Connection]]:
    """Open connections, and no garbage collection while they are used."""
    with ExitStack() as stack:
        opened = deque(_Connection(port, number) for number in range(connections))
        for connection in opened:
            stack.callback(connection.close)
        gc.collect()
        gc.disable()
        stack.callback(gc.enable)
        yield opened
