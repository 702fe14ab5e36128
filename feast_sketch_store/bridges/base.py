"""`Bridge`: reads another online store of Feast. A format takes one class and one registration.

Nothing here writes to the other store. Client libraries are imported when a store of their kind is opened.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from feast.feature_view import FeatureView
from feast.infra.key_encoding_utils import deserialize_entity_key
from feast.infra.online_stores.helpers import compute_versioned_name
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import RepoConfig, load_repo_config

from feast_sketch_store.errors import SettingsError, SketchStoreError, StorageError, reason_of
from feast_sketch_store.planning.plan import Estimate
from feast_sketch_store.rows.entity_keys import SERIALIZATION_VERSION

T = TypeVar("T")

# The configuration classes of Feast's stores, and the bridges that read these stores.
_BRIDGES: dict[str, str] = {
    "RedisOnlineStoreConfig": "redis:RedisBridge",
    "SqliteOnlineStoreConfig": "sql:SqliteBridge",
    "PostgreSQLOnlineStoreConfig": "sql:PostgresBridge",
    "MySQLOnlineStoreConfig": "sql:MySQLBridge",
    "DynamoDBOnlineStoreConfig": "dynamodb:DynamoBridge",
    "CassandraOnlineStoreConfig": "cassandra:CassandraBridge",
    "ScyllaDBOnlineStoreConfig": "cassandra:CassandraBridge",
    "DatastoreOnlineStoreConfig": "datastore:DatastoreBridge",
    "BigtableOnlineStoreConfig": "bigtable:BigtableBridge",
    "HbaseOnlineStoreConfig": "hbase:HBaseBridge",
}


class OtherRow(NamedTuple):
    """A row of another store. ``entity`` is its key; if the format has no keys, its hash as Feast's
    ``compute_entity_id`` computes it.
    """

    entity: EntityKey | str
    values: dict[str, Value]
    event: datetime
    created: datetime | None = None


class Page(NamedTuple):
    """Some rows of a scan."""

    rows: list[OtherRow]
    num_scanned: int  # keys of the store that were visited for these rows, including those of other views
    position: str  # where to continue after this page, as text


class Pace:
    """A limit of rows per second, or None, because another store has its own readers to serve."""

    def __init__(self, max_rows_per_second: float | None):
        self._seconds_a_row = 1 / max_rows_per_second if max_rows_per_second else 0.0
        self._due = time.monotonic()

    def wait(self, num_rows: int) -> None:
        """Sleep until this many more rows are allowed."""
        self._due = max(self._due, time.monotonic() - 1.0) + num_rows * self._seconds_a_row
        time.sleep(max(0.0, self._due - time.monotonic()))


@dataclass(frozen=True)
class OtherStore:
    """The configuration of a Feast repository whose online store is to be read."""

    config: RepoConfig
    file: Path

    @classmethod
    def load(cls, file: Path) -> "OtherStore":
        """Read a ``feature_store.yaml``.

        Raises SettingsError: it cannot be read, there is no bridge for its store, or its entity keys have an
        old serialization version.
        """
        file = file.absolute()
        try:
            config = load_repo_config(file.parent, file)
            kind = type(config.online_store).__name__
        except Exception as error:  # Feast may raise anything for a wrong file or a missing client library
            reason = f"the other store's configuration cannot be read: {reason_of(error)}"
            raise SettingsError(f"{file}: {reason}") from error
        if kind not in _BRIDGES:
            known = ", ".join(sorted(name.removesuffix("OnlineStoreConfig") for name in _BRIDGES))
            raise SettingsError(
                f"{file}: rows of an online store of type {kind.removesuffix('Config')} cannot be imported; "
                f"those of these can: {known}"
            )
        if config.entity_key_serialization_version < SERIALIZATION_VERSION:
            raise SettingsError(
                f"{file}: entity_key_serialization_version is {config.entity_key_serialization_version}, "
                f"whose keys cannot be read back; materialize that store with version {SERIALIZATION_VERSION}"
            )
        return cls(config, file)

    @property
    def kind(self) -> str:
        """The name of the store, as in ``Redis``."""
        return type(self.config.online_store).__name__.removesuffix("OnlineStoreConfig")


@dataclass(frozen=True)
class OtherView:
    """A feature view as another store keeps it."""

    store: OtherStore
    table: FeatureView

    @property
    def config(self) -> RepoConfig:
        """The configuration of the other repository."""
        return self.store.config

    @property
    def name(self) -> str:
        """The view's name in the other store, with its version if that has one."""
        registry = self.config.registry
        is_versioned = getattr(registry, "enable_online_feature_view_versioning", False)
        return str(compute_versioned_name(self.table, is_versioned))

    @property
    def features(self) -> list[str]:
        """The names of the features."""
        return [feature.name for feature in self.table.features]

    @property
    def join_keys(self) -> list[str]:
        """The join keys, in the order of Feast's serialization."""
        return sorted(column.name for column in self.table.entity_columns)

    def __str__(self) -> str:
        return f"feature view {self.name!r} of project {self.config.project!r} in {self.store.kind}"


