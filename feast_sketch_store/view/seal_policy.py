"""Decides when a view is sealed: by how many rows are not."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.structures.goals import MEMORY, Goal
from feast_sketch_store.view.semantics import REPLACE

_DELTA_PART = 1 / 16  # of `share`; fewer rows do not make a delta


class Due(Enum):
    """What is due in a view."""

    BASE = auto()
    DELTA = auto()
    ABSORPTION = auto()  # of the write-ahead log into the table


class Sizes(NamedTuple):
    """The unsealed rows of a view, and those of its base and deltas, in rows and in bytes."""

    unsealed_rows: int = 0
    unsealed_bytes: int = 0
    delta_rows: int = 0
    delta_bytes: int = 0
    sealed_rows: int = 0
    sealed_bytes: int = 0

    @classmethod
    def sum_of(cls, parts: Iterable["Sizes"]) -> "Sizes":
        """The sums over the parts of a view."""
        return cls(*map(sum, zip(*parts, strict=True)))


@dataclass(frozen=True)
class SealPolicy:
    """When a write seals: above ``min_rows``, as soon as the unsealed rows are more than ``share`` of the
    sealed ones, in number or in bytes. So memory stays within ``1 + share`` of a freshly sealed view.

    The writer of a batch that is more than ``share`` of the sealed rows waits for the seal, and so does the
    writer of any large batch while more rows are unsealed than sealed; other writes never wait.

    ``by_deltas`` says that a seal of few rows lays a delta over the sealed ones, as soon as they exceed a
    sixteenth of ``share``; past ``share`` all deltas become part of a new base.

    ``by_job`` says that writes only append and never seal.
    """

    share: float = 0.25
    min_rows: int = 1_000
    by_job: bool = False
    by_deltas: bool = False

    def due(self, sizes: Sizes, may_have_deltas: bool = False) -> Due | None:
        """Whether a base is due, for all rows that are not in the last one, or a delta over it."""
        if self._is_past(self.share, sizes, sizes.delta_rows, sizes.delta_bytes):
            return Due.BASE
        is_delta_due = self.by_deltas and may_have_deltas and self._is_past(_DELTA_PART * self.share, sizes)
        return Due.DELTA if is_delta_due else None

    def _is_past(self, share: float, sizes: Sizes, more_rows: int = 0, more_bytes: int = 0) -> bool:
        return sizes.unsealed_rows > self.min_rows and (
            sizes.unsealed_rows + more_rows > share * sizes.sealed_rows
            or sizes.unsealed_bytes + more_bytes > share * sizes.sealed_bytes
        )

    def waits(self, num_rows: int, sealed_rows: int, unsealed_rows: int) -> bool:
        """Whether the writer of ``num_rows`` rows, which the other numbers include, waits for a seal."""
        is_many = num_rows >= self.min_rows and unsealed_rows > sealed_rows
        return is_many or self.is_fill(num_rows, sealed_rows)

    def is_fill(self, num_rows: int, sealed_rows: int) -> bool:
        """Whether a batch is large compared with the sealed rows, as a materialized view is."""
        return num_rows >= self.share * max(self.min_rows, sealed_rows)


def may_have_deltas(settings: ViewSettings) -> bool:
    """Whether rows may be sealed as a delta: a feature's memory limit cannot be divided among layers."""
    targets = settings.budget.targets.values()
    return settings.semantics == REPLACE and not any(
        isinstance(target, Goal) and target.measure == MEMORY for target in targets
    )
