"""Plans for the views of a feature repository: what a size costs in accuracy.

sample.py    sampled entities, and estimates of the whole view from them
source.py    where they come from: the row log, or the offline source
curves.py    bytes and false values of each structure, by theory
stored_rows.py, other_stores.py  the bytes of sampled rows in Redis and SQLite
timed.py     points of lists, by tick and limit
labels.py    the accuracy of a model through each structure, measured
interactions.py  how a candidate fits a history, for such a model
current.py   comparison with the current settings of the view
progress.py  progress on a terminal
report.py    the page that shows them
choice.py    the point that meets a target, and the knee
planner.py   all of it for a view of a Feast repository
"""

_EXPORTS = {
    "Plan": "feast_sketch_store.planning.plan",
    "PlanTarget": "feast_sketch_store.planning.choice",
    "plan_view": "feast_sketch_store.planning.planner",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> object:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    exported: object = getattr(import_module(module), name)
    return exported
