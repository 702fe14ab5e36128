"""Postgres and MariaDB for tests, on free ports of 127.0.0.1; tests are skipped if they are not installed.

Neither runs as root: if the tests do, another user owns the servers and their folder.
"""

import os
import pwd
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.ports import free_port

_START_SECONDS = 180
_FOLDERS = ":".join(["/usr/sbin", *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))])


def _program(name, package):
    found = shutil.which(name, path=f"{os.environ['PATH']}:{_FOLDERS}")
    if found is None:
        pytest.skip(f"needs {name}, of Debian's {package}")
    return str(Path(found).resolve())


def _owner(folder, name):
    """The user for the server's processes, who owns the folder: not root."""
    if os.getuid():
        return None
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        user = pwd.getpwnam("nobody")
    for path in (folder, *folder.parents):
        if path.stat().st_uid == 0 and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o011)
    os.chown(folder, user.pw_uid, user.pw_gid)
    return user.pw_name


def _await(process, connect, errors):
    deadline = time.monotonic() + _START_SECONDS
    while True:
        assert process.poll() is None, "the server ended"
        try:
            return connect()
        except errors:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # no event tells


@contextmanager
def _running(command, folder, user, connect, errors):
    process = subprocess.Popen(
        command, cwd=folder, user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield _await(process, connect, errors)
    finally:
        process.kill()  # nobody needs what it stored
        process.wait()


@contextmanager
def running_postgres(folder):
    """The port of a Postgres with a database ``feast`` of the user ``postgres``, who needs no password."""
    psycopg = pytest.importorskip("psycopg", reason="needs psycopg[binary]")
    initdb, postgres = _program("initdb", "postgresql"), _program("postgres", "postgresql")
    user, port = _owner(folder, "postgres"), free_port()
    data = str(folder / "data")
    subprocess.run(
        [initdb, "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"],
        cwd=folder, user=user, check=True, capture_output=True,
    )  # fmt: skip
    command = [postgres, "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-c", "fsync=off"]

    def connect():
        return psycopg.connect(host="127.0.0.1", port=port, user="postgres", autocommit=True)

    with _running(command, folder, user, connect, psycopg.OperationalError) as connection:
        connection.execute("CREATE DATABASE feast")
        connection.close()
        yield port


@contextmanager
def running_mariadb(folder):
    """The port of a MariaDB with a database ``feast`` of the user ``feast``, whose password is ``tests``."""
    pymysql = pytest.importorskip("pymysql", reason="needs PyMySQL")
    install, mariadbd = (
        _program("mariadb-install-db", "mariadb-server"),
        _program("mariadbd", "mariadb-server"),
    )
    user, port = _owner(folder, "mysql"), free_port()
    data = f"--datadir={folder / 'data'}"
    subprocess.run(
        [install, "--no-defaults", data, "--auth-root-authentication-method=normal", "--skip-test-db"],
        cwd=folder, user=user, check=True, capture_output=True,
    )  # fmt: skip
    command = [
        mariadbd, "--no-defaults", data, "--bind-address=127.0.0.1", f"--port={port}",
        f"--socket={folder / 'socket'}", f"--pid-file={folder / 'pid'}", "--skip-log-bin",
        "--innodb-flush-log-at-trx-commit=0",
    ]  # fmt: skip

    def connect():
        return pymysql.connect(host="127.0.0.1", port=port, user="root")

    with _running(command, folder, user, connect, pymysql.OperationalError) as connection:
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE feast")
            cursor.execute("CREATE USER feast@'127.0.0.1' IDENTIFIED BY 'tests'")
            cursor.execute("GRANT ALL ON feast.* TO feast@'127.0.0.1'")
        yield port
