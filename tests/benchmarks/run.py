"""Run the benchmarks and print their tables in Markdown.

    python tests/benchmarks/run.py                  all of them
    python tests/benchmarks/run.py enumeration      one of them
    python tests/benchmarks/run.py --quick          smaller inputs, to see that they work

Every comparison runs its sides in turn (A B A B ...) in one process and prints medians and ratios. Needs the
dependency groups `test` and `benchmark`, and a `redis-server` on the PATH for the rows about Redis.
"""

import argparse
import platform
import sys
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np

BENCHMARKS = ("enumeration", "table_bits", "online_read", "online_write", "startup")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=BENCHMARKS, metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="smaller inputs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(Path(__file__).parent))
    print(f"Python {platform.python_version()}, NumPy {np.__version__}")
    for name in options.names:
        print(f"\n## {name}\n")
        import_module(name).run(quick=options.quick)


if __name__ == "__main__":
    main()
