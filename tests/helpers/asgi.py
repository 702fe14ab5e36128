"""Requests to an ASGI app without a server."""

import json

PATH = "/get-online-features"


async def ask(
    app, request, path=PATH, method="POST", kind=b"application/json", chunks=1, headers=(), query=b""
):
    """The status, headers and body of an answer, as ASGI has them."""
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    size = len(body) // chunks + 1
    parts = [body[offset : offset + size] for offset in range(0, len(body), size)] or [b""]
    messages = [
        {"type": "http.request", "body": part, "more_body": n < len(parts)} for n, part in enumerate(parts, 1)
    ]
    sent = []

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    headers = [*headers, (b"host", b"localhost"), (b"content-length", str(len(body)).encode())]
    headers += [] if kind is None else [(b"content-type", kind)]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    try:
        await app(scope, receive, send)
    except Exception:
        if not sent:  # Feast's app answers an error, and then raises it for the server's log
            raise
    start, *rest = sent
    return start["status"], start["headers"], b"".join(message.get("body", b"") for message in rest)
