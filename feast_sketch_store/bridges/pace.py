"""A limit of rows per second, because another store has its own readers to serve."""

import time


class Pace:
    """Waits after each page of rows.

    Parameters
    ----------
    max_rows_per_second : None for no limit.
    """

    def __init__(self, max_rows_per_second: float | None):
        self._seconds_a_row = 1 / max_rows_per_second if max_rows_per_second else 0.0
        self._due = time.monotonic()

    def wait(self, num_rows: int) -> None:
        """Sleep until this many more rows are allowed."""
        self._due = max(self._due, time.monotonic() - 1.0) + num_rows * self._seconds_a_row
        time.sleep(max(0.0, self._due - time.monotonic()))
