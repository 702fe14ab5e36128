"""Bits a link of click logs, baskets, made-up short rows and a graph, beside other codes of rows, and beside
their entropy; and the time of a read of one row and of 1,000.

The data sets are those of `click_prediction/tasks.py`; without them (CLICK_PREDICTION_DATA) only what is made
up is there. The graph has as many nodes and links as dblp-2011, but links are drawn by degree alone, so rows
have no value in common but by chance. Codes of web graphs live from rows that resemble the one before.

    entropy      values drawn by their popularity, in no order: the least bits of a code that knows only these
    sketch       the whole snapshot: rows are found by a hash of any key, and who has none is told apart
    index        of it, what finds a row
    CSR          uint16 or uint32 values, uint32 offsets; rows are found by their number, as in all below
    Elias-Fano   a sequence per row and one of offsets, by its formula: 2 + log2(values / row's length) bits
    Roaring      a serialized bitmap per row, offsets as above
    zstd         the gaps of all rows, level 19; no row can be read alone
    CaramelDB    what it saves of the functions of `caramel.py`: rows are found by any key, but who has none
                 gets some answer
    and presence the same with a filter, which tells apart who has none

CaramelDB is built from source. Without it, and for the whole graph, its cells are empty.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parent / "click_prediction"))

import numpy as np
import pyarrow as pa
from caramel import HOW_TO_BUILD, CaramelRows, carameldb, is_feasible
from measure import interleaved, print_set_up, print_table
from numpy.typing import NDArray
from pyroaring import BitMap
from row_shapes import shapes
from short_rows import BATCHES, _encoded, _layer
from snapshot_bits import snapshot_bytes
from tasks import load

from feast_sketch_store.layers import SketchLayer
from feast_sketch_store.layers.row_reader import NO_LIMIT, Column, Wanted, read, stack
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedRows

DBLP_NODES, DBLP_LINKS = 986_324, 6_707_236  # of dblp-2011
BITS = ("entropy", "sketch", "index", "CSR", "Elias-Fano", "Roaring", "zstd", "CaramelDB", "and presence")
OTHERS = ("Roaring", "CaramelDB")


class Rows(NamedTuple):
    """Rows of distinct values in ascending order."""

    name: str
    indptr: NDArray[np.int64]
    values: NDArray[np.int64]


def run(*, quick: bool) -> None:
    if not carameldb:
        print(HOW_TO_BUILD)
    packages = ("numpy", "pyroaring", *(["carameldb"] if carameldb else []))
    print_set_up("sets, wrong presence 1e-05; bits a link", *packages)
    lines, times = [], []
    for rows in _all_rows(quick):
        facts = _encoded(np.split(rows.values, rows.indptr[1:-1]))
        layer = _layer(facts)
        content, parts = snapshot_bytes(layer)
        bits = [_entropy(rows), 8 * content, 8 * (parts["index"] + parts["offsets"])]
        bits += [_csr(rows), _elias_fano(rows), _roaring(rows), _zstd(rows)]
        peer = _caramel(facts)
        bits += [peer.bits, peer.bits + peer.presence_bits] if peer else [np.nan] * 2
        per_link = [_cell(size / len(rows.values)) for size in bits]
        shape = [rows.name, f"{len(rows.values):,}", f"{len(rows.values) / (len(rows.indptr) - 1):.1f}"]
        lines.append([*shape, *per_link])
        of_batches = [_times(rows, facts.keys.entity_hashes, layer, peer, batch, quick) for batch in BATCHES]
        times.append([*shape, *(cell for cells in of_batches for cell in cells)])
    header = ["rows", "links", "links a row"]
    print_table([*header, *BITS], lines)
    of_batches = [f"{batch:,} at once: " for batch in BATCHES]
    cells = [f"{side}, us a row" for side in ("sketch", *OTHERS)]
    cells += [f"sketch / {other}" for other in OTHERS]
    print_table([*header, *(f"{batch}{cell}" for batch in of_batches for cell in cells)], times)


def _all_rows(quick: bool) -> Iterator[Rows]:
    yield _random_graph(*((20_000, 136_000) if quick else (DBLP_NODES, DBLP_LINKS)))
    for name, lists in shapes(2_000 if quick else 20_000):
        indptr = np.cumsum([0, *map(len, lists)])
        values = np.unique(np.concatenate(lists), return_inverse=True)[1]
        ids = values[np.lexsort((values, np.repeat(np.arange(len(lists)), np.diff(indptr))))]
        yield _rows(name, indptr, ids.astype(np.int64))
    for name in ("kuairand", "retail"):
        try:
            task = load(name, Path(os.environ.get("CLICK_PREDICTION_DATA", "no folder")))
        except FileNotFoundError:
            print(f"{name}: not run, as its data set is not in CLICK_PREDICTION_DATA\n")
            continue
        for feature, matrix in task.history.items():
            matrix.sort_indices()
            yield _rows(f"{name}, {feature}", matrix.indptr, matrix.indices.astype(np.int64))


def _random_graph(num_nodes: int, num_links: int) -> Rows:
    """Degrees by a power law; both ends of a link are drawn by degree."""
    rng = np.random.default_rng(1)
    shares = rng.pareto(1.6, num_nodes) + 1.0
    ends = np.searchsorted(np.cumsum(shares) / shares.sum(), rng.random((2, num_links)))
    links = np.unique(ends[0] * num_nodes + ends[1])
    indptr = np.searchsorted(links, np.arange(num_nodes + 1) * num_nodes)
    return _rows("random graph, degrees as dblp-2011", indptr, links % num_nodes)


def _rows(name: str, indptr: NDArray[np.integer], values: NDArray[np.int64]) -> Rows:
    """Without those that are empty, which nobody stores."""
    return Rows(name, np.unique(indptr).astype(np.int64), values)


def _entropy(rows: Rows) -> float:
    counts = np.unique(rows.values, return_counts=True)[1]
    of_values = -(counts * np.log2(counts / counts.sum())).sum()
    lengths = np.diff(rows.indptr)
    orders = np.concatenate([[0.0], np.cumsum(np.log2(np.arange(1, lengths.max() + 1)))])
    return float(of_values - orders[lengths].sum())


def _csr(rows: Rows) -> int:
    width = 16 if rows.values.max() < 1 << 16 else 32
    return width * len(rows.values) + 32 * len(rows.indptr)


def _sequence(length: Any, universe: Any) -> Any:
    """Bits of a sequence by Elias and Fano."""
    return length * (2 + np.ceil(np.log2(np.maximum(universe / length, 1))))


def _elias_fano(rows: Rows) -> float:
    of_rows = _sequence(np.diff(rows.indptr), rows.values.max() + 1).sum()
    return float(of_rows + _sequence(len(rows.indptr), of_rows))


def _bitmaps(rows: Rows) -> list[bytes]:
    return [BitMap(row).serialize() for row in np.split(rows.values.astype(np.uint32), rows.indptr[1:-1])]


def _roaring(rows: Rows) -> float:
    num_bytes = sum(map(len, _bitmaps(rows)))
    return float(8 * num_bytes + _sequence(len(rows.indptr), num_bytes))


def _zstd(rows: Rows) -> int:
    gaps = np.diff(rows.values, prepend=0)
    gaps[rows.indptr[:-1]] = rows.values[rows.indptr[:-1]]
    kind = np.uint16 if gaps.max() < 1 << 16 else np.uint32
    lengths = np.diff(rows.indptr).astype(np.uint32)
    codec = pa.Codec("zstd", 19)
    return sum(8 * len(codec.compress(part.tobytes())) for part in (gaps.astype(kind), lengths))


def _caramel(facts: EncodedRows) -> CaramelRows | None:
    """Rows in CaramelDB, if it is there and builds them in time."""
    feature = facts.features["viewed"]
    if not carameldb or not is_feasible(feature.indptr):
        return None
    return CaramelRows(feature.indptr, feature.symbols)


def _times(
    rows: Rows,
    hashes: NDArray[np.uint64],
    layer: SketchLayer,
    peer: CaramelRows | None,
    batch: int,
    quick: bool,
) -> list[str]:
    """Microseconds of a row where so many are read at once, by each side; ratios of the sketch to the others.

    The ids of one row are read by the call that `SketchReader.ids` makes. Many rows are timed by the
    processor's time, as a call of milliseconds is interrupted on a busy machine. CaramelDB tests whether the
    key is present and hashes it; the sketch is given the hash.
    """
    reader = stack([layer], Wanted(("viewed",)))
    column = Column("viewed", layer.codecs["viewed"], layer.numbering("viewed"))

    def one(asked: NDArray[np.int64]) -> NDArray[np.int32]:
        ids, *_ = reader.csr(hashes[asked], NO_TIMESTAMP, NO_LIMIT, False, None, None)
        return np.frombuffer(ids, np.int32)

    def many(asked: NDArray[np.int64]) -> object:
        return read(reader, [column], hashes[asked], expire_before=NO_TIMESTAMP)

    bitmaps = _bitmaps(rows)
    sides: dict[str, Callable[[NDArray[np.int64]], object]] = {
        "sketch": one if batch == 1 else many,
        "Roaring": lambda asked: [BitMap.deserialize(bitmaps[row]).to_array() for row in asked.tolist()],
    }
    if peer:
        sides["CaramelDB"] = lambda asked: peer.read(asked.tolist())

    def some(call: int) -> NDArray[np.int64]:
        return np.random.default_rng(call).integers(0, len(hashes), batch)

    rounds, calls = 3 if quick else 15, 3 if batch > 1 else 100
    clock = time.process_time if batch > 1 else time.perf_counter  # which takes less time itself
    took = interleaved(sides, some, rounds=rounds, calls=calls, clock=clock)
    own, *others = (took.get(side, np.nan) for side in ("sketch", *OTHERS))
    per_row = [_cell(seconds / batch * 1e6) for seconds in (own, *others)]
    return per_row + [_cell(own / other) for other in others]


def _cell(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.2f}"
