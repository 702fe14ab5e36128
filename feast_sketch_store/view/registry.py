"""All row semantics, by the names that settings and snapshots use."""

from typing import Final

from feast_sketch_store.view.append import APPEND
from feast_sketch_store.view.semantics import REPLACE, RowSemantics

SEMANTICS: Final[dict[str, RowSemantics]] = {semantics.name: semantics for semantics in (REPLACE, APPEND)}


def named(name: str) -> RowSemantics:
    """The semantics of a name.

    Raises
    ------
    ValueError : this process does not know it.
    """
    if name not in SEMANTICS:
        raise ValueError(
            f"its rows come together by the semantics {name!r}, which this process does not know; it knows "
            f"{', '.join(sorted(SEMANTICS))}"
        )
    return SEMANTICS[name]
