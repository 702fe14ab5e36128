"""What a layer answers for a batch of entities."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.rows.codecs import MISSING, Decoder
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.answer import Answer, CsrAnswer


class LayerAnswer(NamedTuple):
    """The entities of a batch that a layer found.

    ``decided`` is int64[d], positions in the batch that the layer lists: the rows found, those
    deleted and those expired. ``found`` is int64[p], ascending positions of the rows to return;
    ``event_timestamps`` int64[p], microseconds since 1970 in UTC, never newer than the truth;
    ``features`` has an entry per requested feature that the layer knows. ``fenced`` is int64[f], those of
    ``decided`` whose rows in older layers do not count, because a deletion came in between. ``expired`` is
    int64[x], positions of entities whose rows have expired and are withheld.
    """

    decided: NDArray[np.int64]
    found: NDArray[np.int64]
    event_timestamps: NDArray[np.int64]
    features: Mapping[str, Answer]
    fenced: NDArray[np.int64] = np.zeros(0, np.int64)
    expired: NDArray[np.int64] = np.zeros(0, np.int64)

    def load(self) -> None:
        """Read all features now, so that damage shows up here and not later."""
        for feature in self.features.values():
            feature.load()


def stack(answers: Sequence[LayerAnswer]) -> LayerAnswer:
    """Concatenate the rows of one or more answers, with common vocabularies.

    So the answers of layers with different vocabularies can be compared and merged. An entity is found as
    often as it is in the answers, in their order; ``found`` is no longer ascending.
    """
    if len(answers) == 1:
        return answers[0]
    names = dict.fromkeys(name for answer in answers for name in answer.features)
    return LayerAnswer(
        np.unique(np.concatenate([answer.decided for answer in answers])),
        np.concatenate([answer.found for answer in answers]),
        np.concatenate([answer.event_timestamps for answer in answers]),
        {name: _stack_feature(answers, name) for name in names},
        np.unique(np.concatenate([answer.fenced for answer in answers])),
        np.unique(np.concatenate([answer.expired for answer in answers])),
    )


def _stack_feature(answers: Sequence[LayerAnswer], name: str) -> Answer:
    """One feature of all rows; MISSING in those of a layer that does not know it."""
    known = [answer.features[name] for answer in answers if name in answer.features]
    vocabulary, new_ids = Vocabulary.union([feature.decoder.vocabulary for feature in known])
    ids = iter(new_ids)
    states, parts = [], []
    for answer in answers:
        feature = answer.features.get(name)
        if feature is None:
            nothing = np.zeros(len(answer.found), np.int64)
            states.append(np.full(len(nothing), MISSING, np.uint8))
            parts.append(Csr.of_lengths(nothing, np.zeros(0, np.int32)))
        else:
            states.append(feature.states)
            parts.append(feature.csr.mapped(next(ids).astype(np.int32)))
    decoder = Decoder(known[0].decoder.codec, vocabulary)
    return CsrAnswer(decoder, np.concatenate(states), Csr.stacked(parts))
