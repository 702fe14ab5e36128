"""Plans: points against what is built, the choice, the knee, and settings."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml

from feast_sketch_store.errors import PlanError
from feast_sketch_store.planning.choice import PlanTarget, choose_point, knee, made_to_measure, undecided
from feast_sketch_store.planning.curves import (
    BLOOM,
    POPULAR_SETS,
    REDIS,
    SETS,
    SQLITE,
    WEIGHTED_BLOOM,
    Candidate,
    Grid,
    bloom,
    candidates,
    other_stores,
    sets,
    threshold_of_share,
    weighted_bloom,
)
from feast_sketch_store.planning.labels import (
    Labels,
    Task,
    _draw_false,
    auc_by_entity,
    require_scikit_learn,
)
from feast_sketch_store.planning.plan import Estimate, Point
from feast_sketch_store.planning.sample import FeatureSample, Sample
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.sizing import FactClass, size_for_rates
from feast_sketch_store.succinct.golomb_sets import GolombSets, SetCode

PRESENCE = 1e-5


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
    return FeatureSample(Vocabulary(pa.array(order)), indptr, ids.astype(np.int32))


def sample_of(*features, num_entities=None):
    num_sampled = len(features[0].indptr) - 1
    hashes = np.random.default_rng(0).integers(0, 2**64, (num_sampled, 2), np.uint64)
    names = {f"f{number}": feature for number, feature in enumerate(features)}
    return Sample("history", num_entities or num_sampled, hashes, names)


@pytest.fixture(scope="module")
def facts():
    """20,000 entities, 600 values of which an entity has 12 on average."""
    return draw(zipf(600, 12), 20_000, 1)


@pytest.fixture(scope="module")
def sample(facts):
    """All of the entities."""
    return sample_of(feature_of(facts))


@pytest.fixture(scope="module")
def points(sample):
    """The points of a plan without labels."""
    found = [candidate.point for candidate in candidates(sample, PRESENCE, Grid())]
    return [*found, *other_stores(sample)]


class TestSample:
    """What a sample says of the view."""

    def test_a_cut_keeps_the_facts_of_the_values(self, facts):
        feature = feature_of(facts)
        kept = np.arange(len(feature.vocabulary)) % 3 == 0
        part = feature.cut(kept)
        assert part.vocabulary.values.equals(feature.vocabulary.values.filter(pa.array(kept)))
        for row in (0, 1, 777):
            ours = part.vocabulary.values.take(pa.array(part.ids[part.indptr[row] : part.indptr[row + 1]]))
            has = np.flatnonzero(facts[row])
            assert set(ours.to_pylist()) == set(has) & set(part.vocabulary.values.to_pylist())
        assert (part.counts == feature.counts[kept]).all()

    def test_a_sample_of_everything_is_what_it_is(self, sample):
        feature = sample.features["f0"]
        assert sample.full_counts["f0"] is feature.counts
        assert sample.num_facts == feature.num_facts

    def test_values_that_a_sample_does_not_show_are_estimated(self):
        """Chao's estimator with a tenth of the entities; without it the vocabulary would be half as large."""
        densities = np.full(2_000, 1 / 2_000)
        everything = feature_of(draw(densities, 10_000, 2))
        part = feature_of(draw(densities, 1_000, 3))
        counts = part.full_counts(1_000, 10_000)
        assert len(part.vocabulary) < 0.5 * len(everything.vocabulary)
        assert len(counts) == pytest.approx(len(everything.vocabulary), rel=0.1)
        assert counts.sum() == pytest.approx(everything.num_facts, rel=0.15)
        assert (np.diff(counts) <= 0).all()

    def test_a_value_never_has_more_facts_than_there_are_entities(self):
        feature = feature_of(np.ones((10, 3), np.bool_))
        assert feature.full_counts(10, 25).tolist() == [25, 25, 25]


