"""Labels of a plan: the models that measure what features are worth for them."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

from feast_sketch_store.errors import PlanError
from feast_sketch_store.planning.labels import Labels, candidate_ids, require_scipy
from feast_sketch_store.planning.logistic import Columns, Weights, fit
from feast_sketch_store.planning.models import Area, Task, _draw_false
from feast_sketch_store.planning.sample import FeatureSample, Sample
from feast_sketch_store.rows.codecs import FeatureCodec
from tests.helpers.samples import PRESENCE, draw, feature_of, sample_of, zipf

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def people():
    return sample_of(feature_of(draw(zipf(300, 8), 3_000, 4)))


@pytest.fixture(scope="module")
def make_labels(people):

    def make(**columns):
        feature = people.features["f0"]
        deciding = np.isin(feature.rows.ids, [20, 21, 22])
        has = np.add.reduceat(np.append(deciding, False), feature.rows.indptr[:-1]) > 0
        has &= feature.rows.lengths > 0
        rng = np.random.default_rng(5)
        label = rng.random(len(people)) < np.where(has, 0.9, 0.2)
        table = pa.table({"user_id": np.arange(len(people)), "label": label.astype(np.int64), **columns})
        return Labels.read(table, people.entity_hashes, ["user_id"])

    return make


@pytest.fixture(scope="module")
def task(people, make_labels):
    rng = np.random.default_rng(6)
    context = {"place": rng.choice(["a", "b"], 3_000), "hour": rng.integers(0, 24, 3_000)}
    return Task(make_labels(**context, age=rng.random(3_000)), people, people)


@pytest.fixture(scope="module")
def tastes():
    """People who like one half of 60 values, candidates, and labels: whether they like the candidate's half.

    Neither the history alone nor the candidate alone tells the label.
    """
    rng = np.random.default_rng(12)
    likes = rng.random(2_000) < 0.5
    half = np.arange(60) % 2 == 0
    has = rng.random((2_000, 60)) < np.where(likes[:, None] == half, 0.3, 0.03)
    candidates = rng.integers(0, 60, 2_000)
    fits = half[candidates] == likes
    has[np.arange(2_000), candidates] = False  # the history is of the time before
    people = sample_of(feature_of(has))
    table = pa.table(
        {"label": (rng.random(2_000) < np.where(fits, 0.8, 0.2)).astype(np.int64), "candidate": candidates}
    )
    return people, Labels.read(table, people.entity_hashes, [])


def gain_of(task):
    """What the features add to the area without them."""
    return (task.exact - task.without).estimate


def auc_of(task, kept, rate=0.0):
    """The area with the kept values of which an entity shows those it lacks at a rate."""
    return task.area(kept, {"f0": np.full(kept["f0"].sum(), rate)}).auc


class TestInteractions:
    """Histories and candidates that tell something together only."""

    CODEC = FeatureCodec("f0", "int64_list_val")

    def test_an_additive_model_gains_nothing(self, tastes):
        people, labels = tastes
        gain = gain_of(Task(labels, people, people))
        assert gain.low < 0 < gain.high + 0.02
        assert abs(gain.value) < 0.03

    def test_a_model_that_sees_the_candidate_does(self, tastes):
        people, labels = tastes
        task = Task(labels, people, people, candidate_ids(labels, people, [self.CODEC]))
        gain, exact = gain_of(task), auc_of(task, people.everything)
        assert gain.low > 0.2
        assert gain.value == pytest.approx(exact.value - task.without.auc.value)
        assert auc_of(task, people.everything, 0.5).value < exact.value - 0.02

    def test_values_that_tell_tastes_are_worth_more_than_noise(self):
        """Values of which half tell a taste, and half nothing: the former come first."""
        rng = np.random.default_rng(13)
        likes = rng.random(4_000) < 0.5
        tells = np.arange(40) < 20
        half = np.arange(40) % 2 == 0
        density = np.where(tells, np.where(likes[:, None] == half, 0.4, 0.04), 0.22)
        has = rng.random((4_000, 40)) < density
        people = sample_of(feature_of(has))
        candidates = rng.integers(0, 20, 4_000)
        label = rng.random(4_000) < np.where(half[candidates] == likes, 0.9, 0.1)
        table = pa.table({"label": label.astype(np.int64), "candidate": candidates})
        labels = Labels.read(table, people.entity_hashes, [])
        task = Task(labels, people, people, candidate_ids(labels, people, [self.CODEC]))
        kept = people.features["f0"].vocabulary.values.filter(pa.array(task.most_worth(0.4)["f0"]))
        assert len(kept) > 10
        assert np.mean(np.array(kept.to_pylist()) < 20) > 0.85

    def test_candidates_are_found_in_the_vocabulary(self, tastes):
        people, labels = tastes
        ids = candidate_ids(labels, people, [self.CODEC])["f0"]
        values = people.features["f0"].vocabulary.values.to_numpy()
        assert (values[ids] == labels.candidates.to_numpy()).all()
        some = replace(labels, candidates=pa.array([None, 10**6, 3] + [4] * 1_997))
        assert candidate_ids(some, people, [self.CODEC])["f0"][:2].tolist() == [-1, -1]

    def test_candidates_that_nobody_has_are_refused(self, tastes):
        people, labels = tastes
        for unknown in (pa.array([10**6] * 2_000), pa.array(["x"] * 2_000)):
            with pytest.raises(PlanError, match="no value of any of the features f0"):
                candidate_ids(replace(labels, candidates=unknown), people, [self.CODEC])


class TestLabels:
    """Models of labels, on independent data of which one value decides."""

    def test_the_features_tell_and_the_context_does_not(self, people, task):
        without, exact = task.without.auc, auc_of(task, people.everything)
        assert without.low < 0.5 < without.high
        assert exact.low > without.high
        assert exact.low < exact.value < exact.high
        assert auc_of(task, people.everything, 0.3).value < exact.value - 0.03, "noise costs"

    def test_the_values_that_decide_come_first(self, people, task):
        cuts = [task.most_worth(share) for share in (0.05, 0.1, 0.2, 0.5)]
        assert all(mask["f0"][[20, 21, 22]].all() for mask in cuts[1:])
        sizes = [mask["f0"].sum() for mask in cuts]
        assert sizes == sorted(sizes)
        popular = {"f0": np.arange(300) < 20}
        assert auc_of(task, cuts[1]).value > auc_of(task, popular).value + 0.1

    def test_the_same_comes_out_again(self, people, make_labels):
        first, again = (Task(make_labels(), people, people) for _ in range(2))
        assert auc_of(first, people.everything, 0.1) == auc_of(again, people.everything, 0.1)

    def test_too_much_noise_is_not_measured(self, people, task, monkeypatch):
        monkeypatch.setattr("feast_sketch_store.planning.models.MAX_FALSE_VALUES", 1000)
        assert task.area(people.everything, {"f0": np.full(300, 0.11)}) is None

    def test_entities_without_a_row_show_nothing(self, people, make_labels):
        labels = make_labels()
        feature = people.features["f0"]
        few = FeatureSample(feature.vocabulary, feature.rows.take(np.arange(1000)))
        labelled = Sample(1000, PRESENCE, people.entity_hashes[:1000], {"f0": few})
        task = Task(labels, people, labelled)
        assert task.share_without_row == pytest.approx(2 / 3, abs=1e-3)
        history = task._history(people.everything, {"f0": np.full(300, 0.2)})
        shown = np.asarray(history.history.sum(axis=1)).ravel()
        assert (shown > 0).sum() == pytest.approx(1000, abs=5)

    def test_a_split_is_taken(self, people, make_labels):
        split = np.where(np.arange(3_000) < 100, "train", "test")
        assert make_labels(split=split).is_training.sum() == 100

    def test_of_many_labels_those_of_some_entities_are_taken(self, people, monkeypatch):
        monkeypatch.setattr("feast_sketch_store.planning.labels.MAX_ROWS", 1_000)
        rng = np.random.default_rng(14)
        users = rng.integers(0, 900, 3_000)
        table = pa.table({"user_id": users, "label": rng.integers(0, 2, 3_000)})
        labels = Labels.read(table, people.entity_hashes[users], ["user_id"])
        assert labels.num_given == 3_000
        assert 980 < len(labels.outcomes) <= 1_000
        taken = {tuple(pair) for pair in labels.entity_hashes.tolist()}
        of_all = [tuple(pair) for pair in people.entity_hashes[users].tolist()]
        assert sum(pair in taken for pair in of_all) == len(labels.outcomes)
        assert max(taken) < min(set(of_all) - taken)

    def test_unknown_values_of_the_context_are_a_value(self, make_labels):
        labels = make_labels(place=pa.array(["a", None, "b"] * 1000), age=pa.array([1.0, None, 3.0] * 1000))
        assert labels.context.shape == (3_000, 4)
        assert np.isfinite(labels.context.data).all()

    @pytest.mark.parametrize(
        ("columns", "text"),
        [
            ({"label": [2, 0, 1]}, "other values than 0 and 1"),
            ({"label": [None, 0, 1]}, "other values than 0 and 1"),
            ({"label": ["x", "0", "1"]}, "is not a number"),
            ({"label": [1, 1, 1]}, "both classes"),
            ({"label": [1, 0, 1], "split": ["train", "train", "dev"]}, "'train' and 'test'"),
            ({"label": [1, 0, 1], "split": ["train", "train", "test"]}, "both classes.*measure"),
            ({"clicked": [1, 0, 1]}, "no column 'label'"),
            (
                {"label": [1, 0, 1, 0], "split": ["train", "train", "test", "test"], "x": [[1]] * 4},
                "'x'.*list",
            ),
            *(
                (
                    {"label": [1, 0, 1, 0], "split": ["train", "train", "test", "test"], "x": x},
                    "'x'.*too large",
                )
                for x in ([1e308] * 4, [1e200, -1e200, 0.0, 1.0], [0.0, 1.0, 1e308, 0.0])
            ),
        ],
    )
    def test_labels_that_do_not_fit_are_refused(self, columns, text):
        table = pa.table(columns)
        hashes = np.zeros((len(table), 2), np.uint64)
        with pytest.raises(PlanError, match=text):
            Labels.read(table, hashes, [])

    def test_a_missing_scipy_is_named(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "scipy", None)
        with pytest.raises(PlanError, match="`pip install scipy`"):
            require_scipy()

    def test_the_area_is_that_of_scikit_learn(self):
        from sklearn import metrics

        rng = np.random.default_rng(8)
        scores = rng.integers(0, 50, 2_000) / 10  # with many ties
        outcomes = rng.random(2_000) < scores / 6
        estimate = Area.of(scores, outcomes, np.arange(2_000) // 2).estimate
        assert estimate.value == pytest.approx(metrics.roc_auc_score(outcomes, scores), abs=1e-12)
        # A standard error of an area of 0.85 with 1,000 of each class is about 0.009.
        assert 0.02 < estimate.high - estimate.low < 0.05

    def test_intervals_of_areas_are_those_of_resamples(self):
        """Of an area, a difference and a ratio, where entities differ in size and in score."""
        rng = np.random.default_rng(11)
        entities = np.repeat(np.arange(600), rng.integers(1, 6, 600))
        taste = rng.normal(size=600)[entities]
        outcomes = rng.random(len(entities)) < 1 / (1 + np.exp(-taste))
        sides = [taste + rng.normal(0, deviation, len(entities)) for deviation in (9.0, 0.5, 1.0)]

        def of(rows):
            without, exact, kept = (Area.of(own[rows], outcomes[rows], entities[rows]) for own in sides)
            return exact, exact - without, (kept - without) / (exact - without)

        drawn = []
        for _ in range(300):
            weights = np.bincount(rng.integers(0, 600, 600), minlength=600)
            drawn.append([area.value for area in of(np.repeat(np.arange(len(entities)), weights[entities]))])
        for area, deviation in zip(of(slice(None)), np.std(drawn, axis=0), strict=True):
            half = (area.estimate.high - area.estimate.low) / 2
            # Of 300 draws, a deviation is known to within an eighth.
            assert half == pytest.approx(1.96 * deviation, rel=0.15)

    def test_a_fit_is_that_of_scikit_learn(self):
        models = pytest.importorskip("sklearn.linear_model")
        rng = np.random.default_rng(10)
        entities, outcomes = rng.integers(0, 150, 2_000), rng.random(2_000) < 0.4
        history = sparse.csr_matrix(rng.random((150, 30)) < 0.05 + 0.3 * (np.arange(30) < 3)).astype(
            np.float32
        )
        context = sparse.csr_matrix(np.eye(6, dtype=np.float32)[rng.integers(0, 6, 2_000)])
        interactions = rng.normal(size=(2_000, 2)).astype(np.float32)
        columns = Columns(context, history, entities, interactions)
        expanded = sparse.hstack([context, 0.2 * history[entities], sparse.csr_matrix(interactions)]).tocsr()
        model = models.LogisticRegression(C=0.1, max_iter=5_000, tol=1e-9).fit(expanded, outcomes)
        for start in (None, Weights(np.ones(6), np.ones(30), np.ones(2), 1.0)):
            fitted = fit(columns, outcomes, 0.1, 0.2, start)
            own = np.concatenate([fitted.context, fitted.history / 0.2, fitted.interactions])
            assert own == pytest.approx(model.coef_[0], abs=0.01)
            assert fitted.constant == pytest.approx(model.intercept_[0], abs=0.01)

    def test_false_values_come_at_their_rates(self):
        """Intervals: five standard deviations of binomials."""
        rates = np.array([0.0, 0.5, 0.5, 0.01, 0.01, 0.01])
        entities, values = _draw_false(np.random.default_rng(9), rates, 10_000)
        drawn = np.bincount(np.unique(entities * 6 + values) % 6, minlength=6)
        assert (abs(drawn - 10_000 * rates) <= 5 * np.sqrt(10_000 * rates * (1 - rates)) + 1e-9).all()
        assert entities.max() < 10_000
