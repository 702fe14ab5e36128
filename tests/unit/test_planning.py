"""Plans: points against what is built, the choice, the knee, and settings."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from feast.protos.feast.types.Value_pb2 import Value

from feast_sketch_store.errors import PlanError
from feast_sketch_store.layers import Goal
from feast_sketch_store.layers.presence import bucket_timestamps
from feast_sketch_store.planning.choice import PlanTarget, choose_point, knee, made_to_measure, undecided
from feast_sketch_store.planning.curves import (
    BLOOM,
    POPULAR_SETS,
    SETS,
    WEIGHTED_BLOOM,
    Grid,
    bloom,
    candidates,
    least_count,
    points_of_other_stores,
    sets,
    weighted_bloom,
)
from feast_sketch_store.planning.other_stores import REDIS, SQLITE, StoredRows, value_sizes
from feast_sketch_store.planning.plan import Estimate, Point
from feast_sketch_store.planning.sample import FeatureSample, total_of
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary, VocabularyBuilder
from feast_sketch_store.structures.costs import index_bytes
from feast_sketch_store.structures.goals import AUTO, ERROR_RATE, NOISE_RATIO
from feast_sketch_store.structures.sizing import FactClass, size_for_rates
from feast_sketch_store.succinct.golomb_sets import GolombSets, SetCode
from tests.helpers.length import by_length
from tests.helpers.samples import PRESENCE, draw, feature_of, sample_of, sealed_as_sets, without_header, zipf

pytestmark = pytest.mark.slow


def features_of_shape(shape, num_entities):
    """Features of a view: who has which values, bool[n, V], and the values' names."""
    rng = np.random.default_rng(5)
    numbers = pa.array(np.arange(1_000))
    if shape == "equal":
        return [(np.ones((num_entities, 5), np.bool_), numbers)]
    if shape == "nested":  # what was liked was seen, and what was bought was liked
        seen = draw(zipf(1_000, 60), num_entities, 1)
        liked = seen & (rng.random(seen.shape) < 0.2)
        return [(has, numbers) for has in (seen, liked, liked & (rng.random(seen.shape) < 0.3))]
    if shape == "short":
        return [(draw(zipf(1_000, 1.5), num_entities, 1), numbers)]
    if shape == "spread":
        return [(draw(zipf(1_000, 8), num_entities, 1), pa.array(rng.integers(0, 2**40, 1_000)))]
    if shape == "strings":
        names = pa.array([f"article-{number**2}".encode() for number in range(1_000)], pa.large_binary())
        return [(draw(zipf(1_000, 12), num_entities, 1), names)]
    return [
        (draw(zipf(1_000, 12), num_entities, 1), numbers),
        (draw(zipf(30, 3), num_entities, 2), pa.array(np.arange(30) + 10_000)),
    ]


def named_features(features, num_sampled):
    """What a sample of the first entities has of features of a shape, with the names of their values."""
    parts = [(feature_of(has[:num_sampled]), names) for has, names in features]
    return [FeatureSample(Vocabulary(names.take(part.vocabulary.values)), part.rows) for part, names in parts]


@pytest.fixture(scope="module")
def facts():
    """20,000 entities, 600 values of which an entity has 12 on average."""
    return draw(zipf(600, 12), 20_000, 1)


@pytest.fixture(scope="module")
def sample(facts):
    """All of the entities."""
    return sample_of(feature_of(facts))


@pytest.fixture(scope="module")
def points(facts):
    """The points of a plan without labels, in the short form for some of the entities."""
    some = sample_of(feature_of(facts[: by_length(5_000, 20_000)]))
    return [candidate.point for candidate in candidates(some, Grid())]


