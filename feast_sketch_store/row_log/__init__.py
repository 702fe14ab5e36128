"""The row log: the exact rows of one view, durable when a write returns.

    append  ->  write-ahead log (one record a commit)  --absorb-->  Delta table  --compact-->  Delta table

Commits are numbered in their order, which decides between rows of equal timestamps. Fresh commits are in
append-only files; `absorb` moves them into a table that any Delta reader can read.
"""

from feast_sketch_store.row_log.log import START, LogRead, Position, RowLog

__all__ = ["START", "LogRead", "Position", "RowLog"]
