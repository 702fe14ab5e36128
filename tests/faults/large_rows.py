"""Writes more bytes in one batch than offsets of 32 bits can count, and reads them back everywhere.

    python tests/faults/large_rows.py                               # 2.2 GB; takes 14 GB of memory
    python tests/faults/large_rows.py --lists                       # the same in lists
    python tests/faults/large_rows.py --rows 2 --bytes 550000000 --at-a-time 1    # large rows

Arrow's default strings, bytes and lists fail past 2 GiB wherever arrays are concatenated: when a batch
becomes columns, at a refresh, in a merge of unsealed rows, at a seal, in an answer.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import StringList, Value

from feast_sketch_store.rows.codecs import EXACT, FeatureCodec
from feast_sketch_store.rows.encoding import FeastRow, to_arrow
from feast_sketch_store.rows.entity_keys import hash_int64_keys
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.view import View
from tests.oracle.messages import feast_values

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
CODECS = [FeatureCodec("text", "string_val", EXACT), FeatureCodec("parts", "string_list_val", EXACT)]
SETTINGS = ViewSettings("large", 1e-5, {c.feature: FeatureSettings(c, 1e-5, 10**6) for c in CODECS})
NEVER = SealPolicy(1.0, 10**12)


def text_of(user: int, num_bytes: int) -> str:
    """A text that no other user has."""
    return f"{user:012d}".ljust(num_bytes, "x")


def rows_of(users: Iterable[int], num_bytes: int, in_lists: bool) -> list[FeastRow]:
    """Each row has a text, or a list of two halves of one."""
    rows: list[FeastRow] = []
    for user in users:
        if in_lists:
            text = text_of(user, num_bytes // 2)
            value = {"parts": Value(string_list_val=StringList(val=[text, text[::-1]]))}
        else:
            value = {"text": Value(string_val=text_of(user, num_bytes))}
        key = EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=user)])
        rows.append((key, value, NOON, None))
    return rows


def table_of(users: range, num_bytes: int, in_lists: bool) -> pa.Table:
    """The same as one table. It is put together of parts, of which the objects are let go one by one."""
    parts = [
        to_arrow(rows_of(users[start : start + 1000], num_bytes, in_lists), CODECS)
        for start in range(0, len(users), 1000)
    ]
    return pa.concat_tables(parts)


@dataclass(frozen=True)
class Campaign:
    """One view in a folder, with rows of one size."""

    folder: Path
    num_rows: int
    num_bytes: int
    in_lists: bool
    at_a_time: int

    def open(self) -> View:
        """The view, as another process would open it."""
        return View(LocalStorage(self.folder / "view"), SETTINGS, NEVER, 0.0)

    def write(self, view: View, users: range) -> None:
        """Write users as one batch."""
        view.write(table_of(users, self.num_bytes, self.in_lists))

    def check(self, view: View, users: range) -> None:
        """Read users, some at a time, and compare every byte."""
        for start in range(0, len(users), self.at_a_time):
            asked = users[start : start + self.at_a_time]
            found = {}
            answer = view.read(hash_int64_keys("user_id", np.array(asked)), ["text", "parts"])
            values = [feast_values(f) for f in answer.features.values()]
            for position, *of_row in zip(answer.found, *values, strict=True):
                read = dict(zip(answer.features, of_row, strict=True))
                found[asked[position]] = {name: v for name, v in read.items() if v is not None}
            for user, row in zip(asked, rows_of(asked, self.num_bytes, self.in_lists), strict=True):
                if found[user] != row[1]:
                    raise AssertionError(f"user {user} reads otherwise than written")

    def run(self) -> None:
        """Write, read, merge, seal and read in another process; raises what goes wrong."""
        begin = time.monotonic()

        def step(name: str) -> None:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(f"{time.monotonic() - begin:7.1f} s  {memory:5.1f} GiB at most  {name}", flush=True)

        users, more = range(self.num_rows), range(self.num_rows, self.num_rows + 2)
        view = self.open()
        self.write(view, users)
        step("written")
        self.check(view, users)
        step("read unsealed")
        self.write(view, more)
        self.check(view, more)
        step("written and read more")
        del view
        view = self.open()
        self.check(view, users)
        step("read by another view")
        assert view.seal()
        step("sealed")
        self.check(view, range(more.stop))
        step("read sealed")
        del view
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--read", self.folder], check=True)
        step("read by another process")


def main() -> None:
    """Run with the sizes that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=66_000)
    parser.add_argument("--bytes", type=int, default=34_000, help="of each row")
    parser.add_argument("--lists", action="store_true", help="put them into lists of strings")
    parser.add_argument("--at-a-time", type=int, default=1000, help="rows of a read")
    parser.add_argument("--read", type=Path, metavar="FOLDER", help="only read what a run wrote there")
    options = parser.parse_args()
    sizes = options.rows, options.bytes, options.lists, options.at_a_time
    if options.read is not None:
        campaign = Campaign(options.read, *sizes)
        campaign.check(campaign.open(), range(options.rows + 2))
        return
    with tempfile.TemporaryDirectory() as folder:
        Campaign(Path(folder), *sizes).run()
    print("0 failures")


if __name__ == "__main__":
    main()
