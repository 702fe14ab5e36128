"""What every `Storage` must do.

An implementation passes by a subclass, which is found because its name begins with ``Test``::

    class TestMyStorage(StorageContract):
        @pytest.fixture
        def make(self, tmp_path):
            return lambda read_only=False: MyStorage(tmp_path / "storage", read_only)

``make`` gives another object over the same files each time: another process would hold such a one.
"""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

import numpy as np
import pytest

from feast_sketch_store.errors import StorageError
from feast_sketch_store.storage.base import ZEROS_AFTER, FileExistsAlreadyError, MissingFileError
from tests.helpers.cases import for_each
from tests.helpers.length import by_length

NOT_NAMES = ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a/..", "a\0b", "a/\ud800"]
NOT_FOLDERS = ["a", "a/b", "/", "a//", "../", "a/../", "/a/"]
NAMES = [
    "a",
    "a.json",
    "rows/a",
    "rows/deep/er/b",
    ".hidden",
    "with space",
    "%41",
    "back\\slash",
    "ключ",
    "a" * 200,
]


class ReadOnlyCalls:
    """Every call that changes something."""

    @staticmethod
    def of(storage):
        yield storage.prepare
        yield lambda: put(storage, "a")
        yield lambda: storage.replace("a", b"x")
        yield lambda: storage.append("a", 0, [b"x"])
        yield lambda: storage.delete(["a"])
        yield lambda: storage.delete_all()


def put(storage, name, content=b""):
    with storage.create(name) as file:
        file.write(content)


def names_of(storage):
    return sorted(info.name for info in storage.walk())


def appended(storage, name):
    """What was appended to a file, without the zeros after it."""
    content = storage.read(name)
    rest = content.rstrip(b"\0")
    assert len(content) - len(rest) >= ZEROS_AFTER
    return rest


def in_threads(function, arguments):
    """Results of calls that begin at once."""
    arguments = list(arguments)
    barrier = threading.Barrier(len(arguments))

    def call(argument):
        barrier.wait()
        return function(argument)

    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(call, arguments))


