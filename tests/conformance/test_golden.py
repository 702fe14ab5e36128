"""Files of a released format version are read and written byte for byte."""

import hashlib
from collections import Counter
from pathlib import Path

import mmh3
import numpy as np
import pytest
from feast.protos.feast.types.Value_pb2 import Value

from feast_sketch_store.kernel import row_hashes
from feast_sketch_store.layers import SketchLayer
from feast_sketch_store.snapshot import encode
from tests.helpers.keys import user_hashes
from tests.helpers.reads import find_rows
from tests.helpers.snapshots import load
from tests.oracle.filters import bit_of
from tests.oracle.messages import feast_values

GOLDEN = Path(__file__).parent / "golden"
BASE, ORDER = GOLDEN / "v1.base.sketch", GOLDEN / "v1.order.sketch"
LISTED, SETS = GOLDEN / "v1.listed.sketch", GOLDEN / "v1.sets.sketch"
LISTS, CLUSTERED = GOLDEN / "v1.lists.sketch", GOLDEN / "v1.clustered.sketch"
COUNTS = GOLDEN / "v1.counts.sketch"
STATIC = GOLDEN / "v1.static.sketch"
FORMULAS = GOLDEN / "v1.formulas.sketch"
FILES = pytest.mark.parametrize(
    "path",
    [BASE, ORDER, LISTED, SETS, LISTS, COUNTS, CLUSTERED, STATIC, FORMULAS],
    ids=["base", "order", "listed", "sets", "lists", "counts", "clustered", "static", "formulas"],
)

SALT = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
NOON = 1_777_636_800_000_000  # 2026-05-01T12:00:00Z
HOUR = 3_600_000_000

# What was written: per user the viewed items, sizes, country and member. "null" is a null, None was not
# written.
ROWS = {
    0: ({"tea", "coffee", "naïve ☕"}, {-1, 0, 2**62}, "DE", True),
    1: ({"tea"}, None, "DE", None),
    2: (set(), "null", "FR", None),
    3: ("null", None, None, False),
    4: ({"", "tea"}, None, "", None),
    5: (None, None, None, None),
}
NAMES = ["viewed", "sizes", "country", "member"]
VALUE_FIELDS = ["string_set_val", "int64_list_val", "string_val", "bool_val"]


def plain(value, field):
    if value is None or value == Value():
        return value and "null"
    assert value.WhichOneof("val") == field
    content = getattr(value, field)
    return set(content.val) if hasattr(content, "val") else content


def opened(path):
    """The layer of a file."""
    description, arrays = load(path)
    return SketchLayer.from_snapshot(description, arrays)


def read(layer, *names):
    """What a layer answers about a thousand users, and the values of those that it has."""
    answer = layer.read(user_hashes(range(1000)), names)
    columns = [feast_values(answer.features[name]) for name in names]
    return answer, list(zip(*columns, strict=True))


@FILES
def test_the_file_is_the_one_of_the_readme(path):
    readme = (Path(__file__).parent / "README.md").read_text()
    assert f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" in readme


@FILES
def test_encoding_again_gives_the_same_bytes(path):
    assert b"".join(encode(*load(path))) == path.read_bytes()


def test_rows_read_as_they_were_written():
    answer, rows = read(opened(BASE), *NAMES)
    assert answer.found.tolist() == list(ROWS)
    assert answer.event_timestamps.tolist() == [NOON + HOUR * user for user in ROWS]
    assert [tuple(map(plain, row, VALUE_FIELDS)) for row in rows] == list(ROWS.values())


def fields_of(entry, *names):
    """Some values of an entry of a description."""
    return [entry[name] for name in names]


def below(arrays, path):
    """The arrays of a part of a description, by their paths in it."""
    return {name.removeprefix(path): array for name, array in arrays.items() if name.startswith(path)}


