"""What a sealed layer knows of its rows besides the values in structures."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import PreparedRows
from feast_sketch_store.kernel.prepared import Numbers
from feast_sketch_store.structures.base import FoundRows, RowFinder, Structure
from feast_sketch_store.structures.parts import Described, Parts


class Presence(ABC):
    """Which entities have rows, their timestamps, and states of features. Immutable.

    ``kind`` is its name in the description of a snapshot.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def num_listed(self) -> int | None:
        """The rows that it lists; None if it lists none."""

    @property
    @abstractmethod
    def features(self) -> Collection[str]:
        """Those whose states it knows."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of its own parts, without those inside structures."""

    @property
    @abstractmethod
    def index_bytes(self) -> int:
        """Those of them that find the row of an entity."""

    @property
    def finder(self) -> RowFinder | None:
        """What finds the rows of entities; None if there is no list of rows."""
        return None

    def size_if_listed(self, num_rows: int, presence_error_rate: float) -> float:
        """About the bytes that it would take to list this many rows; `size_bytes` if it lists them."""
        return self.size_bytes

    @abstractmethod
    def find(
        self, entity_hashes: NDArray[np.uint64], features: Sequence[str], expire_before: int
    ) -> FoundRows:
        """The possibly-present rows of a batch of entities; see `SketchLayer.read` for the parameters.

        Raises
        ------
        ValueError : the parts, which came from a file, contradict each other.
        """

    def prepared_states(self, feature: str) -> Numbers | None:
        """The states of a feature in rows that are prepared, by their numbers; None if they are not known."""
        return None

    def prepare(self) -> PreparedRows | None:
        """The rows for reads of one entity, without features; None if the kernel cannot find them."""
        return None

    @abstractmethod
    def to_snapshot(self) -> Described:
        """The rows as a JSON-serializable description and named arrays."""

    @classmethod
    @abstractmethod
    def from_snapshot(
        cls, description: Mapping[str, Any], parts: Parts, structures: Sequence[Structure]
    ) -> Self:
        """The reverse of `to_snapshot`.

        Raises
        ------
        ValueError, KeyError, TypeError : the parts do not fit each other, or the layer's structures.
        """
