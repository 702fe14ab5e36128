"""`feast-sketch serve` with authentication, permissions and audit records, against Feast's own server: what
Feast grants is answered alike, and what it denies it denies itself.
"""

import asyncio
import importlib.metadata
import json
import logging
import sys
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import jwt
import pandas as pd
import pytest
from feast import FeatureService, FeatureStore, FeatureView, metrics
from feast.feature_server import get_app
from feast.permissions.action import AuthzedAction
from feast.permissions.auth import auth_manager
from feast.permissions.permission import Permission
from feast.permissions.policy import GroupBasedPolicy, RoleBasedPolicy
from feast.permissions.security_manager import no_security_manager
from feast.permissions.user import User
from feast.types import Int64, String
from packaging.version import Version

from feast_sketch_store.serve import guard, over_feast
from feast_sketch_store.serve.app import set_up_security
from tests.helpers.asgi import ask
from tests.helpers.cases import for_each
from tests.helpers.oidc import Provider
from tests.helpers.repository import USER, make_config, make_view

FEAST = Version(importlib.metadata.version("feast"))
pytestmark = pytest.mark.skipif(
    Version("0.66.dev0") > FEAST, reason="Feast 0.65 fetches the provider's keys for each request"
)
SINCE_67 = pytest.mark.skipif(
    Version("0.67.dev0") > FEAST, reason="the audit log of requests is new in Feast 0.67"
)

LATER = 4_000_000_000  # seconds since 1970


def bearer(token):
    """The header with a token."""
    return b"authorization", f"Bearer {token}".encode()


def view_of(name):
    return make_view({"user_id": Int64, f"{name}_country": String}, f"{name}.parquet", name=name)


OPEN, CLOSED = view_of("open"), view_of("closed")
BOTH = FeatureService(name="both", features=[OPEN, CLOSED])
READERS = Permission(
    name="readers",
    types=[FeatureView, FeatureService],
    name_patterns=["open", "both"],
    policy=RoleBasedPolicy(roles=["reader"]),
    actions=[AuthzedAction.READ_ONLINE],
)
GROUPS = Permission(
    name="groups",
    types=[FeatureView],
    name_patterns=["closed"],
    policy=GroupBasedPolicy(groups=["staff"]),
    actions=[AuthzedAction.READ_ONLINE],
)
NAMES = {"roles": ["reader"], "preferred_username": "ada", "exp": LATER}
REQUEST = {"features": ["open:open_country"], "entities": {"user_id": [1, 2, 9]}}
OF_CLOSED = {"features": ["closed:closed_country"], "entities": {"user_id": [1]}}
OF_BOTH = {"feature_service": "both", "entities": {"user_id": [1]}}


@pytest.fixture
def provider():
    with Provider() as provider:
        yield provider


