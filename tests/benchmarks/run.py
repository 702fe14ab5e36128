"""Runs the benchmarks: ``python tests/benchmarks/run.py [name ...] [--quick]``.

Needs the dependency group ``benchmark`` and ``redis-server`` on the PATH. Times are medians of
interleaved runs on whatever machine this is: quote the ratios.
"""

import argparse
import warnings
from importlib import import_module

BENCHMARKS = ("enumeration", "online_read", "online_write", "table_bits", "sealing", "refresh", "startup")


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmarks of feast_sketch_store.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}; default all")
    parser.add_argument("--quick", action="store_true", help="a smoke run of a few seconds each")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(BENCHMARKS)}")
    warnings.simplefilter("ignore")  # Feast warns of its own deprecations at every import
    for name in arguments.names or BENCHMARKS:
        print(f"## {name}\n", flush=True)
        import_module(name).run(quick=arguments.quick)


if __name__ == "__main__":
    main()
