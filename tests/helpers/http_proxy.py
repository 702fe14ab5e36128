"""A proxy between a store and an object store. It sees whole requests, and loses or repeats some."""

import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_PATIENCE_SECONDS = 120
_AT_ONCE = struct.pack("ii", 1, 0)  # lingers for 0 seconds
_OF_ONE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass
class Answer:
    """An answer of the server; ``then`` is called after it was passed on."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes
    then: Callable[[], None] = lambda: None


@dataclass
class Request:
    """A request on its way."""

    method: str
    path: str
    body: bytes
    headers: list[tuple[str, str]] = field(repr=False)
    port: int = field(repr=False)

    @property
    def target(self) -> str:
        """The path without escapes, and the keys of a deletion, which are in its body."""
        listed = self.body.decode(errors="replace") if self.method == "POST" else ""
        return unquote(self.path) + listed

    def send(self, share: float = 1.0) -> http.client.HTTPConnection:
        """Pass it on, or the head and a share of the body; the server does not answer a part."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_SECONDS)
        connection.putrequest(self.method, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers:
            connection.putheader(name, value)
        connection.endheaders()
        if sent := self.body[: round(share * len(self.body))]:
            connection.send(sent)
        return connection

    def answered(self) -> Answer:
        """Pass it on, and wait for the answer."""
        connection = self.send()
        try:
            answer = connection.getresponse()
            return Answer(answer.status, answer.reason, answer.getheaders(), answer.read())
        finally:
            connection.close()


Handle = Callable[[Request], Answer | None]


class RequestProxy:
    """Passes requests on to a port of this host, one at a time per connection.

    Attributes
    ----------
    handle : called with each request; returns the answer to send, or None to end the connection. It may be
        replaced at any time.
    resets : whether a connection is reset where it ends, as of a server that did not read all of it.
    port : where to connect to.
    """

    def __init__(self, port: int, handle: Handle = Request.answered):
        self.handle = handle
        self.resets = False
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                request = Request(self.command, self.path, body, self.headers.items(), port)
                answer = None
                with suppress(OSError, http.client.HTTPException):
                    answer = proxy.handle(request)
                if answer is None:
                    self.close_connection = True
                    return
                self.send_response_only(answer.status, answer.reason)
                lengths = [value for name, value in answer.headers if name.lower() == "content-length"]
                for name, value in answer.headers:
                    if name.lower() not in _OF_ONE_CONNECTION:
                        self.send_header(name, value)
                # The head of an object tells the length of what is not sent.
                length = lengths[0] if self.command == "HEAD" and lengths else str(len(answer.body))
                if answer.status != 204:
                    self.send_header("Content-Length", length)
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(answer.body)
                answer.then()

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_any

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def shutdown_request(self, request: socket.socket) -> None:
                if proxy.resets:
                    request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                    request.close()
                else:
                    super().shutdown_request(request)

            def handle_error(self, *_: object) -> None:
                pass  # the client ended the connection

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def options(self, options: dict[str, str]) -> dict[str, str]:
        """Storage options that lead through the proxy."""
        name = "endpoint" if "endpoint" in options else "base_url"
        host = urlsplit(options[name]).netloc
        return {**options, name: options[name].replace(host, f"127.0.0.1:{self.port}")}

    def close(self) -> None:
        """Accept no more connections."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def request_proxy(port: int) -> Iterator[RequestProxy]:
    """A proxy to a port of this host, which passes everything on."""
    running = RequestProxy(port)
    try:
        yield running
    finally:
        running.close()
