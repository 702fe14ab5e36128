"""Spark's parent of Python workers, with Feast imported, which takes each worker seconds otherwise.

``python -m tests.engines.daemon``, as Spark's setting ``spark.python.daemon.module`` says.
"""

import feast_sketch_store.online_store  # noqa: F401

if __name__ == "__main__":
    from pyspark.daemon import manager

    manager()
