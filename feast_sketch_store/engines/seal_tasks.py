"""A task of a seal on Spark or Ray: one step of the seal of one shard."""

from collections.abc import Mapping

from feast.infra.common.serde import SerializedArtifacts

from feast_sketch_store.engines.packing import (
    describe_joint,
    joint_of,
    pack,
    pack_counts,
    unpack,
)
from feast_sketch_store.errors import StorageError
from feast_sketch_store.layers.joint import SharedVocabularies
from feast_sketch_store.row_log import LogRead
from feast_sketch_store.view.sealing import as_stored
from feast_sketch_store.view.shard import Shard

SAMPLE, COUNT, FIT, DRAFT, FINISH = "sample", "count", "fit", "draft", "finish"

_NOTHING = SharedVocabularies({}, False)


def request_of(step: str, shard: int, given: LogRead, joint: SharedVocabularies = _NOTHING) -> bytes:
    """The request for a task: the step, the shard, its rows to seal, and what all shards share."""
    content, columns = describe_joint(joint)
    return pack({"step": step, "shard": shard, "input": given.to_entry(), "joint": content}, columns)


def run_step(request: bytes, artifacts: SerializedArtifacts) -> bytes:
    """Do a step of the seal of a shard. A repeated run at worst leaves files that vacuum removes.

    Parameters
    ----------
    request : from `request_of`.
    artifacts : the feature view and the configuration of its repository.

    Returns
    -------
    For SAMPLE ranges of scores; for COUNT the counts; for FIT how many values fit into memory; for DRAFT the
    entry of the draft.

    Raises
    ------
    StorageError : the row log of the shard changed after the driver read it.
    """
    content, columns = unpack(request)
    feature_view, online_store, _, config = artifacts.unserialize()  # type: ignore[no-untyped-call]
    parts: Mapping[int, Shard] = online_store.view(config, feature_view).shards
    part = parts[content["shard"]]
    codecs = {codec.feature: as_stored(codec) for codec in part.settings.codecs}
    joint = joint_of(content["joint"], columns, codecs)
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
        return pack(part.sample(given, joint.formulas, 1 / len(parts)))
    if content["step"] == COUNT:
        return pack_counts(part.count(given, joint.formulas))
    if content["step"] == FIT:
        return pack(part.values_within_memory(given, joint))
    return pack(part.draft(given, joint).to_entry())
