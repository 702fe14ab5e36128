"""How far a sampled rate may be from the true one: Chernoff bounds.

For n independent questions with true error rate p, let x be the share of wrong answers. Then

    P(|x - p| >= e) <= 2 exp(-e^2 n / 2)               for any p
    P(|x - p| >= e) <= 2 exp(-e^2 n / (3 p))           for e <= p

The second is sharper at the rates that filters have.

Source: Mitzenmacher and Upfal, "Probability and Computing", section 4.2.
"""

import math
from typing import Final

CONFIDENCE: Final = 0.95


def within(rate: float, num_sampled: int, confidence: float = CONFIDENCE) -> float:
    """A bound on the distance between the true rate and a sampled one, with a confidence.

    The true rate may be the larger one. So the bound is taken at the largest rate p that is itself within the
    bound of ``rate``.
    """
    if num_sampled < 1:
        return 1.0
    exponent = math.log(2 / (1 - confidence)) / num_sampled
    half = 1.5 * exponent
    return min(half + math.sqrt(half * half + 2 * half * rate), math.sqrt(2 * exponent), 1.0)
