"""Seals of the shards of a view together, with one numbering of values.

count     the values of the rows that count, shard by shard
number    all values together, as a seal of all rows would
draft     a base of each shard with these numbers; nothing is published yet
publish   one shard after the other; a shard that was not reached keeps its previous base
"""

from collections.abc import Mapping

from feast_sketch_store.layers import FeatureBudget
from feast_sketch_store.layers.joint import JointVocabularies
from feast_sketch_store.snapshot.files import Draft
from feast_sketch_store.threads import in_threads
from feast_sketch_store.view.sharded_state import ShardedState
from feast_sketch_store.view.view import SealInput, View


def joint_state(name: str, shards: Mapping[int, View]) -> ShardedState:
    """The states of all shards, as of their last look."""
    return ShardedState(name, len(shards), {number: shard.state for number, shard in shards.items()})


def seal_bases(shards: Mapping[int, View], budget: FeatureBudget) -> bool:
    """Seal all shards that have rows; they are all held by the caller. Whether there are new snapshots.

    As many shards are worked on at once as there are cores: that takes less memory than a seal of all rows.

    Raises
    ------
    DamagedFileError, StorageError : shards have their previous snapshots; or, if publishing failed, some of
        them new ones.
    """
    found = {number: shard.seal_input() for number, shard in shards.items()}
    given = {number: rows for number, rows in found.items() if rows is not None}
    if not given:
        return False
    counted = in_threads(lambda number: shards[number].count(given[number].log), given)
    joint = JointVocabularies.of(list(counted), budget)
    drafts = _drafted(shards, given, joint)
    publish_drafts(shards, {number: draft for number, (draft, _) in drafts.items()})
    for number, (_, wants_compaction) in drafts.items():
        # The snapshot comes first: a reader that sees the compaction has a base to put it on.
        shards[number].finish_seal(given[number], wants_compaction)
    return True


def seal_deltas(shards: Mapping[int, View]) -> bool:
    """Lay a delta over the base of each shard; False if one of them needs a new base: nothing has changed."""
    drafts: dict[int, Draft] = {}
    for number, shard in shards.items():
        if not shard.num_unsealed:
            continue
        draft = shard.delta_draft()
        if draft is None:
            for known, other in drafts.items():
                shards[known].discard(other)
            return False
        drafts[number] = draft
    publish_drafts(shards, drafts)
    for number in drafts:
        shards[number].refresh()
    return bool(drafts)


def _drafted(
    shards: Mapping[int, View], given: Mapping[int, SealInput], joint: JointVocabularies
) -> dict[int, tuple[Draft, bool]]:
    """A draft of each shard, and whether its row log is to be compacted; if one fails, there are none."""
    drafts: dict[int, tuple[Draft, bool]] = {}

    def draft(number: int) -> None:
        drafts[number] = shards[number].draft(given[number], joint)

    try:
        for _ in in_threads(draft, given):
            pass
    except BaseException:
        for number, (made, _) in drafts.items():
            shards[number].discard(made)
        raise
    return dict(sorted(drafts.items()))


def publish_drafts(shards: Mapping[int, View], drafts: Mapping[int, Draft]) -> None:
    """Publish drafts one after the other; those after one that fails are deleted."""
    waiting = dict(drafts)
    try:
        for number, draft in drafts.items():
            shards[number].publish(draft)
            del waiting[number]
    except BaseException:
        for number, draft in list(waiting.items())[1:]:  # the first may be there in spite of the error
            shards[number].discard(draft)
        raise
