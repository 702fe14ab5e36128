"""A Feast online store that keeps features in Bloom filters and compressed sets inside the serving process.

Importing the package costs nothing: its names are loaded when they are first used, because the
interpreter imports it at every start to register ``type: sketch`` (see `feast_sketch_store.store_type`).
"""

__version__ = "0.1.0"

# Type checkers have them from `__init__.pyi`.
_EXPORTS = {
    "Counts": "feast_sketch_store.appended",
    "Lists": "feast_sketch_store.appended",
    "Sets": "feast_sketch_store.appended",
    "SketchOnlineStore": "feast_sketch_store.online_store",
    "SketchOnlineStoreConfig": "feast_sketch_store.online_store",
    "SketchReader": "feast_sketch_store.reading.reader",
    "SketchStoreError": "feast_sketch_store.errors",
    "View": "feast_sketch_store.view.view",
    "ViewStats": "feast_sketch_store.view.live",
    "open_view": "feast_sketch_store.online_store",
    "shard_of": "feast_sketch_store.reading.entities",
    "through_sketch": "feast_sketch_store.reading.training",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> object:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    exported: object = getattr(import_module(module), name)
    return exported
