"""What a sealed layer knows of its rows besides the values of features."""

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

    ``kind`` names the class in the description of a snapshot.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def num_listed(self) -> int | None:
        """Number of listed rows; None if the rows are not listed."""

    @property
    @abstractmethod
    def features(self) -> Collection[str]:
        """The features whose states are stored here."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of its own parts, without those inside structures."""

    @property
    @abstractmethod
    def index_bytes(self) -> int:
        """Bytes of the parts that find the row of an entity."""

    @property
    def finder(self) -> RowFinder | None:
        """The index of entities; None if rows are not listed."""
        return None

    def size_if_listed(self, num_rows: int, presence_error_rate: float) -> float:
        """Estimated bytes of a list of this many rows; `size_bytes` if rows are listed."""
        return self.size_bytes

    @abstractmethod
    def find(
        self, entity_hashes: NDArray[np.uint64], features: Sequence[str], expire_before: int
    ) -> FoundRows:
        """The possibly-present rows of a batch of entities; see `SketchLayer.read` for the parameters.

        Raises
        ------
        ValueError : parts of a layer from a file contradict each other.
        """

    def prepared_states(self, feature: str) -> Numbers | None:
        """The states of a feature by row number, for prepared reads; None if they are not stored here."""
        return None

    def prepare(self) -> PreparedRows | None:
        """Prepare the rows alone for reads of one entity; None if the kernel cannot find them."""
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
        ValueError, KeyError, TypeError : the parts do not fit each other or the layer's structures.
        """
