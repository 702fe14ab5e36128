"""A feature server: Feast's own, but for reads of this store, which it answers without Feast's detours.

`create_app` makes the ASGI app that ``feast-sketch serve`` and any ASGI server run. Every request that is not
a plain read of this store goes to Feast's app, so that nothing of it is lost, errors included.
"""

from feast_sketch_store.serve.app import create_app, over_feast
from feast_sketch_store.serve.server import run

__all__ = ["create_app", "over_feast", "run"]
