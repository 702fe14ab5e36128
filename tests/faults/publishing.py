"""The steps of publishing on an object store, and how a process dies at one of them.

A step is a kind of request: the put of a commit, of a snapshot's base, of its manifest. The process that is
to die reaches the object store through a proxy of its own, which kills the process when the request comes by:

- ``before`` the server hears of it,
- ``within``, when half of the body is with the server,
- ``unanswered``, when the server has done it and nobody was told,
- ``answered``, when the answer may have been read, and nothing after it was done.
"""

import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.helpers.http_proxy import Answer, Request, RequestProxy

STEPS = {
    "lease": r"PUT .*/seal\.lock$",
    "commit": r"PUT .*/fresh/[0-9a-f]{32}-\d{20}\.log$",
    "rows of the table": r"PUT .*/rows/[^/]*\.parquet$",
    "commit of the table": r"PUT .*/rows/_delta_log/\d{20}\.json$",
    "order index": r"PUT .*/snapshots/[^/]*\.order\.sketch$",
    "sealed rows": r"PUT .*/snapshots/[^/]*\.base\.sketch$",
    "manifest": r"PUT .*/snapshots/[^/]*\.json$",
    "deletion of a manifest": r"POST .*/snapshots/[^/<]*\.json<",
    "deletion of sealed rows": r"POST .*/snapshots/[^/<]*\.base\.sketch<",
}
MOMENTS = ("before", "within", "unanswered", "answered")


@dataclass(frozen=True)
class Step:
    """Where a process is killed: at the n-th request of a kind, counted from 1."""

    name: str
    moment: str
    nth: int = 1


def proxy_that_kills(port: int, step: Step, tell: Callable[[], None]) -> RequestProxy:
    """A proxy to a port of this host that kills this process at a step, and says so before."""
    pattern = re.compile(STEPS[step.name], re.DOTALL)
    met, lock = 0, threading.Lock()

    def handle(request: Request) -> Answer | None:
        nonlocal met
        if pattern.search(f"{request.method} {request.target}") is None:
            return request.answered()
        with lock:
            met += 1
            is_it = met == step.nth
        if not is_it:
            return request.answered()
        tell()
        if step.moment == "within":
            request.send(0.5)
        elif step.moment != "before":
            answer = request.answered()
            if step.moment == "answered":
                return replace(answer, then=die)
        die()
        return None

    return RequestProxy(port, handle)


def die() -> None:
    """End this process as SIGKILL does."""
    os.kill(os.getpid(), signal.SIGKILL)
