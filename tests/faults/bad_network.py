"""A campaign: a replica reads through a proxy that delays, cuts, corrupts and refuses, beside writes.

    python tests/faults/bad_network.py [--seconds 600] [--seed 1]

Every read must be answered, with what was written up to some commit, never less than was seen before. When
the faults end, the replica must see everything. The writer reaches the bucket without the proxy, seals deltas
and bases, and vacuums.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from feast.protos.feast.types.Value_pb2 import Int64Set, Value

from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.storage import buckets
from feast_sketch_store.storage.buckets import open_bucket
from feast_sketch_store.view.sealing import SealPolicy
from feast_sketch_store.view.settings import FeatureSettings, ViewSettings
from feast_sketch_store.view.view import View
from tests.helpers import object_servers
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.proxy import proxy

_SETTINGS = ViewSettings(
    "history", 1e-9, {"viewed": FeatureSettings(FeatureCodec("viewed", "int64_set_val"), 1e-9, 10**6)}
)
_NEVER = SealPolicy(1.0, 10**12)
_USERS = 200
_PATIENCE_SECONDS = 120


def main() -> int:
    parser = argparse.ArgumentParser(description="A replica behind a bad network.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    buckets._RETRIES = 1
    with (
        object_servers.start("moto") as server,
        proxy(server.port, arguments.seed) as link,
        tempfile.TemporaryDirectory() as folder,
    ):
        campaign = _Campaign(server, link, Path(folder), arguments.seed)
        failures = campaign.run(arguments.seconds)
    print(
        f"{campaign.commits} commits, {campaign.reads} reads, {campaign.stale} of them stale, "
        f"{campaign.restarts} restarts, {link.num_faults} faults, {len(failures)} failures"
    )
    print(f"longest read {1e3 * campaign.longest:.0f} ms")
    for failure in failures[:10]:
        print(failure)
    return 1 if failures else 0


class _Campaign:
    """Each commit gives every user the set of one number, the commit's own: so a read tells its version."""

    def __init__(self, server, link, folder, seed):
        self.link = link
        self.folder = folder
        self.chance = random.Random(seed)
        self.url = server.bucket() + "/store"
        self.options = {**link.options(server.options), "timeout": "5s", "connect_timeout": "2s"}
        self.writer = View(open_bucket(self.url, server.options).within("view/"), _SETTINGS, _NEVER, 0.0)
        self.commits = self.reads = self.stale = self.restarts = 0
        self.longest = 0.0
        self.failures = []
        self.is_over = threading.Event()

    def run(self, seconds):
        self._commit()
        self.writer.seal()
        replica = self._replica()
        self._read(replica, 0)  # while the network is good
        writing = threading.Thread(target=self._write_on)
        writing.start()
        seen, end = 0, time.monotonic() + seconds
        while time.monotonic() < end and not self.failures:
            self._change_faults()
            pause = min(end, time.monotonic() + self.chance.uniform(0.2, 1.0))
            while time.monotonic() < pause:
                seen = self._read(replica, seen)
                time.sleep(0.002)
            if self.chance.random() < 0.1:  # the process dies, and another one starts from the cache
                self.link.take_down()
                replica.close()
                replica, seen = self._replica(), 0
                self.restarts += 1
                seen = self._read(replica, seen)
        self.is_over.set()
        writing.join()
        self.link.heal()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while seen < self.commits and time.monotonic() < deadline and not self.failures:
            seen = self._read(replica, seen)
            time.sleep(0.01)
        if seen < self.commits:
            self.failures.append(f"{self.commits} commits were written, and {seen} are seen")
        if not self.failures and replica.freshness(look=True).state == "STALE":
            self.failures.append("the replica is stale, although the network is good")
        replica.close()
        return self.failures

    def _replica(self):
        buckets._objects.cache_clear()
        storage = open_bucket(self.url, self.options, True, self.folder / "cache").within("view/")
        return View(storage, _SETTINGS, _NEVER, 0.05, is_replica=True)

    def _change_faults(self):
        self.link.heal()
        fault = self.chance.choice(["none", "down", "delay", "cut", "corrupt", "all"])
        if fault == "down":
            self.link.take_down()
        if fault in ("delay", "all"):
            self.link.delay_seconds = self.chance.uniform(0.01, 0.5)
        if fault in ("cut", "all"):
            self.link.cut_share = self.chance.uniform(0.05, 0.5)
        if fault in ("corrupt", "all"):
            self.link.corrupt_share = self.chance.uniform(0.05, 0.5)

    def _commit(self):
        number = self.commits + 1
        event = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
        value = Value(int64_set_val=Int64Set(val=[number]))
        self.writer.write([(user_key(user), {"viewed": value}, event, None) for user in range(_USERS)])
        self.commits = number

    def _write_on(self):
        chance = random.Random(self.chance.random())
        while not self.is_over.wait(0.1):
            try:
                self._commit()
                step = chance.random()
                if step < 0.2:
                    self.writer.seal(as_delta=step < 0.15)
                elif step < 0.25:
                    self.writer.vacuum(0)
            except Exception as error:
                self.failures.append(f"the writer failed: {error!r}")
                return

    def _read(self, replica, seen):
        """One read of all users: the version that it shows."""
        began = time.monotonic()
        try:
            answers = replica.read(user_hashes(range(_USERS)), ["viewed"])
        except Exception as error:
            self.failures.append(f"a read failed: {error!r}")
            return seen
        self.longest = max(self.longest, time.monotonic() - began)
        self.reads += 1
        self.stale += replica.freshness().state == "STALE"
        versions = []
        for answer in answers:
            feature = answer.features["viewed"]
            values = feature.decoder.values(feature.states, feature.indptr, feature.symbols)
            versions.extend(tuple(value.int64_set_val.val) for value in values)
        if len(versions) != _USERS or len({*versions}) != 1 or len(versions[0]) != 1:
            self.failures.append(f"a read shows {len(versions)} users with {sorted({*versions})[:5]}")
            return seen
        (version,) = versions[0]
        if version < seen:
            self.failures.append(f"a read shows version {version}, after version {seen}")
        return version


if __name__ == "__main__":
    sys.exit(main())
