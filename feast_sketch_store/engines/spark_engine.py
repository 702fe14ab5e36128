"""Feast's Spark engine, with tasks that write into the row log."""

import copy
import logging
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from feast.infra.common.materialization_job import (
    MaterializationJob,
    MaterializationJobStatus,
    MaterializationTask,
)
from feast.infra.compute_engines.dag.context import ColumnInfo, ExecutionContext
from feast.infra.compute_engines.dag.model import DAGFormat
from feast.infra.compute_engines.dag.value import DAGValue
from feast.infra.compute_engines.spark.compute import SparkComputeEngine, SparkComputeEngineConfig
from feast.infra.compute_engines.spark.feature_builder import SparkFeatureBuilder
from feast.infra.compute_engines.spark.job import SparkMaterializationJob
from feast.infra.compute_engines.spark.nodes import SparkDedupNode, SparkWriteNode
from feast.infra.registry.base_registry import BaseRegistry
from feast.repo_config import RepoConfig
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from feast_sketch_store import feast_parts
from feast_sketch_store.adapter.options import settings_of
from feast_sketch_store.engines.write_job import TASK_REPORT, WriteJob, write
from feast_sketch_store.view.semantics import REPLACE

_logger = logging.getLogger(__name__)

_TYPE: Final = "feast_sketch_store.engines.SketchSparkEngine"
# With at most this many rows per entity, the row log takes them all; a seal compacts a log that has more.
_FEW_ROWS = 1.25
_COUNT_ERROR = 0.02  # of the estimated number of entities: relative standard deviation
_REPORT = (
    "name string, num_rows long, checksum string, size_bytes long, columns binary, shard long, "
    "shards_folder string, rows_given long"
)


class SketchSparkEngineConfig(SparkComputeEngineConfig):
    """The ``batch_engine`` section of ``feature_store.yaml``; options are those of ``spark.engine``."""

    type: Literal["feast_sketch_store.engines.SketchSparkEngine"] = _TYPE  # type: ignore[assignment]

    deduplicate: Literal["auto", "spark", "seal"] = "auto"
    """Where the newest row of each entity is found. ``spark`` sorts all rows in a window; ``seal`` leaves it
    to the seal, which does it anyway; ``auto`` chooses ``seal`` if the source has few outdated rows."""


class SketchSparkEngine(SparkComputeEngine):
    """Materializes with Spark. Reads, joins and transformations are those of Feast's engine."""

    def _materialize_one(
        self,
        registry: BaseRegistry,
        task: MaterializationTask,
        from_offline_store: bool = False,
        **kwargs: Any,
    ) -> MaterializationJob:
        """Materialize a view. If rows are missing, the job's status is ERROR and Feast raises."""
        job_id = f"{task.feature_view.name}-{task.start_time}-{task.end_time}"
        try:
            context = self.get_execution_context(registry, task)
            session = feast_parts.SPARK_SESSION.of(self)(task.feature_view)
            _Builder(registry, session, task, self.repo_config).build().execute(context)
        except Exception as error:
            return SparkMaterializationJob(job_id, MaterializationJobStatus.ERROR, error)
        return SparkMaterializationJob(job_id, MaterializationJobStatus.SUCCEEDED)


class _Builder(SparkFeatureBuilder):
    """Feast's plan with its own write node, and without deduplication if the seal's is enough."""

    def __init__(self, registry: BaseRegistry, session: Any, task: MaterializationTask, config: RepoConfig):
        super().__init__(registry, session, task)
        self._config, self._engine = config, config.batch_engine

    def build_dedup_node(self, view: Any, input_node: Any) -> Any:
        if self._engine.deduplicate == "spark" or not self._only_writes(view):
            return super().build_dedup_node(view, input_node)  # type: ignore[no-untyped-call]
        columns = self.get_column_info(view)
        node = _DedupNode(
            f"{view.name}:dedup",
            replace(columns, join_keys=columns.join_keys_columns),  # their names in what Feast reads
            self.spark_session,
            [input_node],
            self._engine.deduplicate == "auto",
        )
        self.nodes.append(node)
        return node

    def _only_writes(self, view: Any) -> bool:
        """Whether rows go from the source straight into the row log, and nowhere else.

        A transformation must not run twice, and later steps or the offline store may count rows.
        """
        if view is not self.dag_root.view or view.offline or not view.data_source:
            return False
        if getattr(view, "feature_transformation", None) or getattr(view, "enable_validation", False):
            return False
        return settings_of(self._config, view).semantics == REPLACE

    def build_output_nodes(self, view: Any, input_node: Any) -> "_WriteNode":
        node = _WriteNode(f"{view.name}:output", self.dag_root.view, [input_node], self._engine.partitions)
        self.nodes.append(node)
        return node


class _DedupNode(SparkDedupNode):
    """Passes all rows on if few are outdated, for the seal to find the newest; else finds them here.

    A window moves and sorts whole rows; counting reads only the join keys.
    """

    def __init__(self, name: str, column_info: ColumnInfo, session: Any, inputs: Any, counts: bool):
        super().__init__(name, column_info, session, inputs)
        self._counts = counts

    def execute(self, context: ExecutionContext) -> DAGValue:
        value = self.get_single_input_value(context)
        if self._counts and not self._are_few(value.data):
            return super().execute(context)
        return DAGValue(data=value.data, format=DAGFormat.SPARK, metadata={"deduped": False})

    def _are_few(self, rows: DataFrame) -> bool:
        keys = self.column_info.join_keys
        if not keys:
            return True
        entities = F.approx_count_distinct(F.struct(*keys), _COUNT_ERROR)
        num_rows, num_entities = rows.agg(F.count(F.lit(1)), entities).first() or (0, 0)
        are_few = num_rows <= _FEW_ROWS * num_entities
        if not are_few:
            _logger.info(
                "%s: %s rows are of about %s entities; Spark finds the newest ones",
                self.name,
                num_rows,
                num_entities,
            )
        return bool(are_few)


class _WriteNode(SparkWriteNode):
    """Writes rows to the online store; Feast's own code writes to the offline store."""

    def __init__(self, name: str, feature_view: Any, inputs: Any, partitions: int):
        super().__init__(name, feature_view, inputs)
        self._partitions = partitions

    def execute(self, context: ExecutionContext) -> DAGValue:
        rows: DataFrame = self.get_single_input_value(context).data
        if self.feature_view.online:
            if self._partitions:
                rows = rows.repartition(self._partitions)
            with WriteJob(context.repo_config, self.feature_view, context.online_store) as job:
                write_rows(rows, job)
        if self.feature_view.offline:
            rest = copy.copy(self.feature_view)
            rest.online = False
            return SparkWriteNode(self.name, rest, self.inputs).execute(context)
        return DAGValue(data=rows, format=DAGFormat.SPARK, metadata={"feature_view": self.feature_view.name})


def write_rows(rows: DataFrame, job: WriteJob) -> None:
    """Write the rows of a data frame, each task its own files, and commit them.

    Raises
    ------
    pyspark.errors.PySparkException : a task failed as often as Spark retries it.
    StorageError : see `WriteJob.finish`.
    """
    counted = Observation()
    task = partial(write, artifacts=job.artifacts, label=job.label)
    # Spark counts in the same pass, and only the run of each task that counts.
    reports = rows.observe(counted, F.count(F.lit(1)).alias("rows")).mapInArrow(task, _REPORT).toArrow()
    job.finish([reports.cast(TASK_REPORT)], counted.get["rows"])
