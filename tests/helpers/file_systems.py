"""File systems that say less of their files than those of most tests."""

from feast_sketch_store.storage.system import FileStatus

SECOND = 1_000_000_000


def know_files_badly(monkeypatch):
    """Report no times of birth, an inode that each file gets again, and changes by the second.

    The first is so in FUSE, NFS, and musl before 1.2.5, the last in ext4 with small inodes.
    """
    of = FileStatus.of

    def known(path):
        status = of(path)
        return status._replace(inode=1, born=0, modified=status.modified // SECOND * SECOND)

    monkeypatch.setattr(FileStatus, "of", known)