class TestSample:
    """What a sample says of the view."""

    def test_a_cut_keeps_the_facts_of_the_values(self, facts):
        feature = feature_of(facts)
        kept = np.arange(len(feature.vocabulary)) % 3 == 0
        part = feature.cut(kept)
        assert part.vocabulary.values.equals(feature.vocabulary.values.filter(pa.array(kept)))
        for row in (0, 1, 777):
            ours = part.vocabulary.values.take(
                pa.array(part.rows.ids[part.rows.indptr[row] : part.rows.indptr[row + 1]])
            )
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
        counts = sample_of(part, num_entities=10_000).full_counts["f0"]
        assert len(part.vocabulary) < 0.5 * len(everything.vocabulary)
        assert len(counts) == pytest.approx(len(everything.vocabulary), rel=0.1)
        assert counts.sum() == pytest.approx(everything.num_facts, rel=0.15)
        assert (np.diff(counts) <= 0).all()

    @pytest.mark.has_long_form
    def test_counts_add_up_to_the_facts(self):
        """A view one and a half times as large as its sample, most of whose values are rare."""
        sampled = by_length(1_000, 2_000)
        part = feature_of(draw(zipf(10 * sampled, 3), sampled, 5))
        for known in (1.5 * part.num_facts, 5.0 * sampled):
            counts = part.full_counts(sampled * 3 // 2, known)
            assert counts.sum() == pytest.approx(known, rel=0.002)

    def test_facts_that_are_known_are_taken(self, facts):
        part = feature_of(facts[:1_000])
        known = replace(sample_of(part, num_entities=20_000), known_facts={"f0": Estimate.exactly(250_000)})
        assert known.facts == Estimate.exactly(250_000)
        assert known.full_counts["f0"].sum() == pytest.approx(250_000, rel=0.002)
        candidate = bloom(known, 0.01)
        assert candidate.point.table_bits_per_fact < candidate.point.bits_per_fact
        size = candidate.point.memory_bytes
        assert candidate.point.bits_per_fact == pytest.approx(8 * size / 250_000)

    def test_no_value_is_without_a_fact(self):
        """One entity has 1,000 values, two others have one each; Chao's estimate alone would be 2,994."""
        has = np.zeros((3, 1_002), np.bool_)
        has[0, :1_000] = has[1, 1_000] = has[2, 1_001] = True
        part = sample_of(feature_of(has[:1]), num_entities=3)
        assert len(part.full_counts["f0"]) > 2_000
        known = replace(part, known_facts={"f0": Estimate.exactly(1_002)})
        assert known.full_counts["f0"].tolist() == [1] * 1_002
        values = known.vocabulary_sizes["f0"]
        assert (values.value, values.high) == (1_002, 1_002)
        assert values.low >= 1_000
        about = replace(part, known_facts={"f0": Estimate(1_002, 1_001, 1_010)}).vocabulary_sizes["f0"]
        assert (about.value, about.high) == (1_002, 1_010)

    def test_a_total_by_what_is_known_is_exact_where_nothing_repeats(self):
        lengths = np.array([1, 5, 2, 0, 900])
        assert total_of(lengths, lengths, 4_000, 1_000) == Estimate.exactly(4_000)
        repeating = total_of(lengths, 2 * lengths + np.array([0, 1, 0, 0, 3]), 4_000, 1_000)
        assert repeating.low < repeating.value < repeating.high
        assert repeating.value == pytest.approx(2_000, rel=0.01)

    @pytest.mark.parametrize(
        ("field", "rows"),
        [
            ("int64_list_val", [[], [3], [127, 128, 16_384], [-1, 2**62], list(range(300))]),
            ("int32_set_val", [[], [3], [127, 128, 16_384]]),
            ("string_list_val", [[], [""], ["a" * 200, "b" * 20_000], ["x", "y", "z"]]),
            ("string_set_val", [[], ["a" * 127, "b" * 128]]),
            ("double_list_val", [[], [1.5, 2.5]]),
            ("float_set_val", [[], [1.5]]),
            ("bool_list_val", [[], [True, False]]),
            ("unix_timestamp_list_val", [[], [0, 1_780_000_000]]),
        ],
    )
    def test_bytes_of_values_are_those_of_feast(self, field, rows):
        values = [Value() for _ in rows]
        for value, row in zip(values, rows, strict=True):
            getattr(value, field).SetInParent()
            getattr(value, field).val.extend(row)
        codec = FeatureCodec("f0", field)
        builder = VocabularyBuilder(codec.storage_type)
        table = pa.table({"f0": codec.to_arrow(values)[0]})
        elements = codec.to_storage(table["f0"].combine_chunks().flatten())
        builder.add(Vocabulary(elements), np.arange(len(elements), dtype=np.int32))
        vocabulary, _, (symbols,) = builder.finish()
        lengths = np.array([len(row) for row in rows])
        sizes = value_sizes(
            codec.element_kind,
            Value.DESCRIPTOR.fields_by_name[field].number,
            vocabulary,
            Csr.of_lengths(lengths, symbols),
            lengths,
        )
        assert sizes.tolist() == [value.ByteSize() for value in values]

    def test_a_value_never_has_more_facts_than_there_are_entities(self):
        feature = feature_of(np.ones((10, 3), np.bool_))
        assert feature.full_counts(25, 75).tolist() == [25, 25, 25]


class TestCurves:
    """The theory against what is built."""

    def test_bits_of_sets_are_those_of_the_other_half(self, facts):
        """A plan of one half for both, and sets of both as a seal would build them: within 2 %."""
        half = sample_of(feature_of(facts[:10_000]), num_entities=20_000)
        whole = feature_of(facts)
        lengths = whole.rows.lengths
        code = SetCode.fit(whole.counts, lengths, 0).fitted(lengths, whole.rows.ids)
        built = GolombSets.build([code], lengths.astype(np.int32)[:, None], whole.rows.indptr, whole.rows.ids)
        expected = built.size_bytes + index_bytes(20_000, PRESENCE) + whole.vocabulary.packed_bytes
        assert sets(half).point.memory_bytes == pytest.approx(expected, rel=0.02)

    @pytest.mark.parametrize("shape", ["equal", "nested", "short", "spread", "strings", "unlike"])
    @pytest.mark.parametrize("num_sampled", [2_000, 1_000])
    def test_what_is_sealed_is_priced(self, shape, num_sampled):
        """A seal codes features that imply each other together, and packs vocabularies; within 5 %."""
        features = features_of_shape(shape, 2_000)
        sample = sample_of(*named_features(features, num_sampled), num_entities=2_000)
        size = sealed_as_sets(features).size_bytes
        assert without_header(sets(sample).point) == pytest.approx(size, rel=0.05)

    @pytest.mark.parametrize("shape", ["nested", "short", "spread", "strings", "unlike"])
    @pytest.mark.parametrize(
        ("goal", "point_of"),
        [
            (Goal(NOISE_RATIO, 0.1, SETS), sets),
            (Goal(ERROR_RATE, 0.01, BLOOM), partial(bloom, error_rate=0.01)),
            (Goal(NOISE_RATIO, 0.1, WEIGHTED_BLOOM), partial(weighted_bloom, noise_ratio=0.1)),
        ],
        ids=[SETS, BLOOM, WEIGHTED_BLOOM],
    )
    def test_timestamps_of_rows_are_priced(self, shape, goal, point_of):
        """Rows of many times, as views have them: within 2 % of what is sealed."""
        features = features_of_shape(shape, 4_000)
        timestamps = np.random.default_rng(9).integers(0, 10**12, 4_000)
        sealed = sealed_as_sets(features, goal, timestamps)
        sample = sample_of(*named_features(features, 4_000))
        sample = replace(sample, buckets=bucket_timestamps(timestamps, None)[0])
        size = without_header(point_of(sample).point, goal.structure == SETS) - sample.buckets.nbytes
        assert size == pytest.approx(sealed.size_bytes, rel=0.02)

    @pytest.mark.parametrize(("with_rare", "noise_ratio"), [(False, 0.1), (True, 2.0)])
    @pytest.mark.parametrize("num_sampled", [5_000, 2_500])
    def test_a_filter_beside_a_list_is_priced(self, with_rare, noise_ratio, num_sampled):
        """A filter is smaller than sets for few values; rare ones are in sets beside it. Within 2 %."""
        features = [(draw(np.array([0.6, 0.1]), 5_000, 1), pa.array([b"a", b"b"], pa.large_binary()))]
        if with_rare:
            features.append((draw(np.full(4_000, 0.0005), 5_000, 2), pa.array(np.arange(4_000))))
        sealed = sealed_as_sets(features, Goal(NOISE_RATIO, noise_ratio))
        structures = {name: feature.structure for name, feature in sealed.features.items()}
        assert structures == {"f0": WEIGHTED_BLOOM, "f1": SETS} if with_rare else {"f0": WEIGHTED_BLOOM}
        sample = sample_of(*named_features(features, num_sampled), num_entities=5_000)
        found = [candidate.point for candidate in candidates(sample, Grid(noise_ratios=(noise_ratio,)))]
        chosen = found[choose_point(found, PlanTarget())] if noise_ratio == 0.1 else None
        (point,) = [point for point in found if point.curve == AUTO]
        assert chosen in (None, point)
        assert without_header(point) == pytest.approx(sealed.size_bytes, rel=0.02)
        assert point.settings["f0"] == {"sketch.target": f"noise {noise_ratio:g}"}
        (made,) = [c for c in made_to_measure(sample, PlanTarget(noise_ratio)) if c.point.curve == AUTO]
        assert made.point.memory_bytes == point.memory_bytes

    def test_several_features_are_coded_together(self, facts):
        one = sets(sample_of(feature_of(facts))).point
        two = sets(sample_of(feature_of(facts), feature_of(facts[:, ::2]))).point
        index = 20_000 * (math.log2(1 / PRESENCE) + 6) / 8
        assert one.memory_bytes < two.memory_bytes < 2 * one.memory_bytes - index

    def test_a_bloom_filter_is_sized_as_a_seal_sizes_it(self, sample):
        point = bloom(sample, 0.01).point
        classes = [FactClass(sample.num_facts, 0.01), FactClass(20_000, PRESENCE)]
        vocabulary = 8 * len(sample.features["f0"].vocabulary)
        # Beside that a header, and as many shapes as there are patterns of empty features.
        assert point.memory_bytes == pytest.approx(
            size_for_rates(classes).num_bits / 8 + vocabulary, rel=0.03
        )
        absent = len(sample.features["f0"].vocabulary) - sample.num_facts / 20_000
        assert point.false_per_read == pytest.approx(0.01 * absent, rel=1e-6)
        assert point.settings == {"f0": {"sketch.structure": "bloom", "sketch.target": "error 0.01"}}

    @pytest.mark.parametrize("ratio", [2.0, 0.1, 0.01])
    def test_a_weighted_filter_keeps_their_noise(self, sample, ratio):
        candidate = weighted_bloom(sample, ratio)
        assert 0.9 * ratio < candidate.point.noise_ratio <= ratio * (1 + 1e-9)
        assert (np.diff(candidate.rates["f0"]) <= 0).all()
        absent = 1 - sample.features["f0"].counts / 20_000
        assert candidate.point.false_per_read == pytest.approx(float(absent @ candidate.rates["f0"]))

    def test_noise_of_several_features_adds_up(self, facts):
        sample = sample_of(feature_of(facts), feature_of(facts[:, :50]))
        point = bloom(sample, 0.1).point
        parts = [bloom(sample_of(feature), 0.1).point.false_per_read for feature in sample.features.values()]
        assert point.false_per_read == pytest.approx(sum(parts), rel=1e-6)
        assert set(point.settings) == {"f0", "f1"}

    @pytest.mark.has_long_form
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
        kept = feature.counts >= least_count(sample, share)
        assert feature.counts[kept].sum() >= share * feature.num_facts
        least = feature.counts[kept].min()
        assert feature.counts[feature.counts > least].sum() < share * feature.num_facts

    def test_the_label_and_the_setting_of_a_cut_say_what_it_keeps(self, sample):
        candidate = sets(sample, least_count(sample, 0.3))
        assert candidate.point.kept_share == pytest.approx(0.3, abs=0.05)
        assert f"{candidate.kept['f0'].sum()} values" in candidate.point.label
        tags = candidate.point.settings["f0"]
        assert tags["sketch.structure"] == "sets"
        setting = yaml.safe_load(tags["sketch.vocabulary"])
        counts = sample.features["f0"].counts
        assert 0 < setting["top"] == candidate.kept["f0"].sum() < len(counts)
        assert counts[candidate.kept["f0"]].min() > counts[~candidate.kept["f0"]].max()

    @pytest.mark.parametrize("has", [np.ones((1, 1)), np.zeros((5, 0)), np.eye(2)[:, :1]])
    def test_tiny_features_have_points_as_well(self, facts, has):
        for sample in (
            sample_of(feature_of(has.astype(np.bool_))),
            sample_of(feature_of(facts[: len(has)]), feature_of(has.astype(np.bool_))),
        ):
            found = [candidate.point for candidate in candidates(sample, Grid())]
            assert all(math.isfinite(point.memory_bytes) and point.memory_bytes > 0 for point in found)
            assert all(math.isfinite(point.noise_ratio) for point in found)
            assert choose_point(found, PlanTarget()) < len(found)
            assert knee(found) in (None, *range(len(found)))

    def test_rows_that_are_not_known_have_no_points_of_other_stores(self, sample):
        assert points_of_other_stores(sample) == []

    @pytest.mark.has_long_form
    def test_longer_values_take_more_in_other_stores(self, facts):
        sample = sample_of(feature_of(facts[: by_length(4_000, 20_000)]))

        def bytes_with(value_bytes):
            keys = np.full(len(sample), 35)
            stored = StoredRows("shop", "history", keys, {"f0": np.full(len(sample), value_bytes)}, False)
            points = points_of_other_stores(replace(sample, stored=stored))
            assert [point.curve for point in points] == [REDIS, SQLITE]
            assert not any(point.settings or point.table_bits_per_fact for point in points)
            return np.array([point.memory_bytes for point in points])

        more = bytes_with(300) - bytes_with(150)
        assert more == pytest.approx(150 * sample.num_entities, rel=0.15)

    @pytest.mark.has_long_form
    def test_bits_per_fact_are_of_all_and_of_tables_alone(self, points):
        for point in points:
            if point.settings:
                assert 0 < point.table_bits_per_fact < point.bits_per_fact

    def test_strings_count_with_the_bytes_of_a_snapshot(self, facts):
        feature = feature_of(facts)
        names = pc.cast(pc.cast(feature.vocabulary.values, pa.string()), pa.large_binary())
        ours = sample_of(FeatureSample(Vocabulary(names), feature.rows))
        every_second = {"f0": np.arange(len(names)) % 2 == 0}
        sealed = Vocabulary(names.take(pa.array(np.flatnonzero(every_second["f0"])))).to_packed()
        assert ours.vocabulary_bytes(every_second) == sum(array.nbytes for array in sealed.values())
        assert ours.vocabulary_bytes(every_second) < names.nbytes / 2


def point(curve=BLOOM, memory=1.0, noise=0.0, kept=1.0, auc=None, settings=True):
    estimate = None if auc is None else Estimate(auc, auc - 0.01, auc + 0.01)
    tags = {"f0": {"sketch.structure": "sets"}} if settings else {}
    return Point(
        curve, str(memory), memory, memory, memory, 1.0, 1.0, noise * 10, noise, kept, estimate, tags
    )


class TestChoice:
    """Whether labels decide, and which point a target takes."""

    @pytest.mark.parametrize(
        ("gain", "decides"),
        [
            (Estimate(-0.0001, -0.0012, 0.0010), False),  # worse than without the features
            (Estimate(0.0006, -0.0005, 0.0017), False),
            (Estimate(0.0, 0.0, 0.0), False),
            (Estimate(0.0056, 0.0033, 0.0079), True),
        ],
    )
    @pytest.mark.parametrize("has_candidates", [True, False])
    def test_a_gain_inside_its_interval_decides_nothing(self, gain, decides, has_candidates):
        without = Estimate(0.7344, 0.7321, 0.7367)
        exact = Estimate(without.value + gain.value, 0.73, 0.75)
        reason = undecided(gain, without, exact, has_candidates)
        assert (reason == "") == decides
        if not decides:
            assert f"{gain.value:+.4f}" in reason
            assert "Try more labels" in reason
            assert ("a column 'candidate'" in reason) == (not has_candidates)

    def test_without_a_target_it_is_that_of_error_rate_auto(self):
        found = [point(memory=1, noise=0.2), point(memory=2, noise=0.1), point(memory=3)]
        assert choose_point([point(memory=0.5, kept=0.9), *found], PlanTarget()) == 2
        found += [point(curve="learned_bloom", memory=0.5)]
        assert choose_point(found, PlanTarget()) == 1, "`target: auto` learns no clusters"
        assert choose_point(found, PlanTarget(noise_ratio=0.1)) == 3

    def test_what_is_not_the_whole_vocabulary_has_no_low_noise(self):
        found = [point(memory=1, kept=0.5), point(memory=2)]
        assert choose_point(found, PlanTarget(noise_ratio=0.1)) == 1

    def test_memory_takes_the_least_noise_and_then_the_most_facts(self):
        found = [point(memory=1, noise=0.1), point(memory=1, kept=0.4), point(memory=2, kept=0.5)]
        assert choose_point([*found, point(memory=3)], PlanTarget(memory_bytes=2.5)) == 2

    def test_memory_takes_the_best_auc_of_what_fits(self):
        found = [point(memory=1, auc=0.7), point(memory=2, auc=0.71), point(memory=2)]
        assert choose_point([*found, point(memory=9, auc=0.8)], PlanTarget(memory_bytes=2.5, auc=True)) == 1

    def test_auc_takes_the_smallest_that_is_nearly_the_best(self):
        found = [point(memory=1, auc=0.7), point(memory=2, auc=0.7392), point(memory=3, auc=0.74)]
        assert choose_point([point(memory=0.1), *found], PlanTarget(auc=True)) == 2

    def test_other_stores_are_not_taken(self):
        found = [point(curve=REDIS, memory=0.5, settings=False), point(memory=1)]
        assert choose_point(found, PlanTarget()) == 1

    @pytest.mark.parametrize("number", [0.0, -1.0, math.nan, math.inf])
    def test_a_target_is_more_than_0(self, number):
        with pytest.raises(PlanError, match=r"false values for each true one cannot .* more than 0"):
            PlanTarget(noise_ratio=number)
        with pytest.raises(PlanError, match=r"bytes of memory cannot be a target; it must be more than 0"):
            PlanTarget(memory_bytes=number)

    def test_a_target_is_met_by_a_point_made_for_it(self, sample):
        (made,) = made_to_measure(sample, PlanTarget(noise_ratio=0.37))
        assert made.point.noise_ratio == pytest.approx(0.37, rel=0.02)
        assert not made_to_measure(sample, PlanTarget())

    def test_memory_is_used(self, sample):
        budget = 0.6 * sets(sample).point.memory_bytes
        made = made_to_measure(sample, PlanTarget(memory_bytes=budget))
        assert {candidate.point.curve for candidate in made} == {POPULAR_SETS, WEIGHTED_BLOOM}
        for candidate in made:
            assert 0.95 * budget < candidate.point.memory_bytes <= budget

    def test_the_knee_is_where_a_corner_is(self):
        found = [point(memory=2.0**n, auc=0.7 + 0.01 * min(n, 4) + 1e-4 * n) for n in range(9)]
        assert knee(found, 0.7) == 4

    @pytest.mark.has_long_form
    def test_without_labels_noise_and_lost_facts_both_count(self, points):
        assert 0.5 < points[knee(points)].kept_share <= 1
        assert points[knee(points)].noise_ratio < 1

    def test_the_knee_keeps_most_of_the_gain(self):
        """The sharpest corner keeps 60 % of the gain over an AUC of 0.7 without the features."""
        aucs = [0.71, 0.76, 0.765, 0.78, 0.79, 0.8]
        found = [point(memory=2.0**n, auc=auc) for n, auc in enumerate(aucs)]
        assert knee(found, 0.5) == 1
        assert knee(found, 0.7) == 3

    @pytest.mark.parametrize("aucs", [[0.8], [0.7, 0.8], [0.7, 0.72, 0.74, 0.8], [0.7, 0.73, 0.76, 0.8]])
    def test_without_a_corner_there_is_no_knee(self, aucs):
        found = [point(memory=2.0**n, auc=auc) for n, auc in enumerate(aucs)]
        assert knee(found, 0.6) is None
        assert knee(found, 0.9) is None
