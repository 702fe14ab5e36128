"""A provider of OpenID Connect on this machine: its documents, its keys, and tokens signed with them."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa


class Provider:
    """Publishes keys at `url`. ``fetches`` counts how often the keys were fetched."""

    def __init__(self):
        self._private = {}
        self._published = []
        self.fetches = 0
        self.add_key("first")
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                body = json.dumps(provider._document(self.path)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._handler = Handler

    def __enter__(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    def _document(self, path):
        if path == "/keys":
            self.fetches += 1
            return {"keys": self._published}
        return {
            "jwks_uri": f"{self.url}/keys",
            "token_endpoint": f"{self.url}/token",
            "authorization_endpoint": f"{self.url}/authorize",
        }

    def add_key(self, name):
        """Make a key and publish it."""
        self._private[name] = key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
        self._published = [*self._published, {**public, "kid": name, "use": "sig", "alg": "RS256"}]

    def revoke_key(self, name):
        """Publish it no longer; tokens can still be signed with it."""
        self._published = [key for key in self._published if key["kid"] != name]

    def token(self, key="first", kid=None, **claims):
        """A token signed with a key."""
        return jwt.encode(claims, self._private[key], algorithm="RS256", headers={"kid": kid or key})