class Bridge(ABC):
    """Reads the rows of one view. Every method raises `StorageError` when the store cannot be reached, or a
    row cannot be read.
    """

    has_keys: ClassVar[bool] = True  # whether the format has entity keys; otherwise it has only their hashes
    # whether `sample` may miss rows even if it returns fewer than asked for
    samples_at_random: ClassVar[bool] = False
    resolution: ClassVar[str]  # of the format's timestamps, such as ``1 s``
    _errors: tuple[type[Exception], ...]  # that the client library raises
    _failure: str  # what they mean, for messages
    _client: Any

    def __init__(self, view: OtherView):
        self.view = view

    @abstractmethod
    def pages(self, position: str | None = None) -> Iterator[Page]:
        """All rows, some perhaps twice. A change during the scan may or may not be seen.

        The scan continues after the ``position`` of a page, also of one from another process.
        """

    @abstractmethod
    def count(self) -> Estimate | None:
        """The number of keys that a scan visits; None if the store does not report it."""

    def sample(self, num_rows: int) -> Iterator[Page]:
        """Representative pages with at least this many rows, or all. By default the first pages."""
        found = 0
        for page in self.pages():
            yield page
            found += len(page.rows)
            if found >= num_rows:
                return

    def stored_bytes(self, rows: Sequence[OtherRow]) -> Estimate | None:
        """Mean bytes of a row, as the store reports them for these rows or all; None if it does not."""
        return None

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def _called(self, call: Callable[[], T]) -> T:
        """Call the client library."""
        try:
            return call()
        except self._errors as error:
            raise StorageError(f"{self.view}: {self._failure}: {error}") from error

    def _entity(self, serialized: bytes | str) -> EntityKey:
        """An entity key from its serialized form, or from the hexadecimal digits of it."""
        try:
            content = bytes.fromhex(serialized) if isinstance(serialized, str) else serialized
            key: EntityKey = deserialize_entity_key(content, SERIALIZATION_VERSION)
        except ValueError as error:
            raise StorageError(f"{self.view}: an entity key cannot be read: {error}") from error
        return key

    def _values(self, content: Mapping[str, bytes | None]) -> dict[str, Value]:
        """The values of the view's features that a row has, from their serialized forms by name."""
        values = {}
        for name in self.view.features:
            if (stored := content.get(name)) is not None:
                try:
                    values[name] = Value.FromString(stored)
                except Exception as error:  # the class that protobuf raises depends on its implementation
                    reason = f"a value of feature {name!r} cannot be read: {error}"
                    raise StorageError(f"{self.view}: {reason}") from error
        return values


class HashOrderedBridge(Bridge):
    """A store that is scanned in the order of a hash of entity keys.

    So the first entities represent all, and their share of the hash range gives an estimate of the number.
    """

    def __init__(self, view: OtherView):
        super().__init__(view)
        self._num_met = 0
        self._met_share = 0.0

    def count(self) -> Estimate | None:
        """An estimate from the share of the hash range that was scanned; None before a scan."""
        if not self._num_met or not self._met_share:
            return None
        number = round(self._num_met / self._met_share)
        spread = 0.0 if self._met_share >= 1 else 1.96 / math.sqrt(self._num_met)
        return Estimate(number, number * (1 - spread), number * (1 + spread))

    def pages(self, position: str | None = None) -> Iterator[Page]:
        """Pages of rows, in the order of the hashes."""
        for rows, end, share in self._scan(position):
            self._num_met += len(rows)
            self._met_share = share
            yield Page(rows, len(rows), end)
        self._met_share = 1.0

    @abstractmethod
    def _scan(self, position: str | None) -> Iterator[tuple[list[OtherRow], str, float]]:
        """Rows, the position after them, and the share of all hashes that are not above it."""


class HashKeyedBridge(HashOrderedBridge):
    """A store that can be scanned from any row, whose row keys begin with the hash in hexadecimal."""

    def _scan(self, position: str | None) -> Iterator[tuple[list[OtherRow], str, float]]:
        while found := self._called(partial(self._after, position)):
            position = found[-1][0]
            yield [row for _, row in found if row is not None], position, _share_of_hashes(position)

    @abstractmethod
    def _after(self, position: str | None) -> Sequence[tuple[str, OtherRow | None]]:
        """The next row keys with their rows, None for a row of another view; empty at the end."""


def _share_of_hashes(entity_id: str) -> float:
    """The share of all hashes that are not above this one, given in hexadecimal."""
    try:
        return (int(entity_id[:8], 16) + 1) / (1 << 32)
    except ValueError:
        return 1.0


def open_bridge(view: OtherView) -> Bridge:
    """The bridge to a view.

    Raises
    ------
    SettingsError : the client library of the store is missing, or does not take the configuration.
    StorageError : the store cannot be reached.
    """
    module, name = _BRIDGES[type(view.config.online_store).__name__].split(":")
    try:
        bridge: Bridge = getattr(import_module(f"feast_sketch_store.bridges.{module}"), name)(view)
    except SketchStoreError:
        raise
    except ImportError as error:
        raise SettingsError(f"{view.store.file}: a client library is missing: {error}") from error
    except Exception as error:  # Feast and clients may raise anything for a wrong option
        reason = f"{type(error).__name__}: {error}"
        raise SettingsError(f"{view.store.file}: the online store cannot be opened: {reason}") from error
    return bridge


def entity_key(row: OtherRow) -> EntityKey:
    """The key of a row whose format has keys."""
    if isinstance(row.entity, str):
        raise TypeError("the format keeps no keys")
    return row.entity
