"""Read-only access to the rows that Feast's other online stores keep, in their own formats.

survey     what views would become here, and take
importing  their rows in a view of ours
"""

from feast_sketch_store.bridges.base import (
    Bridge,
    Counted,
    OtherRow,
    OtherStore,
    OtherView,
    Page,
    entity_key,
    open_bridge,
)

__all__ = ["Bridge", "Counted", "OtherRow", "OtherStore", "OtherView", "Page", "entity_key", "open_bridge"]
