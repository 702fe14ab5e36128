"""Warnings about rows older than their view's ttl, once per view and process."""

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from feast_sketch_store.layers import LayerAnswer
from feast_sketch_store.rows.encoding import FeastRow

_logger = logging.getLogger(__name__)

_warned: set[str] = set()  # locations of views


def warn_of_read(
    location: str, view: str, answers: Iterable[LayerAnswer], num_read: int, ttl_microseconds: int | None
) -> None:
    """Warn if a read withheld rows.

    Parameters
    ----------
    location : of the view's storage.
    answers : to a read of ``num_entities`` entities.
    """
    if ttl_microseconds is not None and location not in _warned:
        num_expired = sum(len(answer.expired) for answer in answers)
        _warn(location, view, f"{num_expired} of {num_read} rows read", num_expired, ttl_microseconds)


def warn_of_write(location: str, view: str, rows: Sequence[FeastRow], ttl_microseconds: int | None) -> None:
    """Warn if rows have expired before they are written."""
    if ttl_microseconds is not None and location not in _warned:
        limit = datetime.now(UTC) - timedelta(microseconds=ttl_microseconds)
        moments = (row[2] if row[2].tzinfo else row[2].replace(tzinfo=UTC) for row in rows)
        num_expired = sum(moment < limit for moment in moments)
        subject = f"{num_expired} of {len(rows)} rows written"
        _warn(location, view, subject, num_expired, ttl_microseconds)


def _warn(location: str, view: str, subject: str, num_expired: int, ttl_microseconds: int) -> None:
    if not num_expired:
        return
    _warned.add(location)
    _logger.warning(
        "%s of feature view %r are older than its ttl of %s: with expire_rows, reads withhold their values "
        "and answer OUTSIDE_MAX_AGE. They stay on disk for expired_kept_for longer, so a longer ttl, or "
        "expire_rows: false, brings them back",
        subject,
        view,
        timedelta(microseconds=ttl_microseconds),
    )
