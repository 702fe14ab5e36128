"""The part of a write around its tasks: either all rows of the job count, or the job fails."""

import logging
import secrets
from collections.abc import Iterable
from functools import partial

import pyarrow as pa
from feast import FeatureView
from feast.infra.common.serde import SerializedArtifacts
from feast.repo_config import RepoConfig

from feast_sketch_store.adapter.options import require_writer
from feast_sketch_store.engines.tasks import ROWS_GIVEN
from feast_sketch_store.errors import GateError, SketchStoreError, StorageError
from feast_sketch_store.online_store import SketchOnlineStore
from feast_sketch_store.row_log.staging import StagedFile
from feast_sketch_store.storage.base import UncertainWriteError

_logger = logging.getLogger(__name__)


class WriteJob:
    """One write into a view by many tasks. Use it as a context manager.

    Parameters
    ----------
    config : of the repository.
    feature_view : the view to write.
    online_store : of the repository.

    Attributes
    ----------
    label : prefix of the names of the job's files.
    artifacts : the view and its configuration, for tasks.

    Raises
    ------
    SketchStoreError : the online store is not a sketch store, or is read-only.
    """

    def __init__(self, config: RepoConfig, feature_view: FeatureView, online_store: object):
        if not isinstance(online_store, SketchOnlineStore):
            raise SketchStoreError(
                f"project {config.project!r} has an online store of type {type(online_store).__name__}; this "
                "engine writes to `online_store: {type: sketch}` only"
            )
        require_writer(config)
        self.label = f"job-{secrets.token_hex(8)}-"
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
        if self._seals and files and not self._view.seal():
            _logger.warning(
                "feature view %r: another process is sealing it; the rows are kept, a later write seals them",
                self._name,
            )

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
