"""Warnings about rows older than their view's ttl, once per view and process."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from feast_sketch_store.rows.encoding import FeastRow

_logger = logging.getLogger(__name__)

_warned: set[str] = set()  # locations of views


def warn_of_read(
    location: str, view: str, num_expired: int, num_read: int, ttl_microseconds: int | None
) -> None:
    """Warn if a read withheld rows; ``location`` is that of the view's storage."""
    if ttl_microseconds is not None and location not in _warned:
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
        "%s of feature view %r are older than its ttl of %s: with `ttl: {expire: true}`, reads withhold "
        "their "
        "values and answer OUTSIDE_MAX_AGE. They stay on disk for `ttl: {keep}` longer, so a longer ttl, or "
        "`expire: false`, brings them back",
        subject,
        view,
        timedelta(microseconds=ttl_microseconds),
    )
