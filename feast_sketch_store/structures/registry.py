"""The table of all kinds of structures, by their names in snapshots and tags."""

from collections.abc import Iterator
from typing import Final

from feast_sketch_store.structures.base import Structure
from feast_sketch_store.structures.bloom import BloomTable
from feast_sketch_store.structures.clustered import ClusteredFilters
from feast_sketch_store.structures.columns import Backed, Columns
from feast_sketch_store.structures.goals import Goal
from feast_sketch_store.structures.lists import Counts, Lists
from feast_sketch_store.structures.scalars import Scalars, StaticScalars
from feast_sketch_store.structures.set_columns import SetColumns

_KINDS: Final[dict[str, type[Structure]]] = {
    kind.kind: kind
    for kind in (
        BloomTable,
        Columns,
        Scalars,
        SetColumns,
        Lists,
        Counts,
        Backed,
        ClusteredFilters,
        StaticScalars,
    )
}


def kind(name: str) -> type[Structure]:
    """The kind that a snapshot names. Raises ValueError: there is none."""
    if name not in _KINDS:
        raise ValueError(
            f"it has a structure of the kind {name!r}, which this process does not know; it knows "
            f"{', '.join(sorted(_KINDS))}"
        )
    return _KINDS[name]


def kinds() -> Iterator[type[Structure]]:
    """All kinds, in the order of a layer."""
    yield from _KINDS.values()


def wanted(goal: Goal) -> type[Structure]:
    """The kind that a goal names. The goal must name one that there is."""
    if goal.clusters:
        return ClusteredFilters
    return next(kind for kind in _KINDS.values() if goal.structure in kind.names)


def keeper(codec: str) -> type[Structure] | None:
    """The kind that keeps all features of a codec, with any goal; None if there is none."""
    return next((kind for kind in _KINDS.values() if codec in kind.codecs), None)


def tag_names() -> list[str]:
    """The names that a tag may give."""
    return [name for kind in _KINDS.values() for name in kind.names]
