"""Limit the TCP connections of a listening port, because the HTTP server does not.

Granian ends a connection whose request head has begun and is not completed in time. But it never ends a connection that sends
nothing, or that does not read its answers, and it has no limit per address. Its sockets are file descriptors of this process. So
a `ConnectionGuard` checks them twice a second in its own thread, with the kernel's data about each (`TCP_INFO`, tcp(7)).
Requests are not slowed down.

A connection is shut down when

- it has sent nothing for `ConnectionLimits.silent` seconds, or got no answer for `unanswered` seconds;
- its client reads fewer than `least_rate` bytes a second of the waiting answers, over `stalled` seconds;
- nothing was sent in either direction for `idle` seconds;
- its address has more than `per_address` connections, or the port more than `total`. The first to be closed are those that never
  sent a byte, then those with unread answers, then those that were never answered, then the longest idle. So a new connection
  finds a place, and a client that is being served keeps its connection.

The kernel also limits the unsent bytes of a connection. Linux only, as the registry is.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType

import structlog

from treaty_client.network.addresses import host_network

Peer = tuple[str, int]
"""The address and port of the other end."""

MAX_OPEN_FILES = 65_536
_OTHER_FILES = 1_024  # for PostgreSQL's connections, blobs, the fence, the accept queue
_INTERVAL = 0.5  # seconds between two checks; a flood can exceed the limits by the connections it opens in this time
_LISTEN, _CLOSED = 10, (0, 7)  # net/tcp_states.h; a closed socket only waits for its descriptor to be closed
_NAMED = 8  # the most networks named in a log line
UNSENT = 128 * 1024
"""Unsent bytes of answers per connection in the kernel. Bytes in flight do not count, so distant clients are not slowed down."""
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing discards unread bytes and frees the kernel's buffers at once

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits in seconds, bytes a second, and counts; see the module. `exempt`: addresses of proxies, which have no limit per
    address."""

    # Granian never ends a connection that has sent nothing. A flood of them would use up all descriptors.
    silent: float = 10
    unanswered: float = 90  # a body may take 30 seconds, and so may a write
    # A client that reads nothing would otherwise keep the kernel's buffers and its connection for ever.
    stalled: float = 20
    least_rate: int = 1_024
    idle: float = 75
    # One host must not take all places. A proxy stands for many clients, so it can be exempt.
    per_address: int = 256
    total: int = 16_384
    exempt: Callable[[str], bool] = lambda _address: False


@dataclass(frozen=True)
class _Seen:
    """The kernel's data about a connection. Times are elapsed seconds."""

    peer: Peer
    received: int
    acknowledged: int
    unread: int
    answers: int
    since_received: float
    since_sent: float

    @property
    def idle(self) -> float:
        return min(self.since_received, self.since_sent)


