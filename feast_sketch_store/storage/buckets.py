"""Stores whose path is a URL: ``s3://bucket/folder`` and ``az://container/folder``.

Credentials come from ``storage_options`` or the environment, never from the URL, and are in no message.
"""

import functools
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feast_sketch_store.errors import SettingsError

if TYPE_CHECKING:
    from feast_sketch_store.storage.object_store import ObjectStorage

SCHEMES = ("s3", "az")
_URL = re.compile(r"([a-z0-9+.-]+)://", re.IGNORECASE)
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+(/[A-Za-z0-9._/-]*)?")
_BUCKET = re.compile(r"[A-Za-z0-9._-]+")
_NOT_IN_KEYS = re.compile(r"[?#\[\\\x00-\x1f\x7f]")

# Prefixes of environment variables for options that are not given.
_ENVIRONMENT = {"s3": "AWS_", "az": "AZURE_"}
_PREFIX = re.compile(r"(aws_|azure_)?(storage_)?", re.IGNORECASE)
_ENDPOINTS = ("endpoint", "endpoint_url", "endpoint_url_s3")

# Options of the connection; all others are the store's own.
_CLIENT_OPTIONS = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_url",
    "read_timeout",
    "root_certificate",
    "timeout",
}
# A view without an answer serves its old rows, so timeouts can be short.
_CLIENT_DEFAULTS = {"connect_timeout": "5s", "timeout": "60s"}
_RETRIES = 3
_RETRY_TIMEOUT = timedelta(seconds=30)


def is_url(path: str) -> bool:
    """Whether a store's path is a URL."""
    return _URL.match(path) is not None


def check_url(url: str) -> None:
    """Check the path of a store that is a URL.

    Raises
    ------
    ValueError : it is not the URL of a supported object store. The message does not repeat the whole URL.
    """
    match = _URL.match(url)
    scheme = match[1].lower() if match else ""
    if scheme in ("gs", "gcs"):
        raise ValueError(
            "path: Google Cloud Storage is not supported, because no server was at hand to test it with; use "
            "s3://, az:// or a local folder"
        )
    if scheme not in SCHEMES:
        raise ValueError(
            f"path: {scheme}:// is not supported; use s3://bucket/folder, az://container/folder or "
            "a local folder"
        )
    _, bucket, folder = _parts(url)
    if not _BUCKET.fullmatch(bucket):
        raise ValueError(
            f"path: after {scheme}:// there must be the plain name of a bucket or container; credentials and "
            "options go to storage_options or the environment"
        )
    parts = folder.split("/") if folder else []
    if any(part in ("", ".", "..") for part in parts) or _NOT_IN_KEYS.search(folder):
        raise ValueError(
            "path: the folder of a bucket has parts between slashes, none of them empty, . or .., and none "
            "with ? # [ \\ or control characters"
        )


def open_bucket(
    url: str,
    options: Mapping[str, str] | None = None,
    read_only: bool = False,
    cache_path: Path | None = None,
) -> "ObjectStorage":
    """The storage of a URL. Nothing is read or written yet.

    Parameters
    ----------
    url : of the store.
    options : ``storage_options``: those of obstore's stores, such as ``endpoint`` and ``region``, and of its
        client, such as ``allow_http`` and ``timeout``.
    read_only : whether every method that changes something raises.
    cache_path : local folder for fetched files; None to fetch into memory.

    Raises
    ------
    SettingsError : the URL or an option is invalid, or obstore is not installed.
    """
    try:
        check_url(url)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    try:
        from feast_sketch_store.storage.object_store import ObjectStorage
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "obstore":
            raise
        raise SettingsError(
            "a path on an object store needs the package obstore; install feast_sketch_store[object-store]"
        ) from None
    scheme, bucket, folder = _parts(url)
    given = tuple(sorted((name, option_text(value)) for name, value in (options or {}).items()))
    objects = _objects(scheme, bucket, f"{folder}/" if folder else "", given)
    return ObjectStorage(objects, f"{folder}/" if folder else "", read_only, cache_path)


def option_text(value: Any) -> str:
    """A storage option as text; a secret type of pydantic is revealed."""
    value = value.get_secret_value() if hasattr(value, "get_secret_value") else value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parts(url: str) -> tuple[str, str, str]:
    scheme, _, rest = url.partition("://")
    bucket, _, folder = rest.partition("/")
    return scheme.lower(), bucket, folder.removesuffix("/")


@functools.lru_cache(maxsize=256)  # connections are kept open between calls
def _objects(scheme: str, bucket: str, probe_folder: str, options: tuple[tuple[str, str], ...]) -> Any:
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, S3Store

    from feast_sketch_store.storage.objects import Objects

    client: dict[str, Any] = dict(_CLIENT_DEFAULTS)
    config: dict[str, Any] = {}
    for name, value in options:
        (client if name in _CLIENT_OPTIONS else config)[name] = value
    make: Any = S3Store if scheme == "s3" else AzureStore
    endpoint, account = _known(scheme, config, _ENDPOINTS), _known(scheme, config, ("account_name",))
    addresses = [
        option for option in config.items() if option[0].lower().endswith(("endpoint", "endpoint_url"))
    ]
    for name, value in [*addresses, *([] if endpoint is None else [endpoint])]:
        if not _ENDPOINT.fullmatch(value):
            raise SettingsError(
                f"storage_options: {name} must be like https://host or http://host:port, without credentials"
            )
    retry = {"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT}
    try:
        store = make(bucket, config=config, client_options=client, retry_config=retry)
    except (BaseError, ValueError, TypeError):
        # Messages of obstore may repeat values.
        raise SettingsError(
            f"{scheme}://{bucket}: an object store cannot be opened with the storage_options "
            f"{sorted(name for name, _ in options)}; see docs/object_stores.md for their names and values"
        ) from None
    location = f"{scheme}://{bucket}"
    # Buckets of the same name at other endpoints are different; the host's cache must tell them apart.
    identity = f"{location} {endpoint[1] if endpoint else ''} {account[1] if account else ''}"
    return Objects(store, location, identity, probe_folder)


def _known(scheme: str, options: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str] | None:
    """An option with one of the names, and that name; from the environment if the option is not given."""
    prefix = _ENVIRONMENT[scheme]
    environment = {name: value for name, value in os.environ.items() if name.startswith(prefix)}
    for source in (options, environment):
        for name in sorted(source):
            if _PREFIX.sub("", name, count=1).lower() in names:
                return name, source[name]
    return None
