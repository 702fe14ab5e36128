"""Ways to a bucket: endpoints, proxies and certificates, and what is said of those that lead nowhere."""

import contextlib
import datetime
import http.server
import os
import socket
import ssl
import threading
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from feast_sketch_store.errors import SettingsError, StorageError
from feast_sketch_store.storage.buckets import open_bucket

KEYS = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
EMPTY = b"<ListBucketResult><Name>bucket</Name></ListBucketResult>"


@pytest.fixture(autouse=True)
def environment(monkeypatch, one_try):
    """Without what this machine sets; one try for each request."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    return monkeypatch


class Server:
    """Answers each request alike, and counts them."""

    def __init__(self, status=200, body=EMPTY, tls=None):
        self.asked = asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else body)

            do_CONNECT = do_HEAD = do_GET

            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                self.do_GET()

            def log_message(self, *arguments):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{self._server.server_port}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def serve():
    with contextlib.ExitStack() as servers:

        def started(*arguments, **options):
            server = Server(*arguments, **options)
            servers.callback(server.close)
            return server

        yield started


def certificate(folder, name, days=1):
    """A file with a key and the certificate of 127.0.0.1 that it signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(names)
        .issuer_name(names)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(10))
        .not_valid_after(now + datetime.timedelta(days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / f"{name}.pem"
    path.write_bytes(private + made.public_bytes(encoding))
    return path


def listed(options=None, url="s3://bucket/store"):
    return open_bucket(url, {**KEYS, **(options or {})}).list()


# -- ways that lead there ------------------------------------------------------------------------


@pytest.mark.parametrize("variable", [None, "AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_is_asked_without_tls_if_it_says_so(serve, environment, variable):
    server = serve()
    if variable:
        environment.setenv(variable, server.url)
    assert listed({} if variable else {"endpoint": server.url}) == []
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("given", "variables"),
    [
        ("endpoint", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]),
        ("aws_endpoint_url", ["AWS_ENDPOINT_URL_S3"]),
        (None, ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]),
        (None, ["AWS_ENDPOINT_URL", "AWS_ENDPOINT"]),
    ],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_the_endpoint_that_is_asked_is_that_of_the_identity(serve, environment, given, variables, backwards):
    servers = [serve() for _ in [given, *variables]]
    for server, variable in list(zip(servers[1:], variables, strict=True))[:: -1 if backwards else 1]:
        environment.setenv(variable, server.url)
    options = {given: servers[0].url} if given else {}
    listed(options)
    wanted = servers[0 if given else 1]
    assert [server is wanted for server in servers] == [bool(server.asked) for server in servers]
    assert wanted.url in open_bucket("s3://bucket/store", {**KEYS, **options}).identity


def test_an_option_of_the_environment_counts_beside_others(serve, environment):
    proxy = serve()
    environment.setenv("AWS_PROXY_URL", proxy.url)
    environment.setenv("AWS_TIMEOUT", "7s")
    listed({"endpoint": "http://store.invalid"})
    assert [path.partition("?")[0] for path in proxy.asked] == ["http://store.invalid/bucket"]
    environment.setenv("AWS_ALLOW_HTTP", "false")
    with pytest.raises(StorageError, match="allow_http is false"):
        listed({"endpoint": "http://store.invalid", "timeout": "8s"})


@pytest.mark.parametrize("source", ["text", "path", "AWS_CA_BUNDLE"])
def test_a_certificate_is_trusted_that_is_named(serve, environment, tmp_path, source):
    ours, other = certificate(tmp_path, "ours"), certificate(tmp_path, "other")
    server = serve(tls=ours)
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(other.read_text() + ours.read_text())
    options = {"endpoint": server.url}
    if source == "AWS_CA_BUNDLE":
        environment.setenv(source, str(bundle))
    else:
        options["root_certificate"] = bundle.read_text() if source == "text" else str(bundle)
    assert listed(options) == []


def test_a_certificate_that_cannot_be_read(tmp_path, environment):
    path = str(tmp_path / "none.pem")
    with pytest.raises(
        SettingsError, match=r"^storage_options: root_certificate '.*none.pem': .*No such file"
    ):
        listed({"root_certificate": path})
    environment.setenv("AWS_CA_BUNDLE", path)
    with pytest.raises(SettingsError, match=r"^environment: root_certificate '.*none.pem': .*No such file"):
        listed()


# -- ways that do not ----------------------------------------------------------------------------


def answer(status, code):
    return {"status": status, "body": f"<Error><Code>{code}</Code></Error>".encode()}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endpoint": "http://{plain}", "allow_http": "false"}, "http:// and allow_http is false"),
        ({"endpoint": "https://nobody.invalid"}, r"at https://nobody.invalid: the name of the host .*DNS"),
        ({"endpoint": "https://127.0.0.1:1"}, r"at https://127.0.0.1:1: the connection is refused"),
        ({"endpoint": "https://{tls}"}, "TLS certificate is not trusted; .*root_certificate"),
        ({"endpoint": "https://{expired}", "root_certificate": "{path}"}, r"TLS certificate .*\(Expired\)"),
        ({"endpoint": "https://{plain}"}, "does not speak TLS"),
        ({"endpoint": "https://{tls}", "proxy_url": "http://127.0.0.1:1"}, "no connection to the proxy"),
        ({"endpoint": "https://{tls}", "proxy_url": "http://nobody.invalid"}, r"name of the proxy .*DNS"),
        ({"endpoint": "https://{tls}", "proxy_url": "http://{login}"}, "the proxy refuses to connect"),
        ({"endpoint": "http://{plain}", "proxy_url": "http://{login}"}, "the proxy demands a login"),
        ({"endpoint": "http://{plain}", "proxy_url": "http://127.0.0.1:1"}, "is refused; .* and proxy_url"),
        ({"endpoint": "http://{plain}", "proxy_url": "http://nobody.invalid"}, r"DNS\); .* and proxy_url"),
        ({"endpoint": "http://{silent}", "timeout": "200ms"}, "no answer within the timeouts"),
        ({"endpoint": "http://{wrong_key}"}, r"access is denied \(InvalidAccessKeyId\); .*AWS_PROFILE"),
        ({"endpoint": "http://{expired_token}"}, r"access is denied \(ExpiredToken\)"),
        ({"endpoint": "http://{clock}"}, "the clock of this machine differs"),
        ({"endpoint": "http://{bucket}"}, "there is no such bucket"),
        ({"endpoint": "http://{elsewhere}"}, "in another region; check the region"),
        ({"endpoint": "http://{region}"}, "in another region; check the region"),
    ],
)
def test_a_refusal_names_its_cause(serve, tmp_path, options, words):
    silent = socket.create_server(("127.0.0.1", 0))
    expired = certificate(tmp_path, "expired", days=-1)
    made = {
        "plain": serve,
        "tls": lambda: serve(tls=certificate(tmp_path, "tls")),
        "expired": lambda: serve(tls=expired),
        "login": lambda: serve(407, b""),
        "wrong_key": lambda: serve(**answer(403, "InvalidAccessKeyId")),
        "expired_token": lambda: serve(**answer(400, "ExpiredToken")),
        "clock": lambda: serve(**answer(403, "RequestTimeTooSkewed")),
        "bucket": lambda: serve(**answer(404, "NoSuchBucket")),
        "elsewhere": lambda: serve(301, b""),
        "region": lambda: serve(**answer(400, "AuthorizationHeaderMalformed")),
    }
    places = {"silent": f"127.0.0.1:{silent.getsockname()[1]}", "path": str(expired)}
    for name, start in made.items():
        if any(f"{{{name}}}" in value for value in options.values()):
            places[name] = start().url.partition("//")[2]
    with silent, pytest.raises(StorageError, match=f"^s3://bucket/store/: .*{words}"):
        listed({name: value.format(**places) for name, value in options.items()})


REFUSED = "<Key>store/a</Key><Code>AccessDenied</Code><Message>Access Denied</Message>"


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (
            {"body": f"<DeleteResult><Error>{REFUSED}</Error></DeleteResult>".encode()},
            r"access is denied \(AccessDenied\)",
        ),
        (answer(409, "OperationAborted"), "the object store answers 409 OperationAborted"),
    ],
)
def test_a_refused_deletion_names_its_cause(serve, refusal, words):
    server = serve(**refusal)
    with pytest.raises(StorageError, match=f"^s3://bucket/store/a: cannot be deleted: {words}"):
        open_bucket("s3://bucket/store", {**KEYS, "endpoint": server.url}).delete(["a", "b"])


def test_a_refusal_that_cannot_say_why_names_the_usual_causes(serve):
    server = serve(**answer(400, "ExpiredToken"))
    with pytest.raises(
        StorageError, match=r"a: cannot be read: .* 400; check whether the credentials have expired"
    ):
        open_bucket("s3://bucket/store", {**KEYS, "endpoint": server.url}).info("a")
