"""A write by the tasks of an engine: tasks write files, and their job commits them all, or fails."""

import logging
import secrets
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from feast import FeatureView
from feast.feature_view import DUMMY_ENTITY_ID, DUMMY_ENTITY_VAL
from feast.infra.common.serde import SerializedArtifacts
from feast.repo_config import RepoConfig

from feast_sketch_store import feast_parts
from feast_sketch_store.adapter.options import require_writer, seal_policy
from feast_sketch_store.errors import GateError, SketchStoreError, StorageError
from feast_sketch_store.online_store import SketchOnlineStore
from feast_sketch_store.row_log.data_file import REPORT, StagedFile
from feast_sketch_store.rows.arrow_rows import check_join_keys, from_source
from feast_sketch_store.rows.limits import gathered
from feast_sketch_store.settings.table import Compaction
from feast_sketch_store.storage.base import UncertainWriteError
from feast_sketch_store.view.semantics import REPLACE
from feast_sketch_store.view.view import View

_logger = logging.getLogger(__name__)

# Engines pass smaller batches; up to this many rows or bytes are encoded together.
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

    Returns the task's report, once all rows are written.

    Raises RowError, StorageError: the task must fail.
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
    has_entities = DUMMY_ENTITY_ID not in (settings.join_keys or ())
    if not has_entities and DUMMY_ENTITY_ID not in table.column_names:  # Feast's local engine adds it, too
        table = table.append_column(DUMMY_ENTITY_ID, pa.repeat(DUMMY_ENTITY_VAL, len(table)))
    if settings.semantics == REPLACE:
        return from_source(table, feature_view, settings.codecs)
    check_join_keys(table, feature_view)
    types = {column.name: column.dtype.to_value_type() for column in feature_view.entity_columns}
    rows = feast_parts.ARROW_TO_PROTO(table.combine_chunks(), feature_view, types)
    return view.to_table([rows])


class WriteJob:
    """One write into a view by many tasks. Use it as a context manager.

    Raises SketchStoreError: the online store is not a sketch store, or is read-only.
    """

    def __init__(self, config: RepoConfig, feature_view: FeatureView, online_store: object):
        if not isinstance(online_store, SketchOnlineStore):
            raise SketchStoreError(
                f"project {config.project!r} has an online store of type {type(online_store).__name__}; this "
                "engine writes to `online_store: {type: sketch}` only"
            )
        require_writer(config)
        self.label = f"job-{secrets.token_hex(8)}-"  # prefix of the names of the job's files
        # the view and its configuration, for tasks
        self.artifacts: SerializedArtifacts = SerializedArtifacts.serialize(  # type: ignore[no-untyped-call]
            feature_view, config
        )
        self._name: str = feature_view.name
        self._seals = not config.online_store.compaction.by_job
        self._check_writable = partial(online_store.writer, config, feature_view)
        self._view = online_store.writer(config, feature_view)
        if codecs := self._view.settings.backed_codecs:
            names = ", ".join(codec.feature for codec in codecs)
            raise SketchStoreError(
                f"feature view {self._name!r} has features that the backing store keeps ({names}); "
                "this engine writes to the row log alone, so materialize the view with Feast's own engine"
            )

    def __enter__(self) -> "WriteJob":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Delete files that no commit names, left by tasks that failed or ran twice."""
        if isinstance(error, UncertainWriteError | GateError):
            return  # the commit may still appear, or the rows are held back: both need the files
        try:
            self._view.discard_staged(self.label)
        except SketchStoreError as problem:
            _logger.warning("%s; run `feast-sketch vacuum` to remove files that no commit names", problem)

    def finish(self, reports: Iterable[pa.Table], num_rows: int) -> None:
        """Compare what the tasks wrote with what they were given, commit it, and seal.

        Parameters
        ----------
        reports : one for each task, of the run that counts.
        num_rows : how many rows the tasks were given, counted by the engine.

        Raises
        ------
        GateError : the view with these rows does not pass its gate; they are held back.
        StorageError : rows are missing, or cannot be committed.
        ShardError : the view has other shards by now; nothing was committed.
        """
        entries = [entry for report in reports for entry in report.to_pylist()]
        files = [self._view.staged(entry) for entry in entries if entry["name"] is not None]
        given = sum(entry[ROWS_GIVEN.name] or 0 for entry in entries)
        self._check(files, given, num_rows)
        # The job may have taken hours, and rows may have been divided into other shards since it began.
        self._check_writable()
        self._view.commit_staged(files)
        _logger.info(
            "feature view %r: %s rows in %s files of %s were committed",
            self._name,
            num_rows,
            len(files),
            self.label.strip("-"),
        )
        if self._seals and files:
            self._seal()

    def _seal(self) -> None:
        """Seal the view. Its rows are there, so that a failed seal must not look like a failed job."""
        try:
            problem = (
                "" if self._view.seal() else f"feature view {self._name!r}: another process is sealing it"
            )
        except SketchStoreError as error:
            problem = str(error)
        if problem:
            _logger.warning("%s; the rows are kept, a later write seals them", problem)

    def _check(self, files: list[StagedFile], given: int, num_rows: int) -> None:
        written = sum(file.file.num_rows for file in files)
        if not written == given == num_rows:
            raise StorageError(
                f"feature view {self._name!r}: the job has {num_rows} rows, its tasks were given {given} and "
                f"wrote {written}; nothing was committed. Run the job again"
            )
        names = [file.file.name for file in files]
        if len(names) != len(set(names)):
            raise StorageError(
                f"feature view {self._name!r}: a task reported a file twice; nothing was committed"
            )
