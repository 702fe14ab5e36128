"""A view whose rows are in shards, and shard files that are not valid."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from feast_sketch_store.layers import FeatureBudget
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.view.shard_map import Routed, ShardMap
from feast_sketch_store.view.view_file import ViewFile
from tests.conformance.kit.answers import hashes_of
from tests.conformance.kit.views import (
    HOUR,
    NOON,
    Key,
    SealedView,
    encoded,
    keys_of,
    sealed,
    unknown_users,
    users,
)

_NUM_SHARDS = 8
_USERS = range(9)
_CODEC = FeatureCodec("count", "int64_val")


@dataclass
class ShardedFiles:
    """The files of a view with shards, and keys to ask for; see `SealedView`."""

    files: dict[str, bytes]
    keys: list[Key]
    computed: list[str] = field(default_factory=list)

    def contents(self) -> dict[str, bytes]:
        """The files of the view's folder, by their names."""
        return self.files


def shards() -> ShardedFiles:
    """Nine rows in eight shards, some of which have none yet."""
    keys, shard_map = keys_of(users(_USERS)), ShardMap.first(_NUM_SHARDS)
    file = ViewFile(shard_map, (_CODEC,), join_keys={"user_id": "int64_val"})
    files = {"view.json": file.encode()}
    routed = Routed.of(hashes_of(keys), _NUM_SHARDS)
    for number, places in zip(routed.shards, routed.places, strict=True):
        for name, content in _shard(places.tolist()).contents().items():
            files[f"{shard_map.folder}{number:02}/{name}"] = content
    return ShardedFiles(files, [*keys, *unknown_users()])


def _shard(numbers: list[int]) -> SealedView:
    """A shard with the rows of some users."""
    events = [NOON + HOUR * number for number in numbers]
    rows = encoded(users(numbers), [_CODEC], {"count": [10 * number for number in numbers]}, events)
    return SealedView([sealed(rows, FeatureBudget(1e-9, {"count": 1e-5}))], [])


def no_shards() -> Iterator[tuple[str, str, dict[str, bytes]]]:
    """Files of views with impossible shards: a name, the rule, and the files."""
    whole = shards().files
    told = json.loads(whole["view.json"])
    for label, change in (
        ("three", {"num_shards": 3}),
        ("too many", {"num_shards": 8192}),
        ("a number with a point", {"num_shards": 8.0}),
        ("another folder", {"folder": "../shards-0-4/"}),
    ):
        content = json.dumps({**told, "shards": {**told["shards"], **change}}).encode()
        yield f"shards {label}".replace(" ", "-"), "shards", {**whole, "view.json": content}
    content = json.dumps({**told, "format_version": 2}).encode()
    yield "shards-version-2", "shards", {**whole, "view.json": content}
    yield "shards-no-JSON", "shards", {**whole, "view.json": b"["}
