"""Names of columns. Delta Lake cannot hold two columns whose names differ only in case."""

from collections.abc import Iterable

from feast_sketch_store.errors import UnsupportedFeatureError


def clash(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two different names that are one column for Delta Lake; None if all differ."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.lower(), name)
        if other != name:
            return other, name
    return None


def check_new_columns(stored: Iterable[str], wanted: Iterable[str]) -> None:
    """Check that columns can be added to a table.

    Raises
    ------
    UnsupportedFeatureError : a name differs from that of a stored or another new column only in case.
    """
    found = clash([*stored, *wanted])
    if found is not None:
        raise UnsupportedFeatureError(
            f"the row log has a column {found[0]!r}, and {found[1]!r} differs from it only by case, which "
            f"Delta Lake does not tell apart. Name the feature {found[0]!r} again, give it a name that "
            "differs in more than case, or remove the view with `feast apply`, add it again and materialize"
        )