class Served:
    """A repository, Feast's app and ours over it. ``handed_over`` counts the requests to Feast's by ours."""

    def __init__(self, folder, auth, cache_seconds=0.0, **options):
        # Without authentication, as `feast apply` has it.
        self.applied = FeatureStore(config=make_config(folder, beside=options))
        self.applied.apply([USER, OPEN, CLOSED, BOTH, READERS, GROUPS])
        event = datetime(2026, 5, 1, tzinfo=UTC)
        for view in (OPEN, CLOSED):
            rows = {"user_id": [1, 2], f"{view.name}_country": ["de", "fr"], "event": [event, event]}
            self.applied.write_to_online_store(view.name, pd.DataFrame(rows))
        self.store = FeatureStore(config=make_config(folder, beside={**options, "auth": auth}))
        set_up_security(self.store)
        self.parser = auth_manager.get_auth_manager().token_parser
        self.feast, self.handed_over = get_app(self.store), 0
        served = self

        class Counted:
            state = self.feast.state

            async def __call__(self, *connection):
                served.handed_over += 1
                await served.feast(*connection)

        self.ours = over_feast(self.store, Counted(), cache_seconds)
        self.runner = asyncio.Runner()

    def ask(self, app, request, token=None, headers=(), **options):
        headers = [*headers, *([] if token is None else [bearer(token)])]
        return self.runner.run(ask(app, request, headers=headers, **options))

    def answer(self, request, token=None, **options):
        """What ours answers: the status, and whether it came without Feast's app. Feast answers alike."""
        before = self.handed_over
        answer = self.ask(self.ours, request, token, **options)
        is_own = self.handed_over == before
        assert answer == self.ask(self.feast, request, token, **options)
        return answer[0], is_own


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Makes a `Served`; files count as settled at once."""
    monkeypatch.setattr(guard, "_SETTLED_SECONDS", 0.0)
    monkeypatch.delenv("INTRA_COMMUNICATION_BASE64", raising=False)
    monkeypatch.setattr(auth_manager, "_auth_manager", None)
    served = []

    def serve(auth, **options):
        served.append(Served(tmp_path, auth, **options))
        return served[-1]

    yield serve
    for each in served:
        each.runner.close()
    no_security_manager()


def oidc(provider, **options):
    url = f"{provider.url}/.well-known/openid-configuration"
    return {"type": "oidc", "client_id": "shop", "auth_discovery_url": url, **options}


@pytest.fixture
def served(serve, provider):
    """With OIDC; Feast has fetched the keys."""
    served = serve(oidc(provider))
    assert served.answer(REQUEST, provider.token(**NAMES)) == (200, False)
    return served


def test_granted_requests_are_answered_without_feast(served, provider):
    token = provider.token(**NAMES)
    fetches = provider.fetches
    assert [served.answer(REQUEST, token) for _ in range(3)] == [(200, True)] * 3
    assert served.answer(OF_BOTH, token) == (200, True)
    staff = provider.token(**{**NAMES, "roles": [], "groups": ["staff"]})
    assert served.answer(OF_CLOSED, staff) == (200, True)
    assert provider.fetches == fetches


def test_a_token_is_verified_once_and_kept_as_a_digest(served, provider, monkeypatch):
    verified = []
    verify = type(served.parser).user_details_from_access_token
    monkeypatch.setattr(
        served.parser,
        "user_details_from_access_token",
        lambda access_token: (verified.append(access_token), verify(served.parser, access_token))[1],
    )
    token = provider.token(**NAMES, jti="new")
    for _ in range(3):
        assert served.ask(served.ours, REQUEST, token)[0] == 200
    assert verified == [token]
    kept = served.ours._answers._guard._users
    assert all(type(digest) is bytes and len(digest) == 32 for digest in kept)
    assert token not in repr(kept)


def changed(token, other):
    """A token with the claims of another, which nobody signed."""
    head, _, signature = token.split(".")
    return f"{head}.{other.split('.')[1]}.{signature}"


BAD_TOKENS = {
    "garbage": lambda provider: "a.b.c",
    "another key": lambda provider: Provider().token(**NAMES),
    "no signature": lambda provider: jwt.encode(NAMES, None, algorithm="none", headers={"kid": "first"}),
    "changed": lambda provider: changed(
        provider.token(**{**NAMES, "roles": ["writer"]}), provider.token(**NAMES)
    ),
    "expired": lambda provider: provider.token(**{**NAMES, "exp": int(time.time()) - 60}),
    "not yet": lambda provider: provider.token(**NAMES, nbf=LATER - 1),
    "a number for a name": lambda provider: provider.token(**{**NAMES, "preferred_username": 7}),
}


@for_each("case", BAD_TOKENS)
def test_feast_refuses_a_bad_token(served, provider, case):
    token = BAD_TOKENS[case](provider)
    for _ in range(2):
        assert served.answer(REQUEST, token) == (401, False)


HEADERS = {
    "none": ([], 401),
    "another scheme": (["Basic {}"], 401),
    "no token": (["Bearer"], 401),
    "two words": (["Bearer {} {}"], 401),
    "lower case": (["bearer {}"], 200),
    "two headers": (["Bearer {}", "Bearer x"], 200),
}


@for_each("case", HEADERS)
def test_feast_reads_unusual_headers(served, provider, case):
    values, status = HEADERS[case]
    token = provider.token(**NAMES)
    headers = [(b"authorization", value.format(token, token).encode()) for value in values]
    for _ in range(2):
        assert served.answer(REQUEST, headers=headers) == (status, False)


def test_feast_denies_what_is_not_granted(served, provider):
    reader = provider.token(**NAMES)
    writer = provider.token(**{**NAMES, "roles": ["writer"]})
    of_two = {**REQUEST, "features": ["open:open_country", "closed:closed_country"]}
    for token, request in [(writer, REQUEST), (reader, OF_CLOSED), (reader, of_two), (writer, OF_BOTH)]:
        for _ in range(2):
            assert served.answer(request, token) == (403, False)


def test_feast_answers_what_it_knows_better(served, provider):
    without_end = provider.token(**{name: value for name, value in NAMES.items() if name != "exp"})
    token = provider.token(**NAMES)
    for _ in range(2):
        assert served.answer(REQUEST, without_end) == (200, False)
        assert served.answer({**REQUEST, "features": ["open:none"]}, token)[1] is False
        assert served.answer(REQUEST, token, query=b"project=other")[1] is False
        assert served.answer({**REQUEST, "entities": {"user_id": ["1"]}}, token)[1] is False


def test_a_token_counts_until_it_expires(served, provider, monkeypatch):
    until = int(time.time()) + 1_000
    token = provider.token(**{**NAMES, "exp": until})
    assert served.answer(REQUEST, token) == (200, True)
    for now, is_own in [(until - 1, True), (until, False), (until + 1, False)]:
        monkeypatch.setattr(
            guard, "time", SimpleNamespace(time=lambda now=now: now, monotonic=time.monotonic)
        )
        before = served.handed_over
        served.ask(served.ours, REQUEST, token)
        assert (served.handed_over == before) is is_own


def test_tokens_count_until_the_keys_are_fetched_again(served, provider):
    token = provider.token(**NAMES)
    assert served.answer(REQUEST, token) == (200, True)
    provider.add_key("second")
    provider.revoke_key("first")
    assert served.answer(REQUEST, token) == (200, True), "as with Feast, until the keys' life ends"
    served.parser._jwks_client.fetch_data()
    served.parser._jwks_client.cooldown_duration = 0
    for _ in range(2):
        assert served.answer(REQUEST, token) == (401, False)
    assert served.answer(REQUEST, provider.token("second", **NAMES))[0] == 200
    assert served.answer(REQUEST, provider.token("second", **NAMES)) == (200, True)


def test_tokens_count_until_the_life_of_the_keys_ends(served, provider):
    token = provider.token(**NAMES)
    assert served.answer(REQUEST, token) == (200, True)
    served.parser._jwks_client.jwk_set_cache.lifespan = 0
    before = served.handed_over
    served.ask(served.ours, REQUEST, token)
    assert served.handed_over == before + 1


def test_an_unknown_key_is_fetched_by_feast(served, provider):
    served.parser._jwks_client.cooldown_duration = 0
    provider.add_key("second")
    token, fetches = provider.token("second", **NAMES), provider.fetches
    assert served.ask(served.ours, REQUEST, token)[0] == 200
    assert (served.handed_over, provider.fetches) == (2, fetches + 1)
    assert served.answer(REQUEST, token) == (200, True)


def test_a_changed_permission_shows_on_the_next_request(served, provider):
    token = provider.token(**NAMES)
    staff = provider.token(**{**NAMES, "groups": ["staff"]})
    assert served.answer(REQUEST, token) == (200, True)
    assert served.answer(OF_CLOSED, staff) == (200, True)
    denied = Permission(
        name="readers",
        types=[FeatureView],
        policy=RoleBasedPolicy(roles=["admin"]),
        actions=[AuthzedAction.READ_ONLINE],
    )
    served.applied.apply([denied])
    assert served.answer(REQUEST, token) == (403, False)
    served.applied.apply([], objects_to_delete=[GROUPS], partial=False)
    assert served.answer(OF_CLOSED, staff) == (403, False)
    served.applied.apply([READERS])
    assert served.answer(REQUEST, token) == (200, True)


def test_a_registry_that_changed_just_now_may_change_again_unseen(served, provider, monkeypatch):
    monkeypatch.setattr(guard, "_SETTLED_SECONDS", 1e9)
    assert served.answer(REQUEST, provider.token(**NAMES)) == (200, False)


def test_the_servers_of_a_deployment_are_left_to_feast(served, monkeypatch, provider):
    monkeypatch.setenv("INTRA_COMMUNICATION_BASE64", "ada")
    for token in (provider.token(**NAMES), jwt.encode(NAMES, "x" * 32)):
        for _ in range(2):
            assert served.answer(REQUEST, token) == (200, False)


def test_a_token_of_kubernetes_is_left_to_feast(served, monkeypatch, provider):
    reviewed = []

    async def review(token):
        reviewed.append(token)
        return User("system:serviceaccount:shop:web", roles=["reader"])

    monkeypatch.setattr(served.parser, "_validate_k8s_sa_token_and_extract_namespace", review)
    token = provider.token(**NAMES, **{"kubernetes.io": {"namespace": "shop"}})
    for _ in range(2):
        assert served.answer(REQUEST, token) == (200, False)
    assert len(reviewed) == 4, "once for each request of each app"


def test_what_is_kept_is_bounded(served, provider, monkeypatch):
    monkeypatch.setattr(guard, "_MAX_KEPT", 3)
    tokens = [provider.token(**{**NAMES, "preferred_username": f"user {n}"}) for n in range(8)]
    for token in [*tokens, *tokens[:2]]:
        assert served.ask(served.ours, REQUEST, token)[0] == 200
    kept = served.ours._answers._guard
    assert (len(kept._users), len(kept._verdicts)) == (3, 3)
    assert served.handed_over == 1, "those that were dropped are verified here again"


def test_users_at_once_do_not_mix(served, provider):
    reader = provider.token(**NAMES)
    writer = provider.token(**{**NAMES, "roles": ["writer"], "preferred_username": "bob"})

    async def both():
        asked = [ask(served.ours, REQUEST, headers=[bearer(token)]) for token in [reader, writer] * 20]
        return [status for status, _, _ in await asyncio.gather(*asked)]

    assert served.runner.run(both()) == [200, 403] * 20


# -- Kubernetes, and registries that are no file ------------------------------------------------


class Reviewer:
    """A parser of tokens in place of Feast's, which asks Kubernetes."""

    def __init__(self):
        self.asked = 0
        self.user = User("shop:web", roles=["reader"], groups=["system:serviceaccounts"], namespaces=["shop"])

    async def user_details_from_access_token(self, access_token):
        self.asked += 1
        return self.user