class TestCurves:
    """The theory against what is built."""

    def test_bits_of_sets_are_those_of_the_other_half(self, facts):
        """A plan of one half for both, and sets of both as a seal would build them: within 3 %."""
        half = sample_of(feature_of(facts[:10_000]), num_entities=20_000)
        whole = feature_of(facts)
        lengths = np.diff(whole.indptr)
        code = SetCode.fit(whole.counts, lengths, 0)
        built = GolombSets.build([code], lengths.astype(np.int32)[:, None], whole.indptr, whole.ids)
        fingerprints = 20_000 * (math.log2(1 / PRESENCE) + 6) / 8
        expected = built.size_bytes + fingerprints + 8 * len(whole.vocabulary)
        assert sets(half, PRESENCE).point.memory_bytes == pytest.approx(expected, rel=0.03)

    def test_several_features_are_coded_together(self, facts):
        one = sets(sample_of(feature_of(facts)), PRESENCE).point
        two = sets(sample_of(feature_of(facts), feature_of(facts[:, ::2])), PRESENCE).point
        index = 20_000 * (math.log2(1 / PRESENCE) + 6) / 8
        assert one.memory_bytes < two.memory_bytes < 2 * one.memory_bytes - index

    def test_a_bloom_filter_is_sized_as_a_seal_sizes_it(self, sample):
        point = bloom(sample, PRESENCE, 0.01).point
        classes = [FactClass(sample.num_facts, 0.01), FactClass(20_000, PRESENCE)]
        vocabulary = 8 * len(sample.features["f0"].vocabulary)
        # Beside that a header, and as many shapes as there are patterns of empty features.
        assert point.memory_bytes == pytest.approx(
            size_for_rates(classes).num_bits / 8 + vocabulary, rel=0.03
        )
        absent = len(sample.features["f0"].vocabulary) - sample.num_facts / 20_000
        assert point.false_per_read == pytest.approx(0.01 * absent, rel=1e-6)
        assert point.settings == {"f0": {"sketch.structure": "bloom", "sketch.error_rate": "0.01"}}

    @pytest.mark.parametrize("ratio", [2.0, 0.1, 0.01])
    def test_a_weighted_filter_keeps_their_noise(self, sample, ratio):
        candidate = weighted_bloom(sample, PRESENCE, ratio)
        assert 0.9 * ratio < candidate.point.noise_ratio <= ratio * (1 + 1e-9)
        assert (np.diff(candidate.rates["f0"]) <= 0).all()
        absent = 1 - sample.features["f0"].counts / 20_000
        assert candidate.point.false_per_read == pytest.approx(float(absent @ candidate.rates["f0"]))

    def test_noise_of_several_features_adds_up(self, facts):
        sample = sample_of(feature_of(facts), feature_of(facts[:, :50]))
        point = bloom(sample, PRESENCE, 0.1).point
        parts = [
            bloom(sample_of(feature), PRESENCE, 0.1).point.false_per_read
            for feature in sample.features.values()
        ]
        assert point.false_per_read == pytest.approx(sum(parts), rel=1e-6)
        assert set(point.settings) == {"f0", "f1"}

    def test_more_bytes_buy_more(self, points):
        for curve in (BLOOM, WEIGHTED_BLOOM):
            noise = [point.noise_ratio for point in points if point.curve == curve]
            assert noise == sorted(noise, reverse=True)
        shares = [point.kept_share for point in points if point.curve == POPULAR_SETS]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
        for curve in {point.curve for point in points}:
            sizes = [point.memory_bytes for point in points if point.curve == curve]
            assert sizes == sorted(sizes)

    @pytest.mark.parametrize("share", [0.05, 0.5, 0.95, 1.0])
    def test_a_threshold_keeps_its_share(self, sample, share):
        feature = sample.features["f0"]
        kept = feature.counts >= threshold_of_share(sample, share) * len(sample)
        assert feature.counts[kept].sum() >= share * feature.num_facts
        least = feature.counts[kept].min()
        assert feature.counts[feature.counts > least].sum() < share * feature.num_facts

    def test_the_setting_of_a_cut_says_what_was_cut(self, sample):
        candidate = sets(sample, PRESENCE, threshold_of_share(sample, 0.3))
        tags = candidate.point.settings["f0"]
        assert tags["sketch.structure"] == "sets"
        setting = yaml.safe_load(tags["sketch.vocabulary"])
        has_share = sample.features["f0"].counts / len(sample) >= setting["min_share"]
        assert (has_share == candidate.kept["f0"]).all()

    def test_the_share_of_a_rare_value_is_a_number_to_yaml(self):
        has = np.zeros((300_000, 2), np.bool_)
        has[:, 0] = True
        has[:2, 1] = True
        tags = sets(sample_of(feature_of(has)), PRESENCE, 1e-5).point.settings["f0"]
        assert yaml.safe_load(tags["sketch.vocabulary"]) == {"min_share": 1e-5}

    @pytest.mark.parametrize("has", [np.ones((1, 1)), np.zeros((5, 0)), np.eye(2)[:, :1]])
    def test_tiny_features_have_points_as_well(self, facts, has):
        for sample in (
            sample_of(feature_of(has.astype(np.bool_))),
            sample_of(feature_of(facts[: len(has)]), feature_of(has.astype(np.bool_))),
        ):
            found = [candidate.point for candidate in candidates(sample, PRESENCE, Grid())]
            assert all(math.isfinite(point.memory_bytes) and point.memory_bytes > 0 for point in found)
            assert all(math.isfinite(point.noise_ratio) for point in found)
            assert choose_point(found, PlanTarget()) < len(found) > knee(found)

    def test_other_stores_take_what_was_measured_of_rows_like_those(self):
        """20 of 10,000 integers per row: 16.5 and 12.7 bytes per fact."""
        chance = np.random.default_rng(3)
        ids = np.concatenate([np.sort(chance.choice(10_000, 20, replace=False)) for _ in range(500)])
        indptr = np.arange(501) * 20
        feature = FeatureSample(Vocabulary(pa.array(np.arange(10_000))), indptr, ids.astype(np.int32))
        found = {point.curve: point for point in other_stores(sample_of(feature, num_entities=5_000))}
        assert found[REDIS].bits_per_fact / 8 == pytest.approx(16.5, rel=0.01)
        assert found[SQLITE].bits_per_fact / 8 == pytest.approx(12.7, rel=0.01)
        assert found[REDIS].memory_bytes == pytest.approx(16.5 * 20 * 5_000, rel=0.01)
        assert not any(point.settings or point.table_bits_per_fact for point in found.values())

    @pytest.mark.parametrize(("per_row", "low", "high"), [(7, 35, 60), (200, 8, 16)])
    def test_other_stores_depend_on_the_rows(self, per_row, low, high):
        """Short rows of strings take tens of bytes per fact, long ones little more than the strings."""
        names = pa.array([f"tag {n:04d}".encode() for n in range(1_000)], pa.large_binary())
        chance = np.random.default_rng(3)
        rows = [np.sort(chance.choice(1_000, per_row, replace=False)) for _ in range(100)]
        indptr = np.arange(101) * per_row
        feature = FeatureSample(Vocabulary(names), indptr, np.concatenate(rows).astype(np.int32))
        for point in other_stores(sample_of(feature)):
            assert low < point.bits_per_fact / 8 < high

    def test_bits_per_fact_are_of_all_and_of_tables_alone(self, points):
        for point in points:
            if point.settings:
                assert 0 < point.table_bits_per_fact < point.bits_per_fact

    @pytest.mark.parametrize(
        ("best", "decides"),
        [
            (Estimate(0.7343, 0.7320, 0.7366), False),  # worse than without the features
            (Estimate(0.7350, 0.7327, 0.7373), False),
            (Estimate(0.7344, 0.7344, 0.7344), False),
            (Estimate(0.7400, 0.7377, 0.7423), True),
        ],
    )
    def test_an_auc_inside_its_interval_decides_nothing(self, best, decides):
        found = [point(auc=0.5), replace(point(), auc=best)]
        reason = undecided(found, Estimate(0.7344, 0.7321, 0.7367))
        assert (reason == "") == decides
        if not decides:
            assert f"{best.value - 0.7344:+.4f}" in reason
            assert "Try more labels" in reason

    def test_strings_count_with_their_bytes(self, facts):
        feature = feature_of(facts)
        names = pc.cast(pc.cast(feature.vocabulary.values, pa.string()), pa.large_binary())
        text = FeatureSample(Vocabulary(names), feature.indptr, feature.ids)
        ours = sample_of(text)
        every_second = {"f0": np.arange(len(names)) % 2 == 0}
        letters = sum(map(len, names.to_pylist()[::2]))
        expected = letters + 8 * every_second["f0"].sum()
        assert ours.vocabulary_bytes(every_second) == pytest.approx(expected, abs=8)


