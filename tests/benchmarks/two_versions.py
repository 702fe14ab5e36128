"""Runs the same benchmarks on two versions in turns, and prints the cells that differ.

    python tests/benchmarks/two_versions.py --other OLD reader online_read --rounds 5

OLD is a checkout of the other version with an environment in its `.venv`. A table's labels are the columns
that hold the same in each run of a version and mostly the same in both; rows that only one version prints
are left out. A ratio is this version's median by the other's. With `--this-code` both run the benchmarks of
this checkout, which must call nothing that the other version lacks.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from measure import number, print_table

HERE = Path(__file__).parents[2]
Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="name", help="of `run.py --help`, those that both have")
    parser.add_argument("--other", type=Path, required=True, help="a checkout with an environment in .venv")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each version")
    parser.add_argument("--quick", action="store_true", help="the short form of each benchmark")
    parser.add_argument("--this-code", action="store_true", help="run this checkout's benchmarks on both")
    parser.add_argument("--all", action="store_true", help="print all cells")
    parser.add_argument("--over", type=float, default=1.05, help="print cells of which a ratio is above this")
    arguments = parser.parse_args()
    other = arguments.other.resolve()
    code = HERE if arguments.this_code else other
    pythons = [(HERE, Path(sys.executable)), (code, other / ".venv/bin/python")]
    compared, above = 0, 0
    for name in arguments.names:
        runs: list[list[list[Row]]] = [[], []]
        for turn in range(arguments.rounds):
            for side in (0, 1) if turn % 2 else (1, 0):
                runs[side].append(_run(*pythons[side], name, quick=arguments.quick))
        ratios = list(_ratios(*runs))
        compared += len(ratios)
        above += sum(row[-1] > arguments.over for row in ratios)
        print(f"{name}: {len(ratios)} cells, median ratio {median(row[-1] for row in ratios):.2f}\n")
        if shown := [row for row in ratios if arguments.all or row[-1] > arguments.over]:
            cells = [[*row[:2], number(row[2]), number(row[3]), f"{row[4]:.2f}"] for row in shown]
            print_table(["row", "column", "other", "this", "ratio"], cells)
            print(flush=True)
    print(f"{compared} cells compared, {above} above {arguments.over}.")


def _run(checkout: Path, python: Path, name: str, *, quick: bool) -> list[list[Row]]:
    """The rows of each table that a benchmark prints."""
    with tempfile.TemporaryDirectory() as folder:
        tables = Path(folder) / "tables.json"
        command = [python, "tests/benchmarks/run.py", name, "--json", tables, *["--quick"] * quick]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name} failed in {checkout}:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")
        return [table["rows"] for table in json.loads(tables.read_text())]


def _ratios(
    this: list[list[list[Row]]], other: list[list[list[Row]]]
) -> Iterator[tuple[str, str, float, float, float]]:
    """Row, column, both medians and their ratio, of the cells that both versions print as numbers."""
    places = [_by_columns(runs) for runs in (this, other)]
    for place in places[0].keys() & places[1].keys():
        ours, others = places[0][place], places[1][place]
        columns = [column for column in ours[0][0] if column in others[0][0]]
        labels = [column for column in columns if _is_label(column, ours, others)]
        cells = [_cells(side, labels, columns) for side in (ours, others)]
        for key in cells[0].keys() & cells[1].keys():
            mine, theirs = median(cells[0][key]), median(cells[1][key])
            if theirs > 0:
                yield ", ".join(key[0]), key[1], theirs, mine, mine / theirs


def _by_columns(runs: list[list[list[Row]]]) -> dict[tuple[str, int], list[list[Row]]]:
    """The rows of a table in each run, by its first column and how many such tables came before it."""
    places: dict[tuple[str, int], list[list[Row]]] = defaultdict(list)
    for tables in runs:
        seen = Counter[str]()
        for rows in tables:
            first = next(iter(rows[0]))
            places[first, seen[first]].append(rows)
            seen[first] += 1
    return places


def _is_label(column: str, ours: list[list[Row]], others: list[list[Row]]) -> bool:
    values = [[[row[column] for row in rows] for rows in side] for side in (ours, others)]
    if any(rows != side[0] for side in values for rows in side):
        return False
    one, two = (Counter(side[0]) for side in values)
    return 2 * (one & two).total() >= min(one.total(), two.total())


def _cells(
    runs: list[list[Row]], labels: list[str], columns: list[str]
) -> dict[tuple[tuple[str, ...], str], list[float]]:
    cells: dict[tuple[tuple[str, ...], str], list[float]] = defaultdict(list)
    for rows in runs:
        for row in rows:
            for column in columns:
                try:
                    value = float(row[column].replace(",", ""))
                except ValueError:
                    continue
                if column not in labels:
                    cells[tuple(row[label] for label in labels), column].append(value)
    return cells


if __name__ == "__main__":
    main()
