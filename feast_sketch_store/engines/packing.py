"""Requests and results of the tasks of a seal on Spark or Ray, as bytes.

They are a record batch of one row; its schema carries what is not an array.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from feast_sketch_store.layers.joint import CountedRows, SharedVocabularies
from feast_sketch_store.layers.sketch import describe_formula, formulas_from
from feast_sketch_store.rows.binning import Bins
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.parts import Parts
from feast_sketch_store.view.formulas import Sampled

_CONTENT = b"content"

Columns = dict[str, pa.Array]


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


def pack_sample(sample: Sampled) -> bytes:
    """A sample of a shard."""
    columns: Columns = {}
    for name, feature in sample.features.items():
        columns[f"{name}.values"] = feature.vocabulary.values
        columns[f"{name}.indptr"], columns[f"{name}.ids"] = map(pa.array, (feature.indptr, feature.symbols))
    return pack({"num_rows": sample.num_rows, "features": list(sample.features)}, columns)


def unpack_sample(given: bytes, codecs: Mapping[str, FeatureCodec]) -> Sampled:
    """The reverse of `pack_sample`, for features with these codecs."""
    content, columns = unpack(given)
    features = {
        name: EncodedFeature(
            codecs[name],
            Vocabulary(columns[f"{name}.values"]),
            np.zeros(content["num_rows"], np.uint8),  # not used
            columns[f"{name}.indptr"].to_numpy(),
            columns[f"{name}.ids"].to_numpy(),
        )
        for name in content["features"]
    }
    return Sampled(features, content["num_rows"])


def describe_joint(joint: SharedVocabularies) -> tuple[dict[str, Any], Columns]:
    """What shards have in common, as JSON-serializable content and arrays."""
    columns: Columns = {f"ids.{name}": vocabulary.values for name, vocabulary in joint.vocabularies.items()}
    for name, bins in joint.bins.items():
        columns[f"lows.{name}"] = pa.array(bins.lows)
        columns[f"stands.{name}"] = pa.array(bins.representatives)
    formulas = []
    for number, (entry, arrays) in enumerate(describe_formula(*item) for item in joint.formulas.items()):
        formulas.append(entry)
        columns |= {f"formulas.{number}.{part}": pa.array(array) for part, array in arrays.items()}
    content = {
        "vocabularies": list(joint.vocabularies),
        "lists_rows": joint.lists_rows,
        "num_rows": joint.num_rows,
        "bins": list(joint.bins),
        "cuts": dict(joint.cuts),
        "beyond": dict(joint.beyond),
        "formulas": formulas,
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
        formulas_from(content["formulas"], codecs, Parts(arrays, {}).at("formulas")),
        content["beyond"],
    )
