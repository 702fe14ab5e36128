"""Who sees a write, and when: this object, this process, other processes."""

import multiprocessing
import threading
from datetime import timedelta

import pytest
from feast.protos.feast.types.Value_pb2 import StringSet, Value
from feast.types import Set, String

NEVER = 10**6  # seconds: a refresh interval that no test reaches
SEAL_AT_ONCE = {"seal_min_rows": 0, "seal_share": 1e-9}


def country(name):
    return {"country": Value(string_val=name)}


def countries(harness, *users):
    return [values and values["country"].string_val for _, values in harness.read(*users)]


@pytest.mark.parametrize("options", [{}, SEAL_AT_ONCE], ids=["unsealed", "sealed"])
def test_a_process_reads_its_own_write_whatever_object_wrote_it(make_harness, options):
    writer = make_harness({"country": String}, refresh_interval_seconds=NEVER, **options)
    reader = writer.reopened()
    assert countries(reader, 1) == [None]
    writer.write(1, country("FR"))
    assert countries(reader, 1) == ["FR"]
    assert countries(writer, 1) == ["FR"]


def _serve(harness, requests, answers):
    """Another process: opens the store, then answers reads."""
    reader = harness.reopened()
    for user in iter(requests.get, "stop"):
        answers.put(countries(reader, user)[0])


@pytest.fixture
def other_process():
    """Starts a reader process for a harness; gives a function that asks it about a user."""
    context = multiprocessing.get_context("spawn")
    started = []

    def start(harness):
        requests, answers = context.Queue(), context.Queue()
        process = context.Process(target=_serve, args=(harness, requests, answers))
        process.start()
        started.append((process, requests))

        def ask(user):
            requests.put(user)
            return answers.get(timeout=60)

        return ask

    yield start
    for process, requests in started:
        requests.put("stop")
        process.join(60)
        assert process.exitcode == 0


@pytest.mark.parametrize("options", [{}, SEAL_AT_ONCE], ids=["unsealed", "sealed"])
def test_a_running_process_sees_the_write_of_another(make_harness, other_process, options):
    writer = make_harness({"country": String}, refresh_interval_seconds=0, **options)
    ask = other_process(writer)
    assert ask(1) is None
    for name in ("FR", "DE"):
        writer.write(1, country(name))
        assert ask(1) == name


def test_an_interval_delays_other_processes_but_not_a_fresh_one(make_harness, other_process):
    writer = make_harness({"country": String}, refresh_interval_seconds=NEVER)
    early = other_process(writer)
    assert early(1) is None
    writer.write(1, country("FR"))
    assert early(1) is None
    assert other_process(writer)(1) == "FR"


def test_a_reader_follows_a_teardown_and_a_new_start(make_harness, other_process):
    writer = make_harness({"country": String}, refresh_interval_seconds=0, **SEAL_AT_ONCE)
    writer.write(1, country("FR"))
    ask = other_process(writer)
    assert ask(1) == "FR"
    writer.store.teardown(writer.config, [writer.view], [])
    assert ask(1) is None
    writer.store.update(writer.config, [], [writer.view], [], [], False)
    writer.write(2, country("DE"))
    assert (ask(1), ask(2)) == (None, "DE")


def _write_many(harness, number, rows):
    writer = harness.reopened()
    for row in range(rows):
        writer.write(number * 1000 + row, country(f"w{number}r{row}"))


@pytest.mark.parametrize("options", [{}, {"seal_min_rows": 7}], ids=["unsealed", "sealing"])
def test_several_processes_write_at_once(make_harness, options):
    harness = make_harness({"country": String}, refresh_interval_seconds=0, **options)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(harness, n, 10)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    users = [n * 1000 + row for n in range(3) for row in range(10)]
    assert countries(harness.reopened(), *users) == [f"w{u // 1000}r{u % 1000}" for u in users]


def test_threads_read_while_one_writes(make_harness):
    harness = make_harness({"viewed": Set(String)}, refresh_interval_seconds=0, seal_min_rows=5)
    stop = threading.Event()
    failures = []

    def read():
        seen = 0
        while not stop.is_set():
            rows = harness.read(*range(30))
            present = sum(values is not None for _, values in rows)
            for user, (_, values) in enumerate(rows):
                if values is not None and f"item-{user}" not in values["viewed"].string_set_val.val:
                    failures.append(f"user {user} lost its item")
            if present < seen:
                failures.append(f"{seen} rows, then {present}")
            seen = present

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for user in range(30):
        harness.write(user, {"viewed": Value(string_set_val=StringSet(val=[f"item-{user}"]))})
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failures


def test_late_rows_lose_against_sealed_ones_in_every_process(make_harness, other_process):
    harness = make_harness({"country": String}, refresh_interval_seconds=0, seal_min_rows=10)
    now = harness.write.__defaults__[0]
    rows = [(harness.key(user_id=u), country("new"), now + timedelta(seconds=u), None) for u in range(20)]
    harness.write_many(rows)
    harness.write(3, country("late"), now)
    harness.write(4, country("newer"), now + timedelta(days=1))
    ask = other_process(harness)
    assert (ask(3), ask(4)) == ("new", "newer")
    assert countries(harness, 3, 4) == ["new", "newer"]
