"""Conversion of numbers that arrive in another field of Feast's ``Value`` than their feature's.

A client may pass a double for a Float32 feature, or an int32 for an Int64 feature. Numbers that keep their
meaning are converted: a float to the nearest float32, an integer to any wider type, 5.0 to 5. All others are
refused.
"""

import math
from typing import Any, Final

import numpy as np

# The least and the greatest number of each integer kind.
_INTEGERS: Final = {
    "bool": (0, 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "timestamp": (-(2**63), 2**63 - 1),
}
TOO_LARGE_FOR_FLOAT: Final = "which is too large for a 32-bit float"
_NUMBERS: Final = (*_INTEGERS, "float", "double")


def is_convertible(source: str, target: str) -> bool:
    """Whether both kinds are numbers. A particular number may still not fit."""
    return source in _NUMBERS and target in _NUMBERS


def converted(number: Any, source: str, target: str) -> Any:
    """Convert a number from one kind to another.

    Raises
    ------
    ValueError : it has a fraction that the target cannot hold, or is out of its range.
    """
    if source == target:
        return number
    if target in _INTEGERS:
        least, greatest = _INTEGERS[target]
        if not math.isfinite(number) or number != int(number):
            raise ValueError("which is not a whole number")
        if not least <= number <= greatest:
            raise ValueError(f"which is not between {least} and {greatest}")
        return bool(number) if target == "bool" else int(number)
    if target == "float":
        with np.errstate(over="ignore"):
            nearest = float(np.float32(number))
        if math.isinf(nearest) and not math.isinf(number):
            raise ValueError(TOO_LARGE_FOR_FLOAT)
        return nearest
    return float(number)
