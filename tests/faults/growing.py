"""Sets and counts that grow, for `interleavings`: a number is added to a set, and counted several times.

Increments have ids. So a batch that is written twice, because its answer was lost, must count once.
"""

from collections.abc import Mapping, Set
from datetime import timedelta
from typing import Any

from feast.protos.feast.types.Value_pb2 import Int64Set, StringList, Value
from workload import START

from feast_sketch_store.rows.codecs import COUNTS, LIST, MEMBERSHIP, FeatureCodec
from feast_sketch_store.rows.encoding import FeastRow
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.view.live import LiveView
from feast_sketch_store.view.semantics import APPEND
from tests.helpers.keys import user_hashes, user_key

CODECS = [
    FeatureCodec("liked", "int64_set_val", MEMBERSHIP),
    FeatureCodec("author", "string_list_val", COUNTS),
    FeatureCodec("ids", "string_list_val", LIST, listing=Listing(limit=1_000), ids_of="author"),
]
SETTINGS = ViewSettings(
    "history",
    1e-9,
    {codec.feature: FeatureSettings(codec, 1e-9, 10**6) for codec in CODECS},
    semantics=APPEND,
)


def batch_of_growth(rows: Mapping[int, Set[int]]) -> list[FeastRow]:
    """A row for each number of each entity."""
    return [_row(entity, number) for entity, numbers in rows.items() for number in sorted(numbers)]


def _row(entity: int, number: int) -> FeastRow:
    times = _times(number)
    values = {
        "liked": Value(int64_set_val=Int64Set(val=[number])),
        "author": Value(string_list_val=StringList(val=[str(number)] * times)),
        "ids": Value(string_list_val=StringList(val=[f"{number} {turn}" for turn in range(times)])),
    }
    return user_key(entity), values, START + timedelta(seconds=number), None


def _times(number: int) -> int:
    """How often a number is counted."""
    return 1 + number % 3


def read_growth(view: LiveView[Any], num_entities: int) -> dict[int, set[int]]:
    """The numbers of each entity, whose counts must be right."""
    answer = view.read(user_hashes(range(num_entities)), [codec.feature for codec in CODECS])
    rows: dict[int, set[int]] = {}
    for row, entity in enumerate(answer.found.tolist()):
        liked, counts = ({**_values(answer, name, row)} for name in ("liked", "author"))
        assert {int(author): count for author, count in counts.items()} == {n: _times(n) for n in liked}, (
            f"entity {entity} likes {liked}, and has the counts {counts}"
        )
        rows[entity] = {*liked}
    return rows


def _values(answer: Any, name: str, row: int) -> dict[Any, int]:
    """The values of a feature of a row, and their weights if it has some."""
    feature = answer.features[name]
    part = slice(*feature.csr.indptr[row : row + 2].tolist())
    ids, weights = feature.csr.ids[part].tolist(), feature.csr.weights
    values = feature.vocabulary.values
    of_values = [1] * len(ids) if weights is None else weights[part].tolist()
    codec = next(codec for codec in CODECS if codec.feature == name)
    return dict(zip(codec.from_storage(values.take(ids)).to_pylist(), of_values, strict=True))
