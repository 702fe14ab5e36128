"""moto, served by uvicorn on 127.0.0.1.

Werkzeug's server, which `moto_server` runs, opens a connection and a thread for each request: that takes as
long as the request.

python -P tests/helpers/moto_server.py -p 5000
"""

import argparse
import io
import sys

import uvicorn
from moto import backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app


def as_asgi(application):
    """Serves a WSGI application one request after the other; bodies are held in memory."""

    async def serve(scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        started = []
        answer = application(
            _environ(scope, body), lambda status, headers, _=None: started.append((status, headers))
        )
        content = b"".join(answer)
        status, headers = started[-1]
        headers = [(name.encode("latin1"), value.encode("latin1")) for name, value in headers]
        await send({"type": "http.response.start", "status": int(status.split()[0]), "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return serve


def _environ(scope, body):
    host, port = scope["server"]
    query = scope["query_string"].decode("latin1")
    environ = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": scope["path"].encode().decode("latin1"),
        "RAW_URI": scope["raw_path"].decode("latin1") + (f"?{query}" if query else ""),
        "QUERY_STRING": query,
        "SERVER_NAME": host,
        "SERVER_PORT": str(port),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": False,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in scope["headers"]:
        key = name.decode("latin1").upper().replace("-", "_")
        environ[key if key in ("CONTENT_LENGTH", "CONTENT_TYPE") else f"HTTP_{key}"] = value.decode("latin1")
    return environ


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-p", "--port", type=int, required=True)
    arguments = parser.parse_args()
    services = list(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: services  # moto lists its own folder for each request
    application = as_asgi(DomainDispatcherApplication(create_backend_app))
    # Idle connections stay open for as long as a client may keep them. By default uvicorn closes them after 5
    # seconds, and on a slow machine a client may use several that are closed.
    uvicorn.run(
        application,
        host="127.0.0.1",
        port=arguments.port,
        log_level="critical",
        lifespan="off",
        timeout_keep_alive=3600,
    )