def test_the_description_is_as_it_was():
    description, arrays = load(BASE)
    assert description.keys() == {
        *("created_by", "view", "row_log_version", "num_entities", "max_event_timestamp", "presence"),
        "structures",
    }
    assert fields_of(description, "created_by", "view", "row_log_version") == ["make_golden", "history", 3]
    assert fields_of(description, "num_entities", "max_event_timestamp") == [6, NOON + 5 * HOUR]
    assert description["presence"] == {"kind": "shapes", "shapes": [{"features": NAMES}]}
    ((kind, bloom),) = description["structures"].items()
    assert (kind, bloom["num_words"]) == ("bloom", 9)
    assert bloom["salt"] == ["0123456789abcdef", "fedcba9876543210"]
    assert [(f["name"], f["value_field"]) for f in bloom["features"]] == list(
        zip(NAMES, VALUE_FIELDS, strict=True)
    )
    assert [
        [each[part] for part in ("first_word", "num_symbols", "num_hashes", "first_symbols")]
        for each in (*bloom["features"], *bloom["rows"])
    ] == [[0, 4, 7, []], [1, 3, 7, []], [2, 3, 18, []], [3, 2, 17, []], [4, 6, 33, []]]
    assert [
        fields_of(each["report"], "num_facts", "num_ones") for each in (*bloom["features"], *bloom["rows"])
    ] == [[6, 42], [3, 21], [4, 72], [2, 34], [6, 198]]
    assert {name: (array.dtype.str, array.shape) for name, array in arrays.items()} == {
        "presence.bucket_bounds": ("<i8", (6, 2)),
        "presence.shapes.0.buckets": ("|u1", (6,)),
        "presence.shapes.0.states": ("|u1", (6, 4)),
        "structures.bloom.table.words": ("<u8", (14,)),
        "structures.bloom.table.words.checksums": ("|u1", (1, 16)),
        "structures.bloom.features.0.vocabulary.shape": ("<i8", (2,)),
        "structures.bloom.features.0.vocabulary.packed": ("<u8", (3,)),
        "structures.bloom.features.0.vocabulary.data": ("|u1", (19,)),
        "structures.bloom.features.1.vocabulary.shape": ("<i8", (3,)),
        "structures.bloom.features.1.vocabulary.packed": ("<u8", (5,)),
        "structures.bloom.features.2.vocabulary.shape": ("<i8", (2,)),
        "structures.bloom.features.2.vocabulary.packed": ("<u8", (3,)),
        "structures.bloom.features.2.vocabulary.data": ("|u1", (4,)),
        "structures.bloom.features.3.vocabulary.shape": ("<i8", (3,)),
        "structures.bloom.features.3.vocabulary.packed": ("<u8", (3,)),
    }


def test_arrays_are_as_they_were():
    _, arrays = load(BASE)
    own = below(arrays, "structures.bloom.features.")
    assert arrays["presence.bucket_bounds"].tolist() == [[NOON + HOUR * user] * 2 for user in range(6)]
    # Most popular first, equals ascending.
    assert own["0.vocabulary.data"].tobytes().decode() == "tea" + "" + "coffee" + "naïve ☕"
    # Lengths 3, 0, 6 and 10 in 4 bits each; numbers from -1 on in 63 bits.
    assert own["0.vocabulary.shape"].tolist() == [4, 4]
    assert own["0.vocabulary.packed"].tolist() == [0xA603, 0, 0]
    assert own["1.vocabulary.shape"].tolist() == [3, 63, -1]
    numbers = int.from_bytes(own["1.vocabulary.packed"].tobytes(), "little")
    assert [(numbers >> 63 * index & (2**63 - 1)) - 1 for index in range(3)] == [-1, 0, 2**62]
    assert own["2.vocabulary.data"].tobytes() == b"DEFR"
    assert own["2.vocabulary.packed"].tolist() == [0b100010, 0, 0]
    assert own["3.vocabulary.packed"].tolist() == [0b10, 0, 0]
    # Rows of the array, in any order: 0 missing, 1 null, 2 empty, 3 a value; then the user's own bucket.
    shapes = np.column_stack((arrays["presence.shapes.0.states"], arrays["presence.shapes.0.buckets"]))
    assert sorted(shapes.tolist()) == sorted(
        [[3, 3, 3, 3, 0], [3, 0, 3, 0, 1], [2, 1, 3, 0, 2], [1, 0, 0, 3, 3], [3, 0, 3, 0, 4], [0, 0, 0, 0, 5]]
    )


def test_listed_rows_read_as_they_were_written():
    answer, rows = read(opened(LISTED), "viewed", "sizes", "note", "country", "weight")
    assert answer.found.tolist() == list(range(70))
    assert answer.event_timestamps.tolist() == [NOON + HOUR * user for user in range(70)]
    for user, (viewed, sizes, note, country, weight) in enumerate(rows):
        if user % 7 == 0:
            assert (viewed, sizes, note, country, weight) == (None,) * 5
            continue
        assert set(viewed.string_set_val.val) >= set(["tea", "coffee"][: user % 3])
        assert sizes.int64_list_val.val == [2**40 + 7 * user, -user, -user][: user % 4]
        assert note.string_val == f"note {user} ☕"
        assert country == (Value(string_val="DE" if user % 5 else "FR") if user % 6 else Value())
        # The medians of the lower and the upper half.
        assert weight.double_val == (4.25 if user < 36 else 13.0)


