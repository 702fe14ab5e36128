"""Writes: what ``online_write_batch`` adds to what Feast itself spends on the same rows.

Before a store sees them, ``feast materialize`` converts the Arrow table of a view to protos; that
conversion is the yardstick. Every call gets rows that were just converted and an empty store, whose folder
and table stand already. The write of the sketch includes making the rows durable and sealing them; SQLite
commits durably, Redis keeps everything in memory.
"""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from feast.types import Int64, String
from measure import interleaved, number, print_set_up, print_table
from stores import Backend, UserRows, redis, redis_server, set_up_of, sketch, sqlite, temporary_folder

CONVERSION = "Feast's conversion"
NEVER = 10**9  # rows


def run(*, quick: bool) -> None:
    rounds = 2 if quick else 5
    num_users = 2_000 if quick else 20_000
    print_set_up(
        f"{set_up_of(num_users)}, one event timestamp per row, in sets, one call; {rounds} turns",
        "numpy",
        "feast",
        "protobuf",
        "pyarrow",
        "redis",
        "hiredis",
    )
    lines = []
    for element in (Int64, String):
        times = _measure(UserRows(num_users, element), rounds)
        lines += [
            [
                f"{name}, Array({element})",
                number(seconds * 1e3),
                number(seconds / num_users * 1e6),
                number(num_users / seconds),
                number(seconds / times[CONVERSION]),
            ]
            for name, seconds in times.items()
        ]
    print_table(["step", "ms", "us per row", "rows/s", "times the conversion"], lines)


def _measure(rows: UserRows, rounds: int) -> dict[str, float]:
    with temporary_folder() as folder, redis_server() as port:
        fresh = _fresh_folders(folder)
        makers: dict[str, Callable[[], Backend]] = {
            "sketch": lambda: sketch(fresh(), rows),
            "sketch, row log only": lambda: sketch(fresh(), rows, compaction={"min_rows": NEVER}),
            "sqlite": lambda: sqlite(fresh(), rows),
            "redis": lambda: redis(fresh(), rows, port),
        }

        def make_input(_: int) -> tuple[dict[str, Backend], list[Any]]:
            return {name: make() for name, make in makers.items()}, rows.to_feast()

        def write(name: str) -> Callable[[tuple[dict[str, Backend], list[Any]]], None]:
            return lambda prepared: prepared[0][name].write(prepared[1])

        sides: dict[str, Callable[[tuple[dict[str, Backend], list[Any]]], object]] = {
            CONVERSION: lambda _: rows.to_feast()
        }
        sides |= {name: write(name) for name in makers}
        return interleaved(sides, make_input, rounds=rounds)


def _fresh_folders(folder: Path) -> Callable[[], Path]:
    numbers = count()

    def fresh() -> Path:
        path = folder / str(next(numbers))
        path.mkdir()
        return path

    return fresh
