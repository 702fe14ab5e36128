"""The private parts of Feast that the package uses: each is known, there, and called as it wants to be.

A release of Feast may change them without a word. The ceiling in `pyproject.toml` keeps such a release out
until these tests pass with it; `docs/decisions/0003-dependencies.md` says what each part is used for.
"""

import ast
import importlib.metadata
import inspect
import re
from abc import ABC
from pathlib import Path

import pytest
from feast import FeatureStore, feature_server, metrics, repo_config, utils
from feast.feature_view import DUMMY_ENTITY_ID, DUMMY_ENTITY_NAME
from feast.infra.online_stores.online_store import OnlineStore
from feast.infra.online_stores.redis import RedisOnlineStore
from feast.infra.passthrough_provider import PassthroughProvider
from packaging.requirements import Requirement

import feast_sketch_store
from feast_sketch_store import SketchOnlineStore
from feast_sketch_store.settings.table import Compaction

PACKAGE = Path(feast_sketch_store.__file__).parent
ROOT = Path(__file__).parents[2]

READ_PARAMETERS = [
    "self",
    "config",
    "grouped_refs",
    "join_key_values",
    "entity_name_to_join_key_map",
    "online_features_response",
    "full_feature_names",
    "include_feature_view_version_metadata",
]
FUNCTIONS = {  # with their parameters, in order: the package passes most of them by position
    "_get_table_entity_values": (
        utils._get_table_entity_values,
        ["table", "entity_name_to_join_key_map", "join_key_proto_values"],
    ),
    "_convert_arrow_to_proto": (utils._convert_arrow_to_proto, ["table", "feature_view", "join_keys"]),
    "_get_column_names": (utils._get_column_names, ["feature_view", "entities"]),
    "_get_provider": (FeatureStore._get_provider, ["self"]),
    "_read_features_per_fv": (OnlineStore._read_features_per_fv, READ_PARAMETERS),
    "_read_features_per_fv_async": (OnlineStore._read_features_per_fv_async, READ_PARAMETERS),
    "_get_cached_request_context": (
        utils._get_cached_request_context,
        ["registry", "project", "features", "full_feature_names"],
    ),
    "_resolve_feature_counts": (feature_server._resolve_feature_counts, ["features"]),
    "bin_feature_count": (feature_server.bin_feature_count, ["count", "bins"]),
    "_build_feature_types": (OnlineStore._build_feature_types, ["grouped_refs"]),
    "_get_client": (RedisOnlineStore._get_client, ["self", "online_store_config"]),
    "track_feature_statuses": (
        metrics.track_feature_statuses,
        ["feature_view_name", "present_count", "not_found_count"],
    ),
}
ATTRIBUTES = {"_versioned_read_supported", "_online_store", "ONLINE_STORE_CLASS_FOR_TYPE"}
# Behind client libraries that are not here.
OF_CLIENTS = {"_get_conn", "_get_session", "_keyspace", "_cluster", "_get_table_name"}
OF_ENGINES = {"_get_feature_view_spark_session"}  # behind packages that are not here; see tests/engines
HOOKS = {*FUNCTIONS, *ATTRIBUTES, *OF_CLIENTS, *OF_ENGINES}
PUBLIC_BY_NAME = {  # and undocumented
    "track_feature_statuses",
    "bin_feature_count",
    "ONLINE_STORE_CLASS_FOR_TYPE",
}
# Of named tuples, the extension, and histograms of prometheus_client.
OF_OTHERS = {"_replace", "_asdict", "_fields", "_make", "_compiled", "_buckets", "_sum"}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def used_and_defined():
    """The private names that the package's code uses, and those that it defines itself."""
    used, defined = set(), set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.add(node.id)
            elif isinstance(node, ast.ImportFrom):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
                if isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") == "self":
                    defined.add(node.attr)
    return set(filter(is_private, used)), set(filter(is_private, defined))


def test_no_other_private_name_of_feast_is_used():
    used, defined = used_and_defined()
    inherited = set(filter(is_private, dir(OnlineStore))) - set(dir(ABC))
    overridden = inherited & set(vars(SketchOnlineStore))
    assert (used - defined - OF_OTHERS) | overridden == HOOKS - PUBLIC_BY_NAME


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_what_it_is_called_with(name):
    function, parameters = FUNCTIONS[name]
    assert list(inspect.signature(function).parameters) == parameters
    assert inspect.iscoroutinefunction(function) == name.endswith("_async")


@pytest.mark.parametrize("name", ["_read_features_per_fv", "_read_features_per_fv_async"])
def test_feast_reads_through_the_methods_that_are_overridden(name):
    caller = OnlineStore.get_online_features_async if "async" in name else OnlineStore.get_online_features
    assert f"self.{name}(" in inspect.getsource(caller)


def test_a_store_can_say_that_it_keeps_versions_apart():
    assert OnlineStore._versioned_read_supported is None, "Feast asks the store's type where it is not set"
    assert SketchOnlineStore._versioned_read_supported is True


def test_store_types_are_looked_up_in_a_dictionary():
    assert isinstance(repo_config.ONLINE_STORE_CLASS_FOR_TYPE, dict)
    assert repo_config.ONLINE_STORE_CLASS_FOR_TYPE["sketch"].startswith("feast_sketch_store.")


def test_a_copy_of_a_configuration_can_get_another_online_store(make_config):
    config = make_config()
    options = config.online_store.model_copy(update={"compaction": Compaction(min_rows=7)})
    assert config._online_store is config.online_store, "it is made once and then kept"
    copied = config.model_copy()
    copied.online_config, copied._online_store = options.model_dump(), options
    assert (copied.online_store.compaction, config.online_store.compaction) == (
        Compaction(min_rows=7),
        Compaction(),
    )


def test_a_provider_holds_its_stores(make_config):
    provider = FeatureStore(config=make_config())._get_provider()
    assert isinstance(provider, PassthroughProvider)
    assert isinstance(provider.online_store, SketchOnlineStore)
    assert callable(provider.offline_store.pull_latest_from_table_or_query)


def test_views_without_entities_have_the_names_that_feast_gives_them():
    assert (DUMMY_ENTITY_NAME, DUMMY_ENTITY_ID) == ("__dummy", "__dummy_id")


def test_the_installed_feast_is_one_that_the_package_admits():
    requirements = map(Requirement, importlib.metadata.requires("feast_sketch_store"))
    (feast,) = (r for r in requirements if r.name == "feast" and not r.extras)
    assert feast.specifier.contains(importlib.metadata.version("feast"))
    assert {s.operator for s in feast.specifier} == {">=", "<"}, "a floor and a ceiling"


def test_the_decision_names_each_of_them():
    text = (ROOT / "docs/decisions/0003-dependencies.md").read_text("utf-8")
    table = text[text.index("| private part |") :]
    assert set(re.findall(r"`(?:\w+\.)*(\w+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.M)))) == HOOKS
