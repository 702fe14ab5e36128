"""Synthetic facts, the samples that plans are made of, and the layers that a seal builds of the same."""

import numpy as np
import pyarrow as pa

from feast_sketch_store.layers import FeatureBudget, Goal
from feast_sketch_store.planning.curves import LISTED_HEADER_BYTES, SETS, header_bytes
from feast_sketch_store.planning.sample import FeatureSample, Sample
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.goals import NOISE_RATIO
from tests.helpers.layers import build_layer, rows_with, sets_of

PRESENCE = 1e-5


def without_header(point, lists_rows=True):
    """A point's bytes without those that a plan adds for the header of the file."""
    return point.memory_bytes - header_bytes(len(point.settings)) - LISTED_HEADER_BYTES * lists_rows


def zipf(num_values, mean):
    """Densities of values, so many of which an entity has on average."""
    weights = 1 / np.arange(1, num_values + 1)
    return np.minimum(weights / weights.sum() * mean, 0.5)


def draw(densities, num_entities, seed):
    """Independent facts: which entities have which values, bool[n, V]."""
    return np.random.default_rng(seed).random((num_entities, len(densities))) < densities


def feature_of(has):
    """A feature of bool[n, V], its values numbered by popularity, those that nobody has left out."""
    counts = has.sum(axis=0)
    order = np.argsort(-counts, kind="stable")[: (counts > 0).sum()]
    rows, ids = np.nonzero(has[:, order])
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(has)))))
    return FeatureSample(Vocabulary(pa.array(order)), Csr(indptr, ids.astype(np.int32)))


def sample_of(*features, num_entities=None):
    """A sample with these features, of as many entities as are sampled unless a number is given."""
    num_sampled = len(features[0].rows)
    hashes = np.random.default_rng(0).integers(0, 2**64, (num_sampled, 2), np.uint64)
    names = {f"f{number}": feature for number, feature in enumerate(features)}
    return Sample(num_entities or num_sampled, PRESENCE, hashes, names)


def sealed_as_sets(features, goal=Goal(NOISE_RATIO, 0.1, SETS), timestamps=None):  # noqa: B008 - it cannot be changed
    """The layer that a seal builds of features, whose rows have one timestamp unless others are given."""
    num_rows = len(features[0][0])
    hashes = np.sort(np.random.default_rng(0).integers(0, 2**64, (num_rows, 2), np.uint64), axis=0)
    encoded = []
    for number, (has, names) in enumerate(features):
        kind = "int64" if pa.types.is_int64(names.type) else "bytes"
        csr = Csr.of_lengths(has.sum(axis=1), np.nonzero(has)[1])
        encoded.append(sets_of(f"f{number}", csr, names, f"{kind}_set_val"))
    rows = rows_with(encoded, hashes, timestamps)
    return build_layer(rows, FeatureBudget(PRESENCE, dict.fromkeys(rows.features, goal)))
