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

    Parameters
    ----------
    decided : int64[d], positions in the batch that the layer lists: rows found, deleted and expired.
    found : int64[p], ascending positions of the rows to return.
    event_timestamps : int64[p], microseconds since 1970 in UTC; never newer than those of the rows.
    features : an answer for each requested feature that the layer knows.
    fenced : int64[f], positions out of ``decided`` with a deletion. Their rows in older layers do not count.
    expired : int64[x], positions of rows that have expired. Their values are withheld.
    """

    decided: NDArray[np.int64]
    found: NDArray[np.int64]
    event_timestamps: NDArray[np.int64]
    features: Mapping[str, Answer]
    fenced: NDArray[np.int64] = np.zeros(0, np.int64)
    expired: NDArray[np.int64] = np.zeros(0, np.int64)

    def load(self) -> None:
        """Read all features now, so that damage raises here and not later."""
        for feature in self.features.values():
            feature.load()


def stack(answers: Sequence[LayerAnswer]) -> LayerAnswer:
    """Concatenate the rows of one or more answers, with common vocabularies.

    Layers may have different vocabularies; after this their answers can be compared and merged. An entity is
    found once for each answer that has it, in the order of the answers; ``found`` no longer ascends.
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