def point(curve=BLOOM, memory=1.0, noise=0.0, kept=1.0, auc=None, settings=True):
    estimate = None if auc is None else Estimate(auc, auc - 0.01, auc + 0.01)
    tags = {"f0": {"sketch.structure": "sets"}} if settings else {}
    return Point(curve, str(memory), memory, 1.0, noise * 10, noise, kept, estimate, tags)


class TestChoice:
    """Which point a target takes."""

    def test_without_a_target_it_is_that_of_error_rate_auto(self):
        found = [point(memory=1, noise=0.2), point(memory=2, noise=0.1), point(memory=3)]
        assert choose_point([point(memory=0.5, kept=0.9), *found], PlanTarget()) == 2

    def test_what_is_not_the_whole_vocabulary_has_no_low_noise(self):
        found = [point(memory=1, kept=0.5), point(memory=2)]
        assert choose_point(found, PlanTarget(noise_ratio=0.1)) == 1
        assert choose_point(found, PlanTarget(false_per_read=0.1)) == 1

    def test_false_per_read(self):
        found = [point(memory=1, noise=0.2), point(memory=2, noise=0.1), point(memory=3)]
        assert choose_point(found, PlanTarget(false_per_read=1.5)) == 1

    def test_memory_takes_the_least_noise_and_then_the_most_facts(self):
        found = [point(memory=1, noise=0.1), point(memory=1, kept=0.4), point(memory=2, kept=0.5)]
        assert choose_point([*found, point(memory=3)], PlanTarget(memory_bytes=2.5)) == 2

    def test_memory_takes_the_best_auc_of_what_fits(self):
        found = [
            point(memory=1, auc=0.7),
            point(memory=2, auc=0.71),
            point(memory=2),
            point(memory=9, auc=0.8),
        ]
        assert choose_point(found, PlanTarget(memory_bytes=2.5, auc=True)) == 1

    def test_too_little_memory_is_refused(self):
        with pytest.raises(PlanError, match=r"nothing fits in 10 bytes.*takes 1,000"):
            choose_point([point(memory=1000)], PlanTarget(memory_bytes=10))

    def test_auc_takes_the_smallest_that_is_nearly_the_best(self):
        found = [point(memory=1, auc=0.7), point(memory=2, auc=0.7392), point(memory=3, auc=0.74)]
        assert choose_point([point(memory=0.1), *found], PlanTarget(auc=True)) == 2

    def test_other_stores_are_not_taken(self):
        found = [point(curve=REDIS, memory=0.5, settings=False), point(memory=1)]
        assert choose_point(found, PlanTarget()) == 1
        assert knee(found) == 1

    def test_two_targets_are_refused(self):
        with pytest.raises(PlanError, match="not for several"):
            PlanTarget(noise_ratio=0.1, memory_bytes=5)

    @pytest.mark.parametrize("number", [0.0, -1.0, math.nan, math.inf])
    def test_a_target_is_more_than_0(self, number):
        with pytest.raises(PlanError, match="more than 0"):
            PlanTarget(noise_ratio=number)

    def test_a_target_is_met_by_a_point_made_for_it(self, sample):
        (made,) = made_to_measure(sample, PRESENCE, PlanTarget(noise_ratio=0.37))
        assert made.point.noise_ratio == pytest.approx(0.37, rel=0.02)
        (made,) = made_to_measure(sample, PRESENCE, PlanTarget(false_per_read=3))
        assert 2.9 < made.point.false_per_read <= 3
        assert not made_to_measure(sample, PRESENCE, PlanTarget())

    def test_memory_is_used(self, sample):
        budget = 0.6 * sets(sample, PRESENCE).point.memory_bytes
        made = made_to_measure(sample, PRESENCE, PlanTarget(memory_bytes=budget))
        assert {candidate.point.curve for candidate in made} == {POPULAR_SETS, WEIGHTED_BLOOM}
        for candidate in made:
            assert 0.95 * budget < candidate.point.memory_bytes <= budget

    def test_the_knee_is_where_a_corner_is(self):
        found = [point(memory=2.0**n, auc=0.7 + 0.01 * min(n, 4) + 1e-4 * n) for n in range(9)]
        assert knee(found) == 4

    def test_without_labels_noise_and_lost_facts_both_count(self, points):
        assert 0.5 < points[knee(points)].kept_share <= 1
        assert points[knee(points)].noise_ratio < 1

    def test_the_knee_of_one_point_is_that_point(self):
        assert knee([point()]) == 0
        assert knee([point(curve=SETS), point(memory=2)]) == 0


