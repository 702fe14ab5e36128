"""What a request asks for, worked out once: its views, its join keys, and the end of its answer.

A plan holds as long as Feast's registry does: when that is loaded again, or expires, plans are made anew.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from feast import FeatureStore, ValueType
from feast.feature_server import _resolve_feature_counts, bin_feature_count
from feast.infra.feature_servers.base_config import MetricsConfig
from feast.utils import _get_cached_request_context, _get_table_entity_values

from feast_sketch_store.online_store import SketchOnlineStore
from feast_sketch_store.rows.entity_keys import JOIN_KEY_TYPES, SingleKeys, hash_int64_keys
from feast_sketch_store.view.settings import ttl_microseconds
from feast_sketch_store.view.view import View

_MAX_PLANS = 1_000  # of requests that ask for other things
_KINDS = {ValueType.INT64: "int64_val", ValueType.INT32: "int32_val", ValueType.STRING: "string_val"}
_BOUNDS = {"int64_val": 2**63, "int32_val": 2**31}

to_json = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode  # as Starlette does


class Question(NamedTuple):
    """What a request asks for, but for its entities. ``columns`` are the names of these, in order."""

    feature_service: str
    features: tuple[str, ...]
    full_feature_names: bool
    with_versions: bool
    columns: tuple[str, ...]


class Column:
    """A column of entities: which values it may have here.

    Parameters
    ----------
    kind : the field of Feast's ``Value`` that carries them.
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._type = str if kind == "string_val" else int
        self._bound = _BOUNDS.get(kind)

    def takes(self, values: Sequence[Any]) -> bool:
        """Whether Feast would take the values as they are; it converts some others, and refuses the rest."""
        if not all(type(value) is self._type for value in values):
            return False
        return self._bound is None or -self._bound <= min(values) <= max(values) < self._bound


class Keys:
    """Join keys that one or more of the views have, out of the columns of a request.

    Parameters
    ----------
    places : names of join keys, each with the number of its column.
    kinds : of all columns.
    """

    def __init__(self, places: Mapping[str, int], kinds: Sequence[str]):
        self._places = dict(places)
        self._keys = SingleKeys({name: JOIN_KEY_TYPES[kinds[place]] for name, place in places.items()})
        names = list(places)
        self._int64_name = names[0] if [kinds[place] for place in places.values()] == ["int64_val"] else None

    def hashes(self, columns: Sequence[Sequence[Any]]) -> bytes | None:
        """The hashes of all entities, 16 bytes each; None if one is not hashed here."""
        if len(self._places) == 1:
            (place,) = self._places.values()
            entities: Sequence[Any] = columns[place]
        else:
            rows = zip(*(columns[place] for place in self._places.values()), strict=True)
            entities = [dict(zip(self._places, row, strict=True)) for row in rows]
        if len(entities) > 1 and self._int64_name is not None:
            return hash_int64_keys(self._int64_name, np.array(entities, np.int64)).tobytes()
        try:
            hashes = [self._keys.hash(entity) for entity in entities]
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
        return None if None in hashes else b"".join(hashes)  # type: ignore[arg-type]


class ViewPlan(NamedTuple):
    """What is asked of one view. ``keys`` is the number of its join keys in the plan."""

    view: View
    name: str
    features: tuple[str, ...]
    keys: int
    ttl_microseconds: int | None


@dataclass(frozen=True)
class Plan:
    """How a request is answered.

    ``end`` is what of the answer follows the vectors; ``labels`` are those of Feast's metric of latencies.
    """

    columns: tuple[Column, ...]
    keys: tuple[Keys, ...]
    views: tuple[ViewPlan, ...]
    end: bytes
    labels: tuple[str, str]


