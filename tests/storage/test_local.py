"""The contract of storages with a local folder, and what only a folder has."""

import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from feast_sketch_store.errors import StorageError
from feast_sketch_store.storage.base import MissingFileError
from feast_sketch_store.storage.local import LocalStorage
from tests.storage.contract import StorageContract, in_threads, names_of, put

NOBODY = 65534


class TestLocalStorage(StorageContract):
    @pytest.fixture
    def make(self, tmp_path):
        return lambda read_only=False: LocalStorage(tmp_path / "deep" / "storage", read_only)


class TestLocalStorageBehindALink(StorageContract):
    @pytest.fixture
    def make(self, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "storage").symlink_to(tmp_path / "elsewhere")
        return lambda read_only=False: LocalStorage(tmp_path / "storage", read_only)

    def test_the_link_and_its_target_are_deleted_by_two(self, tmp_path):
        for number in range(100):
            folder, link = tmp_path / f"folder-{number}", tmp_path / f"link-{number}"
            folder.mkdir()
            link.symlink_to(folder)
            in_threads(LocalStorage.delete_all, [LocalStorage(link) for _ in range(4)])
            assert not folder.exists()
            assert not link.is_symlink()


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path / "storage")


@pytest.fixture
def umask():
    """Sets the umask of the process until the test is over."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.fixture
def public_folder():
    """A folder that other users may look into; what pytest makes is private."""
    folder = Path(tempfile.mkdtemp(prefix="storage-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def become_nobody():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def in_child(function):
    """What a function says in a forked child: True or False."""
    child = os.fork()
    if not child:
        status = 2
        try:
            status = 0 if function() else 1
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1)
    return not status


@contextmanager
def descriptors_left(number):
    """Allow the process only so many descriptors beyond those that it has open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_under(path):
    """Files of a folder that this process has open; threads of other tests may have theirs."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            names.append(str(Path("/proc/self/fd", descriptor).readlink()))
    return [name for name in names if name.startswith(str(path))]


def everything_under(path):
    return sorted(p.relative_to(path).as_posix() for p in path.rglob("*"))


def no_space_for(call):
    """A call, given by its name, fails."""
    return patch(call, side_effect=OSError(errno.ENOSPC, "No space left on device"))


# -- maps and descriptors --------------------------------------------------------------------------


@pytest.mark.slow
def test_maps_hold_no_descriptors(storage):
    for number in range(200):
        put(storage, f"{number}", b"%03d" % number)
    with descriptors_left(100):
        maps = [storage.map(f"{number}") for number in range(200)]
        assert [m.tobytes() for m in maps] == [b"%03d" % number for number in range(200)]


def test_a_map_is_let_go_with_its_last_array(storage):
    put(storage, "a", bytes(8192))
    part = storage.map("a")[4096:].reshape(2, -1)
    assert storage.where("a") in Path("/proc/self/maps").read_text()
    del part
    assert storage.where("a") not in Path("/proc/self/maps").read_text()


def test_a_map_is_readable_in_a_forked_child(storage):
    put(storage, "a", b"x" * 5000)
    mapped = storage.map("a")
    assert in_child(lambda: mapped.tobytes() == b"x" * 5000)


def test_calls_leave_no_descriptor_open(storage):
    put(storage, "a", b"x")
    storage.append("log", 0, [b"x"])
    storage.replace("b", b"x")
    with storage.lease("lock"):
        pass
    kept = storage.map("a"), storage.read("a"), list(storage.walk()), storage.list()
    assert open_under(storage.path.parent) == []
    assert len(kept[0]) == 1
    with (storage.path / "a").open():
        assert open_under(storage.path.parent) == [str(storage.path / "a")]


# -- modes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_all_files_follow_the_umask(storage, umask, mask):
    umask(mask)
    put(storage, "a")
    storage.replace("b", b"")
    storage.append("log", 0, [b"x"])
    with storage.lease("seal.lock"):
        pass
    modes = {stat.S_IMODE((storage.path / name).stat().st_mode) for name in ("a", "b", "log", "seal.lock")}
    assert modes == {0o666 & ~mask}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be another user")
@pytest.mark.parametrize(("mask", "is_allowed"), [(0o002, True), (0o022, False)])
def test_a_group_shares_a_folder(public_folder, umask, mask, is_allowed):
    """In a folder with the set-group-id bit, the umask decides for the lock as for all other files."""
    umask(mask)
    path = public_folder / "storage"
    path.mkdir()
    os.chown(path, 0, NOBODY)
    path.chmod(0o2775)
    storage = LocalStorage(path)
    with storage.lease("seal.lock"):
        pass
    storage.append("log", 0, [b"x"])

    def locks_and_appends():
        become_nobody()
        try:
            storage.append("log", 1, [b"y"])
            with storage.lease("seal.lock") as is_mine:
                return is_mine
        except StorageError:
            return False

    assert in_child(locks_and_appends) is is_allowed


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be another user")
def test_a_folder_may_lie_in_one_that_cannot_be_read(public_folder):
    (public_folder / "passed").mkdir()
    (public_folder / "passed").chmod(0o711)
    path = public_folder / "passed" / "storage"
    path.mkdir()
    os.chown(path, NOBODY, NOBODY)

    def writes():
        become_nobody()
        put(LocalStorage(path), "rows/a")
        return True

    assert in_child(writes)
    assert LocalStorage(path).list("rows/") == ["a"]


# -- what comes to the disk, and in which order ----------------------------------------------------


@pytest.fixture
def steps(monkeypatch, storage):
    """The calls that make something durable or visible, in order."""
    seen = []

    def watch(module, name, describe):
        original = getattr(module, name)

        def watched(*arguments, **named):
            described = describe(*arguments)
            result = original(*arguments, **named)
            seen.append(described)
            return result

        monkeypatch.setattr(module, name, watched)

    def of_descriptor(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        relative = os.path.relpath(path, storage.path)
        return "unfinished" if relative.endswith(".tmp") else relative

    watch(os, "fsync", lambda descriptor: ("fsync", of_descriptor(descriptor)))
    watch(os, "fdatasync", lambda descriptor: ("fdatasync", of_descriptor(descriptor)))
    watch(os, "link", lambda *_: "link")
    watch(os, "unlink", lambda *_: "unlink")
    watch(os, "rename", lambda *_: "rename")
    watch(os, "replace", lambda *_: "replace")
    return seen


def test_folders_are_durable_before_files_in_them(storage, steps):
    put(storage, "rows/deep/a")
    assert steps[:3] == [("fsync", "rows"), ("fsync", "."), ("fsync", "..")]
    assert steps[3:] == [("fsync", "unfinished"), "link", "unlink", ("fsync", "rows/deep")]
    steps.clear()
    put(storage, "rows/deep/b")
    assert steps == [("fsync", "unfinished"), "link", "unlink", ("fsync", "rows/deep")]


def test_a_file_is_there_although_what_it_was_written_to_cannot_be_removed(storage):
    put(storage, "rows/a")
    with patch.object(os, "unlink", side_effect=OSError(errno.EIO, "the disk is broken")):
        put(storage, "rows/b")
    assert storage.list("rows/") == ["a", "b"]


def test_a_folder_that_was_made_anew_is_made_durable_anew(storage, steps):
    put(storage, "rows/a")
    LocalStorage(storage.path).delete_all()
    steps.clear()
    put(storage, "rows/a")
    assert steps[:2] == [("fsync", "."), ("fsync", "..")]


def test_a_folder_of_a_writer_who_died_is_made_durable(storage, steps):
    (storage.path / "rows").mkdir(parents=True)
    put(storage, "rows/a")
    assert steps[:2] == [("fsync", "."), ("fsync", "..")]


def test_the_order_of_a_replacement(storage, steps):
    storage.replace("a", b"x")
    steps.clear()
    storage.replace("a", b"y")
    assert steps[:3] == [("fsync", "unfinished"), "replace", ("fsync", ".")]


def test_the_order_of_an_append(storage, steps):
    storage.append("log", 0, [b"x"])
    assert steps[1:] == [("fdatasync", "log"), ("fsync", ".")]
    steps.clear()
    storage.append("log", 1, [b"y"])
    assert steps == [("fdatasync", "log")]
    LocalStorage(storage.path).append("log", 2, [b"z"])  # does not know whether the first one got so far
    assert steps[1:] == [("fdatasync", "log"), ("fsync", ".")]


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["os.fsync", "os.link", "feast_sketch_store.storage.local.fsync_path"])
def test_a_file_that_cannot_be_made_durable_with_its_folder_is_not_there(storage, step):
    put(storage, "rows/other")
    with no_space_for(step), pytest.raises(StorageError, match=r"rows/a.*No space left"):
        put(storage, "rows/a", b"x")
    assert names_of(storage) == ["rows/other"]


@pytest.mark.parametrize("step", ["os.pwrite", "os.fdatasync"])
def test_an_append_that_fails_is_taken_back(storage, step):
    storage.append("log", 0, [b"sound"])
    with no_space_for(step), pytest.raises(StorageError, match=r"log.*No space left"):
        storage.append("log", 5, [b" more"])
    assert storage.read("log") == b"sound"


def test_every_error_of_the_system_is_our_own(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    storage = LocalStorage(tmp_path / "file")  # is no folder
    for change in (
        lambda: put(storage, "a"),
        lambda: storage.replace("a", b""),
        lambda: storage.append("a", 0, []),
        lambda: storage.lease("lock").__enter__(),
    ):
        with pytest.raises(StorageError, match="file"):
            change()
    for read in (storage.read, storage.map):
        with pytest.raises(MissingFileError, match="file/a"):
            read("a")
    for look in (storage.list, lambda: storage.info("a"), lambda: storage.within("b/").list()):
        with pytest.raises(StorageError, match="file: is a file, and the store needs a folder there"):
            look()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    storage = LocalStorage(tmp_path / "loop")
    for look in (
        storage.list,
        storage.folders,
        lambda: storage.info("a"),
        lambda: storage.read("a"),
        lambda: [*storage.walk()],
    ):
        with pytest.raises(StorageError, match="loop"):
            look()


# -- killed and forked -----------------------------------------------------------------------------


def test_a_pipe_in_the_place_of_a_file_is_an_error(storage):
    """Whoever opens one waits for another process, unless it asks not to."""
    storage.prepare()
    os.mkfifo(storage.path / "pipe")
    assert storage.info("pipe") is None
    for change in (lambda: storage.append("pipe", 0, [b"x"]), lambda: storage.note("pipe", b"x")):
        with pytest.raises(StorageError, match="pipe"):
            change()
    assert storage.read("pipe") == storage.map("pipe").tobytes() == b""


def test_a_killed_writer_leaves_an_unfinished_file(storage):
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from feast_sketch_store.storage.local import LocalStorage\n"
        "with LocalStorage(Path(sys.argv[1])).create('rows/a') as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, storage.path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert storage.list("rows/") == []
    (left,) = names_of(storage)
    assert left.startswith("rows/.")
    storage.delete([left])
    assert names_of(storage) == []


@pytest.mark.parametrize("wait", [False, True])
def test_a_lease_that_creates_nothing_is_not_had_where_no_folder_is(storage, wait):
    put(storage, "rows/a")
    storage.delete_all()
    with storage.lease("lock", wait=wait, create=False) as is_mine:
        assert not is_mine
    assert not storage.path.exists()


def test_a_lease_goes_with_its_process(storage):
    script = (
        "import sys; from pathlib import Path\n"
        "from feast_sketch_store.storage.local import LocalStorage\n"
        "with LocalStorage(Path(sys.argv[1])).lease('lock') as is_mine:\n"
        "    print(is_mine, flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, storage.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "True\n"
    with storage.lease("lock") as is_mine:
        assert not is_mine
    process.kill()
    process.communicate()
    with storage.lease("lock") as is_mine:
        assert is_mine


def test_a_forked_child_does_not_hold_the_lease_of_its_parent(storage):
    """A server that forks during a seal would otherwise keep the lock until its last worker ended."""
    to_grandchild, from_grandchild = os.pipe(), os.pipe()

    def hold_fork_and_die():
        with storage.lease("lock"):
            if os.fork():
                os._exit(0)  # without letting go
            os.write(from_grandchild[1], b"x")
            os.read(to_grandchild[0], 1)
            os._exit(0)

    assert in_child(hold_fork_and_die)
    os.read(from_grandchild[0], 1)  # it lives, and was forked while the lease was held
    with storage.lease("lock") as is_mine:
        assert is_mine
    os.write(to_grandchild[1], b"x")
    for descriptor in (*to_grandchild, *from_grandchild):
        os.close(descriptor)


def test_the_end_of_a_lease_in_a_child_leaves_it_to_the_parent(storage):
    def is_held():
        with storage.lease("lock") as is_mine:
            return not is_mine

    with storage.lease("lock"):
        child = os.fork()
        if not child:
            # The number of the descriptor is free now; what is opened under it must stay.
            other = os.open(storage.where("lock"), os.O_RDONLY)
        else:
            assert os.waitpid(child, 0)[1] == 0
            assert in_child(is_held)
            assert is_held()
    if not child:
        status = 2
        try:
            status = 0 if os.fstat(other).st_size == 0 else 1
        finally:
            os._exit(status)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # which Python 3.12 warns of
def test_calls_work_in_a_child_that_was_forked_among_threads(storage):
    done = threading.Event()

    def hold():
        while not done.is_set():
            with storage.lease("lock", wait=True):
                storage.replace("a", b"parent")

    holder = threading.Thread(target=hold)
    holder.start()

    def replace():
        with storage.lease("lock", wait=True):
            storage.replace("a", b"child")
        return True

    try:
        assert [in_child(replace) for _ in range(5)] == [True] * 5
    finally:
        done.set()
    holder.join()


# -- delete everything -----------------------------------------------------------------------------


def test_nothing_is_left_beside_a_deleted_folder(storage, tmp_path):
    put(storage, "rows/a")
    storage.delete_all()
    assert everything_under(tmp_path) == []


def test_what_a_killed_deletion_left_is_removed_by_the_next(storage, tmp_path):
    put(storage, "rows/a", b"of a deleted person")
    put(LocalStorage(tmp_path / "storage2"), "a")
    put(LocalStorage(tmp_path / ".mine.dropped"), "a")
    with (
        no_space_for("feast_sketch_store.storage.local._remove"),
        pytest.raises(StorageError, match="storage"),
    ):
        storage.delete_all()
    assert names_of(storage) == []
    assert len(everything_under(tmp_path)) == 7
    LocalStorage(tmp_path / "storage3").delete_all()
    assert everything_under(tmp_path) == [".mine.dropped", ".mine.dropped/a", "storage2", "storage2/a"]


@pytest.mark.parametrize("name", [".nfs000000000012f", ".fuse_hidden0000000200000001"])
def test_files_that_nfs_or_fuse_holds_are_removed_by_the_next(storage, tmp_path, monkeypatch, name):
    """A deleted file that a process has open gets another name there."""
    remove = shutil.rmtree

    def hold(path, ignore_errors=False):
        remove(path)
        (path / "rows").mkdir(parents=True)
        (path / "rows" / name).touch()
        if not ignore_errors:
            raise OSError(errno.ENOTEMPTY, "Directory not empty")

    put(storage, "rows/a")
    monkeypatch.setattr(shutil, "rmtree", hold)
    storage.delete_all()
    assert names_of(storage) == []
    assert len(everything_under(tmp_path)) == 3
    monkeypatch.undo()
    storage.delete_all()
    assert everything_under(tmp_path) == []


@pytest.mark.parametrize("is_dangling", [False, True])
def test_a_link_is_removed_with_what_it_leads_to(tmp_path, is_dangling):
    elsewhere = tmp_path / "other disk" / "storage"
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "view").symlink_to(elsewhere)
    if not is_dangling:
        elsewhere.mkdir(parents=True)
        put(LocalStorage(elsewhere), "rows/deep/a")
    LocalStorage(tmp_path / "store" / "view").delete_all()
    assert [path for path in everything_under(tmp_path) if path != "other disk"] == ["store"]
    put(LocalStorage(tmp_path / "store" / "view"), "a")


def test_links_inside_are_not_followed_and_told(storage, tmp_path, caplog):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_bytes(b"x")
    put(storage, "a")
    (storage.path / "link").symlink_to(tmp_path / "mine")
    assert names_of(storage) == ["a"]
    storage.delete_all()
    assert everything_under(tmp_path) == ["mine", "mine/precious"]
    assert f"its link link is removed, and {tmp_path / 'mine'} is left" in caplog.text
