"""A repository with one view of any kind beside a dictionary: what every way of reading must answer."""

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from feast import FeatureStore, Field
from feast.types import Array, Float64, Int64, Set, String, UnixTimestamp

from feast_sketch_store import Counts, Lists, SketchReader, through_sketch
from feast_sketch_store.operations import maintenance, resharding
from feast_sketch_store.serve import create_app
from feast_sketch_store.view.shard_map import shards_of
from tests.helpers.asgi import ask
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.repository import USER, make_config, make_view

USERS = range(30)  # several in each shard
NOBODY = 77  # is never written
IN_ONE = [user for user, shard in zip(USERS, shards_of(user_hashes(USERS), 4), strict=True) if shard == 0]
SINGLE = (IN_ONE[0], next(user for user in USERS if user not in IN_ONE), NOBODY)
TTL = timedelta(days=2)
NOW = datetime.now(UTC).replace(microsecond=0, second=0, minute=0)  # a tick of the list
OLD = NOW - 2 * TTL  # of rows that have expired
LIMIT = 3  # of a list
HOW = ["seen", "opened", "liked"]  # attributes of items; the one that comes last here counts
LIST = {"sketch.codec": "list", "sketch.list": f"{{resolution: 1h, limit: {LIMIT}}}"}
OF_READ = {"sketch.of": "read", "sketch.vocabulary": f"{HOW}"}
SCORE = {"sketch.codec": "score", "sketch.score": "{of: [items], weights: weights.json}"}


def items(**tags):
    return Field(name="items", dtype=Set(Int64), tags=tags)


def of_structure(name, **more):
    return [items(**{"sketch.structure": name, **more}), Field(name="name", dtype=String)]


KINDS = {
    "auto": of_structure("auto"),
    "sets": of_structure("sets"),
    "bloom": of_structure("bloom"),
    "weighted_bloom": of_structure("weighted_bloom"),
    "clustered": of_structure("weighted_bloom", **{"sketch.clusters": "2"}),
    "learned_bloom": of_structure("learned_bloom", **{"sketch.clusters": "2"}),
    "sandwiched_bloom": of_structure("sandwiched_bloom", **{"sketch.clusters": "2"}),
    "memory": of_structure("bloom", **{"sketch.target": "1MB"}),
    "score": [items(**{"sketch.structure": "bloom"}), Field(name="score", dtype=Float64, tags=SCORE)],
    "exact": [items(**{"sketch.codec": "exact"}), Field(name="name", dtype=String)],
    "binned": [Field(name="price", dtype=Float64, tags={"sketch.round": "0.5"}), items()],
    "static": [Field(name="name", dtype=String, tags={"sketch.codec": "static"})],
    "list": [
        Field(name="read", dtype=Array(String), tags=LIST),
        Field(name="read_at", dtype=Array(UnixTimestamp), tags={"sketch.of": "read"}),
        Field(name="read_how", dtype=Array(String), tags=OF_READ),
    ],
    "counts": [
        Field(name="viewed", dtype=Array(String), tags={"sketch.codec": "counts"}),
        Field(name="views", dtype=Array(Int64), tags={"sketch.of": "viewed"}),
    ],
    "growing": [
        Field(name="viewed", dtype=Array(String), tags={"sketch.codec": "counts"}),
        Field(name="views", dtype=Array(Int64), tags={"sketch.of": "viewed"}),
        Field(name="view_ids", dtype=Array(String), tags={"sketch.ids_of": "viewed"}),
    ],
}


