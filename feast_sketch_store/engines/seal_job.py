"""A seal by tasks of Spark or Ray, one per shard. The driver numbers values and publishes.

    driver    takes the view's seal lease; absorbs the write-ahead logs into the tables
    tasks     compute scores of sampled rows, if there are computed features; the driver fits the formulas
    tasks     count values                  driver    makes one numbering for all
    tasks     find how many values fit into memory budgets, if there are any
    tasks     write the files of each base  driver    creates a manifest per shard, once all files are there
    tasks     compact the row logs that need it

A task that is retried writes new files; vacuum removes those that no manifest names. Requests and results of
tasks are bytes: a record batch of one row, whose schema carries what is not an array. So is what all shards
share, which is sent with the task and not with each request.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from feast import FeatureStore
from feast.infra.common.serde import SerializedArtifacts

from feast_sketch_store.adapter.options import require_writer
from feast_sketch_store.errors import SettingsError, StorageError
from feast_sketch_store.layers.joint import CountedRows, SharedVocabularies
from feast_sketch_store.layers.sketch import describe_formulas, formulas_from
from feast_sketch_store.online_store import any_feature_view, online_store_of
from feast_sketch_store.row_log import LogRead
from feast_sketch_store.rows.binning import Bins
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.formulas import Formula
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.parts import Parts, split
from feast_sketch_store.view.folding import as_stored
from feast_sketch_store.view.joint_seal import Fitting, inputs_of, numbered, publish_drafts
from feast_sketch_store.view.shard import Shard

SAMPLE, COUNT, FIT, DRAFT, FINISH = "sample", "count", "fit", "draft", "finish"

_NOTHING = SharedVocabularies({}, False)
_CONTENT = b"content"

Columns: TypeAlias = dict[str, pa.Array]
Task: TypeAlias = Callable[[bytes], bytes]
Run: TypeAlias = Callable[[Task, Sequence[bytes]], list[bytes]]  # a task for each request, results in order

_PACKAGES = {"spark": "pyspark", "ray": "ray[data]"}
ENGINES = tuple(_PACKAGES)


def seal(store: FeatureStore, view: str, engine: str) -> bool:
    """Seal a view on Spark or Ray, with the cluster in ``batch_engine`` of the repository.

    Returns False if there are no rows.

    Raises
    ------
    SettingsError : there is no such engine, or its package is missing; or this process does not know all
        features of the view.
    GateError : the new version does not pass the view's gate; no shard has a new snapshot.
    StorageError : another process is sealing the view, or its storage cannot be written. No shard has a new
        snapshot, or, if publishing failed, only some have.
    """
    return seal_by(store, view, _run_of(engine, store.config))


def seal_by(store: FeatureStore, view: str, run: Run) -> bool:
    """Seal a view by tasks that ``run`` runs, and repeats if they fail; see `seal`."""
    online_store, feature_view = online_store_of(store), any_feature_view(store, view)
    require_writer(store.config)
    opened = online_store.writer(store.config, feature_view)
    task = partial(run_step, artifacts=SerializedArtifacts.serialize(feature_view, store.config))  # type: ignore[no-untyped-call]
    with opened.sealing():
        parts, folder = opened.shards, opened.shard_map.folder
        given = inputs_of(parts)
        if not given:
            return False

        def all_do(step: str, joint: SharedVocabularies, numbers: Iterable[int] = given) -> list[bytes]:
            # Once for all tasks, because it may have all values of the view.
            with_joint = partial(task, joint=pack(*describe_joint(joint)))
            return run(with_joint, [request_of(step, number, folder, given[number]) for number in numbers])

        joint = numbered(
            parts,
            lambda formulas: [unpack(one)[0] for one in all_do(SAMPLE, _only(formulas))],
            lambda formulas: [unpack_counts(one) for one in all_do(COUNT, _only(formulas))],
            lambda joint: [_fitting_of(one) for one in all_do(FIT, joint)],
        )
        made = all_do(DRAFT, joint)
        drafts = {n: parts[n].drafted(unpack(one)[0]) for n, one in zip(given, made, strict=True)}
        publish_drafts(parts, drafts, opened.approve)
        large = [n for n, draft in drafts.items() if draft.compacts]
        if large:
            all_do(FINISH, _NOTHING, large)
        for number, rows in given.items():
            parts[number].finish_seal(rows, False)
    return True


def _only(formulas: Mapping[str, Formula]) -> SharedVocabularies:
    return replace(_NOTHING, formulas=formulas)


def _run_of(engine: str, config: Any) -> Run:
    if engine not in ENGINES:
        raise SettingsError(f"there is no engine {engine!r} for a seal; there are {', '.join(ENGINES)}")
    try:
        return _spark(config) if engine == "spark" else _ray(config)
    except ImportError as error:
        raise SettingsError(
            f"--engine {engine} needs the package {_PACKAGES[engine]}: `pip install '{_PACKAGES[engine]}'` "
            f"({error})"
        ) from error


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
    from feast.infra.ray_initializer import ensure_ray_initialized

    # As Feast's engine does, with all that the section says.
    ensure_ray_initialized(config.batch_engine, force_reinit=not ray.is_initialized())

    def run(task: Task, requests: Sequence[bytes]) -> list[bytes]:
        @ray.remote(max_retries=3, retry_exceptions=True)  # type: ignore[untyped-decorator]
        def step(task: Task, request: bytes) -> bytes:
            return task(request)

        shared = ray.put(task)
        return list(ray.get([step.remote(shared, request) for request in requests]))

    return run


# -- a task: one step of the seal of one shard -----------------------------------------------------------


def request_of(step: str, shard: int, folder: str, given: LogRead) -> bytes:
    """The request for a task: the step, the shard and the folder of all shards, and its rows to seal."""
    return pack({"step": step, "shard": shard, "shards_folder": folder, "input": given.to_entry()})


def run_step(request: bytes, artifacts: SerializedArtifacts, joint: bytes) -> bytes:
    """Do a step of the seal of a shard. A repeated run at worst leaves files that vacuum removes.

    Parameters
    ----------
    request : from `request_of`.
    artifacts : the feature view and the configuration of its repository.
    joint : what all shards share, of `describe_joint`, packed.

    Returns for SAMPLE ranges of scores; for COUNT the counts; for FIT how many values fit into memory,
    or why not; for DRAFT the entry of the draft.

    Raises StorageError: the row log of the shard changed after the driver read it, or the shard is gone.
    """
    content, _ = unpack(request)
    feature_view, online_store, _, config = artifacts.unserialize()  # type: ignore[no-untyped-call]
    # With the present settings: a worker keeps views from task to task.
    view = online_store.writer(config, feature_view)
    if view.shard_map.folder != content["shards_folder"]:
        view.follow()
    if view.shard_map.folder != content["shards_folder"]:
        raise StorageError(
            f"{view.storage.location}: the rows were divided into other shards meanwhile; seal again"
        )
    parts: Mapping[int, Shard] = view.shards
    part = parts[content["shard"]]
    codecs = {codec.feature: as_stored(codec) for codec in part.settings.codecs}
    shared = joint_of(*unpack(joint), codecs)
    given = part.row_log.table_rows_of(content["input"])
    if content["step"] == FINISH:
        if given is not None:  # else another run of this task has compacted it
            part.finish_seal(given, True)
        return pack({})
    if given is None:
        raise StorageError(
            f"{part.storage.location}: another process changed the row log while it was sealed; try again"
        )
    if content["step"] == SAMPLE:
        return pack(part.sample(given, shared.formulas, 1 / len(parts)))
    if content["step"] == COUNT:
        return pack_counts(part.count(given, shared.formulas))
    if content["step"] == FIT:
        try:
            return pack({"fits": part.values_within_memory(given, shared)})
        except SettingsError as error:  # the driver compares what the shards need
            return pack({"error": str(error), "least_bytes": error.least_bytes})
    return pack(part.draft(given, shared).to_entry())


# -- requests and results as bytes -----------------------------------------------------------------------


def pack(content: Mapping[str, Any], columns: Mapping[str, pa.Array] | None = None) -> bytes:
    """JSON-serializable content, and arrays by name, as bytes."""
    arrays = {
        name: pa.LargeListArray.from_arrays(pa.array([0, len(column)], pa.int64()), column)
        for name, column in (columns or {}).items()
    }
    table = pa.table({"": pa.array([0]), **arrays}).replace_schema_metadata({_CONTENT: json.dumps(content)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(given: bytes) -> tuple[dict[str, Any], Columns]:
    """The reverse of `pack`."""
    table = pa.ipc.open_stream(given).read_all()
    columns = {n: table[n].chunk(0).flatten() for n in table.column_names if n}
    return json.loads(table.schema.metadata[_CONTENT]), columns


def _fitting_of(given: bytes) -> Fitting:
    """The result of FIT."""
    content, _ = unpack(given)
    if "fits" in content:
        fits: Mapping[str, int] = content["fits"]
        return fits
    error = SettingsError(content["error"])
    error.least_bytes = content["least_bytes"]
    return error


def pack_counts(counted: CountedRows) -> bytes:
    """The counted values of a shard."""
    columns: Columns = {}
    for name, (vocabulary, counts) in counted.features.items():
        columns |= {f"{name}.values": vocabulary.values, f"{name}.counts": pa.array(counts, pa.int64())}
    return pack({"num_rows": counted.num_rows, "features": list(counted.features)}, columns)


def unpack_counts(given: bytes) -> CountedRows:
    """The reverse of `pack_counts`."""
    content, columns = unpack(given)
    features = {
        name: (Vocabulary(columns[f"{name}.values"]), columns[f"{name}.counts"].to_numpy().astype(np.int64))
        for name in content["features"]
    }
    return CountedRows(content["num_rows"], features)


def describe_joint(joint: SharedVocabularies) -> tuple[dict[str, Any], Columns]:
    """What shards have in common, as JSON-serializable content and arrays."""
    columns: Columns = {f"ids.{name}": vocabulary.values for name, vocabulary in joint.vocabularies.items()}
    for name, bins in joint.bins.items():
        columns[f"lows.{name}"] = pa.array(bins.lows)
        columns[f"stands.{name}"] = pa.array(bins.representatives)
    formulas, arrays = split({"formulas": describe_formulas(joint.formulas)})
    columns |= {path: pa.array(array) for path, array in arrays.items()}
    content = {
        **formulas,
        "vocabularies": list(joint.vocabularies),
        "lists_rows": joint.lists_rows,
        "num_rows": joint.num_rows,
        "bins": list(joint.bins),
        "cuts": dict(joint.cuts),
        "beyond": dict(joint.beyond),
    }
    return content, columns


def joint_of(
    content: Mapping[str, Any], columns: Columns, codecs: Mapping[str, FeatureCodec]
) -> SharedVocabularies:
    """The reverse of `describe_joint`, for features with these codecs in a layer."""
    arrays = {name: column.to_numpy() for name, column in columns.items() if name.startswith("formulas.")}
    return SharedVocabularies(
        {name: Vocabulary(columns[f"ids.{name}"]) for name in content["vocabularies"]},
        content["lists_rows"],
        content["num_rows"],
        {
            n: Bins(columns[f"lows.{n}"].to_numpy(), columns[f"stands.{n}"].to_numpy())
            for n in content["bins"]
        },
        content["cuts"],
        formulas_from(Parts(content, arrays, {}), codecs),
        content["beyond"],
    )
