"""Bit tables that answer a whole row of candidates at once. NumPy only: no Feast, no I/O."""

from feast_sketch_store.filters.bits import set_bits
from feast_sketch_store.filters.packed import Check, PackedInts
from feast_sketch_store.filters.shifting_bloom import (
    MAX_NUM_WORDS,
    ShiftingBloomFilter,
    ShiftingBloomFilterBuilder,
    mix64,
    new_salt,
)

__all__ = [
    "MAX_NUM_WORDS",
    "Check",
    "PackedInts",
    "ShiftingBloomFilter",
    "ShiftingBloomFilterBuilder",
    "mix64",
    "new_salt",
    "set_bits",
]
