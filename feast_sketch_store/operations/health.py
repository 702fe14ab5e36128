"""What probes ask: whether this host can serve the views of a repository, and how old answers would be."""

from collections.abc import Sequence
from dataclasses import dataclass

from feast import FeatureStore

from feast_sketch_store.errors import SketchStoreError
from feast_sketch_store.operations.maintenance import opened_view, views_of
from feast_sketch_store.view.freshness import EMPTY


@dataclass(frozen=True)
class ViewHealth:
    """One view as a process of this host finds it.

    ``state``, ``age_seconds`` and ``num_commits`` are those of `Freshness`; ``problem`` is why the last look
    failed, empty if it did not.
    """

    is_ready: bool
    state: str
    age_seconds: float | None
    num_commits: int
    is_pinned: bool
    problem: str


def health(
    store: FeatureStore, views: Sequence[str] = (), max_staleness_seconds: float | None = None
) -> dict[str, ViewHealth]:
    """Look at the storage of each view, as a read would.

    With a ``cache_path`` it fetches what is missing there, so that the first read of a server finds it.

    Parameters
    ----------
    views : their names; none for all of the repository.
    max_staleness_seconds : instead of the store's.

    Returns
    -------
    The health of each view by its name. Views that cannot be read are not ready; nothing is raised for them.
    """
    return {view: _health(store, view, max_staleness_seconds) for view in views or views_of(store)}


def _health(store: FeatureStore, name: str, max_staleness_seconds: float | None) -> ViewHealth:
    try:
        view = opened_view(store, name)
        if max_staleness_seconds is not None:
            view.max_staleness_seconds = max_staleness_seconds
        told = view.freshness(look=True)
    except SketchStoreError as error:  # its settings
        return ViewHealth(False, EMPTY, None, 0, False, str(error))
    age = None if told.age_seconds is None else round(told.age_seconds, 3)
    is_pinned = view.pinned is not None
    return ViewHealth(told.is_ready, told.state, age, told.num_commits, is_pinned, told.problem)