@pytest.fixture
def reviewer(monkeypatch):
    """Feast's parser needs the kubernetes package and a cluster."""
    reviewer = Reviewer()
    module = SimpleNamespace(KubernetesTokenParser=lambda: reviewer)
    monkeypatch.setitem(sys.modules, "feast.permissions.auth.kubernetes_token_parser", module)
    return reviewer


def test_kubernetes_is_left_to_feast(serve, reviewer, caplog):
    served = serve({"type": "kubernetes"})
    assert "auth is of type kubernetes, and --auth-cache-seconds is 0" in caplog.text
    assert type(served.ours).__name__ == "Counted"


def test_a_user_of_kubernetes_is_kept_as_long_as_asked(serve, reviewer, provider, monkeypatch):
    served, token = serve({"type": "kubernetes"}, cache_seconds=10.0), provider.token(**NAMES)
    for _ in range(3):
        assert served.ask(served.ours, REQUEST, token)[0] == 200
    assert (reviewer.asked, served.handed_over) == (1, 0)
    now = time.time() + 10
    monkeypatch.setattr(guard, "time", SimpleNamespace(time=lambda: now, monotonic=time.monotonic))
    assert served.ask(served.ours, REQUEST, token)[0] == 200
    assert (reviewer.asked, served.handed_over) == (2, 0)
    reviewer.user = User("shop:web", roles=["reader"])
    for _ in range(2):  # the review failed, so the signature was looked at by nobody
        assert served.ask(served.ours, REQUEST, provider.token(**NAMES, jti="new"))[0] == 200
    assert served.handed_over == 2


