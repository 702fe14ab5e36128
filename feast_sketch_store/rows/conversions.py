"""Numbers that are carried by another field of Feast's ``Value`` than their feature's.

A client may hand a double to a Float32 feature, or an int32 to an Int64 one. What keeps its meaning is
converted: a float to the nearest float32, an integer to any wider type, 5.0 to 5. What does not is refused.
"""

import math
from typing import Any, Final

import numpy as np

# The least and the greatest number of each kind of integers.
_INTEGERS: Final = {
    "bool": (0, 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "timestamp": (-(2**63), 2**63 - 1),
}
TOO_LARGE_FOR_FLOAT: Final = "which is too large for a 32-bit float"
_NUMBERS: Final = (*_INTEGERS, "float", "double")


def is_convertible(source: str, target: str) -> bool:
    """Whether both kinds are numbers, so that one may be meant as the other; each by itself may not fit."""
    return source in _NUMBERS and target in _NUMBERS


def converted(number: Any, source: str, target: str) -> Any:
    """A number of a kind as one of another kind.

    Raises
    ------
    ValueError : it cannot be meant: it has a fraction, or lies outside of what the kind holds.
    """
    if source == target:
        return number
    if target in _INTEGERS:
        least, greatest = _INTEGERS[target]
        if not math.isfinite(number) or number != int(number):
            raise ValueError("which is no whole number")
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
