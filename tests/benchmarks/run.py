"""Runs the benchmarks: ``python tests/benchmarks/run.py [name ...] [--quick | --long] [--page FILE]``.

Needs the dependency group ``benchmark`` and ``redis-server`` on the PATH. Times are medians of
interleaved runs on whatever machine this is: quote the ratios.
"""

import argparse
import json
import logging
import warnings
from importlib import import_module
from inspect import signature
from pathlib import Path

import measure
import pages

BENCHMARKS = (
    "enumeration",
    "growth",
    "reader",
    "structures",
    "peers",
    "long_rows",
    "short_rows",
    "one_set",
    "online_read",
    "several_views",
    "online_write",
    "streaming",
    "lists",
    "list_attributes",
    "sets",
    "backing",
    "table_bits",
    "sizes",
    "plans",
    "rules",
    "shape_reads",
    "records",
    "formats",
    "sealing",
    "capacity",
    "materialize",
    "spark_fill",
    "refresh",
    "replicas",
    "polls",
    "startup",
    "cold_reads",
    "server_auth",
    "server_profile",
    "feature_server",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmarks of feast_sketch_store.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}; default all")
    parser.add_argument("--quick", action="store_true", help="a smoke run of a few seconds each")
    parser.add_argument("--long", action="store_true", help="what takes ten minutes and more, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the tables as JSON, too")
    parser.add_argument("--page", type=Path, metavar="FILE", help="a page to put the tables into, too")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(BENCHMARKS)}")
    warnings.simplefilter("ignore")  # Feast warns of its own deprecations at every import
    # What is advised of an Array is on purpose here.
    logging.getLogger("feast_sketch_store.online_store").setLevel(logging.ERROR)
    for name in arguments.names or BENCHMARKS:
        print(f"## {name}\n", flush=True)
        first = len(measure.printed)
        measure.texts.clear()
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            parser.error(
                f"{name} needs {error.name}, of the dependency group `benchmark`: "
                "pip install --group test --group benchmark"
            )
        longer = {"long": arguments.long} if "long" in signature(module.run).parameters else {}
        module.run(quick=arguments.quick, **longer)
        for table in measure.printed[first:]:
            table["benchmark"] = name
        if arguments.json:
            arguments.json.write_text(json.dumps(measure.printed, indent=1) + "\n")
        if arguments.page:
            pages.update(arguments.page, name, measure.texts)


if __name__ == "__main__":
    main()
