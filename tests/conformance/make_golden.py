"""Make the golden snapshot files. Run by hand, when a new format version is introduced:

    python -m tests.conformance.make_golden

It writes `golden/v<format version>.<file>.sketch`, the files that README.md lists,
and `golden/v<manifest version>.manifest.json`, and replaces no file. See README.md.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Int64List, Int64Set, StringList, StringSet, Value
from numpy.typing import NDArray

from feast_sketch_store.layers import Cut, FeatureBudget, Goal
from feast_sketch_store.rows.binning import Quantiles
from feast_sketch_store.rows.codecs import BINNED, CATEGORICAL, COUNTS, COUNTS_OF, EXACT, LIST, FeatureCodec
from feast_sketch_store.rows.counting import Counting
from feast_sketch_store.rows.encoding import EncodedRows, encode, newest_rows, to_arrow
from feast_sketch_store.rows.formulas import Formula, Source, with_formulas
from feast_sketch_store.rows.list_log import ListRows, encode_lists
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.rows.lists import as_sealed
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.snapshot import format as snapshot_format
from feast_sketch_store.snapshot.manifest import MANIFEST_VERSION, LayerFiles, Manifest, PartFile, checksum_of
from feast_sketch_store.snapshot.order import order_arrays
from feast_sketch_store.snapshot.sealed import with_checksums
from feast_sketch_store.storage.chunks import Chunks
from tests.helpers.layers import build_layer

FOLDER = Path(__file__).parent / "golden"
SNAPSHOT = f"{3:020d}-0001-5a17c0de"
SALT = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
FIRST_EVENT = datetime(2026, 5, 1, 12, tzinfo=UTC)

CODECS = [
    FeatureCodec("viewed", "string_set_val"),
    FeatureCodec("sizes", "int64_list_val"),
    FeatureCodec("country", "string_val"),
    FeatureCodec("member", "bool_val"),
]
BUDGET = FeatureBudget(1e-9, {"viewed": 0.01, "sizes": 0.01, "country": 1e-5, "member": 1e-5})


def user_key(user: int) -> EntityKey:
    """The key of a user; `tests.helpers` is known to pytest alone."""
    return EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=user)])


def rows() -> EncodedRows:
    """Six users in every state that a row can have; user ``n`` was written n hours after the first."""
    values = [
        {
            "viewed": Value(string_set_val=StringSet(val=["tea", "coffee", "naïve ☕"])),
            "sizes": Value(int64_list_val=Int64List(val=[-1, 0, 2**62])),
            "country": Value(string_val="DE"),
            "member": Value(bool_val=True),
        },
        {"viewed": Value(string_set_val=StringSet(val=["tea"])), "country": Value(string_val="DE")},
        {"viewed": Value(string_set_val=StringSet()), "sizes": Value(), "country": Value(string_val="FR")},
        {"viewed": Value(), "member": Value(bool_val=False)},
        {"viewed": Value(string_set_val=StringSet(val=["", "tea"])), "country": Value(string_val="")},
        {},
    ]
    feast_rows = []
    for user, features in enumerate(values):
        event = FIRST_EVENT + timedelta(hours=user)
        feast_rows.append(
            (user_key(user), features, event, event + timedelta(minutes=1) if user % 2 else None)
        )
    return encode(*newest_rows(to_arrow(feast_rows, CODECS)), CODECS)


LISTED_CODECS = [
    FeatureCodec("viewed", "string_set_val"),
    FeatureCodec("sizes", "int64_list_val", EXACT),
    FeatureCodec("note", "string_val", EXACT),
    FeatureCodec("country", "string_val"),
    FeatureCodec("weight", "double_val", BINNED, Quantiles(2)),
]
LISTED_BUDGET = FeatureBudget(1e-9, {codec.feature: 0.01 for codec in LISTED_CODECS})


def listed_rows() -> EncodedRows:
    """Seventy users with exact features, enough for each form of a column; every seventh has none at all."""
    feast_rows = []
    for user in range(70):
        values = {
            "viewed": Value(string_set_val=StringSet(val=["tea", "coffee"][: user % 3])),
            "sizes": Value(int64_list_val=Int64List(val=[2**40 + 7 * user, -user, -user][: user % 4])),
            "note": Value(string_val=f"note {user} ☕"),
            "country": Value(string_val="DE" if user % 5 else "FR") if user % 6 else Value(),
            "weight": Value(double_val=user / 4),
        }
        feast_rows.append(
            (user_key(user), values if user % 7 else {}, FIRST_EVENT + timedelta(hours=user), None)
        )
    return encode(*newest_rows(to_arrow(feast_rows, LISTED_CODECS)), LISTED_CODECS)


SETS_CODECS = [
    FeatureCodec("viewed", "string_set_val"),
    FeatureCodec("sizes", "int64_list_val"),
    FeatureCodec("topics", "int64_set_val"),
    FeatureCodec("bought", "string_set_val"),
    FeatureCodec("country", "string_val"),
]
SETS_BUDGET = FeatureBudget(
    1e-9,
    {
        "viewed": Goal("error_rate", 0.01, "sets"),
        "sizes": Goal("error_rate", 0.01, "sets"),
        "topics": Goal("noise_ratio", 1.0, "weighted_bloom"),
        "bought": Goal("error_rate", 0.01, "sets"),
        "country": 1e-5,
    },
    cuts={"sizes": Cut(top=3)},
)


def sets_rows() -> EncodedRows:
    """Seventy users: ``viewed`` may be null or missing, of ``sizes`` the three most frequent are kept, and
    most of what is bought was viewed.
    """
    feast_rows = []
    for user in range(70):
        values = {
            "sizes": Value(
                int64_list_val=Int64List(val=[size for size in range(6) if user % (size + 2) == 0])
            ),
            "topics": Value(int64_set_val=Int64Set(val=[2**t for t in range(8) if user % (t + 1) == 0])),
            "country": Value(string_val="DE" if user % 5 else "FR"),
        }
        if user % 6:
            viewed = ["tea", "coffee", "naïve ☕", ""][: user % 5]
            values["viewed"] = Value(string_set_val=StringSet(val=viewed)) if user % 7 else Value()
            bought = [*viewed[: user % 3], *["milk"][: user % 9 == 0]]
            values["bought"] = Value(string_set_val=StringSet(val=bought))
        feast_rows.append((user_key(user), values, FIRST_EVENT + timedelta(hours=user), None))
    return encode(*newest_rows(to_arrow(feast_rows, SETS_CODECS)), SETS_CODECS)


CLUSTERED_CODECS = [
    FeatureCodec("viewed", "string_set_val"),
    FeatureCodec("sizes", "int64_list_val"),
    FeatureCodec("topics", "int64_set_val"),
]
CLUSTERED_BUDGET = FeatureBudget(
    1e-9,
    {
        "viewed": Goal("noise_ratio", 0.2, "learned_bloom", 2),
        "sizes": Goal("noise_ratio", 0.07, "sandwiched_bloom", 3),
        "topics": Goal("noise_ratio", 0.1, "weighted_bloom", 2),
    },
)


def clustered_rows() -> EncodedRows:
    """Sixty users of three kinds, by ``user % 3``, each with values of its kind; every tenth has none."""
    feast_rows = []
    for user in range(60):
        kind = 100 * (user % 3)
        values = {
            "viewed": Value(string_set_val=StringSet(val=[f"item {kind + user % n}" for n in (2, 3, 5)])),
            "sizes": Value(int64_list_val=Int64List(val=[kind + size for size in range(user % 7)])),
            "topics": Value(int64_set_val=Int64Set(val=[kind + t for t in range(12) if user % (t + 1) == 0])),
        }
        values = values if user % 10 else {"viewed": Value()}
        feast_rows.append((user_key(user), values, FIRST_EVENT + timedelta(hours=user), None))
    return encode(*newest_rows(to_arrow(feast_rows, CLUSTERED_CODECS)), CLUSTERED_CODECS)


STATIC_CODECS = [FeatureCodec("country", "string_val"), FeatureCodec("level", "int64_val")]
STATIC_BUDGET = FeatureBudget(1e-5, dict.fromkeys(("country", "level"), 1e-5), is_static=True)


def static_rows() -> EncodedRows:
    """Three hundred users with a country of three, or null, and a level of seven, which every ninth lacks."""
    feast_rows = []
    for user in range(300):
        values = {"country": Value(string_val=["DE", "FR", "naïve ☕"][user % 3]) if user % 8 else Value()}
        if user % 9:
            values["level"] = Value(int64_val=user % 7 - 3)
        feast_rows.append((user_key(user), values, FIRST_EVENT + timedelta(hours=user % 4), None))
    return encode(*newest_rows(to_arrow(feast_rows, STATIC_CODECS)), STATIC_CODECS)


GOLDEN_CHUNK_BYTES = 4096


LISTS_CODEC = FeatureCodec("read", "string_list_val", LIST, listing=Listing(3_600_000_000, 6))
LISTS_BUDGET = FeatureBudget(1e-9, {"read": 0.0})


def lists_rows() -> EncodedRows:
    """Forty users; user ``n`` has n % 9 items at several hours. A read shows six of them at most."""
    users = [user for user in range(40) for _ in range(user % 9)]
    numbers = [number for user in range(40) for number in range(user % 9)]
    values = [f"article {number * user % 7}" for user, number in zip(users, numbers, strict=True)]
    first = int(FIRST_EVENT.timestamp()) * 1_000_000
    times = np.array([first - (number // 2) ** 3 * 2_000_000_000 for number in numbers])
    rows = ListRows(
        {"user_id": pa.array(users, pa.int64())},
        "read",
        np.arange(len(users) + 1),
        pa.array(values, pa.large_string()),
        times,
        times,
    )
    encoded = encode_lists(rows.to_log([LISTS_CODEC]), [LISTS_CODEC])
    return as_sealed(encoded, {"read": LISTS_CODEC})


COUNTS_CODECS = [
    FeatureCodec("viewed", "string_list_val", COUNTS, counting=Counting(feature="views")),
    FeatureCodec("views", "int64_list_val", COUNTS_OF, counts_of="viewed"),
    FeatureCodec("bought", "int64_list_val", COUNTS, counting=Counting(relative=0.25)),
]
COUNTS_BUDGET = FeatureBudget(1e-9, {"viewed": 0.0, "bought": 0.0})


def counts_rows() -> EncodedRows:
    """Fifty users; user ``n`` viewed n % 6 items, item i up to i + 1 times, and bought amounts up to 100."""
    feast_rows = []
    for user in range(50):
        items = range(user % 6)
        values = {
            "viewed": Value(string_list_val=StringList(val=[f"item {i}" for i in items])),
            "views": Value(int64_list_val=Int64List(val=[1 + (user // 6) % (i + 1) for i in items])),
            "bought": Value(int64_list_val=Int64List(val=[i % 3 for i in range(user * 7 % 101)])),
        }
        values = values if user % 10 else {"viewed": Value()}
        feast_rows.append((user_key(user), values, FIRST_EVENT + timedelta(hours=user), None))
    return encode(*newest_rows(to_arrow(feast_rows, COUNTS_CODECS)), COUNTS_CODECS)


def delta(encoded: EncodedRows) -> bytes:
    """A delta of rows: a snapshot with a list of their entities, of which the last one was deleted."""
    is_deleted = np.arange(len(encoded)) == len(encoded) - 1
    more = {"listed.entity_hashes": encoded.keys.entity_hashes, "listed.deleted": is_deleted.astype(np.uint8)}
    return base(encoded.take(np.flatnonzero(~is_deleted)), BUDGET, 5, more)


FORMULAS = {
    "taste": Formula(
        FeatureCodec("taste", "double_val", CATEGORICAL),
        (
            Source(
                "viewed",
                Vocabulary(pa.array([b"tea", b"coffee"], pa.large_binary())),
                np.array([9, -7], np.int32),
            ),
            Source("sizes", Vocabulary(pa.array([2])), np.array([5], np.int32)),
        ),
        version=4,
    ),
    "worth": Formula(
        FeatureCodec("worth", "double_val", CATEGORICAL),
        (Source("sizes", Vocabulary(pa.array([0, 1])), np.array([-3, 2**30], np.int32)),),
        unit=2.0**-30,
        step=0.25,
    ),
}
FORMULAS_BUDGET = FeatureBudget(1e-5, {**SETS_BUDGET.targets, "taste": 1e-5, "worth": 1e-5})


def formulas_rows() -> EncodedRows:
    """The rows of `sets_rows` with two scores."""
    return with_formulas(sets_rows(), FORMULAS)


def base(
    encoded: EncodedRows,
    budget: FeatureBudget,
    version: int = 3,
    more: Mapping[str, NDArray[np.generic]] | None = None,
    **changes: Any,
) -> bytes:
    """A snapshot of rows, with other parameters of `SketchLayer`."""
    with mock.patch("feast_sketch_store.layers.build.new_salt", return_value=SALT):
        layer = replace(build_layer(encoded, budget), **changes)
    description, arrays = layer.to_snapshot()
    description = {
        **description,
        "created_by": "make_golden",
        "view": "history",
        "row_log_version": version,
    }
    return b"".join(snapshot_format.encode(description, {**with_checksums(arrays), **(more or {})}))


def contents() -> dict[str, bytes]:
    """The golden files: name -> bytes."""
    encoded = rows()
    order = order_arrays(encoded.keys)
    version = f"v{snapshot_format.FORMAT_VERSION}"
    sealed = base(encoded, BUDGET), b"".join(snapshot_format.encode({}, order))
    return {
        f"{version}.base.sketch": sealed[0],
        f"{version}.listed.sketch": base(listed_rows(), LISTED_BUDGET),
        f"{version}.sets.sketch": base(sets_rows(), SETS_BUDGET),
        f"{version}.lists.sketch": base(lists_rows(), LISTS_BUDGET, semantics="append", since=0),
        f"{version}.counts.sketch": base(counts_rows(), COUNTS_BUDGET),
        f"{version}.clustered.sketch": base(clustered_rows(), CLUSTERED_BUDGET),
        f"{version}.static.sketch": base(static_rows(), STATIC_BUDGET),
        f"{version}.formulas.sketch": base(formulas_rows(), FORMULAS_BUDGET, formulas=FORMULAS),
        f"{version}.order.sketch": sealed[1],
        f"v{MANIFEST_VERSION}.manifest.json": manifest(*sealed),
        f"v{MANIFEST_VERSION}.deltas.manifest.json": manifest_with_deltas(*sealed),
        f"{version}.delta.sketch": delta(encoded),
        f"v{MANIFEST_VERSION}.chunks.manifest.json": manifest(*sealed, chunk_bytes=GOLDEN_CHUNK_BYTES),
    }


def manifest(base: bytes, order: bytes, chunk_bytes: int = 0) -> bytes:
    """What publishes the two files as a snapshot, under the names that they have there."""
    files = {}
    for part, content in (("base", base), ("order", order)):
        header = content[: 8 + int.from_bytes(content[:8], "little")]
        chunks = Chunks.of([content], chunk_bytes) if chunk_bytes else None
        files[part] = PartFile(f"{SNAPSHOT}.{part}.sketch", len(content), checksum_of(header), chunks)
    return Manifest(1, "make_golden", (LayerFiles(3, files),)).encode()


def manifest_with_deltas(base: bytes, order: bytes) -> bytes:
    """The same with two deltas, which have the same bytes under names of their own."""
    bottom = Manifest.decode(manifest(base, order), "")

    def files(version: int) -> dict[str, PartFile]:
        name = f"{version:020d}-0001-5a17c0de"
        return {part: replace(f, name=f"{name}.{part}.sketch") for part, f in bottom.own.files.items()}

    deltas = tuple(LayerFiles(version, files(version)) for version in (5, 8))
    return Manifest(1, "make_golden", (*bottom.layers, *deltas)).encode()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in contents().items():
        if (FOLDER / name).exists():
            continue
        (FOLDER / name).write_bytes(content)
        print(f"{FOLDER / name}: {len(content)} bytes")
