"""Bit tables that answer a whole row of candidates at once. NumPy only: no Feast, no I/O."""

from feast_sketch_store.filters.bits import set_bits
from feast_sketch_store.filters.shifting_bloom import (
    ShiftingBloomFilter,
    ShiftingBloomFilterBuilder,
    new_salt,
)

__all__ = ["ShiftingBloomFilter", "ShiftingBloomFilterBuilder", "new_salt", "set_bits"]
