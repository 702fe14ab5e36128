"""Health for probes: whether this host can serve the views of a repository, and how old answers would be."""

from collections.abc import Sequence
from dataclasses import dataclass

from feast import FeatureStore

from feast_sketch_store.errors import SketchStoreError
from feast_sketch_store.operations.maintenance import opened_view, views_of
from feast_sketch_store.view.loading import EMPTY


@dataclass(frozen=True)
class ViewHealth:
    """The health of one view on this host.

    ``state``, ``age_seconds`` and ``num_commits`` are those of `Freshness`. ``problem`` says why the last
    poll of the storage failed; it is empty if the poll succeeded.
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
    """Poll the storage of each view, as a read would.

    With a ``cache_path`` this fetches missing files, so a server's first read finds them.

    Parameters
    ----------
    store : the repository.
    views : their names; empty for all views of the repository.
    max_staleness_seconds : overrides the store's setting.

    Returns
    -------
    The health of each view by its name. A view that cannot be read is not ready; nothing is raised for it.
    """
    return {view: _health(store, view, max_staleness_seconds) for view in views or views_of(store)}


def _health(store: FeatureStore, name: str, max_staleness_seconds: float | None) -> ViewHealth:
    try:
        view = opened_view(store, name)
        if max_staleness_seconds is not None:
            view.max_staleness_seconds = max_staleness_seconds
        freshness = view.freshness(poll=True)
    except SketchStoreError as error:  # in the settings
        return ViewHealth(False, EMPTY, None, 0, False, str(error))
    age = None if freshness.age_seconds is None else round(freshness.age_seconds, 3)
    return ViewHealth(
        freshness.is_ready, freshness.state, age, freshness.num_commits, view.is_pinned, freshness.problem
    )
