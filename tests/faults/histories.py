"""Random histories of one view against a dictionary, over all ways of reading.

Each history has a view of one kind in 1 to 8 shards. Rows are written, late or already expired; some, those
of one shard, or all are deleted; values are removed from lists. In between the view is sealed, as a base or a
delta, absorbed, vacuumed, divided anew, and opened anew. After each step a dictionary says what Feast's
reads, a feature server and a reader that was opened before the first seal must answer.

    python tests/faults/histories.py --seconds 600 --seed 0
    python tests/faults/histories.py --kind list --seed 17 --first 3      # one history again
"""

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.operations import maintenance
from tests.helpers.view_model import IN_ONE, KINDS, NOW, OLD, USERS, Model

STEPS = 14
MINUTE = timedelta(minutes=1)
SHARDS = (1, 2, 4, 8)
WEIGHTS = {
    "write": 6,
    "write late": 2,
    "write expired": 2,
    "delete some": 3,
    "empty a shard": 1,
    "empty the view": 1,
    "remove values": 3,
    "seal": 4,
    "seal a delta": 2,
    "absorb": 1,
    "vacuum": 1,
    "divide anew": 1,
    "open anew": 1,
}


def step(model: Model, name: str, rng: random.Random) -> None:
    """Do one step of a history."""
    some = sorted(rng.sample(USERS, rng.choice((1, 3, len(USERS)))))
    now = NOW - (600 - model.number) * MINUTE
    if name == "write":
        model.write(some, now)
    elif name == "write late":
        model.write(some, now - 300 * MINUTE)
    elif name == "write expired":
        model.write(some, OLD)
    elif name == "delete some":
        model.delete(some[:5])
    elif name == "empty a shard":
        model.delete(IN_ONE)
    elif name == "empty the view":
        model.delete(USERS)
    elif name == "remove values":
        for user in some[:3] if "read" in model.names or model.grows else ():
            counted = {value for value, *_ in model.counted.get(user, {}).values()}
            for value in sorted(counted or {*model.lists.get(user, {}).values()})[:2]:
                model.remove(user, value)
    elif name == "seal":
        model.seal()
        model.check_files()
    elif name == "seal a delta" and model.kind not in ("list", "growing"):
        model.seal_delta()
    elif name == "absorb":
        model.absorb()
    elif name == "vacuum":
        model.vacuum()
    elif name == "divide anew":
        try:
            model.reshard(rng.choice(SHARDS))
        except SettingsError:  # as many as there are, or a kind that cannot be divided
            return
    elif name == "open anew":
        model.reopen()


def run(kind: str, seed: str, counts: Counter[str]) -> bool:
    """One history; whether every answer was right."""
    rng = random.Random(f"{seed} {kind}")
    folder = Path(tempfile.mkdtemp(prefix="history-"))
    done: list[str] = []
    try:
        model = Model(folder, kind, rng.choice(SHARDS))
        model.write(USERS[: rng.choice((1, len(USERS)))], NOW - 600 * MINUTE)
        model.check()
        for name in rng.choices([*WEIGHTS], [*WEIGHTS.values()], k=STEPS):
            done.append(name)
            step(model, name, rng)
            model.check()
            counts["steps"] += 1
    except Exception:  # whatever it is, the campaign goes on
        print(f"seed {seed!r}, kind {kind!r}, after {done}:", traceback.format_exc(), sep="\n")
        return False
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return True


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first history")
    parser.add_argument("--most", type=int, help="histories to run; all that the time allows by default")
    parser.add_argument("--kind", choices=[*KINDS], help="of all histories")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    maintenance._SAMPLES = 500
    maintenance.reader_bytes = lambda *of_views: {}  # which starts a process each time
    counts: Counter[str] = Counter()
    end, number = time.monotonic() + options.seconds, options.first
    while time.monotonic() < end and (options.most is None or number < options.first + options.most):
        kind = options.kind or [*KINDS][number % len(KINDS)]
        counts["histories"] += 1
        counts["failures"] += not run(kind, f"{options.seed} {number}", counts)
        number += 1
    print(f"{counts['histories']} histories, {counts['steps']} steps, {counts['failures']} failures")
    return min(1, counts["failures"])


if __name__ == "__main__":
    sys.exit(main())