def test_the_listed_file_has_each_form_of_a_column():
    description, arrays = load(LISTED)
    assert description["structures"].keys() == {"bloom", "columns", "scalars"}
    bloom, columns, scalars = fields_of(description["structures"], "bloom", "columns", "scalars")
    assert [entry["name"] for entry in bloom["features"]] == ["viewed"]
    assert description["presence"]["kind"] == "list"
    assert description["presence"]["timestamps"]["form"] == "numbers"
    assert [(c["name"], c["report"], c["elements"]["form"]) for c in columns["features"]] == [
        ("sizes", {"codec": "exact"}, "numbers"),
        ("note", {"codec": "exact"}, "bytes"),
    ]
    assert [
        fields_of(entry, "name", "value_field", "num_values", "others") for entry in scalars["features"]
    ] == [["country", "string_val", 2, [0, 1]], ["weight", "double_val", 2, [0]]]
    errors = {"max_error": 4.25, "mean_error": 2.175}
    assert description["roundings"] == [{"name": "weight", "report": errors}]
    assert arrays["presence.bucket_bounds"].shape == (0, 2)  # timestamps are those of the rows
    packed = [name for name in arrays if name.endswith("words")]
    assert len(packed) == 13
    assert all(f"{name}.checksums" in arrays for name in packed)


def test_sets_read_as_they_were_written():
    answer, rows = read(opened(SETS), "viewed", "sizes", "topics", "country", "bought")
    assert answer.found.tolist() == list(range(70))
    assert (answer.event_timestamps <= NOON + HOUR * np.arange(70)).all()
    for user, (viewed, sizes, topics, country, bought) in enumerate(rows):
        if user % 6:
            all_viewed = ["tea", "coffee", "naïve ☕", ""][: user % 5]
            all_bought = {*all_viewed[: user % 3], *["milk"][: user % 9 == 0]}
            assert set(bought.string_set_val.val) == all_bought
        if user % 6 == 0:
            assert viewed is None
            assert bought is None
        elif user % 7 == 0:
            assert viewed == Value()
        else:
            assert set(viewed.string_set_val.val) == set(["tea", "coffee", "naïve ☕", ""][: user % 5])
        # The three most frequent sizes are kept.
        assert set(sizes.int64_list_val.val) == {size for size in range(3) if user % (size + 2) == 0}
        assert sizes.WhichOneof("val") == "int64_list_val"
        assert set(topics.int64_set_val.val) >= {2**t for t in range(8) if user % (t + 1) == 0}
        assert country == Value(string_val="DE" if user % 5 else "FR")


def test_the_file_of_sets_has_each_structure():
    description, arrays = load(SETS)
    layer = SketchLayer.from_snapshot(description, arrays)
    assert {name: layer.features[name].structure for name in layer.codecs} == {
        "topics": "weighted_bloom",
        "country": "column",
        "viewed": "sets",
        "sizes": "sets",
        "bought": "sets",
    }
    assert description["structures"].keys() == {"bloom", "scalars", "sets"}
    bloom, sets = fields_of(description["structures"], "bloom", "sets")
    (topics,) = bloom["features"]
    assert fields_of(topics["report"], "num_facts", "num_ones") == [192, 256]
    assert topics["first_symbols"] == [0, 4, 6]
    assert description["cut"] == {"sizes": 36}
    names = "name", "value_field", "num_values", "header_width", "no_set", "others_width", "report"
    assert [fields_of(entry, *names) for entry in sets["features"]] == [
        ["viewed", "string_set_val", 4, 1, 2, -1, {"num_facts": 101}],
        ["bought", "string_set_val", 3, 0, 2, 0, {"num_facts": 55}],
        ["sizes", "int64_list_val", 3, 0, 0, -1, {"num_facts": 77}],
    ]
    assert sets["num_bits"] == 862
    own = below(arrays, "structures.sets.features.")
    assert own["0.level_ends"].tolist()[-1] == 5
    assert len(own["0.levels"]) == len(own["0.level_ends"]) + 64
    assert own["1.levels"][len(own["1.level_ends"]) + 64 :].tolist() == [3, 2, 4, 0, 1]
    assert [own[f"{number}.known"].tolist() for number in range(2)] == [[0b1111], [0b10011]]
    assert own["2.vocabulary.packed"].tolist() == [0b100100, 0, 0]
    assert arrays["presence.bucket_bounds"].shape == (16, 2)
    packed = [name for name in arrays if name.endswith("words")]
    assert len(packed) == 10
    assert all(f"{name}.checksums" in arrays for name in packed)


