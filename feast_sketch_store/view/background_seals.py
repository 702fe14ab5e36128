"""Seals beside writes, one at a time, in a thread of the process whose write made one due."""

import logging
import threading
from abc import ABC, abstractmethod

from feast_sketch_store.errors import SketchStoreError
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.threads import give_way

_logger = logging.getLogger(__name__)

_NAME = "feast_sketch_store seal"  # of threads


class BackgroundSeals(ABC):
    """A view that can seal itself, whole or in shards."""

    storage: Storage

    def _reset_sealer(self) -> None:
        """Start without a thread, because a forked process has none of its parent's threads."""
        self._sealer_lock = threading.Lock()
        self._sealer: threading.Thread | None = None  # the latest one
        self._is_maintained = False  # by that thread
        self._has_ended = False  # so that no thread begins

    @abstractmethod
    def _is_due(self) -> bool:
        """Whether something can be sealed or absorbed."""

    @abstractmethod
    def _seal_if_due(self) -> bool:
        """Seal or absorb if due. Returns whether there is a new snapshot."""

    def settle(self) -> None:
        """Wait for a seal that runs in the background, if there is one."""
        with self._sealer_lock:
            sealer = self._sealer
        if sealer is not None:
            sealer.join()

    def end_seals(self) -> None:
        """Wait for the seal that runs in the background, and begin no other one there.

        `settle` waits for all that become due meanwhile, which has no end while others write.
        """
        with self._sealer_lock:
            self._has_ended = True
        self.settle()

    def _maintain_beside(self) -> None:
        """Seal or absorb in a thread, unless a thread already does."""
        with self._sealer_lock:
            if self._is_maintained or self._has_ended:
                return
            sealer = threading.Thread(target=self._maintain_while_due, name=_NAME)
            try:
                sealer.start()
            except RuntimeError as error:  # the writes of the commit are durable, whatever becomes of this
                _logger.warning(
                    "%s: cannot be sealed: %s; a later write tries again", self.storage.location, error
                )
            else:
                self._sealer, self._is_maintained = sealer, True

    def _maintain_while_due(self) -> None:
        """Seal or absorb until the rows written meanwhile are few enough to wait."""
        give_way(leave_a_core=True)  # to reads, of this process and others
        is_needed = True
        while is_needed:
            is_sealed = False
            try:
                is_sealed = self._maintain()
            finally:
                with self._sealer_lock:  # a commit that comes after this starts another thread
                    is_needed = is_sealed and not self._has_ended and self._is_due()
                    self._is_maintained = is_needed

    def _maintain(self) -> bool:
        """Seal or absorb if it is still due. Of several threads, the first one does it.

        Returns
        -------
        Whether there is a new snapshot.
        """
        try:
            return self._seal_if_due()
        except SketchStoreError as error:
            # The rows are durable and readable; a failed seal must not look like a failed write.
            _logger.warning("%s; the rows are kept, a later write seals them", error)
            return False
