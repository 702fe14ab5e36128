"""Bit tables that answer a whole row of candidates at once, and compressed sets. No Feast, no I/O."""

from feast_sketch_store.kernel import SymbolQuery
from feast_sketch_store.succinct.attribute_codes import AttributeCodes
from feast_sketch_store.succinct.blocks import BlockChecks
from feast_sketch_store.succinct.coded_rows import CodedRows
from feast_sketch_store.succinct.elias_fano import EliasFano
from feast_sketch_store.succinct.fingerprints import FingerprintIndex
from feast_sketch_store.succinct.golomb_sets import GolombSets, SetCode
from feast_sketch_store.succinct.packed import PackedInts
from feast_sketch_store.succinct.shifting_bloom import (
    MAX_NUM_WORDS,
    ShiftingBloomFilter,
    ShiftingBloomFilterBuilder,
    new_salt,
)
from feast_sketch_store.succinct.timed_lists import ListCode, TimedLists

__all__ = [
    "MAX_NUM_WORDS",
    "AttributeCodes",
    "BlockChecks",
    "CodedRows",
    "EliasFano",
    "FingerprintIndex",
    "GolombSets",
    "ListCode",
    "PackedInts",
    "SetCode",
    "ShiftingBloomFilter",
    "ShiftingBloomFilterBuilder",
    "SymbolQuery",
    "TimedLists",
    "new_salt",
]
