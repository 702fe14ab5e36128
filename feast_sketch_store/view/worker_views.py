"""The views that a worker process of Spark or Ray keeps open.

Feast makes a new online store in a worker for each batch of rows. Without this module, each of them would
open the view and read its rows again.
"""

import sys
from typing import Any

_shared: dict[str, dict[str, Any]] = {}


def is_worker() -> bool:
    """Whether this process runs tasks of Spark or Ray for another one."""
    spark, ray = sys.modules.get("pyspark"), sys.modules.get("ray")
    if spark is not None and hasattr(spark, "TaskContext") and spark.TaskContext.get() is not None:
        return True
    if ray is None or not hasattr(ray, "WORKER_MODE") or not ray.is_initialized():
        return False
    return bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)


def kept(name: str) -> dict[str, Any]:
    """An empty dictionary; in a worker, the dictionary of this name that all stores of the process share."""
    return _shared.setdefault(name, {}) if is_worker() else {}
