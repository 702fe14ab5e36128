"""Measures the memory that a reading process takes for itself, in addition to the snapshot that it shares.

A process of its own opens a view several times: only there is no memory that was set free before. The first
opening loads what all views share, and does not count. The processes of several views are forks of one, which
has imported what they need: that takes a second.
"""

import gc
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from feast_sketch_store.storage.stores import StorePlace
from feast_sketch_store.storage.system import private_bytes
from feast_sketch_store.view.opening import ReadOnlyView

_logger = logging.getLogger(__name__)

_NO_REFRESH = 1e9  # seconds
_MOST_READERS, _ENOUGH_BYTES = 16, 1 << 22  # what a small view takes is a mean over several
_MOST_FETCHES = 2  # an opening in a bucket takes requests


def reader_bytes(place: StorePlace, project: str, names: Sequence[str]) -> Mapping[str, int]:
    """Private memory of a process that reads all features of a view, for each of several views.

    A view is missing if the system does not report it, or if it cannot be measured. The names are those in
    the store; they end in ``@v2`` if they are of a version.
    """
    if private_bytes() is None:
        return {}
    cache = None if place.cache_path is None else str(place.cache_path)
    asked = json.dumps([str(place.path), dict(place.options), cache, project, *names])
    command = [sys.executable, "-P", "-m", __name__]  # no module of the current folder
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    measured: dict[str, int] = dict(map(json.loads, done.stdout.splitlines()))
    if missing := [name for name in names if name not in measured]:
        _logger.warning(
            "views %s: the memory of a reader could not be measured: %s",
            ", ".join(map(repr, missing)),
            done.stderr.strip()[-500:],
        )
    return measured


def _measure(place: StorePlace, project: str, view: str) -> int:
    nobody, taken = np.zeros((1, 2), np.uint64), list[int]()
    storage = place.view(project, view)
    most = _MOST_FETCHES if storage.fetches else _MOST_READERS
    with ExitStack() as readers:
        while len(taken) < 2 or (len(taken) <= most and taken[-1] - taken[0] < _ENOUGH_BYTES):
            reader = ReadOnlyView(storage, view, _NO_REFRESH)
            readers.callback(reader.close)
            reader.read(nobody, [codec.feature for codec in reader.file.codecs])
            taken.append(private_bytes() or 0)
    return max(0, taken[-1] - taken[0]) // (len(taken) - 1)


def main() -> int:
    """Main function of a separate process: a location and views on standard input, a view and its bytes in
    each line of standard output.
    """
    path, options, cache, project, *views = json.load(sys.stdin)
    place = StorePlace.of(None, path, options, cache)
    pa.array(np.zeros(1))  # imports what Arrow imports at its first use
    gc.freeze()  # what is there now is not searched for each figure
    for view in views:
        if (child := os.fork()) == 0:
            try:
                print(json.dumps([view, _measure(place, project, view)]), flush=True)
            except Exception as error:  # the process that asked warns of it
                print(error, file=sys.stderr, flush=True)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
