"""Ports of the loopback interface for servers that tests start."""

from __future__ import annotations

import itertools
import os
import socket

# Below the range that Linux gives to clients (32768 and above): a port from there may be taken before the server listens on it.
_FIRST, _PER_PROCESS = 20_000, 1_500
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
_candidates = itertools.cycle(range(_FIRST + _worker * _PER_PROCESS, _FIRST + (_worker + 1) * _PER_PROCESS))


def free_port() -> int:
    """Return a port without a listener. Each process of a test run has its own ports, and returns to one as late as possible."""
    for port in itertools.islice(_candidates, _PER_PROCESS):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("all ports of this process are in use")
