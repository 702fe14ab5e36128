"""The errors of the store: one small hierarchy. Each message names what is wrong, where, and what to do."""

from collections.abc import Sequence
from typing import Self

_MAX_SHOWN = 80  # characters of a value in a message


class SketchStoreError(Exception):
    """Base class of every error that the store raises on purpose.

    Attributes
    ----------
    parts : the errors that this one combines.
    """

    parts: "tuple[SketchStoreError, ...]" = ()


class SettingsError(SketchStoreError, ValueError):
    """An option of ``feature_store.yaml`` or a ``sketch.*`` tag has a value that cannot work.

    Attributes
    ----------
    least_bytes : the memory that a feature needs, if it has too little; else 0.
    """

    least_bytes: int = 0


class UnsupportedFeatureError(SketchStoreError):
    """A feature has a type that no codec takes; raised by ``feast apply``."""


class ShardError(SettingsError):
    """The number of shards differs from the settings, or an entity is in a shard that this process does not
    serve."""


class FeastPartError(SketchStoreError):
    """The installed release of Feast lacks a part that a command or an engine needs, or has another one."""


class RowError(SketchStoreError, ValueError):
    """A row cannot be kept as it was given; nothing of its batch was written."""


class DamagedFileError(SketchStoreError):
    """A file of the store is truncated, altered or not one of ours."""


class FormatVersionError(DamagedFileError):
    """A file of the store has a format version that this release does not read.

    Attributes
    ----------
    version : the file's.
    kind : the name of the format; "" if the kind of file implies it.
    """

    version: int | str = 0
    kind = ""

    @classmethod
    def of(cls, source: str, version: int, readable: int, what_else: str = "", kind: str = "") -> Self:
        """Make the error of a file; ``what_else`` names an alternative to an upgrade."""
        error = cls(
            f"{source}: has {kind or 'format'} version {version}, this release reads {readable}; upgrade "
            f"feast_sketch_store{what_else}"
        )
        error.version, error.kind = version, kind
        return error


class StorageError(SketchStoreError):
    """The store's folder cannot be read or written."""


class GateError(SketchStoreError):
    """A version of a view does not meet its gate, and was not published.

    Attributes
    ----------
    reasons : what it does not meet.
    """

    reasons: tuple[str, ...] = ()


class PlanError(SketchStoreError, ValueError):
    """A plan cannot be made: there are no rows, no labels that fit, or nothing meets the target."""


def summed_up(errors: Sequence[SketchStoreError]) -> SketchStoreError:
    """Combine one or more errors into one."""
    parts = [part for error in errors for part in (error.parts or (error,))]
    text = str(parts[0])
    if len(parts) > 1:
        text = "\n".join([f"{len(parts)} settings must change:", *(f"- {part}" for part in parts)])
    kinds = {type(part) for part in parts}
    error = kinds.pop()(text) if len(kinds) == 1 else SettingsError(text)
    error.parts = tuple(parts)
    return error


def shown(value: object) -> str:
    """A value in a message: its first characters, or of a time that Python cannot represent its number."""
    try:
        text = str(value)
    except (OverflowError, ValueError):
        text = str(getattr(value, "value", "?"))
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def counted(number: float, thing: str) -> str:
    """A number of things in a message: ``1 entity``, ``2,000 entities``."""
    things = thing[:-1] + "ies" if thing.endswith("y") else thing + "s"
    return f"{number:,.0f} {thing if number == 1 else things}"


def require_names(**names: object) -> None:
    """Check that the names which a caller gives are strings. Raises SettingsError: one is not."""
    for what, name in names.items():
        if not isinstance(name, str):
            raise SettingsError(f"{what} is a {type(name).__name__}; give its name")


def reason_of(error: Exception) -> str:
    """What an error of Feast says, and the module that is not installed, which only its cause names."""
    missing = isinstance(error.__cause__, ModuleNotFoundError)
    return f"{error}: {error.__cause__}; install what this store needs" if missing else str(error)
