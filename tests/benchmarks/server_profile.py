"""Where the time of a request to the feature server goes, without sockets.

A request goes through Feast's ASGI app in this process, and then step by step through what that app calls.
What the steps do not add up to is FastAPI's routing and dependencies, Starlette's middleware, and the rest.
Times are processor time of this process, in which the time of Redis itself and the wait for it are missing.
Stores take turns of many requests: Feast keeps the context of requests for one store at a time.
"""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

from feast import FeatureStore
from feast.feature_server import GetOnlineFeaturesRequest, get_app
from feast.feature_server_utils import convert_response_to_dict
from feast.utils import _prepare_entities_to_read_from_online_store
from measure import number, print_set_up, print_table
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from stores import (
    FLOOR,
    REDIS,
    SKETCH,
    UserRows,
    floor,
    redis,
    redis_server,
    set_up_of,
    sketch,
    temporary_folder,
)

from feast_sketch_store.serve import over_feast

PATH = "/get-online-features"
FEATURES = ["history:viewed"]
BATCHES = (1, 10)
WHOLE, OWN = "all, by Feast's server", "all, by `feast-sketch serve`"
STEPS = (
    "JSON of the request, pydantic",
    "get_online_features_async of the store",
    "a hop to a thread and back",
    "protobuf to dict",
    "JSON of the answer",
)
OF_STORE = "of it, the store beside Feast's own code"
REST = "FastAPI, Starlette, the rest"
_MAKERS: dict[str, Callable[..., Any]] = {SKETCH: sketch, REDIS: redis, FLOOR: floor}


def run(*, quick: bool) -> None:
    rows = UserRows(2_000 if quick else 20_000)
    turns, calls = (1, 20) if quick else (25, 40)  # so that other load falls on all alike
    with temporary_folder() as folder, redis_server() as port, asyncio.Runner() as runner:
        stores = {}
        for name, make in _MAKERS.items():
            (folder / name).mkdir()
            backend = make(folder / name, rows, *([port] if name == REDIS else []))
            backend.write(rows.to_feast())
            stores[name] = backend.feature_store
        print_set_up(
            f"{set_up_of(rows.num_users)}, sealed; medians of {turns * calls} requests, CPU, us",
            *("feast", "fastapi", "starlette", "pydantic", "protobuf", "redis"),
        )
        lines = []
        for batch in BATCHES:
            times: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in stores}
            for turn in range(-1, turns):
                for name, store in stores.items():
                    users = [rows.users(batch, turn * calls + call + calls) for call in range(calls)]
                    measured = runner.run(_measure(store, name == SKETCH, users))
                    if turn >= 0:
                        for step, seconds in measured.items():
                            times[name][step] += seconds
            lines += _lines(batch, times)
        print_table(["entities", "step", *stores], lines)


def _lines(batch: int, times: dict[str, dict[str, list[float]]]) -> list[list[str]]:
    medians = {name: {step: median(s) for step, s in of_store.items()} for name, of_store in times.items()}
    for of_store in medians.values():
        of_store[REST] = of_store[WHOLE] - sum(of_store[step] for step in STEPS)
    return [
        [str(batch), step, *(number(m[step] * 1e6) if step in m else "" for m in medians.values())]
        for step in (*STEPS[:2], OF_STORE, *STEPS[2:], REST, WHOLE, OWN)
    ]


async def _measure(store: FeatureStore, is_own: bool, requests: list[list[int]]) -> dict[str, list[float]]:
    """The seconds of each step of some requests."""
    times: dict[str, list[float]] = defaultdict(list)
    feast = get_app(store)
    own = over_feast(store, feast) if is_own else None
    online, config = store._get_provider().online_store, store.config
    timed = partial(_timed, times)
    for users in requests:
        body = json.dumps({"features": FEATURES, "entities": {"user_id": users}}).encode()
        with timed(WHOLE):
            answer = await _ask(feast, body)
        if own is not None:
            with timed(OWN):
                own_answer = await _ask(own, body)
            if own_answer != answer:
                raise AssertionError(f"{own_answer!r} is not {answer!r}")
        with timed(STEPS[0]):
            request = GetOnlineFeaturesRequest.model_validate(json.loads(body))
        arguments = {"features": request.features, "entity_rows": request.entities}
        arguments |= {"config": config, "registry": store.registry, "project": store.project}
        with timed(STEPS[1]):
            response = (await online.get_online_features_async(**arguments)).proto
        keys, groups, names, *_, scratch = _prepare_entities_to_read_from_online_store(
            registry=store.registry,
            project=store.project,
            features=request.features,
            entity_values=request.entities,
        )
        with timed(OF_STORE):
            await online._read_features_per_fv_async(config, groups, keys, names, scratch, False, False)
        with timed(STEPS[2]):
            await run_in_threadpool(_nothing)
        with timed(STEPS[3]):
            content = convert_response_to_dict(response)
        with timed(STEPS[4]):
            body_of_answer = JSONResponse(content=content).body
        if body_of_answer != answer:
            raise AssertionError("the steps do not make the answer")
    return times


@contextmanager
def _timed(times: dict[str, list[float]], step: str) -> Iterator[None]:
    start = time.process_time()  # of all threads
    yield
    times[step].append(time.process_time() - start)


def _nothing() -> None:
    pass


async def _ask(app: Callable[..., Awaitable[None]], body: bytes) -> bytes:
    """The body of an answer of an ASGI app."""
    parts = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        parts.append(message.get("body", b""))

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*headers, (b"content-length", b"%d" % len(body))],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    await app(scope, receive, send)
    return b"".join(parts)
