from feast_sketch_store.appended import Counts as Counts
from feast_sketch_store.appended import Lists as Lists
from feast_sketch_store.appended import Sets as Sets
from feast_sketch_store.errors import SketchStoreError as SketchStoreError
from feast_sketch_store.online_store import SketchOnlineStore as SketchOnlineStore
from feast_sketch_store.online_store import SketchOnlineStoreConfig as SketchOnlineStoreConfig
from feast_sketch_store.online_store import open_view as open_view
from feast_sketch_store.reading.entities import shard_of as shard_of
from feast_sketch_store.reading.reader import SketchReader as SketchReader
from feast_sketch_store.reading.training import through_sketch as through_sketch
from feast_sketch_store.view.live import ViewStats as ViewStats
from feast_sketch_store.view.view import View as View

__all__: list[str]
__version__: str
