"""Made-up facts: who has what, with popular and rare values as in shops."""

import numpy as np
from numpy.typing import NDArray

FACTS_PER_ENTITY = 20
_ZIPF_EXPONENT = 0.8


def draw_facts(
    num_entities: int, vocabulary: int, seed: int = 1, per_entity: int = FACTS_PER_ENTITY
) -> NDArray[np.int64]:
    """Distinct values of each entity, ascending: int64[num_entities, per_entity], in [0, vocabulary).

    Popularity falls with a power of the rank; which value is popular is random, so that no side profits
    from popular values being small numbers.
    """
    random = np.random.default_rng(seed)
    weights = np.arange(1, vocabulary + 1) ** -_ZIPF_EXPONENT
    cumulative = np.cumsum(weights / weights.sum())
    ranks = np.searchsorted(cumulative[:-1], random.random((num_entities, per_entity)))
    while True:
        ranks.sort(axis=1)
        repeated = np.zeros(ranks.shape, np.bool_)
        repeated[:, 1:] = ranks[:, 1:] == ranks[:, :-1]
        if not repeated.any():
            return np.sort(random.permutation(vocabulary)[ranks], axis=1)
        ranks[repeated] = np.searchsorted(cumulative[:-1], random.random(repeated.sum()))
