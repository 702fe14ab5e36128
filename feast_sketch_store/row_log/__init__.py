"""The row log: the exact rows of one view, durable when a write returns.

    append  ->  fresh log (one record a commit)  --absorb-->  Delta table  --compact-->  Delta table

Commits are numbered in their order, which decides between rows of equal timestamps. Fresh commits lie in
files that are only appended to; `absorb` moves them into a table that any Delta reader reads.
"""

from feast_sketch_store.row_log.log import START, LogRead, Position, RowLog

__all__ = ["START", "LogRead", "Position", "RowLog"]
