"""Jobs of an engine on a view, in one process: a job and each of its tasks open the view for themselves."""

import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

from feast_sketch_store.engines import seal_job
from feast_sketch_store.errors import GateError, SketchStoreError
from feast_sketch_store.storage.base import UncertainWriteError
from feast_sketch_store.view.view import Batch, View


class _Store:
    """Stands for a feature store, its online store, a feature view, and what tasks are given of them."""

    config = None

    def __init__(self, opened: Callable[[], View]):
        self._opened = opened

    def writer(self, config: None, feature_view: "_Store") -> View:
        return self._opened()

    def unserialize(self) -> tuple["_Store", "_Store", None, None]:
        return self, self, None, None


@contextmanager
def without_feast() -> Iterator[None]:
    """Let seals by an engine take a `_Store`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seal_job, "online_store_of", lambda store: store)
        patch.setattr(seal_job, "any_feature_view", lambda store, view: store)
        patch.setattr(seal_job, "require_writer", lambda config: None)
        serialize = SimpleNamespace(serialize=lambda feature_view, config: feature_view)
        patch.setattr(seal_job, "SerializedArtifacts", serialize)
        yield


def seal_by_engine(opened: Callable[[], View], rng: random.Random) -> bool:
    """Seal a view by tasks, of which some run twice."""

    def run(task: seal_job.Task, requests: Sequence[bytes]) -> list[bytes]:
        results = []
        for request in requests:
            if rng.random() < 0.2:
                with suppress(SketchStoreError):
                    task(request)
            results.append(task(request))
        return results

    return seal_job.seal_by(_Store(opened), "", run)


def write_by_engine(view: View, rng: random.Random, batch: Batch) -> None:
    """Write as a job does: tasks write files, of which some run twice; the job commits those of one run."""
    label = f"job-{secrets.token_hex(4)}-"
    is_needed = False
    try:
        reports: list[dict] = []
        for _ in range(rng.choice((1, 1, 2))):
            reports = [file.to_report() for file in view.stage([view.to_table([batch])], label)]
        view.commit_staged([view.staged(report) for report in reports])
    except (GateError, UncertainWriteError):
        is_needed = True
        raise
    finally:
        if not is_needed:
            with suppress(SketchStoreError):
                view.discard_staged(label)
