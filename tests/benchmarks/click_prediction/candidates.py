"""What a cut leaves of a model that finds candidates, trained on cut rows and on exact ones:

    python tests/benchmarks/click_prediction/candidates.py [kuairand retail] [--data FOLDER]

The model knows how alike two values are: the cosine of the people who have them. A person's candidates are
the values most alike to the person's row as it is served. One value of each person is held out; a hit is a
held-out value among the first 20 candidates that the row lacks. What is kept is the share of the gain over
the most popular values, against training on exact rows and serving these. Rows are cut to the most popular
values.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
from measure import print_set_up, print_table
from numpy.typing import NDArray
from scipy import sparse
from tasks import Task, add_data_argument, load_or_exit

FEATURES = {"kuairand": "long_view", "retail": "products"}
SHARES = (0.02, 0.05, 0.1, 0.25, 0.5)  # of the values
NUM_SHOWN, NUM_PEOPLE, LEAST_VALUES = 20, 4_000, 5
SEEDS = range(5)


def main() -> None:
    parser = argparse.ArgumentParser(description="Candidates from rows that are cut.")
    add_data_argument(parser)
    parser.add_argument("names", nargs="*", default=["kuairand", "retail"], help="data sets")
    arguments = parser.parse_args()
    lines = [line for name in arguments.names for line in _lines(load_or_exit(name, arguments.data, parser))]
    print_set_up(
        f"hits among {NUM_SHOWN} candidates; mean of {len(SEEDS)} draws of held-out values, and their range",
        "numpy",
        "scipy",
    )
    print_table(
        ["data set", "values kept", "of the facts", "trained on the cut", "trained on exact rows"], lines
    )


def _lines(task: Task) -> Iterator[list[str]]:
    rows = task.history[FEATURES[task.name]].tocsr()
    kept = np.array([list(_kept(rows, np.random.default_rng(seed))) for seed in SEEDS])
    popularity = np.asarray(rows.sum(axis=0)).ravel()
    for number, share in enumerate(SHARES):
        of_facts = popularity[_most_popular(popularity, share)].sum() / popularity.sum()
        cells = [
            f"{own.mean():.0%} ({own.min():.0%} to {own.max():.0%})" for own in kept[:, number].transpose()
        ]
        yield [task.name, f"{share:.0%}", f"{of_facts:.0%}", *cells]


def _kept(rows: sparse.csr_matrix, rng: np.random.Generator) -> Iterator[tuple[float, float]]:
    """For each cut, the share of the gain that is kept: trained on the cut, and on exact rows."""
    people = rng.permutation(np.flatnonzero(np.diff(rows.indptr) >= LEAST_VALUES))[:NUM_PEOPLE]
    places = rows.indptr[people] + rng.integers(0, np.diff(rows.indptr)[people])
    held_out = rows.indices[places]
    left = rows.copy()
    left.data[places] = 0.0
    left.eliminate_zeros()
    asked = left[people]
    popularity = np.asarray(left.sum(axis=0)).ravel()
    alike = _similarity(left)
    least = _hits(np.broadcast_to(popularity, asked.shape), asked, held_out)
    gain = _hits(asked @ alike, asked, held_out) - least
    for share in SHARES:
        is_kept = np.zeros(len(popularity), np.float32)
        is_kept[_most_popular(popularity, share)] = 1.0
        cut = sparse.diags(is_kept)
        hits = [_hits(asked @ cut @ model, asked, held_out) for model in (_similarity(left @ cut), alike)]
        yield tuple((own - least) / gain for own in hits)  # type: ignore[misc]


def _most_popular(popularity: NDArray[np.float32], share: float) -> NDArray[np.int64]:
    return np.argsort(-popularity, kind="stable")[: round(share * len(popularity))]


def _similarity(rows: sparse.csr_matrix) -> NDArray[np.float32]:
    """float32[V, V], the cosine of each two values; of a value with itself 0."""
    together = (rows.T @ rows).toarray()
    norms = np.sqrt(np.maximum(together.diagonal(), 1.0))
    np.fill_diagonal(together, 0.0)
    return together / norms[:, None] / norms[None, :]


def _hits(scores: NDArray[np.float32], asked: sparse.csr_matrix, held_out: NDArray[np.int32]) -> float:
    """The share of people whose held-out value is among the best of those that the row lacks."""
    scores = np.where(asked.toarray() > 0, -np.inf, scores)
    own = scores[np.arange(len(held_out)), held_out]
    return float(((scores > own[:, None]).sum(axis=1) < NUM_SHOWN)[own > 0].sum() / len(held_out))


if __name__ == "__main__":
    main()