def test_scalars_are_digits_of_common_numbers():
    description, arrays = load(LISTED)
    (numbers,) = description["structures"]["scalars"]["numbers"]
    layer = SketchLayer.from_snapshot(description, arrays)
    rows = find_rows(layer.presence.index, row_hashes(user_hashes(range(70)), layer.presence.salt)).tolist()
    bits = "".join(f"{word:064b}"[::-1] for word in arrays["structures.scalars.numbers.0.words"].tolist())
    for user, row in enumerate(rows):
        number = int(bits[row * numbers["width"] : (row + 1) * numbers["width"]][::-1], 2)
        if user % 7 == 0:
            assert (number % 4, number // 4) == (2, 2)  # missing
        else:
            country = 3 if user % 6 == 0 else int(user % 5 == 0)  # null, or the less frequent one
            assert (number % 4, number // 4) == (country, int(user >= 36))


def plain_numbers(numbers, arrays, name):
    """The ascending integers of a file, decoded as the text of `succinct.elias_fano` says."""
    bits = "".join(f"{word:064b}"[::-1] for word in arrays[f"{name}.highs.words"].tolist())
    lows = "".join(f"{word:064b}"[::-1] for word in arrays[f"{name}.lows.words"].tolist())
    width, decoded, bucket = numbers["low_width"], [], 0
    for bit in bits[: numbers["length"] + numbers["num_buckets"]]:
        if bit == "1":
            low = lows[len(decoded) * width : (len(decoded) + 1) * width][::-1]
            decoded.append(bucket << width | int(low or "0", 2))
        bucket += bit == "0"
    assert bucket == numbers["num_buckets"]
    return decoded


def test_rows_are_found_as_the_format_says():
    description, arrays = load(SETS)
    layer = SketchLayer.from_snapshot(description, arrays)
    presence, sets = description["presence"], description["structures"]["sets"]
    hashes = np.sort(row_hashes(user_hashes(range(70)), layer.presence.salt)).tolist()
    index = presence["index"]
    assert index["range"] == 70_000_000_000
    assert plain_numbers(index, arrays, "presence.index") == [h * index["range"] >> 64 for h in hashes]
    starts = plain_numbers(sets["starts"], arrays, "structures.sets.starts")
    assert (sets["num_rows"], sets["group_rows"], len(starts)) == (70, 4, 18)
    assert starts == layer.features["viewed"].sets.starts.to_numbers().tolist()
    assert starts[0] == 0
    assert starts[-1] < sets["num_bits"] == 862


def test_clustered_rows_read_as_they_were_written():
    layer = opened(CLUSTERED)
    answer, rows = read(layer, *layer.features)
    assert answer.found.tolist() == list(range(60))
    for user, (viewed, sizes, topics) in enumerate(rows):
        if user % 10 == 0:
            assert (viewed, sizes, topics) == (Value(), None, None)
            continue
        kind = 100 * (user % 3)
        assert set(viewed.string_set_val.val) >= {f"item {kind + user % n}" for n in (2, 3, 5)}
        assert set(sizes.int64_list_val.val) >= {kind + size for size in range(user % 7)}
        assert set(topics.int64_set_val.val) >= {kind + t for t in range(12) if user % (t + 1) == 0}
    assert [feature.num_facts for feature in layer.features.values()] == [130, 157, 151]
    assert [len(feature.symbols) for feature in answer.features.values()] == [158, 174, 160]


def test_a_clustered_filter_is_read_as_the_format_says():
    """Each fact by the formulas of the filter alone: the hashes of its level, in the cluster of its row."""
    description, arrays = load(CLUSTERED)
    own = below(arrays, "structures.clustered.")
    clustered = description["structures"]["clustered"]
    assert [fields_of(entry, "name", "value_field", "hashes") for entry in clustered["features"]] == [
        ["viewed", "string_set_val", [0, 6]],
        ["sizes", "int64_list_val", [2, 8]],
        ["topics", "int64_set_val", [0, 4, 8]],
    ]
    assert [fields_of(entry["report"], "style", "facts_per_level") for entry in clustered["features"]] == [
        ["learned_bloom", [88, 42]],
        ["sandwiched_bloom", [136, 21]],
        ["weighted_bloom", [72, 79, 0]],
    ]
    assert fields_of(clustered, "num_words", "num_clusters") == [27, 3]
    assert clustered["report"] == {"fill": 0.4496527777777778, "shares": [0.3, 0.4, 0.3]}
    layer = SketchLayer.from_snapshot(description, arrays)
    hashes = user_hashes(range(60))
    found = find_rows(layer.presence.index, row_hashes(hashes, layer.presence.salt))
    width = clustered["clusters"]["width"]
    bits = "".join(f"{word:064b}"[::-1] for word in own["clusters.words"].tolist())
    clusters = [int(bits[row * width : (row + 1) * width][::-1], 2) for row in found.tolist()]
    words = own["table.words"].tolist()
    for number, name in enumerate(("viewed", "sizes", "topics")):
        entry = clustered["features"][number]
        masks = own[f"features.{number}.masks"]
        first_word = sum(own[f"features.{n}.masks"].shape[2] for n in range(number))
        num_values = layer.features[name].num_values
        shown = layer.read(hashes, [name]).features[name]
        for user in range(60):
            expected = []
            for symbol in range(num_values):
                level = sum(not int(mask[symbol // 64]) >> symbol % 64 & 1 for mask in masks[clusters[user]])
                is_set = all(
                    words[bit // 64] >> bit % 64 & 1
                    for bit in (
                        bit_of(hashes[user], 64 * first_word + symbol, j, SALT, clustered["num_words"])
                        for j in range(entry["hashes"][level])
                    )
                )
                expected += [symbol] if is_set else []
            if shown.states[user] == 3:
                assert shown.csr.ids[slice(*shown.indptr[user : user + 2])].tolist() == expected


def test_a_static_function_reads_as_it_was_written_and_as_the_format_says():
    description, arrays = load(STATIC)
    own = below(arrays, "structures.static.")
    static = description["structures"]["static"]
    num_shapes, width = static["num_shapes"], static["width"]
    assert (width, static["report"]["num_entities"], own["left.hashes"].shape) == (25, 300, (0,))
    words = own["function.words"].reshape(-1, width)
    free = 64 * (len(words) - 1) - 63
    answer, rows = read(opened(STATIC), "country", "level")
    assert answer.found.tolist()[:300] == list(range(300))
    country, level = (answer.features[name] for name in ("country", "level"))
    hashes = row_hashes(user_hashes(range(300)), (0x0123456789ABCDEF, 0xFEDCBA9876543210)).tolist()
    for user in range(300):
        own_country = Value(string_val=["DE", "FR", "naïve ☕"][user % 3]) if user % 8 else Value()
        own_level = Value(int64_val=user % 7 - 3) if user % 9 else None
        assert rows[user] == (own_country, own_level)
        start, coefficients = hashes[user] * free >> 64, mixed(hashes[user] + 0x9E3779B97F4A7C15) | 1
        number = mixed(hashes[user] + 0x3C6EF372FE94F82A) >> 64 - width
        for i in range(64):
            if coefficients >> i & 1:
                slot = words[(start + i) // 64].tolist()
                number ^= sum((word >> (start + i) % 64 & 1) << j for j, word in enumerate(slot))
        shape, ids = number % num_shapes, number // num_shapes
        assert arrays["presence.shapes.0.states"][shape].tolist() == [
            country.states[user],
            level.states[user],
        ]
        if user % 8:
            assert country.csr.ids[country.indptr[user]] == ids % 3
        if user % 9:
            assert level.csr.ids[level.indptr[user]] == ids // 3


def mixed(number):
    """The finalizer of SplitMix64, in Python's integers."""
    number &= 2**64 - 1
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
    number = (number ^ number >> 27) * 0x94D049BB133111EB & 2**64 - 1
    return number ^ number >> 31


def test_the_order_file_lists_hashes_and_timestamps():
    description, arrays = load(ORDER)
    assert description == {}
    hashes = user_hashes(ROWS)
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    rows = arrays["rows"]
    assert rows[:, :2].tolist() == hashes[order].tolist()
    assert rows[:, 2].view(np.int64).tolist() == [NOON + HOUR * int(user) for user in order]
    # Odd users have a created timestamp one minute later, the others none.
    assert rows[:, 3].view(np.int64).tolist() == [
        NOON + HOUR * int(user) + 60_000_000 if user % 2 else -(2**63) for user in order
    ]
    # The first 31 bits of the first hash, and the first 4 bytes of the checksum, of each block of 8 rows.
    assert arrays["first_hashes"].tolist() == [int(rows[0, 0]) >> 33]
    assert arrays["rows.checks"].tobytes() == mmh3.mmh3_x64_128_digest(rows.tobytes())[:4]


@FILES
def test_arrays_are_aligned_and_mapped(path):
    _, arrays = load(path)
    for array in arrays.values():
        assert array.flags.aligned
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_counts_of_the_golden_file_are_those_that_were_written():
    description, arrays = load(COUNTS)
    layer = SketchLayer.from_snapshot(description, arrays)
    viewed, bought = layer.features["viewed"], layer.features["bought"]
    assert (viewed.structure, viewed.counting.feature, bought.counting.relative) == ("counts", "views", 0.25)
    answer = layer.read(user_hashes(range(50)), ["viewed", "bought"])
    for name, feature in layer.features.items():
        csr, values = answer.features[name].csr, feature.vocabulary.values.to_pylist()
        for user in range(50):
            part = slice(*csr.indptr[user : user + 2])
            found = dict(zip([values[i] for i in csr.ids[part]], csr.weights[part].tolist(), strict=True))
            written = {f"item {i}".encode(): 1 + (user // 6) % (i + 1) for i in range(user % 6)}
            if name == "bought":
                written = dict(Counter(i % 3 for i in range(user * 7 % 101)))
            assert found.keys() == (written.keys() if user % 10 else set())
            for value, count in found.items():
                assert abs(count - written[value]) <= feature.counting.relative * written[value]


def test_lists_of_the_golden_file_are_read_newest_first():
    description, arrays = load(LISTS)
    layer = SketchLayer.from_snapshot(description, arrays)
    assert (layer.semantics, layer.since, layer.num_entities) == ("append", 0, 35)
    feature = layer.features["read"]
    assert (feature.structure, feature.codec.listing.limit) == ("lists", 6)
    answer = layer.read(user_hashes(range(40)), ["read"])
    assert answer.found.tolist() == [user for user in range(40) if user % 9]
    items = answer.features["read"].csr
    assert feature.num_facts == len(items.ids) == 140
    names = [value.decode() for value in feature.vocabulary.values.to_pylist()]
    for index, user in enumerate(answer.found.tolist()):
        part = slice(*items.indptr[index : index + 2])
        found = [
            ((NOON - moment) // HOUR, names[number])
            for number, moment in zip(items.ids[part].tolist(), items.weights[part].tolist(), strict=True)
        ]
        # What was written: two items at a time, the further back the fewer, each value once in an hour.
        written = {
            (-(-((number // 2) ** 3) * 2_000 // 3_600), f"article {number * user % 7}")
            for number in range(user % 9)
        }
        assert sorted(found)[: len(found)] == sorted(found)
        assert set(found) <= written
        assert len(found) == min(feature.codec.listing.most_sealed, len(written))
        assert [age for age, _ in found] == sorted(age for age, _ in written)[: len(found)]


def test_formulas_give_what_the_rows_of_the_file_have():
    description, arrays = load(FORMULAS)
    answer, rows = read(opened(FORMULAS), "taste", "worth")
    assert answer.found.tolist() == list(range(70))
    for user, (taste, worth) in enumerate(rows):
        viewed = set(["tea", "coffee", "naïve ☕", ""][: user % 5]) if user % 6 and user % 7 else set()
        sizes = {size for size in range(40) if user % (size + 2) == 0}
        assert taste.double_val == 9 * ("tea" in viewed) - 7 * ("coffee" in viewed) + 5 * (2 in sizes)
        assert worth.double_val == float(1 in sizes)
    taste, worth = description["formulas"]
    assert taste == {
        **{"name": "taste", "unit": 1.0, "step": 1.0},
        **{"sources": [{"name": "viewed"}, {"name": "sizes"}], "report": {"version": 4}},
    }
    assert (worth["unit"], worth["step"], worth["sources"]) == (2.0**-30, 0.25, [{"name": "sizes"}])
    assert arrays["formulas.0.sources.0.weights"].tolist() == [9, -7]
    assert arrays["formulas.1.sources.0.weights"].tolist() == [-3, 2**30]
