"""Error rates of the filters of sealed rows, as designed and as measured with a small sample."""

import numpy as np

from feast_sketch_store.layers import Shards

_SAMPLES = 1_000  # few enough not to slow down opening a snapshot


def expected_rates(sealed: Shards) -> dict[str, float]:
    """The rate that each feature's filter is built for; features without a filter have none."""
    rates: dict[str, float] = {}
    for layer in sealed.layers:
        for name, feature in layer.features.items():
            if (rate := feature.false_positive_rate) is not None:
                rates[name] = max(rate, rates.get(name, 0.0))
    return rates


def sampled_rates(sealed: Shards, num_samples: int = _SAMPLES) -> dict[str, float]:
    """The share of (entity, value) pairs that read as written, over entities that were never written.

    Raises
    ------
    DamagedFileError : a part of the snapshot that was not used before is damaged.
    """
    chance = np.random.default_rng()
    hashes = chance.integers(0, 2**64, (num_samples, 2), np.uint64)
    return {
        name: float(np.mean([feature.sampled_rate(hashes, chance) for feature in sealed.features(name)]))
        for name in expected_rates(sealed)
    }
