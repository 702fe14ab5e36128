"""The private parts of Feast that the package uses: each is known, there, and called as it wants to be.

Where a part has changed, reads go through Feast's own methods. The parts and their uses are listed in
`docs/decisions/0003-dependencies.md`.
"""

import ast
import asyncio
import importlib.metadata
import inspect
import logging
import re
from abc import ABC
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from feast import FeatureStore, repo_config
from feast.errors import FeastExtrasDependencyImportError
from feast.feature_view import DUMMY_ENTITY_ID, DUMMY_ENTITY_NAME
from feast.infra.online_stores.online_store import OnlineStore
from feast.infra.passthrough_provider import PassthroughProvider
from feast.types import Int64, String
from packaging.requirements import Requirement
from packaging.version import Version

import feast_sketch_store
from feast_sketch_store import SketchOnlineStore, feast_parts
from feast_sketch_store.adapter.plans import Plan
from feast_sketch_store.errors import FeastPartError
from feast_sketch_store.feast_parts import Part
from feast_sketch_store.serve import over_feast, run
from feast_sketch_store.settings.table import Compaction
from tests.helpers.cases import for_each
from tests.helpers.repository import USER, make_config, make_view

PACKAGE = Path(feast_sketch_store.__file__).parent
ROOT = Path(__file__).parents[2]
FEAST = Version(importlib.metadata.version("feast"))

OF_OBJECTS = {"_online_store", "_jwks_client", "_file_path"}  # attributes that the class does not have
OF_OTHERS = {"_replace", "_asdict", "_fields", "_make", "_compiled", "_exit"}  # of Python, and the extension
SINCE = {feast_parts.BIN_FEATURE_COUNT: "0.67.dev0", feast_parts.OIDC_CLIENT: "0.66.dev0"}
SINCE |= dict.fromkeys(feast_parts.AUDIT_LOG, "0.67.dev0")
# The server of Feast 0.65 answers all requests under OIDC.
USED_SINCE = SINCE | dict.fromkeys((*feast_parts.AUTH, *feast_parts.OIDC), "0.66.dev0")
OF_CLIENTS = {  # and engines; their parts are checked where the libraries are installed
    *(feast_parts.SPARK_SESSION, feast_parts.REDIS_CLIENT, feast_parts.POSTGRES_CONNECTION),
    *(feast_parts.CASSANDRA_SESSION, feast_parts.CASSANDRA_KEYSPACE, feast_parts.CASSANDRA_CLUSTER),
    *(feast_parts.BIGTABLE_CLIENT, feast_parts.BIGTABLE_TABLE),
    *(feast_parts.DATASTORE_CLIENT, feast_parts.HBASE_POOL),
}
AWAITED = {feast_parts.READ_ASYNC, feast_parts.CHECK_FEATURES, feast_parts.VERIFY}


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


def test_private_names_of_feast_are_used_behind_one_module():
    used, defined = used_and_defined()
    assert used - defined - OF_OTHERS == {"_online_store"}  # which feast_parts sets
    inherited = set(filter(is_private, dir(OnlineStore))) - set(dir(ABC))
    overridden = {feast_parts.READ.name, feast_parts.READ_ASYNC.name, feast_parts.VERSIONED_READS.name}
    assert inherited & set(vars(SketchOnlineStore)) == overridden


@for_each("part", feast_parts.ALL)
def test_a_part_is_the_one_that_is_known(part):
    try:
        problem = part.problem()
    except (ImportError, FeastExtrasDependencyImportError):
        assert part in OF_CLIENTS
        return
    if Version(SINCE.get(part, "0")) > FEAST:
        assert "there is none" in str(problem)
        return
    assert problem is None
    assert inspect.iscoroutinefunction(part.value) == (part in AWAITED)


@for_each(
    ("part", "reason"),
    [
        (Part("feast.utils:_none"), "there is none"),
        (Part("feast.none:_part"), "there is none: No module named 'feast.none'"),
        (Part("feast:FeatureStore._none._part"), "there is none"),
        (Part("feast.utils:_get_column_names", "feature_view"), "it takes"),
        (Part("feast.utils:_get_column_names", "view", "entities"), "it takes"),
        (Part("feast.utils:_get_column_names", "feature_view", "entities", "more"), "it takes"),
        (Part("feast.utils:_get_feature_views_to_use", "registry", is_overridden=True), "it takes"),
    ],
)
def test_another_part_is_told_with_its_release(part, reason):
    assert part.problem()
    with pytest.raises(FeastPartError, match=f"^{part.place} of Feast {FEAST} is not .*: {reason}"):
        _ = part.value


