"""Salts of filters that are the same in each run of a test.

Each seal draws a salt, which decides which strangers a filter takes for members. A test that compares whole
answers would fail by chance once in many runs, and nobody could repeat it. So each test, and each fixture
that several tests share, draws from a sequence of its own, whatever ran before it.

    FEAST_SKETCH_STORE_SALTS=7 .venv/bin/pytest tests/feast      # other sequences: is a test lucky?
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

_SEED = os.environ.get("FEAST_SKETCH_STORE_SALTS", "0")


class Salts:
    """Stands for `new_salt` where layers are built; its numbers follow from a name."""

    def __init__(self) -> None:
        self._chance = random.Random(_SEED)

    def __call__(self) -> tuple[int, int]:
        return self._chance.getrandbits(64), self._chance.getrandbits(64)

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """A sequence that begins anew, until the end of the block."""
        before, self._chance = self._chance, random.Random(f"{_SEED} {name}")
        try:
            yield
        finally:
            self._chance = before


SALTS = Salts()


def fix_salts() -> None:
    """Have all layers of this process, and of its forks, built with these salts."""
    from feast_sketch_store.layers import build

    build.new_salt = SALTS
