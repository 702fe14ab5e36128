"""The private and undocumented parts of Feast that the package uses. No other module uses such parts.

A part is looked up when it is first used, because some modules of Feast must be imported late. Its parameters
are compared with those that are passed. Where a group of parts has changed, Feast's public methods serve
instead, and a warning says so once; a command that has no other way raises `FeastPartError`.
"""

import functools
import importlib
import importlib.metadata
import inspect
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feast_sketch_store.errors import FeastPartError

if TYPE_CHECKING:
    from feast.repo_config import RepoConfig

_logger = logging.getLogger(__name__)


def _version() -> str:
    return importlib.metadata.version("feast")


class Part:
    """A part of Feast.

    Parameters
    ----------
    place : its module and name, as ``feast.utils:_get_column_names``.
    parameters : of a function, in order, those that are passed by position; none of anything else.
    is_overridden : Feast calls it, with exactly these parameters.
    """

    def __init__(self, place: str, *parameters: str, is_overridden: bool = False):
        self.place = place
        self.name = place.rpartition(":")[2].rpartition(".")[2]
        self._parameters = list(parameters)
        self._is_overridden = is_overridden

    @functools.cached_property
    def _owner(self) -> Any:
        """What has the part as an attribute: a module or a class, in which the part was found."""
        module, _, path = self.place.partition(":")
        try:
            owner: Any = importlib.import_module(module)
            for name in path.split(".")[:-1]:
                owner = getattr(owner, name)
        except (ImportError, AttributeError) as error:
            if isinstance(error, ImportError) and not (error.name or "").startswith("feast"):
                raise  # a client library is missing
            raise self._changed(f"there is none: {error}") from error
        self._check(owner, self._parameters)
        return owner

    def _check(self, owner: Any, parameters: list[str]) -> None:
        if not hasattr(owner, self.name):
            raise self._changed("there is none")
        if not self._parameters:
            return
        taken = list(inspect.signature(getattr(owner, self.name)).parameters.values())
        names = [parameter.name for parameter in taken]
        is_same = names[: len(parameters)] == parameters
        further = [p for p in taken[len(parameters) :] if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
        if not is_same or further or (self._is_overridden and len(names) != len(parameters)):
            raise self._changed(f"it takes ({', '.join(names)}), not ({', '.join(parameters)})")

    def _changed(self, what: str) -> FeastPartError:
        return FeastPartError(f"{self.place} of Feast {_version()} is not the one that is known: {what}")

    @property
    def value(self) -> Any:
        """The part itself. Raises FeastPartError: this release of Feast has another one, or none."""
        return getattr(self._owner, self.name)

    def __call__(self, *arguments: Any) -> Any:
        """Call it; see `value` for what is raised."""
        return getattr(self._owner, self.name)(*arguments)

    def of(self, owner: Any) -> Any:
        """The same of an object of the class, such as a bound method; see `value` for what is raised."""
        self._check(owner, self._parameters[1:])
        return getattr(owner, self.name)

    def problem(self) -> FeastPartError | None:
        """What is different in this release of Feast; None if nothing is."""
        try:
            _ = self._owner
        except FeastPartError as error:
            return error
        return None


# -- reads, without a Python object per row and value ------------------------------------------------------
_READ_PARAMETERS = (
    "self",
    "config",
    "grouped_refs",
    "join_key_values",
    "entity_name_to_join_key_map",
    "online_features_response",
    "full_feature_names",
    "include_feature_view_version_metadata",
)
_STORE = "feast.infra.online_stores.online_store:OnlineStore"
READ = Part(f"{_STORE}._read_features_per_fv", *_READ_PARAMETERS, is_overridden=True)
READ_ASYNC = Part(f"{_STORE}._read_features_per_fv_async", *_READ_PARAMETERS, is_overridden=True)
FEATURE_TYPES = Part(f"{_STORE}._build_feature_types", "grouped_refs")
JOIN_KEY_VALUES = Part(
    "feast.utils:_get_table_entity_values", "table", "entity_name_to_join_key_map", "join_key_proto_values"
)
REQUEST_CONTEXT = Part(
    "feast.utils:_get_cached_request_context", "registry", "project", "features", "full_feature_names"
)
COUNT_STATUSES = Part(
    "feast.metrics:track_feature_statuses", "feature_view_name", "present_count", "not_found_count"
)
COUNT_READ = Part("feast.metrics:track_online_store_read", "duration_seconds")
_CONTEXT_VALUES = 9
_SLOWER = "Feast's own methods read row by row, which takes longer"
FEASTS_SERVER = "Feast's own server answers all requests"
READS = (READ, READ_ASYNC, FEATURE_TYPES, JOIN_KEY_VALUES, REQUEST_CONTEXT, COUNT_STATUSES, COUNT_READ)

# -- the feature server ------------------------------------------------------------------------------------
FEATURE_COUNTS = Part("feast.feature_server:_resolve_feature_counts", "features")
RESPONSE_TO_DICT = Part("feast.feature_server_utils:convert_response_to_dict", "response")
COUNT_ENTITIES = Part("feast.metrics:track_online_features_entities", "entity_count")
METRICS_FLAGS = Part("feast.metrics:_config")
BUILD_METRICS_FLAGS = Part("feast.metrics:build_metrics_flags", "metrics_config")
REQUEST_LATENCY = Part("feast.metrics:request_latency")
REQUEST_COUNT = Part("feast.metrics:request_count")
AUDIT_READ = Part(
    "feast.feature_server:_emit_online_audit", "request", "features", "entity_count", "status", "latency_ms"
)
METRICS_CONFIG = Part("feast.infra.feature_servers.base_config:MetricsConfig")
_SECURITY_MANAGER = "feast.permissions.security_manager"
SECURITY_MANAGER = Part(f"{_SECURITY_MANAGER}:get_security_manager")
SERVER = (
    *(FEATURE_COUNTS, RESPONSE_TO_DICT, AUDIT_READ, METRICS_CONFIG, SECURITY_MANAGER),
    *(COUNT_ENTITIES, METRICS_FLAGS, REQUEST_LATENCY, REQUEST_COUNT),
)
BIN_FEATURE_COUNT = Part("feast.feature_server:bin_feature_count", "count", "bins")  # since Feast 0.67

_AUDIT = "feast.audit.audit_middleware"  # since Feast 0.67
AUDIT_PRINCIPAL = Part(f"{_AUDIT}:_principal_from_request", "request")
AUDIT_IP = Part(f"{_AUDIT}:_extract_client_ip", "request")
AUDIT_RESOURCES = Part(f"{_AUDIT}:_PATH_RESOURCE_MAP")
AUDIT_SOURCE, AUDIT_RESOURCE = Part(f"{_AUDIT}:AuditSource"), Part(f"{_AUDIT}:AuditResource")
AUDIT_LOG = (AUDIT_PRINCIPAL, AUDIT_IP, AUDIT_RESOURCES, AUDIT_SOURCE, AUDIT_RESOURCE)
FEATURE_REFERENCES = Part("feast.utils:_get_features", "registry", "project", "features", "allow_cache")
SERVICE_NAME = Part("feast:FeatureStore._resolve_feature_service_name", "self", "feature_refs")
MLFLOW = (FEATURE_REFERENCES, SERVICE_NAME)
CHECK_FEATURES = Part("feast.feature_server:_get_features", "request", "store")
AUTH_MANAGER = Part("feast.permissions.auth.auth_manager:get_auth_manager")
SET_USER = Part(f"{_SECURITY_MANAGER}:SecurityManager.set_current_user", "self", "current_user")
AUTH = (CHECK_FEATURES, AUTH_MANAGER, SET_USER)
_OIDC = "feast.permissions.auth.oidc_token_parser:OidcTokenParser"
OIDC_CLIENT = Part(f"{_OIDC}._get_jwks_client", "self")  # since Feast 0.66, which keeps the provider's keys
VERIFY = Part(f"{_OIDC}.user_details_from_access_token", "self", "access_token")
OIDC = (OIDC_CLIENT, VERIFY)

# -- a process that serves ---------------------------------------------------------------------------------
APP = Part("feast.feature_server:get_app", "store", "registry_ttl_sec")
APPLICATION = Part("feast.feature_server:FeastServeApplication", "store", "metrics_enabled")
_SERVERS = "feast.permissions.server.utils"
AUTH_KIND = Part(f"{_SERVERS}:str_to_auth_manager_type", "value")
SERVER_TYPE = Part(f"{_SERVERS}:ServerType")
INIT_SECURITY = Part(f"{_SERVERS}:init_security_manager", "auth_type", "fs")
INIT_AUTH = Part(f"{_SERVERS}:init_auth_manager", "server_type", "auth_type", "auth_config")
SERVING = (
    *(APP, APPLICATION, METRICS_FLAGS, BUILD_METRICS_FLAGS),
    *(AUTH_KIND, SERVER_TYPE, INIT_SECURITY, INIT_AUTH),
)

# -- commands and engines ----------------------------------------------------------------------------------
COLUMN_NAMES = Part("feast.utils:_get_column_names", "feature_view", "entities")
ARROW_TO_PROTO = Part("feast.utils:_convert_arrow_to_proto", "table", "feature_view", "join_keys")
_ENGINES = "feast.infra.compute_engines"
SPARK_SESSION = Part(
    f"{_ENGINES}.spark.compute:SparkComputeEngine._get_feature_view_spark_session", "self", "feature_view"
)

# -- clients of other online stores ------------------------------------------------------------------------
_STORES = "feast.infra.online_stores"
_CASSANDRA = f"{_STORES}.cassandra_online_store.cassandra_online_store:CassandraOnlineStore"
CASSANDRA_SESSION = Part(f"{_CASSANDRA}._get_session", "self", "config")
CASSANDRA_KEYSPACE = Part(f"{_CASSANDRA}._keyspace")
CASSANDRA_CLUSTER = Part(f"{_CASSANDRA}._cluster")
REDIS_CLIENT = Part(f"{_STORES}.redis:RedisOnlineStore._get_client", "self", "online_store_config")
BIGTABLE_CLIENT = Part(f"{_STORES}.bigtable:BigtableOnlineStore._get_client", "self", "online_config")
BIGTABLE_TABLE = Part(f"{_STORES}.bigtable:BigtableOnlineStore._get_table_name", "config", "feature_view")
DATASTORE_CLIENT = Part(f"{_STORES}.datastore:DatastoreOnlineStore._get_client", "self", "online_config")
HBASE_POOL = Part(f"{_STORES}.hbase_online_store.hbase:HbaseOnlineStore._get_conn", "self", "config")
POSTGRES_CONNECTION = Part("feast.infra.utils.postgres.connection_utils:_get_conn", "config")

# -- what Feast looks up in this package -------------------------------------------------------------------
STORE_TYPES = Part("feast.repo_config:ONLINE_STORE_CLASS_FOR_TYPE")
VERSIONED_READS = Part(f"{_STORE}._versioned_read_supported")

# -- other online stores, as backing stores ----------------------------------------------------------------
CHECK_VERSIONED_READS = Part(f"{_STORE}._is_versioned_read_supported", "self")

ALL = tuple(part for part in list(globals().values()) if isinstance(part, Part))


def with_online_store(config: "RepoConfig", options: Any, given: dict[str, Any]) -> "RepoConfig":
    """A copy of a repository's configuration with another online store.

    Parameters
    ----------
    options : the options of the online store, an instance of its configuration class.
    given : the same as in ``feature_store.yaml``.

    Raises FeastPartError: `RepoConfig` of this release of Feast keeps them in another way.
    """
    copied = config.model_copy()
    copied.online_config, copied._online_store = given, options
    if copied.online_store is not options:
        raise FeastPartError(
            f"feast.repo_config:RepoConfig._online_store of Feast {_version()} is not the one that is known"
        )
    return copied


def keeps_versions(online_store: Any) -> bool:
    """Whether an online store keeps the versions of a view apart."""
    known = getattr(online_store, VERSIONED_READS.name, None)
    return bool(CHECK_VERSIONED_READS(online_store) if known is None else known)


def request_context(*arguments: Any) -> Any:
    """What `REQUEST_CONTEXT` gives: nine values. None, with one warning, if this release gives others."""
    context = REQUEST_CONTEXT(*arguments)
    if len(context) == _CONTEXT_VALUES:
        return context
    _warn(f"{REQUEST_CONTEXT.place} of Feast {_version()} gives {len(context)} values; {_SLOWER}")
    return None


def oidc_keys(parser: Any) -> Any:
    """The keys that an `OidcTokenParser` verifies tokens with, an object of their own after each fetch; None
    if it must fetch them.
    """
    cache = getattr(getattr(parser, "_jwks_client", None), "jwk_set_cache", None)
    return None if cache is None or cache.get() is None else cache.jwk_set_with_timestamp


def registry_file(registry: Any) -> Path | None:
    """The file of a registry; None if it is kept elsewhere."""
    path = getattr(registry, "_file_path", None)
    return path if isinstance(path, Path) else None


@functools.cache
def changed(parts: tuple[Part, ...], otherwise: str) -> str:
    """What of these parts is different in this release of Feast; empty if nothing is. Warns once, and says
    what is done ``otherwise``.
    """
    reason = "; ".join(str(problem) for part in parts if (problem := part.problem()))
    if reason:
        _warn(f"{reason}; {otherwise}")
    return reason


def reads_changed() -> bool:
    """Whether reads must go through Feast's public methods. Warns once if so."""
    return bool(changed(READS, _SLOWER))


@functools.cache
def _warn(text: str) -> None:
    _logger.warning("%s. Install a release of Feast that README names.", text)