def test_a_part_of_an_object_is_checked_too():
    part = Part("feast:FeatureStore.refresh_registry", "self", "more")
    with pytest.raises(FeastPartError, match=r"it takes \(\), not \(more\)"):
        part.of(FeatureStore.__new__(FeatureStore))


def forget():
    """Forget what is known of Feast's parts, and what was logged."""
    feast_parts.changed.cache_clear()
    feast_parts._warn.cache_clear()
    for part in feast_parts.ALL:
        part.__dict__.pop("_owner", None)


@pytest.fixture
def forgotten():
    """Nothing is known of Feast's parts before the test, nor after it."""
    forget()
    yield
    forget()


def change(monkeypatch, part):
    """Let Feast have a part with another parameter, which still does its work for Feast."""
    owner, was = part._owner, inspect.getattr_static(part._owner, part.name)
    function, is_static = getattr(was, "__func__", was), isinstance(was, staticmethod)

    def changed(*arguments, flavour=None, **options):
        return function(*arguments, **options)

    monkeypatch.setattr(owner, part.name, staticmethod(changed) if is_static else changed)
    forget()


def give_more(monkeypatch, part):
    """Let a function of Feast give one more value than is known."""
    call = Part.__call__

    def changed(called, *arguments):
        given = call(called, *arguments)
        return (*given, None) if called is part else given

    monkeypatch.setattr(Part, "__call__", changed)


CHANGES = [*((change, part) for part in feast_parts.READS), (give_more, feast_parts.REQUEST_CONTEXT)]


@pytest.mark.parametrize(
    ("how", "part"), CHANGES, ids=lambda given: given.name if isinstance(given, Part) else ""
)
def test_feasts_own_methods_read_where_a_part_has_changed(
    tmp_path, forgotten, monkeypatch, caplog, how, part
):
    store = FeatureStore(config=make_config(tmp_path))
    store.apply([USER, make_view({"user_id": Int64, "country": String}, name="users")])
    event = datetime(2026, 5, 1, tzinfo=UTC)
    rows = {"user_id": [1, 2], "country": ["de", "fr"], "event": [event, event]}
    store.write_to_online_store("users", pd.DataFrame(rows))
    request = {"features": ["users:country"], "entity_rows": [{"user_id": n} for n in (1, 2, 9)]}
    wanted = store.get_online_features(**request).proto
    planned_reads = []
    monkeypatch.setattr(Plan, "read", lambda *_: planned_reads.append(1))
    store.registry.refresh()
    how(monkeypatch, part)
    for _ in range(2):
        assert store.get_online_features(**request).proto == wanted
    assert asyncio.run(store.get_online_features_async(**request)).proto == wanted
    assert not planned_reads
    (reported,) = [text for text in caplog.messages if "Feast's own methods read" in text]
    assert reported.startswith(f"{part.place} of Feast {FEAST}")
    if how is change:
        with caplog.at_level(logging.WARNING):
            assert over_feast(store, "Feast's") == "Feast's"
        assert "Feast's own server answers all requests: the store reads in Feast's own way" in caplog.text


def rename(monkeypatch, part):
    """Let this package find a part of Feast no more, as if Feast had given it another name."""
    monkeypatch.setattr(part, "name", f"{part.name}_renamed")
    forget()


OF_SERVER = {*feast_parts.SERVER, *feast_parts.AUDIT_LOG, *feast_parts.MLFLOW, *feast_parts.AUTH}
OF_SERVER |= {*feast_parts.OIDC, feast_parts.BIN_FEATURE_COUNT}