class Plans:
    """The plans of a store's requests. Used from one event loop.

    Parameters
    ----------
    online : the online store of ``store``.
    """

    def __init__(self, store: FeatureStore, online: SketchOnlineStore):
        self._store = store
        self._online = online
        self._known: dict[Question, Plan | None] = {}
        self._registry_of: object = None
        metrics = getattr(getattr(store.config, "feature_server", None), "metrics", None)
        self._bins = getattr(metrics, "feature_count_bins", MetricsConfig().feature_count_bins)

    def of(self, question: Question) -> Plan | None:
        """The plan of a question; None of one that Feast must answer.

        Raises
        ------
        Exception : whatever Feast raises about a question that is wrong.
        """
        registry = self._store.registry
        if question.feature_service:
            # As Feast does for services: a registry file that has changed is loaded now.
            registry.get_project(self._store.project, allow_cache=True)
        created = getattr(registry, "cached_registry_proto_created", None)
        if created is None or not registry.is_cache_valid():
            return None
        if created is not self._registry_of or len(self._known) >= _MAX_PLANS:
            self._known.clear()
            self._registry_of = created
        if question in self._known:
            plan = self._known[question]
            if plan is None or all(self._online.serves(asked.view) for asked in plan.views):
                return plan
        plan = self._known[question] = self._made(question)
        return plan

    def _made(self, question: Question) -> Plan | None:
        project, registry = self._store.project, self._store.registry
        features: Any = list(question.features)
        if question.feature_service:
            features = registry.get_feature_service(question.feature_service, project, allow_cache=True)
            if getattr(features, "precompute_online", False):
                return None
        context = _get_cached_request_context(registry, project, features, question.full_feature_names)
        _, on_demand, join_key_of, types, join_keys, groups, asked, request_data, is_entityless = context
        kinds = [_KINDS[types[name]] for name in question.columns if types.get(name) in _KINDS]
        if on_demand or request_data or is_entityless or len(kinds) != len(question.columns):
            return None
        names = [*question.columns, *_names(groups, question.full_feature_names)]
        if not {*question.columns} <= join_keys or not {*names} <= asked | {*question.columns}:
            return None
        keys: dict[tuple[tuple[str, int], ...], int] = {}
        views = []
        numbers: dict[str, Any] = {name: number for number, name in enumerate(question.columns)}
        for table, of_view in groups:
            places: dict[str, Any] = _get_table_entity_values(table, join_key_of, numbers)
            if len(places) != len(table.entities) or not places:
                return None
            view = self._online.view(self._store.config, table)
            if not isinstance(view, View):  # its shards are asked one by one
                return None
            ttl = ttl_microseconds(self._store.config.online_store, table)
            number = keys.setdefault(tuple(places.items()), len(keys))
            views.append(ViewPlan(view, table.name, tuple(of_view), number, ttl))
        feature_count, view_count = _resolve_feature_counts(features)
        return Plan(
            tuple(map(Column, kinds)),
            tuple(Keys(dict(places), kinds) for places in keys),
            tuple(views),
            _end(names, _versions(groups) if question.with_versions else []),
            (bin_feature_count(int(feature_count), self._bins), view_count),
        )


def _end(names: list[str], versions: list[dict[str, Any]]) -> bytes:
    """What follows the vectors in a response."""
    metadata: dict[str, Any] = {"feature_names": names}
    if versions:
        metadata["feature_view_metadata"] = versions
    return f'],"metadata":{to_json(metadata)}}}'.encode()


def _names(groups: Sequence[tuple[Any, Sequence[str]]], full: bool) -> list[str]:
    """The names of features in a response."""
    if not full:
        return [name for _, names in groups for name in names]
    return [f"{table.projection.name_to_use()}__{name}" for table, names in groups for name in names]


def _versions(groups: Sequence[tuple[Any, Sequence[str]]]) -> list[dict[str, Any]]:
    """What a response says about the versions of its views, each once."""
    versions: dict[str, int] = {}
    for table, _ in groups:
        name = table.projection.name_alias or table.projection.name
        versions.setdefault(name, getattr(table, "current_version_number", 0) or 0)
    return [{"name": name, **({"version": n} if n else {})} for name, n in versions.items()]
