"""The command of a campaign of many histories, each of which can be run again by its number."""

import argparse
import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable


def command_of(description: str) -> argparse.ArgumentParser:
    """The options of such a command."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first history")
    parser.add_argument("--most", type=int, help="histories to run; all that the time allows by default")
    return parser


def run_histories(options: argparse.Namespace, run: Callable[[int, Counter[str]], None]) -> int:
    """Run histories by their numbers and print what they counted. Returns the exit code.

    Whatever one raises is printed, and the campaign goes on.
    """
    logging.disable(logging.WARNING)
    counts: Counter[str] = Counter()
    failures, number, end = 0, options.first, time.monotonic() + options.seconds
    while time.monotonic() < end and (options.most is None or number < options.first + options.most):
        try:
            run(number, counts)
        except Exception:
            print(f"history {number}:", traceback.format_exc(), sep="\n", flush=True)
            failures += 1
        number += 1
    print(", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))
    print(f"{number - options.first} histories, {failures} failures")
    return min(1, failures)
