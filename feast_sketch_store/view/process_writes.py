"""Which views this process wrote to, through whichever object.

A process always reads what it wrote. Several `View` objects may stand for one folder, so a write through one
must send the next read of the others to the disk, and no read of any other view.
"""

import itertools

_numbers = itertools.count(1)
_last_writes: dict[str, int] = {}


def note_write(folder: str) -> int:
    """Record that this process wrote to the view in a folder, which is named by its real path.

    Returns
    -------
    The number of the write.
    """
    number = _last_writes[folder] = next(_numbers)
    return number


def last_write(folder: str) -> int:
    """The number of this process's last write to the view in a folder; 0 if there was none."""
    return _last_writes.get(folder, 0)
