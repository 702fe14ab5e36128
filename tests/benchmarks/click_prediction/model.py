"""The model: logistic regression on an example's context and its person's history; and its AUC."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit
from tasks import History, Task

# Of a one in a history, of which there are many more than in the context.
HISTORY_SCALE = np.float32(0.2)
# Of a mean cosine similarity, which is small beside the ones of the context.
SIMILARITY_SCALE = np.float32(10)
INVERSE_PENALTY = 0.1  # scikit-learn's C
MAX_ITERATIONS = 200


class ClickModel:
    """Fitted on a task's training examples, with one history or none.

    The same as scikit-learn's ``LogisticRegression(C=0.1, max_iter=200)`` on the context and, scaled, the
    multi-hot histories. Many examples share a person, so each history is multiplied once per person and not
    once per example: a noisy one has thousands of ones.
    """

    def __init__(self, task: Task, history: History | None):
        self.task = task
        self.similarity = None
        if history is not None and task.candidates is not None:
            self.similarity = _cosine_similarity(task, history)
        self._fit(history)

    def decide(self, history: History | None) -> NDArray[np.float64]:
        """The log odds of the test examples."""
        is_test = ~self.task.is_train
        decided = self.task.context[is_test] @ self.context_weights + self.intercept
        if history is not None:
            decided += self._of_people(history)[self.task.person[is_test]]
            if self.similarity is not None:
                decided += self._interactions(history)[is_test] @ self.interaction_weights
        return np.asarray(decided, np.float64)

    def reference(self, history: History) -> NDArray[np.float64]:
        """The same by scikit-learn, which is given a row for each example."""
        from sklearn.linear_model import LogisticRegression  # not at the head: writers import this, too

        task = self.task
        own = [matrix[task.person] * HISTORY_SCALE for matrix in history.values()]
        interactions = [] if self.similarity is None else [self._interactions(history)]
        examples = sparse.hstack([task.context, *interactions, *own], "csr")
        model = LogisticRegression(C=INVERSE_PENALTY, max_iter=MAX_ITERATIONS)
        model.fit(examples[task.is_train], task.labels[task.is_train])
        return np.asarray(model.decision_function(examples[~task.is_train]), np.float64)

    def importance(self) -> dict[str, NDArray[np.float64]]:
        """How much each value of a history moves decisions: the mean square of what it adds to one."""
        task = self.task
        squares = {name: np.square(weights) for name, weights in self.history_weights.items()}
        if self.similarity is not None and task.candidates is not None:
            (matrix,), ((name, weights),) = task.history.values(), self.history_weights.items()
            mean_size = matrix.nnz / matrix.shape[0]
            share = np.bincount(task.candidates[task.is_train], minlength=len(weights)) / task.is_train.sum()
            own, similar = self.interaction_weights
            moved = weights[:, None] + self.similarity * (similar * SIMILARITY_SCALE / mean_size)
            moved[np.diag_indices_from(moved)] += own
            squares[name] = np.square(moved) @ share
        return squares

    def _fit(self, history: History | None) -> None:
        task = self.task
        parts: list[sparse.csr_matrix] = list(history.values()) if history is not None else []
        person, context = task.person[task.is_train], task.context[task.is_train]
        if self.similarity is not None and history is not None:
            context = sparse.hstack([context, self._interactions(history)[task.is_train]], "csr")
        sides = np.where(task.labels[task.is_train], 1.0, -1.0)
        count, num_people = len(sides), len(task.people)
        ends = np.cumsum([1, context.shape[1], *(part.shape[1] for part in parts)])
        transposed = context.T.tocsr()

        def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            first, *others = np.split(weights[1:], ends[1:-1] - 1)
            margin = context @ first + weights[0]
            of_people = np.zeros(num_people, np.float32)
            for part, own in zip(parts, others, strict=True):
                of_people += part @ (own.astype(np.float32) * HISTORY_SCALE)
            margin = sides * (margin + of_people[person])
            slopes = -sides * expit(-margin) / count
            by_person = np.bincount(person, slopes, num_people).astype(np.float32)
            gradient = [[slopes.sum()], transposed @ slopes]
            gradient += [HISTORY_SCALE * (by_person @ part) for part in parts]
            penalized = weights[1:]
            penalty = penalized @ penalized / (2 * INVERSE_PENALTY * count)
            slope = np.concatenate(gradient)
            slope[1:] += penalized / (INVERSE_PENALTY * count)
            return np.logaddexp(0, -margin).mean() + penalty, slope

        # The tolerances are scikit-learn's.
        options = {"maxiter": MAX_ITERATIONS, "gtol": 1e-4, "ftol": 64 * np.finfo(float).eps, "maxls": 50}
        weights = minimize(loss, np.zeros(ends[-1]), jac=True, method="L-BFGS-B", options=options).x
        self.intercept = float(weights[0])
        first, *others = np.split(weights[1:], ends[1:-1] - 1)
        num_context = task.context.shape[1]
        self.context_weights, self.interaction_weights = first[:num_context], first[num_context:]
        scaled = [own * HISTORY_SCALE for own in others]
        self.history_weights = dict(zip(history or (), scaled, strict=True))

    def _of_people(self, history: History) -> NDArray[np.float32]:
        sums = np.zeros(len(self.task.people), np.float32)
        for name, weights in self.history_weights.items():
            sums += history[name] @ weights.astype(np.float32)
        return sums

    def _interactions(self, history: History) -> NDArray[np.float32]:
        """Of each example: whether the candidate is in the history, and its mean similarity to it."""
        person, candidates = self.task.person, self.task.candidates
        (matrix,) = history.values()
        contents = matrix.toarray()
        sizes = np.maximum(contents.sum(axis=1), 1)
        mean = (contents @ self.similarity)[person, candidates] / sizes[person]
        return np.stack([contents[person, candidates], mean * SIMILARITY_SCALE], axis=1)


def _cosine_similarity(task: Task, history: History) -> NDArray[np.float32]:
    """Of products, by who bought them, as the history says of all customers that are not tested on."""
    (matrix,) = history.values()
    is_tested = np.zeros(len(task.people), np.bool_)
    is_tested[task.person[~task.is_train]] = True
    contents = matrix[~is_tested].toarray()
    together = contents.T @ contents
    norms = np.sqrt(np.maximum(np.diag(together), 1))
    np.fill_diagonal(together, 0)
    similarity: NDArray[np.float32] = together / norms / norms[:, None]
    return similarity


class Bootstrap:
    """AUCs of the test examples as they are and of resampled people, the same ones for all scores.

    An interval of a difference is that of the differences: what one model owes to its people, the other does.
    """

    def __init__(self, task: Task, num_resamples: int, seed: int = 11):
        self._labels = task.labels[~task.is_train]
        _, person = np.unique(task.person[~task.is_train], return_inverse=True)
        random, count = np.random.default_rng(seed), person.max() + 1
        self._person = person
        self._times = [np.ones(count)] + [
            np.bincount(random.integers(0, count, count), minlength=count) for _ in range(num_resamples)
        ]

    def aucs(self, decided: NDArray[np.float64]) -> NDArray[np.float64]:
        """The AUC, and behind it those of the resamples."""
        order = np.argsort(decided)
        ascending, labels, person = decided[order], self._labels[order], self._person[order]
        starts = np.flatnonzero(np.append(True, np.diff(ascending) > 0))  # equal scores count half
        aucs = []
        for times in self._times:
            weights = times[person].astype(np.float64)
            positives = np.add.reduceat(weights * labels, starts)
            negatives = np.add.reduceat(weights * ~labels, starts)
            below = np.cumsum(negatives) - negatives / 2
            aucs.append(positives @ below / (positives.sum() * negatives.sum()))
        return np.array(aucs)


def interval(samples: Any) -> list[float]:
    """The middle 95 % of what stands behind the first."""
    low, high = np.quantile(samples[1:], [0.025, 0.975])
    return [float(low), float(high)]
