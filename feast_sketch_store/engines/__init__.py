"""Feast's Spark and Ray engines, with writes that go straight to the row log and are complete or fail.

    plan of Feast's engine -> rows as Arrow -> tasks: data files -> job: checked, committed, sealed

`write_job` and `seal_job` are what both engines share: a write and a seal, each with its tasks. A name is
imported when it is first used, so each engine needs only its own packages.
"""

from importlib import import_module

_EXPORTS = {
    "SketchRayEngine": "feast_sketch_store.engines.ray_engine",
    "SketchRayEngineConfig": "feast_sketch_store.engines.ray_engine",
    "SketchSparkEngine": "feast_sketch_store.engines.spark_engine",
    "SketchSparkEngineConfig": "feast_sketch_store.engines.spark_engine",
}

__all__ = [*_EXPORTS]


def __getattr__(name: str) -> object:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    exported: object = getattr(import_module(module), name)
    return exported
