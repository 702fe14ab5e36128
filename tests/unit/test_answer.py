"""Answers: what a structure gives of a feature, with weights or without."""

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.rows.codecs import EMPTY, NULL, VALUE, Decoder, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.answer import Answer, CsrAnswer
from feast_sketch_store.structures.columns import ColumnAnswer

CODEC = FeatureCodec("viewed", "int64_set_val")
DECODER = Decoder(CODEC, Vocabulary(pa.array([10, 20, 30, 40])))
STATES = np.array([VALUE, EMPTY, VALUE, NULL], np.uint8)
INDPTR, IDS = np.array([0, 2, 2, 3, 3]), np.array([0, 3, 1], np.int32)
WEIGHTS = np.array([1.0, 10.0, 100.0, 1000.0])


def answer(weights=None):
    return CsrAnswer(DECODER, STATES, Csr(INDPTR, IDS, weights))


def test_symbols_count_one_each_unless_they_have_weights():
    assert answer().scores(WEIGHTS).tolist() == [1001, 0, 10, 0]
    assert answer(np.array([2, 3, 7])).scores(WEIGHTS).tolist() == [3002, 0, 70, 0]
    assert answer(np.array([0.5, -1, 0])).scores(WEIGHTS).tolist() == [-999.5, 0, 0, 0]


def test_weights_do_not_change_which_symbols_there_are():
    for each in (answer(), answer(np.array([0, 5, 0.1]))):
        assert each.bits()[:, 0].tolist() == [0b1001, 0, 0b10, 0]
        assert each.contains(np.array([3, -1, 1])).tolist() == [
            [True, False, False],
            [False] * 3,
            [False, False, True],
            [False] * 3,
        ]
        own = np.array([[0], [0], [0], [1]])
        assert each.contains(own).tolist() == [[True], [False], [False], [False]]
        assert (each.indptr is INDPTR, each.symbols is IDS) == (True, True)
        each.load()


def test_a_structure_needs_to_know_the_symbols_alone():
    class Lazy(Answer):
        decoder, states = DECODER, STATES
        asked = 0

        @property
        def csr(self):
            self.asked += 1
            return Csr(INDPTR, IDS)

    lazy = Lazy()
    assert lazy.numbered() is lazy
    lazy.load()
    assert lazy.asked == 0
    assert lazy.scores(WEIGHTS).tolist() == [1001, 0, 10, 0]
    assert lazy.asked == 1


@pytest.mark.parametrize("values", [[7, 7, 8], [8, 7, 7]], ids=str)
def test_values_of_a_column_that_repeat_are_numbered_once(values):
    decoder = Decoder(CODEC, Vocabulary(pa.array(values)))
    column = ColumnAnswer(decoder, np.array([VALUE] * 2, np.uint8), Csr(np.array([0, 2, 3]), np.arange(3)))
    numbered = column.numbered()
    vocabulary = numbered.decoder.vocabulary
    assert sorted(vocabulary.values.to_pylist()) == [7, 8]
    assert vocabulary.values.to_numpy()[numbered.symbols].tolist() == values
    found = numbered.contains(vocabulary.find(pa.array([7, 8, 9])))
    assert found.tolist() == [[v in values[:2] for v in (7, 8, 9)], [v == values[2] for v in (7, 8, 9)]]
