"""A feature server: Feast's own, with a shorter way for reads of this store.

`create_app` makes the ASGI app that ``feast-sketch serve`` and any ASGI server run. Feast's app answers every
request that is not a plain read of this store, including its errors.
"""

from feast_sketch_store.serve.app import create_app, over_feast, run

__all__ = ["create_app", "over_feast", "run"]
