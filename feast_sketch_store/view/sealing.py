"""When a view is sealed, and how a seal folds its rows."""

import logging
from dataclasses import dataclass, replace

from feast_sketch_store.layers import SealedLayer, seal
from feast_sketch_store.view.semantics import REPLACE, FoldedRows
from feast_sketch_store.view.settings import ViewSettings

_logger = logging.getLogger(__name__)

# A seal rewrites the row log when rows were deleted or expired, or when so much of it is outdated.
_SUPERSEDED_SHARE = 0.25
_MAX_FILES = 64

# From this number on fresh commits are absorbed into the table, so that a new process reads few of them.
_MAX_FRESH_COMMITS = 500


@dataclass(frozen=True)
class SealPolicy:
    """When a write seals: above ``min_rows``, as soon as the unsealed rows take more than ``share`` of the
    memory of the sealed ones. So memory stays within ``1 + share`` of a freshly sealed view.

    ``by_job`` tells that writes never seal, whatever there is to seal, and only append.
    """

    share: float = 0.25
    min_rows: int = 1_000
    by_job: bool = False

    def wants_seal(self, unsealed: int, sealed: int, unsealed_rows: int) -> bool:
        """Whether to seal now; ``unsealed`` and ``sealed`` are sizes, in rows or in bytes."""
        return unsealed_rows > self.min_rows and unsealed > self.share * sealed

    def wants_absorption(self, fresh_commits: int) -> bool:
        """Whether to move fresh commits into the table now."""
        return fresh_commits > _MAX_FRESH_COMMITS

    def wants_compaction(self, rows: FoldedRows, num_files: int) -> bool:
        """Whether to rewrite the table after a seal of these rows, which came from ``num_files`` files."""
        superseded = rows.num_rows - len(rows)
        return rows.has_dead or superseded > _SUPERSEDED_SHARE * rows.num_rows or num_files > _MAX_FILES


def fold(rows: FoldedRows, settings: ViewSettings) -> SealedLayer:
    """Fold rows into a layer. Touches no storage."""
    budget, codecs = settings.budget, settings.stored_codecs
    if settings.semantics != REPLACE.name:
        budget = replace(budget, semantics=settings.semantics, since=rows.expire_before)
    layer = seal(rows.keys, rows.encoded(codecs), codecs, budget)
    for name, reason in layer.failed_over.items():
        _logger.warning("feature %r of view %r is sealed exactly: %s", name, settings.view, reason)
    return layer
