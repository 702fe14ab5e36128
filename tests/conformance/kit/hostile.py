"""Views that a reader must refuse, at least one for each clause of each rule of the format (`rules`).

All checksums are right, unless a checksum is what is wrong. So a reader has to check the parts themselves.
"""

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from tests.conformance.kit.computed import formulas
from tests.conformance.kit.forged import forged_files, forged_manifests
from tests.conformance.kit.logs import logs
from tests.conformance.kit.rules import name_of
from tests.conformance.kit.sharded import no_shards
from tests.conformance.kit.views import VIEWS, Key, Layer, SealedView

Change: TypeAlias = Callable[[Layer], object]


@dataclass(frozen=True)
class HostileView:
    """The files of a view's folder that break a rule, seen when the folder is opened or the keys are read."""

    name: str
    rule: str
    contents: dict[str, bytes]
    keys: list[Key]


def hostile_views() -> Iterator[HostileView]:
    """All hostile views."""
    views = {name: make() for name, make in {**VIEWS, "formulas": formulas}.items()}
    forged = forged_files(views["one_row"]), forged_manifests(views["deltas"]), no_shards()
    for name, rule, contents in itertools.chain(*forged):
        yield HostileView(name, rule, contents, views["one_row"].keys)
    for name, rule, files in logs(views["one_row"].layers[0].version):
        contents = replace(views["one_row"], files=files).contents()
        yield HostileView(name, rule, contents, views["one_row"].keys)
    for rule, changes in _CHANGES.items():
        for view_name, label, change in changes:
            view = _changed(views[view_name], change)
            yield HostileView(name_of(rule, label), rule, view.contents(), view.keys)


def _changed(view: SealedView, change: Change) -> SealedView:
    """The view with its newest layer changed."""
    newest = copy.deepcopy(view.layers[-1])
    change(newest)
    return replace(view, layers=[*view.layers[:-1], newest])


def _inside(layer: Layer, path: str) -> tuple[Any, Any]:
    """The container of a description's entry, and its last key."""
    node: Any = layer.description
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in steps:
        node = node[step]
    return node, last


def _tell(path: str, value: Any, layer: Layer) -> None:
    """Set an entry of the description; a function receives the old value."""
    node, last = _inside(layer, path)
    node[last] = value(node[last]) if callable(value) else value


def _drop(path: str, layer: Layer) -> None:
    node, last = _inside(layer, path)
    del node[last]


def _array(name: str, change: Callable[[Any], Any], layer: Layer) -> None:
    """Change a copy of an array, in place or by returning another one."""
    copied = layer.arrays[name].copy()
    changed = change(copied)
    layer.arrays[name] = copied if changed is None else np.ascontiguousarray(changed)


def _lose(name: str, layer: Layer) -> None:
    del layer.arrays[name]


def _all_ones(words: Any) -> None:
    words[:] = ~np.uint64(0)


def _put(index: Any, value: Any, array: Any) -> None:
    array[index] = value


def _add(by: int) -> Callable[[int], int]:
    return lambda number: number + by


def _swap_alive(layer: Layer) -> None:
    """Mark a live entity as deleted, and a deleted one as live."""
    deleted = layer.arrays["listed.deleted"]
    index, other = int(deleted.argmin()), int(deleted.argmax())
    _array("listed.deleted", partial(_put, [index, other], [1, 0]), layer)


def _precede(twins: Any) -> Any:
    """Put so many hashes with a twin's fingerprint before it that its row would lie after the last one."""
    return np.unique(np.concatenate((twins, twins[0] - np.arange(1, 501, dtype=np.uint64))))


def _number_of_no_row(layer: Layer) -> None:
    """Give an entity beside a static function a number that does not exist."""
    _array(f"{_STATIC}.left.hashes", lambda a: np.append(a, np.uint64(5))[-1:], layer)
    _array(f"{_STATIC}.left.numbers", lambda a: np.append(a, np.int64(2**60))[-1:], layer)