@pytest.fixture
def sql_registry(tmp_path):
    return {"registry_type": "sql", "path": f"sqlite:///{tmp_path}/sql.db", "cache_ttl_seconds": 60}


def test_permissions_that_are_in_no_file_are_left_to_feast(serve, provider, sql_registry, caplog):
    served = serve(oidc(provider), registry=sql_registry)
    assert "permissions are in a registry that is no local file" in caplog.text
    assert type(served.ours).__name__ == "Counted"


def test_permissions_that_are_in_no_file_are_kept_as_long_as_asked(
    serve, provider, sql_registry, monkeypatch
):
    served = serve(oidc(provider), registry=sql_registry, cache_seconds=50.0)
    clock = SimpleNamespace(time=time.time, monotonic=lambda: 100.0)
    monkeypatch.setattr(guard, "time", clock)
    token = provider.token(**NAMES)
    assert [served.answer(REQUEST, token)[0] for _ in range(3)] == [200] * 3
    served.applied.registry.delete_permission("readers", "shop")
    handed_over = served.handed_over
    assert served.ask(served.ours, REQUEST, token)[0] == 200
    assert served.handed_over == handed_over
    clock.monotonic = lambda: 150.0
    assert served.answer(REQUEST, token) == (403, False)


# -- records --------------------------------------------------------------------------------------


