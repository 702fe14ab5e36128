"""Salts of filters that are the same in each run of a test.

Each seal draws a salt, which decides the false positives of a filter. A test that compares whole answers
would fail by chance once in many runs, and nobody could repeat that. So each test, and each shared fixture,
draws from a sequence of its own, whatever ran before it.

    FEAST_SKETCH_STORE_SALTS=7 .venv/bin/pytest tests/feast      # other sequences: does a test rely on luck?
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

_SEED = os.environ.get("FEAST_SKETCH_STORE_SALTS", "0")


class Salts:
    """Replaces `new_salt` where layers are built; its numbers follow from a name."""

    def __init__(self) -> None:
        self._chance = random.Random(_SEED)

    def __call__(self) -> tuple[int, int]:
        return self._chance.getrandbits(64), self._chance.getrandbits(64)

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Use a new sequence until the end of the block."""
        before, self._chance = self._chance, random.Random(f"{_SEED} {name}")
        try:
            yield
        finally:
            self._chance = before


SALTS = Salts()


def fix_salts() -> None:
    """Build all layers of this process, and of its forks, with these salts."""
    from feast_sketch_store.layers import build

    build.new_salt = SALTS