def raise_open_files() -> int:
    """Raise the limit on open files as far as the system allows, at most to `MAX_OPEN_FILES`. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Each connection is a descriptor, and the usual soft limit is 1,024.
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def room_for_connections() -> int:
    """Return the number of connections that the process can hold in addition to its other files, at least 64."""
    return max(64, raise_open_files() - _OTHER_FILES)


def bound_unsent(listening: socket.socket) -> None:
    """Limit the unsent bytes of future connections, which inherit the limit from the listening socket."""
    # Otherwise the kernel buffers 4 MB of unread answers for each connection. A fixed SO_SNDBUF would also limit the bytes in
    # flight, and slow distant clients down.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)


class ConnectionGuard:
    """Applies `limits` to the connections of this process to `port` during its block."""

    def __init__(self, port: int, limits: ConnectionLimits) -> None:
        self._port = port
        self._limits = limits
        self._unread: dict[Peer, tuple[float, int]] = {}  # start of the measurement, and the bytes read until then
        self._stop = threading.Event()
        # A thread, because a check of ten thousand sockets takes 0.1 s and must not block the event loop.
        self._thread = threading.Thread(target=self._run, name="connections", daemon=True)

    def __enter__(self) -> ConnectionGuard:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def holds(self, peer: Peer) -> bool:
        """Return whether the server has accepted the connection of this peer."""
        return any(seen.peer == peer for _, seen in self._connections())

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL):
            try:
                self.enforce(time.monotonic())
            # A failed check must not end the guard. The next check comes in half a second.
            except OSError as error:
                _log.warning("connections not looked at", error=str(error))

    def enforce(self, now: float) -> int:
        """Check all connections once, and return how many were shut down. `now`: monotonic seconds."""
        found = list(self._connections())
        # A connection without unread bytes is dropped, so a measurement covers one uninterrupted time.
        self._unread = {seen.peer: self._unread.get(seen.peer, (now, seen.acknowledged)) for _, seen in found if seen.unread}
        doomed = {seen.peer for _, seen in found if self._has_expired(seen, now)}
        # Expired connections go first. Only if too many remain are others closed.
        doomed |= self._excess([seen for _, seen in found if seen.peer not in doomed], now)
        ended = [seen for fd, seen in found if seen.peer in doomed and self._end(fd, seen.peer)]
        if ended:
            most = Counter(host_network(seen.peer[0]) for seen in ended).most_common(_NAMED)
            _log.info("connections ended", ended=len(ended), of=len(found), most=dict(most))
        return len(ended)

    def _has_expired(self, seen: _Seen, now: float) -> bool:
        limits = self._limits
        if not seen.received:
            return seen.since_received > limits.silent
        if not seen.answers:
            return seen.since_sent > limits.unanswered
        if not seen.unread:
            return seen.idle > limits.idle
        since, had = self._unread[seen.peer]
        # Over the whole time, because an honest client may stop reading for a moment.
        if now - since < limits.stalled:
            return False
        self._unread[seen.peer] = (now, seen.acknowledged)
        return seen.acknowledged - had < limits.least_rate * (now - since)

    def _precedence(self, seen: _Seen, now: float) -> tuple[int, float]:
        """Return the sort key for closing: a connection with a smaller key is closed first when there are too many."""
        if not seen.received:
            return 0, -seen.since_received
        since, had = self._unread.get(seen.peer, (now, 0))
        if now - since >= _INTERVAL and seen.acknowledged - had < self._limits.least_rate * (now - since):
            return 1, since
        return 3 if seen.answers else 2, -seen.idle

    def _excess(self, found: Iterable[_Seen], now: float) -> set[Peer]:
        by_address: defaultdict[str, list[_Seen]] = defaultdict(list)
        for seen in found:
            by_address[host_network(seen.peer[0])].append(seen)
        kept: list[_Seen] = []
        excess: set[Peer] = set()
        for connections in by_address.values():
            exempt = self._limits.exempt(connections[0].peer[0])
            most = self._limits.total if exempt else self._limits.per_address
            excess |= self._surplus(connections, most, now)
            kept += [seen for seen in connections if seen.peer not in excess]
        # By address first, then for the port: one address must not push out the connections of others.
        return excess | self._surplus(kept, self._limits.total, now)

    def _surplus(self, connections: list[_Seen], most: int, now: float) -> set[Peer]:
        surplus = max(0, len(connections) - most)
        if not surplus:
            return set()
        # Close the worst and take the new ones. Refusing new ones would let the first client lock out everybody
        # behind its address.
        ordered = sorted(connections, key=lambda seen: self._precedence(seen, now))
        return {seen.peer for seen in ordered[:surplus]}

    def _connections(self) -> Iterator[tuple[int, _Seen]]:
        for fd in _descriptors():
            with suppress(OSError), _borrow(fd) as sock:  # it may be closed already, or not be a TCP socket
                seen = self._look(sock)
                if seen is not None:
                    yield fd, seen

    def _look(self, sock: socket.socket) -> _Seen | None:
        """Read the kernel's data about a socket. None: it is not a connection to the port. Raises OSError when it is not TCP."""
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
        # An older kernel returns a shorter structure, without the fields below.
        if len(info) < 160 or info[0] == _LISTEN or info[0] in _CLOSED or sock.getsockname()[1] != self._port:
            return None
        # struct tcp_info, linux/tcp.h: fields are only ever added at its end
        unacknowledged, since_sent, since_received = _u32(info, 24), _u32(info, 44), _u32(info, 52)
        acknowledged, received = _u64(info, 120), _u64(info, 128)
        return _Seen(
            peer=sock.getpeername()[:2],
            received=received,
            acknowledged=acknowledged,
            unread=unacknowledged + _u32(info, 144),
            answers=_u32(info, 156),
            since_received=since_received / 1000,
            since_sent=since_sent / 1000,
        )

    def _end(self, fd: int, peer: Peer) -> bool:
        """Shut a connection down if the descriptor still belongs to it. The server may have closed it and reused the number."""
        with suppress(OSError), _borrow(fd) as sock:
            if sock.getsockname()[1] == self._port and sock.getpeername()[:2] == peer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # Not closed: the descriptor belongs to the server, which closes it when it reads the end.
                sock.shutdown(socket.SHUT_RDWR)
                return True
        return False


def _descriptors() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc/self/fd")]


@contextmanager
def _borrow(fd: int) -> Iterator[socket.socket]:
    """Return the socket behind a descriptor, through a duplicate descriptor.

    The duplicate stays valid when the server closes the original. Raises OSError when it is not a socket.
    """
    own = os.dup(fd)
    try:
        borrowed = socket.socket(fileno=own)
    # Not a socket. Nothing else would close the duplicate.
    except OSError:
        os.close(own)
        raise
    with borrowed:
        yield borrowed


def _u32(data: bytes, offset: int) -> int:
    (value,) = struct.unpack_from("=I", data, offset)
    return int(value)


def _u64(data: bytes, offset: int) -> int:
    (value,) = struct.unpack_from("=Q", data, offset)
    return int(value)