def test_the_audit_record_of_a_read_is_feasts(served, provider, monkeypatch, caplog):
    others = (
        "resource",
        "request",
        "online_features",
        "push",
        "materialization",
        "freshness",
        "offline_features",
    )
    flags = SimpleNamespace(**dict.fromkeys(others, False), audit_logging=True)
    monkeypatch.setattr(metrics, "_config", metrics.build_metrics_flags(flags))
    reported = []
    token = provider.token(**NAMES)
    for app in (served.feast, served.ours):
        caplog.clear()
        with caplog.at_level(logging.INFO, "feast.audit"):
            assert served.ask(app, REQUEST, token)[0] == 200
        (record,) = [json.loads(r.getMessage()) for r in caplog.records if r.name == "feast.audit"]
        assert record.pop("latency_ms") >= 0
        record.pop("timestamp", None)
        reported.append(record)
    assert reported[0] == reported[1]
    assert reported[0]["requestor_id"] == "ada"
    assert served.handed_over == 1


@SINCE_67
def test_the_audit_log_has_the_fields_of_feasts(serve, provider, tmp_path):
    path = tmp_path / "audit.log"
    server = {"type": "local", "audit_logging": {"enabled": True, "sink": "file", "file_path": str(path)}}
    served, token = serve(oidc(provider), feature_server=server), provider.token(**NAMES)
    headers = [(b"x-request-id", b"r1"), (b"x-forwarded-for", b"10.1.2.3, 10.0.0.1")]

    async def ask_all():
        async with served.feast.router.lifespan_context(served.feast):
            for app in (served.feast, served.feast, served.ours):
                assert (await ask(app, REQUEST, headers=[*headers, bearer(token)]))[0] == 200

    served.runner.run(ask_all())
    assert served.handed_over == 0
    *_, feasts, ours = [json.loads(line) for line in path.read_text().splitlines()]
    for record in (feasts, ours):
        assert record.pop("duration_ms") > 0
        record.pop("timestamp", None)
    principal = ours.pop("principal")
    assert principal["username"] == "ada"
    assert not feasts.pop("principal").get("username"), "Feast's middleware does not see the user"
    assert ours == feasts


def test_mlflow_is_told_of_a_read(served, provider, monkeypatch):
    reported, token = [], provider.token(**NAMES)
    client = SimpleNamespace(log_feature_retrieval=lambda **given: reported.append(given))
    monkeypatch.setattr(served.store, "_mlflow_client", client)
    monkeypatch.setattr(served.ours._answers._records, "_has_mlflow", True)
    served.store.config.mlflow_config = {"enabled": True, "auto_log": True}
    served.store.config._mlflow = None

    async def ask_both():
        for app in (served.feast, served.ours):
            for request in (REQUEST, OF_BOTH):
                assert (await ask(app, request, headers=[bearer(token)]))[0] == 200
                while len(reported) % 2 != (request is REQUEST):  # the read is logged in a thread
                    await asyncio.sleep(0)

    served.runner.run(ask_both())
    assert all(given.pop("duration_seconds") > 0 for given in reported)
    assert reported[:2] == reported[2:]
    assert reported[0]["feature_refs"] == ["open:open_country"]
    assert (reported[0]["entity_count"], reported[1]["feature_service_name"]) == (3, "both")
