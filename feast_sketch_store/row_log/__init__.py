"""The row log: the exact rows of one view in a Delta Lake table, appended to and never changed in place.

Writers only append; the commit protocol of Delta orders them. Rows are read commit by commit, straight
from the log's JSON files, because the order of commits decides between rows of equal timestamps and no
Delta reader reports it.
"""

from feast_sketch_store.row_log.log import LogRead, RowLog

__all__ = ["LogRead", "RowLog"]
