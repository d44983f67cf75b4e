"""Ports of the loopback interface for servers that tests start."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from functools import cache

# Below the range that Linux gives to clients (32768 and above): a port from there may be taken before the server listens on it.
_FIRST, _BLOCK, _BLOCKS = 20_000, 250, 48


@cache
def _candidates(process: int) -> tuple[socket.socket, Iterator[int]]:
    """Claim a block of ports, which no other test process of the machine has, for as long as this process lives.

    The claim is an abstract Unix socket: the kernel takes it back when the process ends, whichever way it ends.
    """
    claim = socket.socket(socket.AF_UNIX)
    for number in range(_BLOCKS):
        # Another run begins elsewhere, so that it does not meet the servers that the last one left behind.
        block = (process + number) % _BLOCKS
        try:
            claim.bind(f"\0treaty-test-ports-{block}")
        except OSError:
            continue
        first = _FIRST + block * _BLOCK
        return claim, itertools.cycle(range(first, first + _BLOCK))
    raise AssertionError("other test processes have all ports")


def free_port() -> int:
    """Return a port without a listener. Each process has its own ports, and returns to one as late as possible."""
    _, candidates = _candidates(os.getpid())
    for port in itertools.islice(candidates, _BLOCK):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("all ports of this process are in use")