class Model:
    """A repository with one view, beside what it must answer.

    Filters may show values that a row lacks; everything else is compared as it is.
    """

    def __init__(self, folder, kind, num_shards):
        self.folder, self.kind = folder, kind
        self.is_noisy = "bloom" in kind or kind in ("auto", "binned", "clustered", "memory", "score")
        (folder / "weights.json").write_text(json.dumps({"items": [[n, n / 10] for n in range(60)]}))
        self.config = self.config_of(num_shards)
        self.grows = kind == "growing"
        self.view = make_view(KINDS[kind], ttl=TTL, tags={"sketch.rows": "append"} if self.grows else None)
        self.names = [field.name for field in KINDS[kind]]
        self.rows = {}  # what reads show, by user and feature
        self.events = {}  # of the newest row of each user, expired or not
        self.lists = {}  # the items of each user, by their age in hours
        self.how = {}  # the attribute of an item, by its user and age
        self.counted = {}  # what was counted of each user: values and counts by id, and when
        self.number = 0  # of writes
        self.was_sealed = False
        self.store = FeatureStore(config=self.config)
        self.store.apply([USER, self.view])
        self.server = create_app(self.store)
        self.reader = None

    def config_of(self, num_shards):
        """The configuration of a view in so many shards."""
        return make_config(
            self.folder,
            refresh="1min",
            compaction="job",
            target="error 1e-6",
            advanced={"presence_error": 1e-9, "scalar_error": 1e-9},
            shards=num_shards,
            ttl={"expire": True, "keep": "0"},
        )

    @property
    def online(self):
        return self.store._get_provider().online_store

    def values_of(self, user):
        """What the next write has for a user, by feature; a score comes from the store."""
        number = user + self.number
        known = {
            "items": {*range(number % 4 + 1), 20 + number % 30},
            "name": f"name {number % 40}",
            "price": number % 20 / 2,
            "viewed": [f"a{number % 30}", "b"],
            "views": [number % 9 + 2, 1],
            "score": ...,
        }
        return {name: known[name] for name in self.names if name in known}

    def write(self, users, event=NOW):
        """Write a row of each user. A row of a list adds an item; its age follows from the writes before."""
        self.number += 1
        if self.grows:
            self.count(users, event)
            return
        values = {user: self.values_of(user) for user in users}
        if "read" in self.names:
            for user in users:
                age = 1 + (7 * self.number + user) % 40 + (0 if event > NOW - TTL else 100)
                item = self.lists.setdefault(user, {}).setdefault(age, f"a{(user + self.number) % 30}")
                how = (user + self.number) % 5 // 2
                self.how[user, age] = max(how, self.how.get((user, age), 0))
                values[user] = {
                    "read": [item],
                    "read_at": [NOW - timedelta(hours=age)],
                    "read_how": [HOW[how]],
                }
        frame = pd.DataFrame([{"user_id": user, "event": event, **values[user]} for user in users])
        if "items" in frame:
            frame["items"] = frame["items"].map(list)
        if "score" in frame:
            frame["score"] = np.nan  # the store computes it
        self.store.write_to_online_store("history", frame, allow_registry_cache=False)
        for user in users:
            if event < self.events.get(user, event):
                if "read" in self.names:
                    self.show_list(user)
                continue
            self.events[user] = event
            self.rows.pop(user, None)
            if event > NOW - TTL:
                self.rows[user] = values[user]
            if "read" in self.names:
                self.show_list(user)

    def count(self, users, event):
        """Count two values of each user, and try again what was counted last."""
        rows = []
        for user in users:
            known = self.counted.setdefault(user, {})
            again = [(id, *of_id) for id, of_id in known.items() if of_id[2] > NOW - TTL][-1:]
            new = {f"{self.number} {n}": (f"a{(user + self.number) % 4 * n}", 1 + n, event) for n in range(2)}
            counted = [*again, *((id, *of_id) for id, of_id in new.items())]
            ids, values, counts, _ = zip(*counted, strict=True)
            rows.append(
                {"user_id": user, "event": event, "viewed": [*values], "views": [*counts], "view_ids": [*ids]}
            )
            known.update(new)
            self.events[user] = max(event, self.events.get(user, event))
            self.show_counts(user)
        self.store.write_to_online_store("history", pd.DataFrame(rows), allow_registry_cache=False)

    def show_counts(self, user):
        """Note what reads show of counts; a row expires as a whole."""
        self.rows.pop(user, None)
        if user in self.events and self.events[user] > NOW - TTL:
            totals = Counter()
            for value, count, _ in self.counted[user].values():
                totals[value] += count
            totals = +totals  # without those that were removed
            ids = [id for id, (*_, event) in self.counted[user].items() if event > NOW - TTL]
            self.rows[user] = {"viewed": [*totals], "views": [*totals.values()], "view_ids": ids}

    def forget_expired(self):
        """Note that a seal drops the rows that have expired, by the newest event of their shard."""
        if not self.grows or not self.events:
            return
        users = [*self.events]
        shards = shards_of(user_hashes(users), self.config.online_store.shards.count).tolist()
        newest = dict.fromkeys(shards, OLD)
        for user, shard in zip(users, shards, strict=True):
            newest[shard] = max(newest[shard], self.events[user])
        for user, shard in zip(users, shards, strict=True):
            if self.events[user] < min(NOW, newest[shard]) - TTL:
                self.counted.pop(user)
                self.events.pop(user)

    def show_list(self, user):
        """Note what reads show of a list; a row stays that has lost all its items."""
        ages = sorted(age for age in self.lists[user] if age < 48)[:LIMIT]
        if ages or self.events[user] > NOW - TTL:
            self.rows[user] = {
                "read": [self.lists[user][age] for age in ages],
                "read_at": [NOW - timedelta(hours=age) for age in ages],
                "read_how": [HOW[self.how[user, age]] for age in ages],
            }

    def remove(self, user, value):
        """Remove a value from a list, or what was counted of it."""
        if self.grows:
            Counts(self.store, "history", "viewed").remove([user], value)
            for id, (counted, _, event) in self.counted.get(user, {}).items():
                if counted == value:
                    self.counted[user][id] = value, 0, event
            self.show_counts(user)
            return
        Lists(self.store, "history", "read").remove([user], value)
        if user in self.lists:
            self.lists[user] = {age: item for age, item in self.lists[user].items() if item != value}
            for age in [age for owner, age in self.how if owner == user and age not in self.lists[user]]:
                self.how.pop((user, age))
            if user in self.rows:
                self.show_list(user)

    def delete(self, users):
        maintenance.delete(self.store, "history", [{"user_id": user} for user in users])
        for user in users:
            for known in (self.rows, self.events, self.lists, self.counted):
                known.pop(user, None)
        self.how = {key: how for key, how in self.how.items() if key[0] not in users}

    def reshard(self, num_shards):
        """Divide the view anew; who has it open follows."""
        resharding.reshard(self.store, "history", num_shards, wait=lambda seconds: None)
        self.was_sealed = True
        self.forget_expired()
        self.config = self.config_of(num_shards)
        self.forget_expired()
        self.reopen()

    def vacuum(self):
        maintenance.vacuum(self.store, "history", timedelta(0))

    def absorb(self):
        self.online.view(self.config, self.view).absorb()

    def reopen(self):
        """Go on in a store that was just opened; the reader stays."""
        self.store = FeatureStore(config=self.config)
        self.server = create_app(self.store)

    def agree(self, found, wanted):
        """Whether values are those of a row, of a filter perhaps with others."""
        return wanted <= found if self.is_noisy else wanted == found

    def seal(self):
        """Seal in a process that has read the view."""
        self.was_sealed |= maintenance.seal(self.store, "history")
        self.forget_expired()

    def seal_delta(self):
        self.was_sealed |= self.online.view(self.config, self.view).seal(as_delta=True)

    # -- what reads say ------------------------------------------------------------------------

    def check(self):
        """Compare every way of reading in this process with the dictionary."""
        self.check_store()
        self.check_server()
        if self.reader is None:
            self.reader = self.new_reader()
        self.check_reader(self.reader)

    def check_files(self):
        """The same for what reads the files, after a seal."""
        reader = self.new_reader()
        self.check_reader(reader)
        assert maintenance.verify(self.store, "history").problems == []
        report = maintenance.inspect(self.store, "history")
        if "read" not in self.names:
            assert report.entities - report.expired_rows == len(self.rows)
        self.check_training(reader)

    def new_reader(self):
        """A reader that learns of changes from this process alone: a poll between two reads of a check may
        find another numbering of values.
        """
        return SketchReader(
            str(self.folder / "sketch"), "history", "shop", ttl=TTL, refresh_interval_seconds=3_600
        )

    def check_store(self):
        users, features = [*USERS, NOBODY], [f"history:{name}" for name in self.names]
        for some in (users, *([user] for user in SINGLE)):  # one entity has a path of its own
            asked = features, [{"user_id": user} for user in some]
            of_async = asyncio.run(self.store.get_online_features_async(*asked))
            for answer in (self.store.get_online_features(*asked), of_async):
                found = answer.to_dict()
                self.compare(some, {name: found[name] for name in self.names})
        online = self.online
        keys = [user_key(user) for user in users]
        rows = online.online_read(self.config, self.view, keys, self.names)
        assert rows == asyncio.run(online.online_read_async(self.config, self.view, keys, self.names))
        assert [event is not None for event, _ in rows] == [user in self.rows for user in users]

    def check_server(self):
        users = [*USERS, NOBODY]
        request = {"features": [f"history:{name}" for name in self.names], "entities": {"user_id": users}}
        status, _, body = asyncio.run(ask(self.server, request))
        assert status == 200, body
        answer = json.loads(body)
        vectors = dict(zip(answer["metadata"]["feature_names"], answer["results"], strict=True))
        assert vectors.keys() == {"user_id", *self.names}
        present = [user in self.rows for user in users]
        for name in self.names:  # Feast's server has them in any order
            vector = vectors[name]
            if name != "score" or self.was_sealed:  # the first seal learns how to compute it
                found = [status == "PRESENT" for status in vector["statuses"]]
                assert found == present, (name, [*zip(users, vector["statuses"], present, strict=True)])

    def compare(self, users, found):
        for name, values in found.items():
            for user, value in zip(users, values, strict=True):
                wanted = self.rows.get(user, {}).get(name)
                if wanted is ... and not self.was_sealed:
                    assert value is None  # the first seal makes the formula
                elif wanted is ...:
                    wanted = sum(n / 10 for n in self.rows[user]["items"])
                    assert value == pytest.approx(wanted, abs=0.05), (user, value, wanted, self.rows[user])
                elif name == "items" and wanted is not None:
                    assert self.agree({*value}, wanted), (name, user, value, wanted)
                elif name == "read_at":
                    shown = value and [t.replace(tzinfo=UTC) for t in value]
                    assert shown == wanted, (name, user, value, wanted)
                elif name in ("viewed", "views", "view_ids"):
                    both = [row and sorted(row) for row in (value, wanted)]
                    assert both[0] == both[1], (name, user, value, wanted)
                else:
                    assert value == wanted, (name, user, value, wanted)

    def check_reader(self, reader):
        users = [*USERS, NOBODY]
        present = [user in self.rows for user in users]
        assert reader.exists(np.array(users)).tolist() == present
        for name in {*self.names} & {"items", "read", "viewed"}:
            self.check_collection(reader, name, users)
        for name in {*self.names} & {"name", "price", "items"}:
            found = reader.arrow(name, np.array(users)).to_pylist()
            self.compare(users, {name: found})
        if "read" in self.names:
            found = reader.lists("read", np.array(users), attributes=["read_how"])
            how, wanted = (
                [self.rows.get(user, {}).get(name, []) for user in users] for name in ("read_how", "read")
            )
            assert found.to_arrow().to_pylist() == wanted
            assert found.as_lists(found.attribute("read_how")).to_pylist() == how
            for user in SINGLE:
                assert reader.lists("read", user).to_arrow().to_pylist() == [wanted[users.index(user)]]

    def check_collection(self, reader, name, users):
        if name == "items" and self.kind == "exact":
            return
        wanted = [{*self.rows.get(user, {}).get(name, ())} for user in users]
        values = reader.vocabulary(name).to_pylist()
        weights = np.arange(1, len(values) + 1) / 8
        asked = [*range(50)] if name == "items" else ["b", *(f"a{number}" for number in range(30))]
        scores = [sum(weights[values.index(value)] for value in row) for row in wanted]
        for counts in (False, True) if name == "viewed" else (False,):
            matrix = reader.csr(name, np.array(users), counts=counts)
            rows = [matrix.ids[a:b] for a, b in zip(matrix.indptr, matrix.indptr[1:], strict=False)]
            assert all(map(self.agree, ({values[number] for number in row} for row in rows), wanted))

        def agrees(contained, row):
            return self.agree({value for value, is_in in zip(asked, contained, strict=True) if is_in}, row)

        found = reader.scores(name, np.array(users), weights).tolist()
        assert self.is_noisy or found == pytest.approx(scores)
        assert all(ours >= score - 1e-9 for ours, score in zip(found, scores, strict=True))
        candidates = reader.candidates(name, asked)
        for given in (asked, candidates):
            assert all(map(agrees, reader.contains(name, np.array(users), given).tolist(), wanted))
        hot = reader.multi_hot(name, np.array(users))
        bits = np.unpackbits(reader.bits(name, np.array(users)).view(np.uint8), axis=1, bitorder="little")
        for matrix in (hot, bits):
            assert all(map(self.agree, ({values[n] for n in np.flatnonzero(row)} for row in matrix), wanted))
        for user in SINGLE:
            row, score = (each[users.index(user)] for each in (wanted, scores))
            assert self.agree({values[number] for number in reader.ids(name, user)}, row)
            for given in (asked, candidates):
                assert agrees(reader.contains(name, user, given).tolist(), row)
            own = reader.scores(name, user, weights)
            assert own == pytest.approx(score) or (self.is_noisy and own > score)

    def check_training(self, reader):
        """Rows through the newest snapshot, which may have none."""
        if "read" in self.names or self.grows:
            return
        frame = pd.DataFrame([self.values_of(user) for user in USERS]).drop(columns="score", errors="ignore")
        if "items" in frame:
            frame["items"] = frame["items"].map(list)
        shown = through_sketch(frame, reader)
        assert len(shown) == len(frame)
