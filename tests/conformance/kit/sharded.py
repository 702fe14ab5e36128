"""A view whose rows are in shards, and shard files that are not valid."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from feast_sketch_store.layers import FeatureBudget
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.snapshot.manifest import checksum_of
from feast_sketch_store.view.shard_map import ShardMap, places_by_shard
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
    for number, places in places_by_shard(hashes_of(keys), _NUM_SHARDS).items():
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
        content = _view_file({**told, "shards": {**told["shards"], **change}})
        yield f"shards {label}".replace(" ", "-"), "shards", {**whole, "view.json": content}
    content = _view_file({**told, "format_version": 2})
    yield "shards-version-2", "shards", {**whole, "view.json": content}
    yield "shards-no-JSON", "shards", {**whole, "view.json": b"["}
    content = whole["view.json"].replace(b"int64", b"int32")
    yield "shards-altered", "shards", {**whole, "view.json": content}


def _view_file(entries: dict[str, Any]) -> bytes:
    """The content of a view's file, with its checksum."""
    no_checksum = "0" * 32
    content = json.dumps({**entries, "checksum": no_checksum}, sort_keys=True)
    return content.replace(no_checksum, checksum_of(content.encode()), 1).encode()
