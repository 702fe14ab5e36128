"""Stores whose path is a URL: ``s3://bucket/folder``, ``az://container/folder``, ``gs://bucket/folder``.

Credentials come from ``storage_options`` or the environment, never from the URL, and are in no message.
"""

import functools
import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feast_sketch_store.errors import SettingsError

if TYPE_CHECKING:
    from feast_sketch_store.storage.object_store import ObjectStorage
    from feast_sketch_store.storage.objects import Objects

_URL = re.compile(r"([a-z0-9+.-]{2,}):/", re.IGNORECASE)  # a second slash may have been forgotten
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+(/[A-Za-z0-9._/-]*)?")
_BUCKET = re.compile(r"[A-Za-z0-9._-]+")
_NOT_IN_KEYS = re.compile(r"[?#\[\\\x00-\x1f\x7f]")

# The schemes, with the prefixes of environment variables for options that are not given.
_ENVIRONMENT = {"s3": "AWS_", "az": "AZURE_", "gs": "GOOGLE_"}
_PREFIX = re.compile(r"(aws_|azure_|google_)?(storage_)?", re.IGNORECASE)
# Names of the endpoint, without a prefix: the first that is set counts. The last column is obstore's name of
# the one that it prefers to all others.
_ENDPOINTS = {
    "s3": (("endpoint_url_s3", "endpoint_url", "endpoint"), "aws_endpoint_url_s3"),
    "az": (("endpoint",), "endpoint"),
    "gs": (("base_url",), "base_url"),
}

# Options of the connection; all others are the store's own.
_CLIENT_OPTIONS = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
}
_CERTIFICATES = ("root_certificate", "proxy_ca_certificate")  # text, or the path of a file
_PROXIES = ("https_proxy", "http_proxy", "all_proxy")  # in the environment
# A view without an answer serves its old rows, so timeouts can be short.
_CLIENT_DEFAULTS = {"connect_timeout": "5s", "timeout": "60s"}
_RETRIES = 3
_RETRY_TIMEOUT = timedelta(seconds=30)


def is_url(path: str) -> bool:
    """Whether a store's path is a URL."""
    return _URL.match(path) is not None


