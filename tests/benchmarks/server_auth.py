"""The feature server under OpenID Connect with an audit log: requests per second of processor time.

Behind ``feast serve`` stand Feast's Redis store where there is a redis-server, its SQLite store, and this
store. Behind ``feast-sketch serve`` stands this store. Every request has a token of one of some users, who
may read by a role; every request is written to the audit log. One server after the other answers a closed
loop of several connections; the processor time is that of the server and of its Redis.
"""

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what tests share

import http_load
from feast import FeatureView
from feast.permissions.action import AuthzedAction
from feast.permissions.permission import Permission
from feast.permissions.policy import RoleBasedPolicy
from feature_server import (
    CLOSED_CONNECTIONS,
    OWN,
    PATH,
    REDIS,
    SKETCH,
    SQLITE,
    await_health,
    body_of,
    process_of_redis,
    serving,
)
from measure import Goal, number, print_goals, print_set_up, print_table
from stores import Backend, UserRows, redis, redis_server, set_up_of, sketch, sqlite, temporary_folder

from tests.helpers.oidc import Provider

BATCHES = (1, 10)
_NUM_TOKENS = 20
_EXPIRY = 4_000_000_000  # seconds since 1970
_MAKERS = {OWN: sketch, SKETCH: sketch, SQLITE: sqlite}


def run(*, quick: bool) -> None:
    rows = UserRows(2_000 if quick else 20_000)
    turns, seconds = (1, 0.5) if quick else (5, 1.0)
    with ExitStack() as stack:
        provider = stack.enter_context(Provider())
        claims = {"roles": ["reader"], "exp": _EXPIRY}
        tokens = [provider.token(**claims, preferred_username=f"user {n}") for n in range(_NUM_TOKENS)]
        folder = stack.enter_context(temporary_folder())
        makers = dict(_MAKERS)
        if shutil.which("redis-server"):
            port = stack.enter_context(redis_server())
            makers[REDIS] = lambda folder, rows: redis(folder, rows, port)
        print_set_up(
            f"{set_up_of(rows.num_users)}, sealed; 1 worker, {CLOSED_CONNECTIONS} connections, "
            f"{_NUM_TOKENS} tokens; {turns} turns of {seconds:g} s",
            *("feast", "fastapi", "uvicorn", "gunicorn", "pyjwt", "redis"),
        )
        measured: dict[tuple[int, str], float] = {}
        for place, (name, make) in enumerate(makers.items()):
            (folder / str(place)).mkdir()
            backend = make(folder / str(place), rows)
            backend.write(rows.to_feast())
            for batch, rate in _measured(name, backend, rows, provider, tokens, turns, seconds).items():
                measured[batch, name] = rate
        peer = REDIS if REDIS in makers else SKETCH
        header = ["entities", "server", "requests per CPU s", f"/ {peer}"]
        print_table(
            header,
            [
                [str(batch), name, number(rate), number(rate / measured[batch, peer])]
                for (batch, name), rate in sorted(measured.items(), key=lambda item: item[0][0])
            ],
        )
        ratio = measured[1, OWN] / measured[1, peer]
        what = f"one entity, {OWN}, against {peer}: requests per second of processor time"
        print_goals([Goal(what, ratio, 5.0, is_least=True)])


def _measured(
    name: str,
    backend: Backend,
    rows: UserRows,
    provider: Provider,
    tokens: list[str],
    turns: int,
    seconds: float,
) -> dict[int, float]:
    """Requests per second of processor time by number of entities, medians of turns."""
    readers = Permission(
        name="readers",
        types=[FeatureView],
        policy=RoleBasedPolicy(roles=["reader"]),
        actions=[AuthzedAction.READ_ONLINE],
    )
    backend.feature_store.apply([readers])
    log = backend.config.repo_path / "audit.log"
    url = f"{provider.url}/.well-known/openid-configuration"
    sections = {
        "auth": {"type": "oidc", "client_id": "shop", "auth_discovery_url": url},
        "feature_server": {
            "type": "local",
            "audit_logging": {"enabled": True, "sink": "file", "file_path": str(log)},
        },
    }
    rates = {}
    with serving(name, backend, process_of_redis(backend), **sections) as server:
        await_health(server.port, backend)
        for batch in BATCHES:
            requests = [
                http_load.post(PATH, body_of(rows.users(batch, seed)), f"Authorization: Bearer {token}")
                for seed, token in enumerate(tokens * 10)
            ]
            of_turns, num_answers = [], 0
            written = _num_lines(log)
            for turn in range(-1, turns):  # the first one warms up, while the registry's file is new
                before = server.cpu_seconds(with_redis=True)
                pause = 2.5 if turn < 0 else seconds
                load = http_load.closed_loop(server.port, requests, CLOSED_CONNECTIONS, pause)
                num_answers += len(load.latencies)
                if turn >= 0:
                    taken = server.cpu_seconds(with_redis=True) - before
                    of_turns.append(len(load.latencies) / taken)
            if _num_lines(log) - written < num_answers:
                raise AssertionError(f"the server of {name} did not write all audit records")
            rates[batch] = median(of_turns)
    return rates


def _num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
