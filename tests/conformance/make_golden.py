"""Make the golden snapshot files. Run by hand, when a new format version is introduced:

    python tests/conformance/make_golden.py

It writes `golden/v<format version>.{base,order}.safetensors` and refuses to replace a file. See README.md.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Int64List, StringSet, Value

from feast_sketch_store.codecs import FeatureCodec
from feast_sketch_store.layers import FeatureBudget, build_layer
from feast_sketch_store.rows import EncodedRows, encode, newest_rows, to_arrow
from feast_sketch_store.sealed import layer_arrays
from feast_sketch_store.snapshot import format as snapshot_format

FOLDER = Path(__file__).parent / "golden"
SALT = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
FIRST_EVENT = datetime(2026, 5, 1, 12, tzinfo=UTC)

CODECS = [
    FeatureCodec("viewed", "string_set_val"),
    FeatureCodec("sizes", "int64_list_val"),
    FeatureCodec("country", "string_val"),
    FeatureCodec("member", "bool_val"),
]
BUDGET = FeatureBudget(1e-9, {"viewed": 0.01, "sizes": 0.01, "country": 1e-5, "member": 1e-5})


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
        key = EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=user)])
        event = FIRST_EVENT + timedelta(hours=user)
        feast_rows.append((key, features, event, event + timedelta(minutes=1) if user % 2 else None))
    return encode(*newest_rows(to_arrow(feast_rows, CODECS)), CODECS)


def contents() -> dict[str, bytes]:
    """The golden files: name -> bytes."""
    encoded = rows()
    with mock.patch("feast_sketch_store.layers.build.new_salt", return_value=SALT):
        description, arrays = layer_arrays(build_layer(encoded, BUDGET))
    description = {"created_by": "make_golden", "view": "history", "row_log_version": 3, "layer": description}
    order = {
        name: getattr(encoded.keys, name)
        for name in ("entity_hashes", "event_timestamps", "created_timestamps")
    }
    version = f"v{snapshot_format.FORMAT_VERSION}"
    return {
        f"{version}.base.safetensors": b"".join(snapshot_format.encode(description, arrays)),
        f"{version}.order.safetensors": b"".join(snapshot_format.encode({}, order)),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in contents().items():
        with open(FOLDER / name, "xb") as file:
            file.write(content)
        print(f"{FOLDER / name}: {len(content)} bytes")
