"""Feast's Ray engine, with tasks that write into the row log. If a task fails, the job fails."""

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal

import pandas as pd
import pyarrow as pa
import ray
from feast.infra.common.materialization_job import (
    MaterializationJob,
    MaterializationJobStatus,
    MaterializationTask,
)
from feast.infra.compute_engines.dag.context import ColumnInfo, ExecutionContext
from feast.infra.compute_engines.dag.model import DAGFormat
from feast.infra.compute_engines.dag.node import DAGNode
from feast.infra.compute_engines.dag.value import DAGValue
from feast.infra.compute_engines.ray.compute import RayComputeEngine
from feast.infra.compute_engines.ray.config import RayComputeEngineConfig
from feast.infra.compute_engines.ray.feature_builder import RayFeatureBuilder
from feast.infra.compute_engines.ray.job import RayMaterializationJob
from feast.infra.compute_engines.ray.nodes import RayDedupNode, RayWriteNode
from feast.infra.registry.base_registry import BaseRegistry
from ray.data import Dataset
from ray.data.extensions import ArrowTensorType, ArrowVariableShapedTensorType

from feast_sketch_store.engines.write_job import TASK_REPORT, WriteJob, write

_logger = logging.getLogger(__name__)

_TYPE: Final = "feast_sketch_store.engines.SketchRayEngine"


class SketchRayEngineConfig(RayComputeEngineConfig):
    """The ``batch_engine`` section of ``feature_store.yaml``; options are those of ``ray.engine``."""

    type: Literal["feast_sketch_store.engines.SketchRayEngine"] = _TYPE  # type: ignore[assignment]


class SketchRayEngine(RayComputeEngine):
    """Materializes with Ray. Reads, joins and transformations are those of Feast's engine."""

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
            plan = RayFeatureBuilder(registry, task.feature_view, task, self.config).build()
            plan.nodes = _with_own_nodes(plan.nodes)
            result = plan.execute(context)
        except Exception as error:
            _logger.exception("feature view %r was not materialized", task.feature_view.name)
            return RayMaterializationJob(job_id, MaterializationJobStatus.ERROR, error=error)
        return RayMaterializationJob(job_id, MaterializationJobStatus.SUCCEEDED, result)


def _with_own_nodes(nodes: Sequence[DAGNode]) -> list[DAGNode]:
    """Feast's plan with its nodes that deduplicate and write replaced."""
    own: dict[int, DAGNode] = {}
    for node in nodes:
        if isinstance(node, RayWriteNode):
            own[id(node)] = _WriteNode(node.name, node.feature_view, list(node.inputs), node.config)
        elif isinstance(node, RayDedupNode):
            own[id(node)] = _DedupNode(node.name, node.column_info, list(node.inputs))
    replaced = [own.get(id(node), node) for node in nodes]
    for node in replaced:
        node.inputs = [own.get(id(before), before) for before in node.inputs]
    return replaced


class _DedupNode(DAGNode):
    """Passes on the newest row of each entity in a block; of those of several blocks, the store finds it.

    Feast's own node does not look at created timestamps.
    """

    def __init__(self, name: str, column_info: ColumnInfo, inputs: list[DAGNode]):
        super().__init__(name, inputs)
        self._column_info = column_info

    def execute(self, context: ExecutionContext) -> DAGValue:
        columns = self._column_info
        times = [columns.timestamp_column, columns.created_timestamp_column]
        newest = partial(_newest, join_keys=columns.join_keys, times=times)
        dataset: Dataset = self.get_single_input_value(context).data
        return DAGValue(dataset.map_batches(newest, batch_format="pandas"), DAGFormat.RAY)


def _newest(block: pd.DataFrame, join_keys: Sequence[str], times: Sequence[str | None]) -> pd.DataFrame:
    """The row of each entity that wins in a view, of columns that are there."""
    keys, order = ([name for name in names if name in block] for names in (join_keys, times))
    if not keys or not order:
        return block
    return block.sort_values(order, kind="stable", na_position="first").drop_duplicates(keys, keep="last")


class _WriteNode(RayWriteNode):
    """Writes rows to the online store; Feast's own code writes to the offline store."""

    def execute(self, context: ExecutionContext) -> DAGValue:
        dataset: Dataset = self.get_single_input_value(context).data
        if self.feature_view.online:
            dataset = dataset.materialize()
            with WriteJob(context.repo_config, self.feature_view, context.online_store) as job:
                write_rows(dataset, job, self._concurrency())
        if getattr(self.feature_view, "offline", False):
            rest = copy.copy(self.feature_view)
            rest.online = False
            RayWriteNode(self.name, rest, self.inputs, self.config).execute(context)
        return DAGValue(data=dataset, format=DAGFormat.RAY, metadata={"feature_view": self.feature_view.name})

    def _concurrency(self) -> int | None:
        """How many tasks write at once; None for one per processor."""
        if self.config is None:
            return None
        chosen: int | None = self.config.write_concurrency or self.config.max_workers
        return chosen


def write_rows(dataset: Dataset, job: WriteJob, concurrency: int | None = None) -> None:
    """Write the rows of a materialized data set, one task per block, and commit them.

    Raises
    ------
    ray.exceptions.RayError : a task failed.
    StorageError : see `WriteJob.finish`.
    """
    task = partial(_write_block, write_task=partial(write, artifacts=job.artifacts, label=job.label))
    # Pass each block on unchanged. Its size is bounded for rows of any size, and Ray would serialize lists of
    # strings to turn a data frame into Arrow.
    reports = dataset.map_batches(
        task, batch_format=None, batch_size=None, zero_copy_batch=True, concurrency=concurrency
    ).materialize()
    tables = [ray.get(reference) for reference in reports.to_arrow_refs()]
    job.finish([table.cast(TASK_REPORT) for table in tables if len(table)], dataset.count())


def _write_block(
    block: pa.Table | pd.DataFrame, write_task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> pa.Table:
    if isinstance(block, pd.DataFrame):
        table = pa.Table.from_pandas(block, preserve_index=False)
    else:
        table = pa.table({name: _plain(block[name]) for name in block.column_names})
    return pa.Table.from_batches(write_task(table.to_batches()))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column without the extension types that Ray gives to lists."""
    if not isinstance(column.type, pa.ExtensionType):
        return column
    if not isinstance(column.type, ArrowTensorType | ArrowVariableShapedTensorType):
        return pa.chunked_array([pa.array(column.to_pylist())])
    chunks = [chunk.storage for chunk in column.chunks]
    if isinstance(column.type, ArrowVariableShapedTensorType):
        chunks = [chunk.field("data") for chunk in chunks]
    return pa.chunked_array(chunks)