def check_url(url: str) -> None:
    """Check the path of a store that is a URL.

    Raises ValueError: it is not the URL of a supported object store. The message does not repeat the whole
    URL.
    """
    match = _URL.match(url)
    scheme = match[1].lower() if match else ""
    if scheme not in _ENVIRONMENT:
        raise ValueError(
            f"path: {scheme}:// is not supported; use s3://bucket/folder, az://container/folder, "
            "gs://bucket/folder or a local folder"
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
    options : ``storage_options``: those of obstore's stores, such as ``endpoint`` and ``region``, and of its
        client, such as ``allow_http`` and ``timeout``.
    read_only, cache_path : see `ObjectStorage`.

    Raises SettingsError: the URL or an option is invalid, or obstore is not installed.
    """
    objects, folder = open_objects(url, options)
    from feast_sketch_store.storage.object_store import ObjectStorage

    return ObjectStorage(objects, folder, read_only, cache_path)


def open_objects(url: str, options: Mapping[str, str] | None = None) -> tuple["Objects", str]:
    """The objects of a URL's bucket, and the folder of the URL: empty, or with a slash at its end.

    Raises SettingsError: the URL or an option is invalid, or obstore is not installed.
    """
    try:
        check_url(url)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    scheme, bucket, folder = _parts(url)
    given = tuple(sorted((name, option_text(value)) for name, value in (options or {}).items()))
    folder = f"{folder}/" if folder else ""
    try:
        return _objects(scheme, bucket, folder, given), folder
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "obstore":
            raise
        raise SettingsError(
            "a path on an object store needs the package obstore: `pip install obstore`"
        ) from None


def option_text(value: Any) -> str:
    """A storage option as text; a secret type of pydantic is revealed."""
    value = value.get_secret_value() if hasattr(value, "get_secret_value") else value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parts(url: str) -> tuple[str, str, str]:
    scheme, _, rest = url.partition("://")
    bucket, _, folder = rest.partition("/")
    return scheme.lower(), bucket, folder.removesuffix("/")


@functools.lru_cache(maxsize=256)  # connections are kept open between calls
def _objects(scheme: str, bucket: str, probe_folder: str, options: tuple[tuple[str, str], ...]) -> "Objects":
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    from feast_sketch_store.storage.objects import Objects

    config = {name: value for name, value in options if name not in _CLIENT_OPTIONS}
    client = _client_options(scheme, {name: value for name, value in options if name in _CLIENT_OPTIONS})
    names, preferred = _ENDPOINTS[scheme]
    endpoint, account = _known(scheme, config, names), _known(scheme, config, ("account_name",))
    addresses = [option for option in config.items() if option[0].lower().endswith("endpoint")]
    for name, value in [*addresses, *([] if endpoint is None else [endpoint])]:
        if not _ENDPOINT.fullmatch(value):
            raise SettingsError(
                f"storage_options: {name} must be like https://host or http://host:port, without credentials"
            )
    address = endpoint[1] if endpoint else ""
    if endpoint:
        # Under one name, because obstore takes some from the environment even if another one is given.
        config = {name: value for name, value in config.items() if _plain(name) not in names}
        config[preferred] = address
    if address.startswith("http://"):
        client.setdefault("allow_http", "true")
    make: Any = {"s3": S3Store, "az": AzureStore, "gs": GCSStore}[scheme]
    retry = {"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT}
    try:
        store = make(bucket, config=config, client_options=client, retry_config=retry)
    except (BaseError, ValueError, TypeError):
        # Messages of obstore may repeat values.
        raise SettingsError(
            f"{scheme}://{bucket}: an object store cannot be opened with the storage_options "
            f"{sorted(name for name, _ in options)}; see docs/how_to/object_stores.md for their names "
            "and values"
        ) from None
    location = f"{scheme}://{bucket}"
    # Buckets of the same name at other endpoints are different; the host's cache must tell them apart.
    identity = f"{location} {address} {account[1] if account else ''}"
    has_proxy = "proxy_url" in client or any(
        name.lower() in _PROXIES for name, value in os.environ.items() if value
    )
    return Objects(store, location, identity, probe_folder, address, has_proxy)


def _client_options(scheme: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Options of the connection: those that are given, those of the environment, and defaults.

    obstore itself takes none from the environment if any is given.
    """
    client: dict[str, Any] = dict(_CLIENT_DEFAULTS)
    for name in _CLIENT_OPTIONS:
        value = os.environ.get(_ENVIRONMENT[scheme] + name.upper())
        if name in given or value:
            client[name] = given.get(name, value)
    if scheme == "s3" and "root_certificate" not in client and (bundle := os.environ.get("AWS_CA_BUNDLE")):
        client["root_certificate"] = bundle
    for name in _CERTIFICATES:
        if name in client and "-----BEGIN" not in client[name]:
            try:
                client[name] = Path(client[name]).read_text(encoding="ascii")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not text"
                source = "storage_options" if name in given else "environment"
                raise SettingsError(
                    f"{source}: {name} {client[name]!r}: the file cannot be read: {reason}; name a "
                    "file of PEM certificates"
                ) from None
    return client


def _plain(name: str) -> str:
    """The name of an option or variable without its prefix."""
    return _PREFIX.sub("", name, count=1).lower()


def _known(scheme: str, options: Mapping[str, str], names: Sequence[str]) -> tuple[str, str] | None:
    """The first of the names that is given as an option, or else that the environment has: its full name
    and value.
    """
    prefix = _ENVIRONMENT[scheme]
    environment = {name: value for name, value in os.environ.items() if name.startswith(prefix) and value}
    for source in (options, environment):
        plain = {_plain(name): (name, source[name]) for name in sorted(source)}
        for name in names:
            if name in plain:
                return plain[name]
    return None
