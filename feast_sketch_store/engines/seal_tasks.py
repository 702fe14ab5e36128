"""What a task of a seal on Spark or Ray does: one step of the seal of one shard.

Bytes go to a task and come back: a record batch of one row, whose schema carries what is not an array.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from feast.infra.common.serde import SerializedArtifacts

from feast_sketch_store.errors import StorageError
from feast_sketch_store.layers.joint import CountedRows, JointVocabularies
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.view.view import SealInput, View

COUNT, DRAFT, FINISH = "count", "draft", "finish"

_CONTENT = b"content"


def pack(content: Mapping[str, Any], columns: Mapping[str, pa.Array] | None = None) -> bytes:
    """What is JSON-serializable, and arrays by name, as bytes."""
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


def unpack(given: bytes) -> tuple[dict[str, Any], dict[str, pa.Array]]:
    """The reverse of `pack`."""
    table = pa.ipc.open_stream(given).read_all()
    columns = {n: table[n].chunk(0).flatten() for n in table.column_names if n}
    return json.loads(table.schema.metadata[_CONTENT]), columns


def pack_counts(counted: CountedRows) -> bytes:
    """The counted values of a shard as bytes."""
    columns: dict[str, pa.Array] = {}
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


def request_of(step: str, shard: int, given: SealInput, joint: JointVocabularies | None = None) -> bytes:
    """What a task is told: the step, the shard, how far its row log counts, and the numbering."""
    content = {
        "step": step,
        "shard": shard,
        "input": given.to_entry(),
        "lists_rows": joint is not None and joint.lists_rows,
    }
    return pack(content, {n: v.values for n, v in joint.vocabularies.items()} if joint else {})


def run_step(request: bytes, artifacts: SerializedArtifacts) -> bytes:
    """Do a step of the seal of a shard. Running it again leaves files that a vacuum removes, at worst.

    Parameters
    ----------
    request : from `request_of`.
    artifacts : the feature view and the configuration of its repository.

    Returns
    -------
    Of COUNT the counts, of DRAFT the draft's entry, and whether the row log is to be compacted.

    Raises
    ------
    StorageError : the row log of the shard is not as the driver found it.
    """
    content, columns = unpack(request)
    feature_view, online_store, _, config = artifacts.unserialize()  # type: ignore[no-untyped-call]
    part: View = online_store.view(config, feature_view).parts[content["shard"]]
    given = part.input_of_entry(content["input"])
    if content["step"] == FINISH:
        if given is not None:  # else another run of this task has compacted it
            part.finish_seal(given, True)
        return pack({})
    if given is None:
        raise StorageError(
            f"{part.storage.location}: another process changed the row log while it was sealed; try again"
        )
    if content["step"] == COUNT:
        return pack_counts(part.count(given.log))
    vocabularies = {name: Vocabulary(values) for name, values in columns.items()}
    draft, wants_compaction = part.draft(given, JointVocabularies(vocabularies, content["lists_rows"]))
    return pack({"draft": part.entry_of_draft(draft), "wants_compaction": wants_compaction})