@pytest.mark.parametrize("part", sorted(OF_SERVER, key=lambda part: part.place), ids=lambda part: part.name)
def test_feasts_server_answers_where_a_part_of_it_has_changed(tmp_path, forgotten, monkeypatch, caplog, part):
    if Version(USED_SINCE.get(part, "0")) > FEAST:
        return
    options = {"mlflow": {"enabled": True, "auto_log": True}}
    if Version("0.66.dev0") <= FEAST:
        options["auth"] = {"type": "oidc", "client_id": "shop", "auth_discovery_url": "http://127.0.0.1:1"}
    if Version("0.67.dev0") <= FEAST:
        audit_log = {"enabled": True, "sink": "stdout"}
        options["feature_server"] = {"type": "local", "audit_logging": audit_log}
    plain, full = (FeatureStore(config=make_config(tmp_path, beside=more)) for more in ({}, options))
    assert over_feast(full, "Feast's") != "Feast's"
    rename(monkeypatch, part)
    for _ in range(2):
        assert over_feast(full, "Feast's") == "Feast's"
    (reported,) = [text for text in caplog.messages if text.startswith(part.place)]
    assert "Feast's own server answers all requests" in reported
    is_needed = part in {*feast_parts.SERVER, feast_parts.BIN_FEATURE_COUNT}
    assert (over_feast(plain, "Feast's") == "Feast's") == is_needed


@pytest.mark.parametrize("part", feast_parts.SERVING, ids=lambda part: part.name)
def test_feast_serves_where_a_part_of_its_process_has_changed(tmp_path, forgotten, monkeypatch, caplog, part):
    store, served = FeatureStore(config=make_config(tmp_path)), []
    monkeypatch.setattr(FeatureStore, "serve", lambda _, **options: served.append(options))
    rename(monkeypatch, part)
    options = {"host": "127.0.0.1", "port": 1, "metrics": True}
    run(store, **options, auth_cache_seconds=1.0)
    assert served == [options]
    assert [text for text in caplog.messages if text.startswith(part.place)]


@for_each("name", ["_read_features_per_fv", "_read_features_per_fv_async"])
def test_feast_reads_through_the_methods_that_are_overridden(name):
    caller = OnlineStore.get_online_features_async if "async" in name else OnlineStore.get_online_features
    assert f"self.{name}(" in inspect.getsource(caller)


@for_each("name", sorted(set(vars(SketchOnlineStore)) & set(vars(OnlineStore))))
def test_public_methods_take_what_feast_passes(name):
    own, feasts = (getattr(kind, name) for kind in (SketchOnlineStore, OnlineStore))
    if is_private(name) or name.startswith("__") or not inspect.isfunction(own):
        return
    assert list(inspect.signature(own).parameters) == list(inspect.signature(feasts).parameters)


def test_a_store_can_say_that_it_keeps_versions_apart():
    assert OnlineStore._versioned_read_supported is None, "Feast asks the store's type where it is not set"
    assert SketchOnlineStore._versioned_read_supported is True


def test_store_types_are_looked_up_in_a_dictionary():
    assert isinstance(repo_config.ONLINE_STORE_CLASS_FOR_TYPE, dict)
    assert repo_config.ONLINE_STORE_CLASS_FOR_TYPE["sketch"].startswith("feast_sketch_store.")


def test_a_copy_of_a_configuration_can_get_another_online_store(tmp_path):
    config = make_config(tmp_path)
    options = config.online_store.model_copy(update={"compaction": Compaction(min_rows=7)})
    assert config._online_store is config.online_store, "it is made once and then kept"
    copied = feast_parts.with_online_store(config, options, options.model_dump())
    assert (copied.online_store.compaction, config.online_store.compaction) == (
        Compaction(min_rows=7),
        Compaction(),
    )


def test_a_provider_holds_its_stores(tmp_path):
    provider = FeatureStore(config=make_config(tmp_path)).provider
    assert isinstance(provider, PassthroughProvider)
    assert isinstance(provider.online_store, SketchOnlineStore)
    assert callable(provider.offline_store.pull_latest_from_table_or_query)


def test_views_without_entities_have_the_names_that_feast_gives_them():
    assert (DUMMY_ENTITY_NAME, DUMMY_ENTITY_ID) == ("__dummy", "__dummy_id")


def test_the_installed_feast_is_one_that_the_package_admits():
    requirements = map(Requirement, importlib.metadata.requires("feast_sketch_store"))
    (feast,) = (r for r in requirements if r.name == "feast" and not r.extras)
    assert {s.operator for s in feast.specifier} == {">=", "<"}, "a floor and a ceiling"
    if not FEAST.is_devrelease:  # which .ci/feast-versions installs to see what will change
        assert feast.specifier.contains(FEAST)


def test_the_decision_names_each_of_them():
    text = (ROOT / "docs/decisions/0003-dependencies.md").read_text("utf-8")
    table = text[text.index("| private part |") :]
    named = set(re.findall(r"`(?:\w+\.)*(\w+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.M))))
    assert named == {part.name for part in feast_parts.ALL} | OF_OBJECTS
