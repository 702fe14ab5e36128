"""Feast's Spark engine, with tasks that write into the row log."""

import copy
from functools import partial
from typing import Any, Final, Literal

from feast.infra.common.materialization_job import (
    MaterializationJob,
    MaterializationJobStatus,
    MaterializationTask,
)
from feast.infra.compute_engines.dag.context import ExecutionContext
from feast.infra.compute_engines.dag.model import DAGFormat
from feast.infra.compute_engines.dag.value import DAGValue
from feast.infra.compute_engines.spark.compute import SparkComputeEngine, SparkComputeEngineConfig
from feast.infra.compute_engines.spark.feature_builder import SparkFeatureBuilder
from feast.infra.compute_engines.spark.job import SparkMaterializationJob
from feast.infra.compute_engines.spark.nodes import SparkWriteNode
from feast.infra.registry.base_registry import BaseRegistry
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from feast_sketch_store.engines.job import WriteJob
from feast_sketch_store.engines.tasks import TASK_REPORT, write

_TYPE: Final = "feast_sketch_store.engines.SketchSparkEngine"
_REPORT = "name string, num_rows long, checksum string, size_bytes long, columns binary, rows_given long"


class SketchSparkEngineConfig(SparkComputeEngineConfig):
    """The ``batch_engine`` section of ``feature_store.yaml``; options are those of ``spark.engine``."""

    type: Literal["feast_sketch_store.engines.SketchSparkEngine"] = _TYPE  # type: ignore[assignment]


class SketchSparkEngine(SparkComputeEngine):
    """Materializes with Spark. Reads, joins and transformations are those of Feast's engine."""

    def _materialize_one(
        self,
        registry: BaseRegistry,
        task: MaterializationTask,
        from_offline_store: bool = False,
        **kwargs: Any,
    ) -> MaterializationJob:
        """Materialize a view; a job that did not write all rows has the status ERROR, and Feast raises."""
        job_id = f"{task.feature_view.name}-{task.start_time}-{task.end_time}"
        try:
            context = self.get_execution_context(registry, task)
            session = self._get_feature_view_spark_session(task.feature_view)
            partitions = self.repo_config.batch_engine.partitions
            _Builder(registry, session, task, partitions).build().execute(context)
        except Exception as error:
            return SparkMaterializationJob(job_id, MaterializationJobStatus.ERROR, error)
        return SparkMaterializationJob(job_id, MaterializationJobStatus.SUCCEEDED)


class _Builder(SparkFeatureBuilder):
    """Feast's plan with another last node."""

    def __init__(self, registry: BaseRegistry, session: Any, task: MaterializationTask, partitions: int):
        super().__init__(registry, session, task)
        self._partitions = partitions

    def build_output_nodes(self, view: Any, input_node: Any) -> "_WriteNode":
        node = _WriteNode(f"{view.name}:output", self.dag_root.view, [input_node], self._partitions)
        self.nodes.append(node)
        return node


class _WriteNode(SparkWriteNode):
    """Writes rows to the online store, and lets Feast write to the offline store."""

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
    """Write the rows of a data frame, each task on its own, and commit them.

    Raises
    ------
    pyspark.errors.PySparkException : a task failed as often as Spark lets it.
    StorageError : see `WriteJob.finish`.
    """
    counted = Observation()
    task = partial(write, artifacts=job.artifacts, label=job.label)
    # Counted by Spark itself, in the same pass and for the run of each task that counts.
    reports = rows.observe(counted, F.count(F.lit(1)).alias("rows")).mapInArrow(task, _REPORT).toArrow()
    job.finish([reports.cast(TASK_REPORT)], counted.get["rows"])
