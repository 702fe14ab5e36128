"""The declaration of a list feature: what its codec knows besides its type.

The items of a list may have attributes, such as what a user did with an article: one of a few declared values
each. All attributes of an item are one number, its *code*. While rows are exact, the code is kept in the low
bits of the item's time: time and code together are its *stamp*, so stamps are ordered by time. A list without
attributes has no such bits.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

DEFAULT_RESOLUTION_MICROSECONDS = 1_000_000
ALWAYS = (1 << 63) - 1  # microseconds: the tick of a set, which has a value at most once
LEAST_RESERVE = 16  # items behind the limit that a seal keeps, for removals of newer ones
MAX_CODES: Final = 256  # of the attributes of an item: combinations of their values
_MAX_STAMP: Final = (1 << 63) - 1


@dataclass(frozen=True)
class Attribute:
    """What the items of a list have besides value and time."""

    feature: str  # the feature that shows it, an Array
    value_field: str  # of this feature, see `FeatureCodec`
    # the declared values, two or more. Where a list has an item more than once in a tick, it shows the
    # attribute that was declared last
    values: tuple[str | int, ...]

    @property
    def entry(self) -> list[Any]:
        """How files describe it."""
        return [self.feature, self.value_field, list(self.values)]

    @classmethod
    def of_entry(cls, entry: Any) -> Self:
        """The reverse of `entry`. Raises ValueError, TypeError: the entry does not describe an attribute."""
        feature, value_field, values = entry
        if not (isinstance(feature, str) and isinstance(value_field, str) and isinstance(values, list)):
            raise TypeError(f"{entry!r} does not describe an attribute")
        return cls(feature, value_field, tuple(values))


@dataclass(frozen=True)
class Listing:
    """How the items of a list are kept.

    Raises ValueError: the resolution or the limit is below 1, or the attributes have too few or too many
    values.
    """

    # length of a tick. A list has a value at most once in a tick, and sealed rows keep the tick of an item,
    # not its time
    resolution_microseconds: int = DEFAULT_RESOLUTION_MICROSECONDS
    limit: int | None = None  # how many items a read shows, the newest ones; None for all
    # of the items; the first one is the most significant digit of an item's code
    attributes: tuple[Attribute, ...] = ()

    @property
    def most_sealed(self) -> int | None:
        """How many items of a list a seal keeps: the limit, and as many again in reserve; None for all."""
        return None if self.limit is None else self.limit + max(self.limit, LEAST_RESERVE)

    def __post_init__(self) -> None:
        if self.resolution_microseconds < 1 or (self.limit is not None and self.limit < 1):
            raise ValueError(f"{self} is not possible: a resolution and a limit must be at least 1")
        if any(len(attribute.values) < 2 for attribute in self.attributes) or self.num_codes > MAX_CODES:
            raise ValueError(
                f"the attributes {[each.feature for each in self.attributes]} are not possible: each must "
                f"have two values or more, and all together at most {MAX_CODES} combinations"
            )

    # -- codes ---------------------------------------------------------------------------------

    @property
    def num_codes(self) -> int:
        """How many combinations of attributes there are."""
        return math.prod(len(attribute.values) for attribute in self.attributes)

    @property
    def code_bits(self) -> int:
        """The low bits of a stamp that are the code."""
        return (self.num_codes - 1).bit_length()

    def digit_of(self, feature: str) -> tuple[Attribute, int]:
        """An attribute by its feature, and the codes from one of its values to the next."""
        place = [attribute.feature for attribute in self.attributes].index(feature)
        following = self.attributes[place + 1 :]
        return self.attributes[place], math.prod(len(attribute.values) for attribute in following)

    @property
    def last_time(self) -> int:
        """The latest time of an item, microseconds since 1970; as far before is the earliest."""
        return (_MAX_STAMP >> MAX_CODES.bit_length()) if self.attributes else _MAX_STAMP

    # -- stamps --------------------------------------------------------------------------------

    def first_stamp(self, moment: int) -> int:
        """The smallest stamp of a moment, microseconds since 1970."""
        return max(-_MAX_STAMP - 1, min(int(moment) << self.code_bits, _MAX_STAMP))

    def last_stamps(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The largest stamp of each time, int64[n] microseconds since 1970."""
        return self.stamps(times, np.int64((1 << self.code_bits) - 1))

    def stamps(self, times: NDArray[np.int64], codes: NDArray[np.int64] | np.int64) -> NDArray[np.int64]:
        """Times and codes together: int64[n]."""
        return times << self.code_bits | codes

    def times_of(self, stamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Microseconds since 1970: int64[n]."""
        return stamps >> self.code_bits if self.code_bits else stamps

    def codes_of(self, stamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """The code of each stamp: int64[n]."""
        return stamps & ((1 << self.code_bits) - 1)
