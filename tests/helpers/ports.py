"""Ports for servers that tests start.

A server listens some seconds after its port was chosen. The system gives ports from 32768 on to whoever
connects meanwhile, so these lie below, and are drawn, as other runs of these tests draw theirs.
"""

import random
import socket

_FIRST, _LAST = 12_000, 21_999
_FAR = 10_000  # to the second port that Redis and SeaweedFS take
_CHANCE = random.SystemRandom()  # forks draw others


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; the one 10,000 above each is free as well."""
    found: list[int] = []
    while len(found) < count:
        port = _CHANCE.randint(_FIRST, _LAST)
        if port not in found and _is_free(port) and _is_free(port + _FAR):
            found.append(port)
    return found


def free_port() -> int:
    """A port that nobody listens on."""
    (port,) = free_ports(1)
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