@pytest.fixture(scope="module")
def people():
    return sample_of(feature_of(draw(zipf(300, 8), 3_000, 4)))


@pytest.fixture(scope="module")
def make_labels(people):
    pytest.importorskip("sklearn")

    def make(**columns):
        feature = people.features["f0"]
        deciding = np.isin(feature.ids, [20, 21, 22])
        has = np.add.reduceat(np.append(deciding, False), feature.indptr[:-1]) > 0
        has &= np.diff(feature.indptr) > 0
        chance = np.random.default_rng(5)
        label = chance.random(len(people)) < np.where(has, 0.9, 0.2)
        table = pa.table({"user_id": np.arange(len(people)), "label": label.astype(np.int64), **columns})
        return Labels.read(table, people.entity_hashes, ["user_id"])

    return make


@pytest.fixture(scope="module")
def task(people, make_labels):
    chance = np.random.default_rng(6)
    context = {"place": chance.choice(["a", "b"], 3_000), "hour": chance.integers(0, 24, 3_000)}
    return Task(make_labels(**context, age=chance.random(3_000)), people, people)


class TestLabels:
    """Models of labels, on independent data of which one value decides."""

    def test_the_features_tell_and_the_context_does_not(self, people, task):
        without, exact = task.auc_without(), task.auc(people.everything, {"f0": np.zeros(300)})
        assert without.low < 0.5 < without.high
        assert exact.low > without.high
        assert exact.low < exact.value < exact.high

    def test_the_values_that_decide_come_first(self, people, task):
        cuts = [task.most_worth(share) for share in (0.05, 0.1, 0.2, 0.5)]
        assert all(mask["f0"][[20, 21, 22]].all() for mask in cuts[1:])
        sizes = [mask["f0"].sum() for mask in cuts]
        assert sizes == sorted(sizes)
        chosen = task.auc(cuts[1], {"f0": np.zeros(sizes[1])})
        popular = {"f0": np.arange(300) < 20}
        assert chosen.value > task.auc(popular, {"f0": np.zeros(20)}).value + 0.1

    def test_noise_costs(self, people, task):
        exact = task.auc(people.everything, {"f0": np.zeros(300)})
        noisy = task.auc(people.everything, {"f0": np.full(300, 0.3)})
        assert noisy.value < exact.value - 0.03

    def test_the_same_comes_out_again(self, people, task, make_labels):
        rates = {"f0": np.full(300, 0.1)}
        again = Task(make_labels(), people, people), Task(make_labels(), people, people)
        assert again[0].auc(people.everything, rates) == again[1].auc(people.everything, rates)

    def test_too_much_noise_is_not_measured(self, people, task, monkeypatch):
        monkeypatch.setattr("feast_sketch_store.planning.labels.MAX_FALSE_VALUES", 1000)
        assert task.auc(people.everything, {"f0": np.full(300, 0.11)}) is None

    def test_entities_without_a_row_show_nothing(self, people, make_labels):
        labels = make_labels()
        feature = people.features["f0"]
        few = FeatureSample(feature.vocabulary, feature.indptr[:1001], feature.ids[: feature.indptr[1000]])
        labelled = Sample("history", 1000, people.entity_hashes[:1000], {"f0": few})
        task = Task(labels, people, labelled)
        assert task.share_without_row == pytest.approx(2 / 3, abs=1e-3)
        history = task._history([(people.everything["f0"], np.full(300, 0.2))])
        shown = np.asarray(history.sum(axis=1)).ravel()
        assert (shown > 0).sum() == pytest.approx(1000, abs=5)

    def test_a_split_is_taken(self, people, make_labels):
        split = np.where(np.arange(3_000) < 100, "train", "test")
        assert make_labels(split=split).is_training.sum() == 100

    def test_unknown_values_of_the_context_are_a_value(self, make_labels):
        labels = make_labels(place=pa.array(["a", None, "b"] * 1000), age=pa.array([1.0, None, 3.0] * 1000))
        assert labels.context.shape == (3_000, 4)
        assert np.isfinite(labels.context.data).all()

    @pytest.mark.parametrize(
        ("columns", "text"),
        [
            ({"label": [2, 0, 1]}, "other values than 0 and 1"),
            ({"label": [None, 0, 1]}, "other values than 0 and 1"),
            ({"label": ["x", "0", "1"]}, "is no number"),
            ({"label": [1, 1, 1]}, "both classes"),
            ({"label": [1, 0, 1], "split": ["train", "train", "dev"]}, "'train' and 'test'"),
            ({"label": [1, 0, 1], "split": ["train", "train", "test"]}, "both classes.*measure"),
            ({"clicked": [1, 0, 1]}, "no column 'label'"),
            (
                {"label": [1, 0, 1, 0], "split": ["train", "train", "test", "test"], "x": [[1]] * 4},
                "'x'.*list",
            ),
        ],
    )
    def test_labels_that_do_not_fit_are_refused(self, columns, text):
        pytest.importorskip("sklearn")
        table = pa.table(columns)
        hashes = np.zeros((len(table), 2), np.uint64)
        with pytest.raises(PlanError, match=text):
            Labels.read(table, hashes, [])

    def test_a_missing_scikit_learn_is_named(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
        with pytest.raises(PlanError, match=r"pip install 'feast_sketch_store\[plan\]'"):
            require_scikit_learn()

    def test_the_area_is_that_of_scikit_learn(self):
        metrics = pytest.importorskip("sklearn.metrics")
        chance = np.random.default_rng(8)
        scores = chance.integers(0, 50, 2_000) / 10  # with many ties
        outcomes = chance.random(2_000) < scores / 6
        estimate = auc_by_entity(scores, outcomes, np.arange(2_000) // 2)
        assert estimate.value == pytest.approx(metrics.roc_auc_score(outcomes, scores), abs=1e-12)
        # A standard error of an area of 0.85 with 1,000 of each class is about 0.009.
        assert 0.02 < estimate.high - estimate.low < 0.05

    def test_false_values_come_at_their_rates(self):
        """Intervals: five standard deviations of binomials."""
        rates = np.array([0.0, 0.5, 0.5, 0.01, 0.01, 0.01])
        entities, values = _draw_false(np.random.default_rng(9), rates, 10_000)
        drawn = np.bincount(values, minlength=6)
        assert (abs(drawn - 10_000 * rates) <= 5 * np.sqrt(10_000 * rates * (1 - rates)) + 1e-9).all()
        assert len(np.unique(entities * 6 + values)) == len(entities)
        assert entities.max() < 10_000


def test_a_candidate_names_what_it_keeps(sample):
    candidate = sets(sample, PRESENCE, threshold_of_share(sample, 0.2))
    assert isinstance(candidate, Candidate)
    assert candidate.point.kept_share == pytest.approx(0.2, abs=0.05)
    assert f"{candidate.kept['f0'].sum()} values" in candidate.point.label
