"""Records which views this process wrote to, through any object.

A process always reads what it wrote. Several `View` objects may share one storage. After a write through one
of them the next read of the others must look at the disk, but reads of other views must not.
"""

import itertools

_numbers = itertools.count(1)
_last_writes: dict[str, int] = {}
_last = [0]  # of any view


def note_write(storage: str) -> int:
    """Record a write of this process to the view whose storage has this identity.

    Returns
    -------
    The number of the write.
    """
    number = _last_writes[storage] = _last[0] = next(_numbers)
    return number


def last_of_all() -> int:
    """A number that differs after each write of this process, whatever view it was to."""
    return _last[0]


def last_write(storage: str) -> int:
    """The number of this process's last write to the view in a storage; 0 if there was none."""
    return _last_writes.get(storage, 0)
