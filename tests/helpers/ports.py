"""Ports for servers that tests start.

A server listens only seconds after its port was chosen. Meanwhile the system gives ports from 32768 on to
clients, so these ports are below that. They are random, because other runs of the tests choose ports too.
"""

import random
import socket

_FIRST, _LAST = 12_000, 21_999
_FAR = 10_000  # to the second port that Redis and SeaweedFS take
_CHANCE = random.SystemRandom()  # forks draw others


def free_ports(count: int) -> list[int]:
    """Unused ports; the port 10,000 above each is unused as well."""
    found: list[int] = []
    while len(found) < count:
        port = _CHANCE.randint(_FIRST, _LAST)
        if port not in found and _is_free(port) and _is_free(port + _FAR):
            found.append(port)
    return found


def free_port() -> int:
    """An unused port."""
    (port,) = free_ports(1)
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