class StorageContract:
    @pytest.fixture
    def make(self):
        raise NotImplementedError

    @pytest.fixture
    def storage(self, make):
        return make()

    @pytest.fixture
    def other(self, make, storage):
        """The same files through another object."""
        return make()

    # -- names ---------------------------------------------------------------------------------

    @for_each("name", NAMES)
    def test_a_file_has_any_name(self, storage, other, name):
        put(storage, name, b"content")
        assert other.read(name) == b"content"
        assert names_of(other) == [name]
        folder, _, last = name.rpartition("/")
        assert other.list(folder + "/" if folder else "") == [last]
        storage.delete([name])

    @for_each("name", NOT_NAMES)
    def test_no_name_leads_out(self, storage, name):
        storage.replace("a", b"x")
        before = names_of(storage)
        calls = [
            lambda: storage.info(name),
            lambda: storage.read(name),
            lambda: storage.map(name),
            lambda: put(storage, name),
            lambda: storage.replace(name, b""),
            lambda: storage.delete([name]),
            lambda: storage.append(name, 0, [b"x"]),
            lambda: storage.lease(name).__enter__(),
        ]
        for number, call in enumerate(calls):
            if number >= 6 and not (storage.supports_append and storage.supports_leases):
                continue
            with pytest.raises(StorageError):
                call()
        assert names_of(storage) == before

    @for_each("folder", NOT_FOLDERS)
    def test_no_folder_leads_out(self, storage, folder):
        for call in (storage.list, storage.within):
            with pytest.raises(StorageError):
                call(folder)

    def test_messages_say_where_a_file_is(self, storage):
        assert storage.where() == storage.location
        assert storage.where("rows/a").startswith(storage.location)
        assert storage.where("rows/a").endswith("rows/a")
        with pytest.raises(MissingFileError, match="rows/a"):
            storage.read("rows/a")

    def test_a_folder_is_a_storage_of_its_own(self, storage):
        inner = storage.within("rows/")
        put(storage, "a", b"outer")
        put(storage, "rows/a", b"inner")
        put(inner, "log/b", b"deeper")
        assert inner.read("a") == b"inner"
        assert storage.read("rows/log/b") == b"deeper"
        assert storage.within("rows/log/").read("b") == inner.within("log/").read("b") == b"deeper"
        assert names_of(inner) == ["a", "log/b"]
        assert inner.where("a") == storage.where("rows/a")
        inner.delete_all()
        assert names_of(storage) == ["a"]

    # -- look ----------------------------------------------------------------------------------

    def test_a_new_storage_is_empty(self, storage):
        assert storage.list() == []
        assert storage.list("rows/") == []
        assert list(storage.walk()) == []
        assert storage.info("a") is None

    def test_a_folder_lists_its_own_files_in_order(self, storage):
        for name in ["rows/b", "rows/B", "rows/10", "rows/9", "rows/a/deeper", "rowsx", "rows.json", "z"]:
            put(storage, name)
        assert storage.list("rows/") == ["10", "9", "B", "b"]
        assert storage.list() == ["rows.json", "rowsx", "z"]
        assert storage.list("rows/a/") == ["deeper"]
        assert storage.list("z/") == []

    def test_a_list_begins_after_a_name(self, storage):
        for number in range(5):
            put(storage, f"rows/{number:020d}.json")
        assert storage.list("rows/", after=f"{2:020d}.json") == [f"{3:020d}.json", f"{4:020d}.json"]
        assert storage.list("rows/", after=f"{2:020d}") == [f"{n:020d}.json" for n in (2, 3, 4)]
        assert storage.list("rows/", after="1") == []

    def test_a_walk_tells_what_is_known_of_all_files(self, storage):
        for name in ("a", "rows/b", "rows/deep/c"):
            put(storage, name, name.encode())
        infos = {info.name: info for info in storage.walk()}
        assert sorted(infos) == ["a", "rows/b", "rows/deep/c"]
        for name, found in infos.items():
            info = storage.info(name)
            assert found in (info, replace(info, token="", modified_at=found.modified_at))
            assert abs(found.modified_at - info.modified_at) <= 1  # a listing may be more exact
        assert [infos[name].size_bytes for name in sorted(infos)] == [1, 6, 11]

    def test_a_note_is_read_as_it_was_written_last(self, storage, other, make):
        for content in (b"long content", b"short", b""):
            storage.note("rows/note", content)
            assert other.read("rows/note") == content
        with pytest.raises(StorageError):
            make(read_only=True).note("rows/note", b"x")
        assert storage.read("rows/note") == b""

    def test_a_folder_is_not_a_file(self, storage):
        put(storage, "rows/a", b"x")
        assert storage.info("rows") is None
        for read in (storage.read, storage.map):
            with pytest.raises(MissingFileError):
                read("rows")

    # -- tokens --------------------------------------------------------------------------------

    def test_a_token_stays_while_the_content_does(self, storage, other):
        put(storage, "a", b"x")
        put(storage, "b", b"x")
        token = storage.info("a").token
        storage.read("a")
        storage.map("a")
        assert other.info("a").token == token
        assert not token or storage.info("b").token != token

    def test_equal_content_made_anew_has_another_token(self, storage):
        tokens = set()
        for number in range(12):
            if number % 3:
                storage.delete(["a"])
                put(storage, "a", b"x")
            else:
                storage.replace("a", b"x")
            tokens.add(storage.info("a").token)
        storage.delete_all()
        put(storage, "a", b"x")
        tokens.add(storage.info("a").token)
        assert len(tokens) == 13 or tokens == {""}

    def test_the_time_of_a_file_follows_its_changes(self, storage):
        put(storage, "a")
        put(storage, "b")
        assert storage.info("a").modified_at <= storage.info("b").modified_at
        storage.replace("a", b"x")
        assert storage.info("b").modified_at <= storage.info("a").modified_at

    # -- read ----------------------------------------------------------------------------------

    @for_each(
        "start, length", [(0, None), (0, 0), (0, 3), (3, 4), (3, None), (9, 5), (10, 1), (50, None), (50, 2)]
    )
    def test_a_range_is_read(self, storage, start, length):
        content = b"0123456789"
        storage.replace("a", content)
        end = None if length is None else start + length
        assert storage.read("a", start, length) == content[start:end]

    @for_each("size", [0, 1, 4095, 4096, 3 * 4096 + 17])
    def test_a_map_has_the_bytes(self, storage, size):
        content = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
        put(storage, str(size), content)
        mapped = storage.map(str(size))
        assert (mapped.dtype, mapped.shape) == (np.uint8, (size,))
        assert mapped.tobytes() == content
        assert not mapped.flags.writeable

    def test_what_is_not_there_cannot_be_read(self, storage):
        for read in (storage.read, storage.map):
            with pytest.raises(MissingFileError):
                read("rows/a")

    @pytest.mark.parametrize("how", ["delete", "delete_all", "replace"])
    def test_a_map_outlives_its_file(self, storage, how):
        content = bytes(range(256)) * 64
        put(storage, "a", content)
        part = storage.map("a")[100:5000]
        if how == "delete":
            storage.delete(["a"])
        elif how == "replace":
            storage.replace("a", b"x" * len(content))
        else:
            storage.delete_all()
        gc.collect()
        assert part.tobytes() == content[100:5000]

    # -- create --------------------------------------------------------------------------------

    def test_a_prepared_storage_is_empty(self, storage):
        storage.prepare()
        storage.prepare()
        assert names_of(storage) == []
        put(storage, "a", b"x")
        storage.prepare()
        assert storage.read("a") == b"x"

    def test_a_file_appears_when_it_is_whole(self, storage, other):
        with storage.create("rows/a") as file:
            file.write(b"first ")
            file.flush()
            assert other.info("rows/a") is None
            assert other.list("rows/") == []
            file.write(b"second")
        assert other.read("rows/a") == b"first second"

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, StorageError])
    def test_a_file_does_not_appear_if_its_writer_raises(self, storage, error):
        with pytest.raises(error, match="cut off"), storage.create("rows/a") as file:  # noqa: PT012
            file.write(b"half")
            raise error("cut off")
        assert storage.info("rows/a") is None
        assert names_of(storage) == []
        put(storage, "rows/a", b"whole")
        assert storage.read("rows/a") == b"whole"

    def test_a_file_is_created_once(self, storage, other):
        put(storage, "a", b"first")
        token = storage.info("a").token
        with pytest.raises(FileExistsAlreadyError, match="a"):
            put(other, "a", b"second")
        assert storage.read("a") == b"first"
        assert storage.info("a").token == token
        assert names_of(storage) == ["a"]

    def test_the_end_of_the_block_decides(self, storage, other):
        with pytest.raises(FileExistsAlreadyError), storage.create("a") as file:  # noqa: PT012
            file.write(b"late")
            put(other, "a", b"early")
        assert storage.read("a") == b"early"

    def test_one_of_eight_creates_a_file(self, make):
        storages = [make() for _ in range(8)]

        def try_to_create(number, name):
            try:
                put(storages[number], name, b"%d" % number * 5000)
            except FileExistsAlreadyError:
                return False
            return True

        for race in range(6):
            name = f"rows/{race}"
            won = in_threads(lambda number, name=name: try_to_create(number, name), range(8))
            assert sum(won) == 1
            assert storages[0].read(name) == b"%d" % won.index(True) * 5000
        assert len(names_of(storages[0])) == 6

    # -- replace -------------------------------------------------------------------------------

    def test_a_file_is_replaced(self, storage, other):
        storage.replace("rows/a", b"first")
        assert other.read("rows/a") == b"first"
        storage.replace("rows/a", b"")
        assert other.read("rows/a") == b""
        assert names_of(storage) == ["rows/a"]

    def test_readers_see_one_content_or_the_other(self, make):
        writer, reader = make(), make()
        contents = [b"%d" % number * 20_000 for number in range(10)]
        writer.replace("a", contents[0])
        done = threading.Event()

        def replace():
            for _ in range(3):
                for content in contents:
                    writer.replace("a", content)
            done.set()

        def read():
            seen = set()
            while not done.is_set():
                seen |= {reader.read("a"), reader.map("a").tobytes()}
            return seen

        with ThreadPoolExecutor(2) as pool:
            seen = pool.submit(read)
            pool.submit(replace).result()
            assert seen.result() <= set(contents)

    # -- append --------------------------------------------------------------------------------

    def appending(self, storage):
        if not storage.supports_append:
            with pytest.raises(StorageError, match="a"):
                storage.append("a", 0, [b"x"])
            pytest.skip("files of this storage cannot be appended to")

    def test_a_file_grows(self, storage, other):
        self.appending(storage)
        storage.append("rows/log", 0, [b"first"])
        token = storage.info("rows/log").token
        storage.append("rows/log", 5, [b"", b" second", memoryview(b" third")])
        assert appended(other, "rows/log") == b"first second third"
        assert other.info("rows/log").token == token
        assert other.list("rows/") == ["log"]

    @pytest.mark.parametrize("num_torn", [1, 60, 10_000, 1_000_000])
    def test_zeros_follow_over_the_end_of_a_dead_writer(self, storage, other, num_torn):
        self.appending(storage)
        storage.append("log", 0, [b"sound", b"X" * num_torn])
        other.append("log", 5, [b"!"])
        assert storage.read("log", 0, 6 + ZEROS_AFTER) == b"sound!" + bytes(ZEROS_AFTER)
        storage.append("log", 2, [])
        assert other.read("log", 0, 2 + ZEROS_AFTER) == b"so" + bytes(ZEROS_AFTER)

    def test_the_size_of_a_file_seldom_changes(self, storage):
        self.appending(storage)
        at, sizes = 0, set()
        for number in range(300):
            storage.append("log", at, [bytes([1 + number % 255]) * 1000])
            at += 1000
            sizes.add(storage.info("log").size_bytes)
        assert len(sizes) <= 10
        assert len(appended(storage, "log")) == at

    def test_a_hole_is_refused(self, storage):
        self.appending(storage)
        storage.append("log", 0, [b"12345"])
        with pytest.raises(StorageError, match="log"):
            storage.append("log", storage.info("log").size_bytes + 1, [b"x"])
        assert appended(storage, "log") == b"12345"

    def test_a_file_that_was_moved_away_does_not_begin_anew(self, storage):
        """The rest of it would lie alone where nobody looks for its beginning."""
        self.appending(storage)
        storage.append("rows/log", 0, [b"12345"])
        storage.delete(["rows/log"])
        with pytest.raises(StorageError, match="log"):
            storage.append("rows/log", 5, [b"x"])
        assert names_of(storage) == []

    def test_a_failed_append_leaves_what_was_there(self, storage):
        self.appending(storage)
        storage.append("log", 0, [b"sound", b" and torn"])

        def pieces():
            yield b"half"
            raise ValueError("cut off")

        with pytest.raises(ValueError, match="cut off"):
            storage.append("log", 5, pieces())
        assert storage.read("log") == b"sound"
        storage.append("log", 5, [b" again"])
        assert appended(storage, "log") == b"sound again"

    def test_a_file_of_arrays_grows(self, storage):
        self.appending(storage)
        numbers = np.arange(1000, dtype="<u8")
        storage.append("log", 0, [numbers.data, memoryview(bytearray(b"abc"))])
        assert appended(storage, "log") == numbers.tobytes() + b"abc"

    def test_readers_see_a_file_grow(self, make):
        writer, reader = make(), make()
        self.appending(writer)
        writer.append("log", 0, [b"0000000000"])
        done = threading.Event()

        def append():
            for number in range(1, 100):
                writer.append("log", 10 * number, [b"%010d" % number])
            done.set()

        def read():
            known = b""
            while not done.is_set():
                news = reader.read("log", len(known)).rstrip(b"\0")
                known += news[: len(news) // 10 * 10]
            return known + reader.read("log", len(known)).rstrip(b"\0")

        with ThreadPoolExecutor(2) as pool:
            known = pool.submit(read)
            pool.submit(append).result()
            assert known.result() == b"".join(b"%010d" % number for number in range(100))

    # -- leases --------------------------------------------------------------------------------

    def leasing(self, storage):
        if not storage.supports_leases:
            with storage.lease("lock") as is_mine:
                assert is_mine
            pytest.skip("this storage keeps nobody out")

    def test_a_lease_keeps_others_out(self, storage, other):
        self.leasing(storage)
        with storage.lease("rows/lock") as is_mine:
            assert is_mine
            for second in (storage, other):
                with second.lease("rows/lock") as is_its:
                    assert not is_its
            with other.lease("another") as is_its:
                assert is_its
        with other.lease("rows/lock") as is_its:
            assert is_its

    def test_a_lease_that_creates_nothing_leaves_nothing_of_what_was_deleted(self, storage, other):
        put(storage, "rows/a")
        with other.lease("rows/lock", create=False) as is_its:
            assert is_its
        storage.delete_all()
        for wait in (False, True):
            with other.lease("rows/lock", wait=wait, create=False):
                pass
        assert storage.list() == []

    def test_an_error_lets_go_of_a_lease(self, storage, other):
        self.leasing(storage)
        with pytest.raises(ValueError, match="cut off"), storage.lease("lock"):
            raise ValueError("cut off")
        with other.lease("lock") as is_its:
            assert is_its

    def test_who_waits_gets_the_lease(self, make):
        self.leasing(make())
        inside = 0
        most = 0

        def hold(storage):
            nonlocal inside, most
            for _ in range(20):
                with storage.lease("lock", wait=True) as is_mine:
                    assert is_mine
                    inside += 1
                    most = max(most, inside)
                    inside -= 1
            return True

        shared = make()
        assert all(in_threads(hold, [shared, shared, make(), make()]))
        assert most == 1

    def test_a_deleted_lock_is_taken_anew(self, storage, other):
        self.leasing(storage)
        with storage.lease("lock"):
            storage.delete_all()
        with other.lease("lock") as is_its:
            assert is_its
            with storage.lease("lock") as is_mine:
                assert not is_mine

    # -- delete --------------------------------------------------------------------------------

    def test_files_are_deleted(self, storage, other):
        for name in ("a", "rows/a", "rows/b"):
            put(storage, name)
        storage.delete(["rows/a", "not there", "rows/not/there", "a"])
        assert names_of(other) == ["rows/b"]
        assert other.info("a") is None
        storage.delete([])

    def test_everything_is_deleted(self, storage, other):
        for name in NAMES:
            put(storage, name, b"old")
        storage.delete_all()
        assert names_of(other) == []
        assert other.list() == other.list("rows/") == []
        storage.delete_all()
        put(other, "rows/a", b"new")
        assert names_of(storage) == ["rows/a"]

    @pytest.mark.has_long_form
    def test_what_was_deleted_stays_so_under_writers(self, make):
        storages = [make() for _ in range(4)]
        for round_ in range(by_length(5, 10)):
            old = {f"rows/{round_}-old-{number}" for number in range(20)}
            for name in old:
                put(storages[0], name)
            done = threading.Event()
            started = threading.Barrier(4)

            def fill(number, round_=round_, started=started, done=done):
                count = 0
                while not done.is_set():
                    # A writer that is hit may get an error.
                    with suppress(StorageError):
                        put(storages[number], f"rows/{round_}-new-{number}-{count}")
                    if storages[number].supports_append:
                        with suppress(StorageError):
                            storages[number].append(f"rows/{round_}-log-{number}", 0, [b"x"])
                    count += 1
                    if count == 2:
                        started.wait()
                return count

            with ThreadPoolExecutor(3) as pool:
                filled = [pool.submit(fill, number) for number in (1, 2, 3)]
                started.wait()
                storages[0].delete_all()
                seen = set(names_of(storages[0]))
                done.set()
                assert all(count.result() for count in filled)
            assert not seen & old
            assert not set(names_of(storages[0])) & old
            put(storages[0], f"rows/{round_}-after")
            storages[0].delete_all()  # else each round has more to delete, and writers more time
            assert names_of(storages[0]) == []

    @pytest.mark.has_long_form
    def test_two_delete_everything(self, make):
        for _ in range(by_length(2, 4)):
            storages = [make() for _ in range(4)]
            for number in range(30):
                put(storages[0], f"rows/{number % 3}/{number}")
            in_threads(lambda storage: storage.delete_all(), storages)
            assert names_of(storages[0]) == []

    # -- flags ---------------------------------------------------------------------------------

    def test_what_is_only_read_does_not_change(self, make, storage):
        put(storage, "a", b"x")
        reader = make(read_only=True)
        assert reader.read_only
        assert reader.within("rows/").read_only
        assert not storage.read_only
        for call in ReadOnlyCalls.of(reader):
            with pytest.raises(StorageError):
                call()
        if reader.supports_leases:
            with pytest.raises(StorageError), ExitStack() as stack:
                stack.enter_context(reader.lease("lock"))
        assert names_of(storage) == ["a"]
        assert reader.read("a") == reader.map("a").tobytes() == b"x"
        assert reader.list() == ["a"]
