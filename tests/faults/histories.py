"""Random histories of one view against a dictionary, over all ways of reading.

Each history has a view of one kind in 1 to 8 shards. Rows are written, late or already expired; some, those
of one shard, or all are deleted; values are removed from lists. In between the view is sealed, as a base or a
delta, absorbed, vacuumed, divided anew, and opened anew. After each step a dictionary says what Feast's
reads, a feature server and a reader that was opened before the first seal must answer.

    python tests/faults/histories.py --seconds 600 --seed 0
    python tests/faults/histories.py --kind list --seed 17 --first 3 --most 1      # one history again
"""

import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from campaign import command_of, run_histories

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


def run(kind: str, seed: str, counts: Counter[str]) -> None:
    """One history. Raises what was wrong, with the steps before it."""
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
    except Exception as error:
        error.add_note(f"of kind {kind!r}, after {done}")
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """The command."""
    parser = command_of(__doc__)
    parser.add_argument("--kind", choices=[*KINDS], help="of all histories")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    maintenance._SAMPLES = 500
    maintenance.reader_bytes = lambda *of_views: {}  # which starts a process each time

    def run_one(number: int, counts: Counter[str]) -> None:
        run(options.kind or [*KINDS][number % len(KINDS)], f"{options.seed} {number}", counts)

    return run_histories(options, run_one)


if __name__ == "__main__":
    sys.exit(main())
