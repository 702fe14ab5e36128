"""A seal by tasks of Spark or Ray, one per shard. The driver numbers values and publishes.

    driver    takes the view's seal lease; absorbs the write-ahead logs into the tables
    tasks     sample rows, if features are computed from others     driver    fits their formulas
    tasks     count values                  driver    makes one numbering for all
    tasks     find how many values fit into memory budgets, if there are any
    tasks     write the files of each base  driver    creates a manifest per shard, once all files are there
    tasks     compact the row logs that need it

A task that is retried writes new files; vacuum removes those that no manifest names.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from feast import FeatureStore
from feast.infra.common.serde import SerializedArtifacts

from feast_sketch_store.adapter.options import require_writer
from feast_sketch_store.engines.packing import unpack, unpack_counts, unpack_sample
from feast_sketch_store.engines.seal_tasks import COUNT, DRAFT, FINISH, FIT, SAMPLE, request_of, run_step
from feast_sketch_store.errors import SettingsError
from feast_sketch_store.layers.joint import SharedVocabularies
from feast_sketch_store.online_store import any_feature_view, online_store_of
from feast_sketch_store.view.joint_seal import inputs_of, numbered, publish_drafts

Task: TypeAlias = Callable[[bytes], bytes]
Run: TypeAlias = Callable[[Task, Sequence[bytes]], list[bytes]]  # a task for each request, results in order

_PACKAGES = {"spark": "pyspark", "ray": "ray[data]"}
ENGINES = tuple(_PACKAGES)


def seal(store: FeatureStore, view: str, engine: str) -> bool:
    """Seal a view on Spark or Ray, with the cluster in ``batch_engine`` of the repository.

    Returns
    -------
    False if there are no rows.

    Raises
    ------
    SettingsError : there is no such engine, or its package is missing.
    GateError : the new version does not pass the view's gate; no shard has a new snapshot.
    StorageError : another process is sealing the view, or its storage cannot be written. No shard has a new
        snapshot, or, if publishing failed, only some have.
    """
    return seal_by(store, view, _run_of(engine, store.config))


def seal_by(store: FeatureStore, view: str, run: Run) -> bool:
    """Seal a view by tasks; see `seal`.

    Parameters
    ----------
    run : runs the task once for each request, retries failures, and returns the results in order.
    """
    online_store, feature_view = online_store_of(store), any_feature_view(store, view)
    require_writer(store.config)
    opened = online_store.writer(store.config, feature_view)
    task = partial(run_step, artifacts=SerializedArtifacts.serialize(feature_view, store.config))  # type: ignore[no-untyped-call]
    parts = opened.shards
    with opened.unchanging():
        given = inputs_of(parts)
        if not given:
            return False
        codecs = {codec.feature: codec for codec in opened.settings.codecs}

        def all_do(step: str, joint: SharedVocabularies | None = None) -> list[bytes]:
            rest = (joint,) if joint else ()
            return run(task, [request_of(step, number, rows, *rest) for number, rows in given.items()])

        joint = numbered(
            opened.settings,
            parts,
            lambda: [unpack_sample(one, codecs) for one in all_do(SAMPLE)],
            lambda formulas: [
                unpack_counts(one) for one in all_do(COUNT, SharedVocabularies({}, False, formulas=formulas))
            ],
            lambda joint: [unpack(one)[0] for one in all_do(FIT, joint)],
        )
        made = all_do(DRAFT, joint)
        drafts = {n: parts[n].drafted(unpack(one)[0]) for n, one in zip(given, made, strict=True)}
        publish_drafts(parts, drafts, opened.judge)
        large = [n for n, draft in drafts.items() if draft.compacts]
        if large:
            run(task, [request_of(FINISH, number, given[number]) for number in large])
        for number, rows in given.items():
            parts[number].finish_seal(rows, False)
    return True


def _run_of(engine: str, config: Any) -> Run:
    """The function that runs tasks on an engine.

    Raises
    ------
    SettingsError : there is no such engine, or its package is missing.
    """
    try:
        if engine == "spark":
            return _spark(config)
        if engine == "ray":
            return _ray(config)
    except ImportError as error:
        raise SettingsError(
            f"--engine {engine} needs the package {_PACKAGES[engine]}: `pip install '{_PACKAGES[engine]}'` "
            f"({error})"
        ) from error
    raise SettingsError(f"there is no engine {engine!r} for a seal; there are {', '.join(ENGINES)}")


def _spark(config: Any) -> Run:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in (getattr(config.batch_engine, "spark_conf", None) or {}).items():
        builder = builder.config(name, value)
    context = builder.getOrCreate().sparkContext

    def run(task: Task, requests: Sequence[bytes]) -> list[bytes]:
        return list(context.parallelize(requests, len(requests)).map(task).collect())

    return run


def _ray(config: Any) -> Run:
    import ray

    if not ray.is_initialized():
        ray.init(address=getattr(config.batch_engine, "ray_address", None))

    def run(task: Task, requests: Sequence[bytes]) -> list[bytes]:
        @ray.remote(max_retries=3, retry_exceptions=True)  # type: ignore[untyped-decorator]
        def step(request: bytes) -> bytes:
            return task(request)

        return list(ray.get([step.remote(request) for request in requests]))

    return run
