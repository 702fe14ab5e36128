"""The kinds of structures, by their names in snapshots and tags."""

from collections.abc import Iterator

from feast_sketch_store.structures.backed import Backed
from feast_sketch_store.structures.base import Structure
from feast_sketch_store.structures.bloom import BloomTable
from feast_sketch_store.structures.clustered import ClusteredFilters
from feast_sketch_store.structures.columns import Columns
from feast_sketch_store.structures.compact_sets import CompactSets
from feast_sketch_store.structures.counts import Counts
from feast_sketch_store.structures.goals import AUTO, Goal
from feast_sketch_store.structures.lists import Lists
from feast_sketch_store.structures.scalars import Scalars
from feast_sketch_store.structures.set_columns import SetColumns
from feast_sketch_store.structures.static import StaticScalars

# Prefixes of the names of a layer's arrays, besides the kinds of its structures.
RESERVED = ("presence", "roundings", "formulas")

_kinds: dict[str, type[Structure]] = {
    kind.kind: kind
    for kind in (
        BloomTable,
        Columns,
        Scalars,
        SetColumns,
        CompactSets,
        Lists,
        Counts,
        Backed,
        ClusteredFilters,
        StaticScalars,
    )
}


def register(kind: type[Structure]) -> None:
    """Make a kind of structure known to this process, for tags and snapshots that name it.

    Raises
    ------
    ValueError : another kind has its name or one of its tag names, or it contradicts itself.
    """
    taken = {*RESERVED, *_kinds, AUTO, *tag_names()}
    if _kinds.get(kind.kind) is kind:
        return
    if clash := {kind.kind, *kind.names} & taken:
        raise ValueError(f"a structure has the name {sorted(clash)[0]!r} already")
    if kind.tells_states and not kind.lists_rows:
        raise ValueError(
            f"the kind {kind.kind!r} stores states without listing rows, but shapes store them already"
        )
    if "." in kind.kind:
        raise ValueError(f"the kind {kind.kind!r} has a dot in its name, which separates names of arrays")
    _kinds[kind.kind] = kind


def kind(name: str) -> type[Structure]:
    """The kind that a snapshot names.

    Raises
    ------
    ValueError : it is not registered.
    """
    if name not in _kinds:
        raise ValueError(
            f"it has a structure of the kind {name!r}, which this process does not know; it knows "
            f"{', '.join(sorted(_kinds))}"
        )
    return _kinds[name]


def kinds() -> Iterator[type[Structure]]:
    """All kinds, in the order of a layer."""
    yield from _kinds.values()


def named(name: str) -> type[Structure]:
    """The kind that a tag names.

    Raises
    ------
    KeyError : there is none.
    """
    return next(kind for kind in _kinds.values() if name in kind.names)


def wanted(goal: Goal) -> type[Structure]:
    """The kind that a goal names. The goal must name one.

    Raises
    ------
    KeyError : there is none.
    """
    return ClusteredFilters if goal.clusters else named(goal.structure)


def keeper(codec: str) -> type[Structure] | None:
    """The kind that keeps all features of a codec, whatever their goal; None if there is none."""
    return next((kind for kind in _kinds.values() if codec in kind.codecs), None)


def tag_names() -> list[str]:
    """The names that a tag may give."""
    return [name for kind in _kinds.values() for name in kind.names]
