"""Measures the memory that a reading process takes for itself, in addition to the snapshot that it shares.

A process of its own opens the view several times: only there is no memory that was set free before. The first
opening loads what all views share, and does not count.
"""

import json
import logging
import subprocess
import sys
from contextlib import ExitStack

import numpy as np

from feast_sketch_store.errors import SketchStoreError
from feast_sketch_store.storage.stores import StorePlace
from feast_sketch_store.storage.system import private_bytes
from feast_sketch_store.view.opening import ReadOnlyView

_logger = logging.getLogger(__name__)

_NO_REFRESH = 1e9  # seconds
_MOST_READERS, _ENOUGH_BYTES = 16, 1 << 22  # what a small view takes is a mean over several


def reader_bytes(place: StorePlace, project: str, name: str) -> int | None:
    """Private memory of a process that reads all features of a view; None if the system does not report it.

    ``name`` is that of the view in the store; it ends in ``@v2`` if it is of a version.
    """
    if private_bytes() is None:
        return None
    asked = json.dumps([str(place.path), dict(place.options), project, name])
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        _logger.warning(
            "view %r: the memory of a reader could not be measured: %s", name, done.stderr.strip()[-500:]
        )
        return None
    return int(done.stdout)


def _measure(place: StorePlace, project: str, view: str) -> int:
    nobody, taken = np.zeros((1, 2), np.uint64), list[int]()
    storage = place.view(project, view)
    with ExitStack() as readers:
        while len(taken) < 2 or (len(taken) <= _MOST_READERS and taken[-1] - taken[0] < _ENOUGH_BYTES):
            reader = ReadOnlyView(storage, view, _NO_REFRESH)
            readers.callback(reader.close)
            reader.read(nobody, [codec.feature for codec in reader.file.codecs])
            taken.append(private_bytes() or 0)
    return max(0, taken[-1] - taken[0]) // (len(taken) - 1)


def main() -> int:
    """Main function of a separate process: a view's location on standard input, bytes on standard output."""
    path, options, project, view = json.load(sys.stdin)
    place = StorePlace.of(None, path, options)
    try:
        print(_measure(place, project, view))
    except SketchStoreError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
