"""What a reader must refuse: the clauses of each rule, and the hostile views that break them.

The table in docs/reference/online_store_format.md is made from this one. A violation of a clause that begins
with "when read:" may show only when a row is read.
"""

from collections.abc import Mapping, Sequence
from typing import Final

RULES: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "container.size": {
        "a file of less than 24 bytes": ["an empty file", "five bytes"],
        "a header of more than `MAX_HEADER_BYTES`, or than the file has": [
            "a header of 4 MiB",
            "a header behind the end",
        ],
        "a file that does not end with its last array": ["cut off", "a byte more"],
    },
    "container.header": {
        "one that is not zlib and then up to 63 zeros, or unpacks to more than `MAX_HEADER_BYTES`": [
            "not compressed",
            "a stream cut off",
            "more behind the stream",
            "5 MiB of spaces",
        ],
        "a header that is not a JSON object": ["no JSON", "no object"],
        "a header that lacks a part": ["without a description", "without arrays"],
        "an array without a checksum or checksums of its blocks, or with both": [
            "an array without a checksum",
            "words with a checksum",
            "words without a checksum",
        ],
    },
    "container.checksum": {
        "a header that does not match its checksum": ["another header"],
        "an array that does not match its checksum": ["another byte of an array"],
    },
    "container.version": {"another `format_version` than 1": ["version 2", "a version in quotes"]},
    "container.arrays": {
        "another `dtype`": ["a type of floats"],
        "a name that is not a string, or occurs twice": ["a name that is a number", "a name twice"],
        "a shape that is not 1 to 4 integers from 0 on": [
            "a negative length",
            "a length with a point",
            "a length that is true",
            "no lengths",
            "five lengths",
        ],
        "a shape of more than 2<sup>48</sup> elements, lengths of 0 counting as 1": ["a length of 49 bits"],
        "arrays in another order": ["another order"],
    },
    "container.blocks": {
        "a `.words` whose `.checksums` do not fit it": ["a checksum more"],
        "when read: a block that does not match its checksum": ["another checksum", "another block"],
    },
    "manifest.damaged": {
        "a manifest of more than `MAX_MANIFEST_BYTES`": ["too long"],
        "one that is not canonical JSON": ["empty", "cut off", "a space more"],
        "one that does not match its checksum": ["another byte"],
        "one that lacks a part, or has a part of another type": [
            "without files",
            "a number with a point",
            "a negative number",
            "a path",
            "a checksum that is none",
            "chunks that do not fit",
        ],
    },
    "manifest.version": {"another `format_version` than 1": ["version 2"]},
    "manifest.name": {
        "another version or number than its name says": ["another number", "another version"],
        "other own files than its name says": ["files of another name"],
    },
    "manifest.order": {
        "versions of base and deltas that do not ascend to `row_log_version`": [
            "a base behind its deltas",
            "deltas that descend",
        ]
    },
    "manifest.files": {
        "a file that does not exist": ["a file is missing"],
        "a file of another size or header checksum": ["a longer file", "another file"],
        "another `row_log_version` in the description of a file": ["another version inside"],
    },
    "shards": {
        "a `view.json` that is not JSON, or of another format version": ["no JSON", "version 2"],
        "a `view.json` with another checksum": ["altered"],
        "a number of shards that is not a power of two from 1 to 4,096": [
            "three",
            "too many",
            "a number with a point",
        ],
        "another folder than `shards-` and numbers": ["another folder"],
    },
    "layer.parts": {
        "a description that is missing, or of another type": [
            "without a number of entities",
            "a number of entities in quotes",
            "a number of entities with a point",
            "a number of entities that is true",
            "without presence",
            "a short salt",
        ],
        "an array that is missing, or of another type": ["without levels", "codes of another type"],
        "an unknown kind, form or field": [
            "unknown presence",
            "unknown structure",
            "unknown field",
            "unknown form",
        ],
        "a feature that occurs twice": ["a feature twice"],
    },
    "layer.rows": {
        "parts with another number of rows than the layer": [
            "more entities than rows",
            "more entities than states",
        ],
        "states of other features than those whose structure does not store them": [
            "states of another feature"
        ],
    },
    "formulas": {
        "a feature that is not a double": ["no double"],
        "a source that is not a collection of the layer, or occurs twice": [
            "a source that is no feature",
            "a source that is a scalar",
            "a source twice",
        ],
        "weights of another shape": ["weights of fewer values"],
        "`unit` or `step` that is not above 0": ["a step of 0"],
    },
    "packed": {
        "a width outside of 0 to 64": ["a width of 65"],
        "another number of words": ["fewer words", "more words"],
    },
    "ascending": {
        "lengths or widths that do not fit each other": ["more buckets", "lows of 64 bits"],
        "when read: a position outside of the words": ["places outside"],
    },
    "index": {
        "a range outside of 1 to 2<sup>63</sup>": ["a range of 0", "a range of more than 63 bits"],
        "another number of buckets than the range gives": ["a range of other buckets"],
        "twins that do not ascend": ["twins that descend"],
        "when read: a row that does not exist": ["rows behind the last one"],
    },
    "timestamps": {
        "buckets that do not ascend": ["buckets that descend", "a bucket that ends before it begins"],
        "a shape with a bucket that does not exist": ["a bucket that does not exist"],
        "when read: a timestamp that is not the oldest of a bucket": ["other buckets"],
    },
    "states": {
        "a shape with another state than 0 to 3": ["a shape with a state of 4"],
        "other shapes than the filter or the function has": ["a shape without a symbol"],
        "when read: another state than 0 to 3": ["a state of 7", "a column with a state of 7"],
    },
    "vocabulary": {
        "a shape of another length, or a width of 0": ["a shape of numbers", "no width"],
        "highs with another number of ones than there are values": ["fewer ones"],
        "a modulus below 1": ["no modulus"],
        "lengths or offsets that do not fit the data": ["a byte more", "a byte less", "offsets that fall"],
        "places that are not those of all values": ["places that are one"],
        "a prefix that is longer than the value before": ["a prefix that is too long"],
        "a string that is not UTF-8": ["no UTF-8"],
    },
    "bloom": {
        "ranges that do not follow each other without gaps": ["a gap between ranges"],
        "a table of another length": ["a longer table"],
        "more than `MAX_NUM_WORDS` words": ["2**32 words"],
        "a number of hashes outside of 1 to `MAX_NUM_HASHES`": ["65 hashes", "no hash"],
        "first symbols that fall, or of another number": [
            "first symbols that fall",
            "fewer first symbols than hashes",
        ],
    },
    "columns": {
        "when read: a row outside of the elements": ["rows outside", "rows before the first"],
        "when read: an element outside of the bytes": ["bytes outside"],
        "when read: an id outside of the vocabulary": ["ids outside"],
    },
    "scalars": {
        "a collection": ["a collection"],
        "others that are not states without a value": ["a state that is a value"],
        "another number of values than the vocabulary has": ["more values"],
        "numbers of another base or number than follows from the symbols": [
            "numbers from 1 on",
            "fewer numbers",
        ],
    },
    "sets": {
        "levels above 123, or that do not end at the size of the vocabulary": [
            "levels of fewer values",
            "a level of 124",
        ],
        "`headers` that are not the numbers below `H`, or more than 256": [
            "a header twice",
            "a header too large",
        ],
        "headers or numbers of others of more than 30 bits": ["headers of 31 bits", "others of 31 bits"],
        "`no_set` other than 0 and 2": ["one header without a set"],
        "a first feature that is coded with those before it": ["nothing to be coded with"],
        "another number of known values than `num_values`": ["more values than known"],
        "groups of fewer than 1 or more than 64 rows": ["groups of 65 rows", "groups of no rows"],
        "another number of starts than of groups": ["fewer groups"],
        "another number of words than `num_bits` gives": ["without codes", "codes that end early"],
        "when read: codes that end after `num_bits`, or of ids or members that do not exist": [
            "codes that are ones"
        ],
    },
    "lists": {
        "lengths that no prefix code has, or of more than 12 bits": [
            "lengths of no code",
            "a code of 13 bits",
            "counts of no code",
        ],
        "widths of more than 30, or not five tables of them": ["gaps of 31 bits", "four tables of widths"],
        "another number of words than `num_bits` gives": ["codes that end early"],
        "when read: codes that are invalid, end after the row, or of ids that do not exist": [
            "codes that are ones",
            "counts whose codes are ones",
        ],
        "attributes with fewer than two values or of another type, or with more than 256 combinations": [
            "an attribute of one value",
            "an attribute of another type",
        ],
        "blocks of attributes that have no prefix code, or another number; a `usual` that does not exist": [
            "attributes of no code",
            "attributes of 13 bits",
            "larger blocks",
            "a usual code that does not exist",
        ],
        "another number of words of attributes than `num_bits` gives": ["attributes that end early"],
        "when read: blocks of attributes that are invalid or end after the row": ["attributes that are ones"],
    },
    "counts": {
        "a count outside of 1 to 2<sup>54</sup>": ["a count of 0", "a count of more"],
        "another number of `firsts` than of counts": ["one of the firsts"],
        "when read: an age without a count": ["one count"],
    },
    "clustered": {
        "hashes that do not ascend": ["hashes that fall"],
        "masks of another shape": ["masks of fewer clusters"],
        "a table of another length": ["a longer table"],
        "when read: a cluster that does not exist": ["clusters that do not exist"],
    },
    "static": {
        "a collection": ["a collection"],
        "a width outside of 1 to 62, or too narrow for the numbers": [
            "slots of 63 bits",
            "slots that are too narrow",
        ],
        "words that do not form slots": ["a word less", "no slots"],
        "hashes that do not ascend, or are not as many as their numbers": ["a hash without a number"],
        "a number that does not exist": ["a number of no row"],
    },
    "delta": {
        "a list that does not ascend": ["a list that descends"],
        "a list of another number of rows": ["more rows than alive"],
        "when read: an entity of the list without a row": ["an entity without a row"],
    },
    "log.damaged": {
        "a segment or an acknowledged record that does not match its checksums, or is cut": [
            "a record",
            "a record in a bucket",
            "the head of a segment",
            "zeros before the mark",
            "cut before the mark",
        ],
        "records whose numbers have gaps": ["a gap"],
    },
    "log.newer": {
        "for readers of snapshots only: a snapshot that is not up to date": [
            "rows",
            "a file",
            "behind a record that is cut",
            "before zeros",
            "rows of the table",
            "other rows",
            "rows in a bucket",
        ]
    },
}


def name_of(rule: str, label: str) -> str:
    """The name of a hostile view."""
    return f"{rule} {label}".replace(" ", "-")


def clause_of(name: str) -> str:
    """The clause that a hostile view breaks.

    Raises
    ------
    KeyError : no clause names the view.
    """
    for rule, clauses in RULES.items():
        for clause, labels in clauses.items():
            if name in (name_of(rule, label) for label in labels):
                return clause
    raise KeyError(f"{name} breaks no clause of the rules")