def _keep_one(number: int, name: str, layer: Layer) -> None:
    """Leave only one number in an array of a feature of counts."""
    _tell(f"{_COUNTS}.features.{number}.{name}", {"width": 0, "base": 1, "length": 1}, layer)
    _array(f"{_COUNTS}.features.{number}.{name}.words", lambda a: a[:0], layer)


_BLOOM, _CLUSTERED, _COLUMNS, _COUNTS, _LISTS, _SCALARS, _SETS, _STATIC = (
    f"structures.{kind}"
    for kind in ("bloom", "clustered", "columns", "counts", "lists", "scalars", "sets", "static")
)
_ATTRIBUTES = f"{_LISTS}.features.0.attributes"

# By rule: the view, the change in words, and the change.
_CHANGES: dict[str, list[tuple[str, str, Change]]] = {
    "layer.parts": [
        ("one_row", "without a number of entities", partial(_drop, "num_entities")),
        ("one_row", "a number of entities in quotes", partial(_tell, "num_entities", "1")),
        ("one_row", "a number of entities with a point", partial(_tell, "num_entities", 1.0)),
        ("one_row", "a number of entities that is true", partial(_tell, "num_entities", True)),
        ("one_row", "without presence", partial(_drop, "presence")),
        ("one_row", "unknown presence", partial(_tell, "presence.kind", "guess")),
        ("scalars", "unknown structure", partial(_tell, "structures.toy", {})),
        ("sets", "a feature twice", partial(_tell, f"{_SETS}.features.3.name", "shown")),
        ("sets", "unknown field", partial(_tell, f"{_SETS}.features.3.value_field", "word_set_val")),
        ("sets", "a short salt", partial(_tell, f"{_BLOOM}.salt", ["0", "1"])),
        ("sets", "without levels", partial(_lose, f"{_SETS}.features.0.levels")),
        (
            "sets",
            "codes of another type",
            partial(_array, f"{_SETS}.features.0.levels", lambda a: a.astype(np.int32)),
        ),
        ("columns", "unknown form", partial(_tell, f"{_COLUMNS}.features.0.elements.form", "tree")),
    ],
    "layer.rows": [
        ("one_row", "more entities than rows", partial(_tell, "num_entities", 2)),
        ("backed", "more entities than states", partial(_tell, "num_entities", 21)),
        ("sets", "states of another feature", partial(_tell, "presence.states.0.name", "other")),
    ],
    "packed": [
        ("scalars", "a width of 65", partial(_tell, "presence.timestamps.numbers.width", 65)),
        ("scalars", "fewer words", partial(_array, "presence.timestamps.numbers.words", lambda a: a[:-1])),
        (
            "scalars",
            "more words",
            partial(_array, f"{_SCALARS}.numbers.0.words", lambda a: np.append(a, a[:1])),
        ),
    ],
    "ascending": [
        ("sets", "more buckets", partial(_tell, f"{_SETS}.starts.num_buckets", _add(64))),
        ("sets", "lows of 64 bits", partial(_tell, f"{_SETS}.starts.low_width", 64)),
        ("sets", "places outside", partial(_array, f"{_SETS}.starts.samples.words", _all_ones)),
    ],
    "index": [
        ("sets", "a range of 0", partial(_tell, "presence.index.range", 0)),
        ("sets", "a range of more than 63 bits", partial(_tell, "presence.index.range", 2**63 + 1)),
        ("sets", "a range of other buckets", partial(_tell, "presence.index.range", lambda r: 4 * r)),
        ("strings", "twins that descend", partial(_array, "presence.index.twins", lambda a: a[::-1])),
        ("strings", "rows behind the last one", partial(_array, "presence.index.twins", _precede)),
    ],
    "timestamps": [
        ("sets", "buckets that descend", partial(_array, "presence.bucket_bounds", lambda a: a[::-1])),
        (
            "sets",
            "a bucket that ends before it begins",
            partial(_array, "presence.bucket_bounds", lambda a: a[:, ::-1]),
        ),
        ("sets", "other buckets", partial(_array, "presence.bucket_bounds", lambda a: a - 1)),
        (
            "shapes",
            "a bucket that does not exist",
            partial(_array, "presence.shapes.0.buckets", partial(_put, 0, 99)),
        ),
    ],
    "states": [
        ("backed", "a state of 7", partial(_tell, "presence.states.0.base", 7)),
        (
            "columns",
            "a column with a state of 7",
            partial(_tell, f"{_COLUMNS}.features.0.states.base", 7),
        ),
        (
            "shapes",
            "a shape with a state of 4",
            partial(_array, "presence.shapes.0.states", partial(_put, (0, 0), 4)),
        ),
        ("shapes", "a shape without a symbol", partial(_tell, f"{_BLOOM}.rows.0.num_symbols", _add(-1))),
    ],
    "vocabulary": [
        (
            "scalars",
            "a byte more",
            partial(_array, f"{_SCALARS}.features.1.vocabulary.data", lambda a: np.append(a, a[:1])),
        ),
        (
            "scalars",
            "a byte less",
            partial(_array, f"{_SCALARS}.features.1.vocabulary.data", lambda a: a[:-1]),
        ),
        (
            "scalars",
            "no width",
            partial(_array, f"{_SCALARS}.features.1.vocabulary.shape", partial(_put, 1, 0)),
        ),
        (
            "scalars",
            "no UTF-8",
            partial(_array, f"{_SCALARS}.features.1.vocabulary.data", partial(_put, 0, 0xFF)),
        ),
        (
            "scalars",
            "a shape of numbers",
            partial(_array, f"{_SCALARS}.features.1.vocabulary.shape", lambda a: np.append(a, 0)),
        ),
        (
            "strings",
            "places that are one",
            partial(_array, f"{_SETS}.features.1.vocabulary.shape", partial(_put, -1, 1)),
        ),
        (
            "strings",
            "fewer ones",
            partial(_array, f"{_SETS}.features.1.vocabulary.highs", partial(_put, 0, 0)),
        ),
        (
            "strings",
            "no modulus",
            partial(_array, f"{_SETS}.features.2.vocabulary.shape", partial(_put, -1, 0)),
        ),
        (
            "strings",
            "a prefix that is too long",
            partial(_array, f"{_SETS}.features.1.vocabulary.prefixes", _all_ones),
        ),
        (
            "strings",
            "offsets that fall",
            partial(_array, f"{_SETS}.features.0.vocabulary.offsets", partial(_put, 1, 1 << 40)),
        ),
    ],
    "bloom": [
        ("sets", "a longer table", partial(_tell, f"{_BLOOM}.num_words", _add(1))),
        ("sets", "a gap between ranges", partial(_tell, f"{_BLOOM}.features.0.first_word", _add(1))),
        (
            "sets",
            "first symbols that fall",
            partial(_tell, f"{_BLOOM}.features.0.first_symbols", lambda f: f[::-1]),
        ),
        (
            "sets",
            "fewer first symbols than hashes",
            partial(_tell, f"{_BLOOM}.features.0.first_symbols", lambda f: f[:-1]),
        ),
        ("sets", "2**32 words", partial(_tell, f"{_BLOOM}.num_words", 2**32)),
        ("shapes", "65 hashes", partial(_tell, f"{_BLOOM}.features.0.num_hashes", 65)),
        ("shapes", "no hash", partial(_tell, f"{_BLOOM}.features.0.num_hashes", 0)),
    ],
    "columns": [
        ("columns", "rows outside", partial(_tell, f"{_COLUMNS}.features.1.bounds.base", 10_000)),
        ("columns", "rows before the first", partial(_tell, f"{_COLUMNS}.features.1.bounds.base", -3)),
        ("columns", "ids outside", partial(_tell, f"{_COLUMNS}.features.3.elements.ids.base", 1_000)),
        (
            "strings",
            "bytes outside",
            partial(_tell, f"{_COLUMNS}.features.0.elements.offsets.base", 1 << 20),
        ),
    ],
    "scalars": [
        ("scalars", "a collection", partial(_tell, f"{_SCALARS}.features.1.value_field", "string_set_val")),
        ("scalars", "a state that is a value", partial(_tell, f"{_SCALARS}.features.0.others", [0, 3])),
        ("scalars", "more values", partial(_tell, f"{_SCALARS}.features.0.num_values", _add(1))),
        ("scalars", "numbers from 1 on", partial(_tell, f"{_SCALARS}.numbers.0.base", 1)),
        ("scalars", "fewer numbers", partial(_tell, f"{_SCALARS}.numbers", lambda numbers: numbers[:1])),
    ],
    "sets": [
        (
            "sets",
            "a header twice",
            partial(_array, f"{_SETS}.features.0.levels", lambda a: np.append(a, np.uint8([0, 0]))),
        ),
        (
            "sets",
            "a header too large",
            partial(_array, f"{_SETS}.features.0.levels", lambda a: np.append(a, np.uint8(255))),
        ),
        ("sets", "groups of 65 rows", partial(_tell, f"{_SETS}.group_rows", 65)),
        ("sets", "groups of no rows", partial(_tell, f"{_SETS}.group_rows", 0)),
        ("sets", "fewer groups", partial(_tell, f"{_SETS}.group_rows", _add(1))),
        (
            "sets",
            "levels of fewer values",
            partial(_array, f"{_SETS}.features.0.level_ends", lambda a: np.append(a[:-1], a[-1] - 1)),
        ),
        ("sets", "a level of 124", partial(_array, f"{_SETS}.features.0.levels", partial(_put, 0, 124))),
        ("sets", "headers of 31 bits", partial(_tell, f"{_SETS}.features.0.header_width", 31)),
        ("sets", "others of 31 bits", partial(_tell, f"{_SETS}.features.1.others_width", 31)),
        ("sets", "one header without a set", partial(_tell, f"{_SETS}.features.0.no_set", 1)),
        ("sets", "nothing to be coded with", partial(_tell, f"{_SETS}.features.0.others_width", 2)),
        ("sets", "more values than known", partial(_tell, f"{_SETS}.features.1.num_values", _add(-1))),
        ("sets", "without codes", partial(_lose, f"{_SETS}.codes.words")),
        ("sets", "codes that end early", partial(_tell, f"{_SETS}.num_bits", 100)),
        ("sets", "codes that are ones", partial(_array, f"{_SETS}.codes.words", _all_ones)),
    ],
    "lists": [
        (
            "lists",
            "lengths of no code",
            partial(_array, f"{_LISTS}.features.0.lengths", partial(_put, (0, slice(3)), 1)),
        ),
        (
            "lists",
            "a code of 13 bits",
            partial(_array, f"{_LISTS}.features.0.lengths", partial(_put, (0, 127), 13)),
        ),
        (
            "lists",
            "gaps of 31 bits",
            partial(_array, f"{_LISTS}.features.0.run_widths", partial(_put, 0, 31)),
        ),
        (
            "lists",
            "four tables of widths",
            partial(_array, f"{_LISTS}.features.0.run_ends", lambda a: np.append(a[:-1], a[-1] - 1)),
        ),
        ("lists", "codes that end early", partial(_tell, f"{_LISTS}.features.0.num_bits", 100)),
        ("lists", "codes that are ones", partial(_array, f"{_LISTS}.features.0.codes.words", _all_ones)),
        (
            "lists",
            "attributes of no code",
            partial(_array, f"{_ATTRIBUTES}.lengths", partial(_put, slice(3), 1)),
        ),
        ("lists", "attributes of 13 bits", partial(_array, f"{_ATTRIBUTES}.lengths", partial(_put, 0, 13))),
        ("lists", "larger blocks", partial(_tell, f"{_ATTRIBUTES}.block_items", _add(1))),
        ("lists", "a usual code that does not exist", partial(_tell, f"{_ATTRIBUTES}.usual", 15)),
        ("lists", "an attribute of one value", partial(_tell, f"{_ATTRIBUTES}.features.0.2", ["seen"])),
        (
            "lists",
            "an attribute of another type",
            partial(_tell, f"{_ATTRIBUTES}.features.1.2", ["1", "2", "3", "4", "5"]),
        ),
        ("lists", "attributes that end early", partial(_tell, f"{_ATTRIBUTES}.num_bits", 100)),
        ("lists", "attributes that are ones", partial(_array, f"{_ATTRIBUTES}.codes.words", _all_ones)),
        (
            "counts",
            "counts of no code",
            partial(_array, f"{_COUNTS}.features.0.lengths", partial(_put, (1, slice(3)), 1)),
        ),
        (
            "counts",
            "counts whose codes are ones",
            partial(_array, f"{_COUNTS}.features.1.codes.words", _all_ones),
        ),
    ],
    "counts": [
        ("counts", "a count of 0", partial(_tell, f"{_COUNTS}.features.0.counts.base", 0)),
        ("counts", "a count of more", partial(_tell, f"{_COUNTS}.features.1.counts.base", 2**54)),
        ("counts", "one count", partial(_keep_one, 0, "counts")),
        ("counts", "one of the firsts", partial(_keep_one, 1, "firsts")),
    ],
    "clustered": [
        (
            "clustered",
            "hashes that fall",
            partial(_tell, f"{_CLUSTERED}.features.1.hashes", lambda h: h[::-1]),
        ),
        (
            "clustered",
            "masks of fewer clusters",
            partial(_array, f"{_CLUSTERED}.features.0.masks", lambda a: a[1:]),
        ),
        ("clustered", "a longer table", partial(_tell, f"{_CLUSTERED}.num_words", _add(1))),
        (
            "clustered",
            "clusters that do not exist",
            partial(_tell, f"{_CLUSTERED}.clusters.base", 100),
        ),
    ],
    "static": [
        ("static", "slots of 63 bits", partial(_tell, f"{_STATIC}.width", 63)),
        ("static", "slots that are too narrow", partial(_tell, f"{_STATIC}.width", 1)),
        ("static", "a word less", partial(_array, f"{_STATIC}.function.words", lambda a: a[:-1])),
        ("static", "no slots", partial(_array, f"{_STATIC}.function.words", lambda a: a[:0])),
        (
            "static",
            "a collection",
            partial(_tell, f"{_STATIC}.features.1.value_field", "int64_set_val"),
        ),
        ("static", "a number of no row", _number_of_no_row),
        (
            "static",
            "a hash without a number",
            partial(_array, f"{_STATIC}.left.hashes", lambda a: np.append(a, a)),
        ),
    ],
    "formulas": [
        ("formulas", "no double", partial(_tell, "formulas.0.name", "liked")),
        ("formulas", "a source that is no feature", partial(_tell, "formulas.1.sources.0.name", "nobody")),
        ("formulas", "a source that is a scalar", partial(_tell, "formulas.1.sources.0.name", "worth")),
        ("formulas", "a source twice", partial(_tell, "formulas.0.sources.1.name", "liked")),
        (
            "formulas",
            "weights of fewer values",
            partial(_array, "formulas.1.sources.0.weights", lambda a: a[:-1]),
        ),
        ("formulas", "a step of 0", partial(_tell, "formulas.1.step", 0.0)),
    ],
    "delta": [
        ("deltas", "a list that descends", partial(_array, "listed.entity_hashes", lambda a: a[::-1])),
        ("deltas", "more rows than alive", partial(_array, "listed.deleted", partial(_put, slice(None), 1))),
        ("deltas", "an entity without a row", _swap_alive),
    ],
}
