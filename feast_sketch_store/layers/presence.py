"""What a sealed layer knows of its rows besides the values of features."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Self

from feast_sketch_store.kernel import RowReader
from feast_sketch_store.structures.base import Structure
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

    def prepared_states(self, feature: str) -> tuple[Any, ...] | None:
        """The states of a feature, as `RowReader.states` takes them; None if they are not stored here."""
        return None

    @abstractmethod
    def prepare(self) -> RowReader:
        """The rows alone, in the form that the kernel reads."""

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
