"""A task of an engine: it writes rows as Arrow into data files of the row log."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from feast.infra.common.serde import SerializedArtifacts

from feast_sketch_store import feast_parts
from feast_sketch_store.adapter.options import seal_policy
from feast_sketch_store.row_log.staging import REPORT
from feast_sketch_store.rows.arrow_rows import from_source
from feast_sketch_store.rows.limits import gathered
from feast_sketch_store.settings.table import Compaction
from feast_sketch_store.view.semantics import REPLACE
from feast_sketch_store.view.view import View

# Engines hand over smaller batches; up to so many rows or bytes are encoded together.
_ROWS = 1 << 17
_BYTES = 1 << 26

ROWS_GIVEN = pa.field("rows_given", pa.int64())
TASK_REPORT = REPORT.append(ROWS_GIVEN)
"""The columns of a task's report: one entry per file, and one with the number of rows of the task."""


def write(
    batches: Iterable[pa.RecordBatch], artifacts: SerializedArtifacts, label: str
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task into data files, without a commit.

    Parameters
    ----------
    batches : rows in the form that the engine passes to Feast's write.
    artifacts : the feature view and the configuration of its repository.
    label : prefix of the names of the job's files.

    Returns
    -------
    The task's report, once all rows are written.

    Raises
    ------
    RowError, StorageError : the task must fail.
    """
    feature_view, online_store, _, config = artifacts.unserialize()  # type: ignore[no-untyped-call]
    view: View = online_store.writer(config, feature_view)
    view.policy = seal_policy(config.online_store.model_copy(update={"compaction": Compaction(by_job=True)}))
    rows_given = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal rows_given
        given = (pa.Table.from_batches([batch]) for batch in batches if len(batch))
        for table in gathered(given, _ROWS, _BYTES):
            rows_given += len(table)
            yield _as_logged(view, feature_view, table)

    entries: list[dict[str, Any]] = [file.to_report() for file in view.stage(tables(), label)]
    entries.append({ROWS_GIVEN.name: rows_given})
    yield pa.RecordBatch.from_pylist(entries, TASK_REPORT)


def _as_logged(view: View, feature_view: Any, table: pa.Table) -> pa.Table:
    """Rows of an engine in the form of the row log."""
    settings = view.settings
    if settings.semantics == REPLACE:
        return from_source(table, feature_view, settings.codecs)
    types = {column.name: column.dtype.to_value_type() for column in feature_view.entity_columns}
    rows = feast_parts.ARROW_TO_PROTO(table.combine_chunks(), feature_view, types)
    return view.to_table([rows])
