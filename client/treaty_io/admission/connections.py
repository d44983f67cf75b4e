"""Limit the TCP connections of a listening port, because the HTTP server does not.

Servers such as Granian and gRPC end a connection whose first bytes have begun and are not completed in time. But they do not end
one that sends nothing, or that does not read its answers, and they have no limit per address. Their sockets are file descriptors
of this process. So a `ConnectionGuard` checks them twice a second in its own thread, with the kernel's data about each
(`TCP_INFO`, tcp(7)). Requests are not slowed down.

A connection is shut down when

- it has sent nothing for `ConnectionLimits.silent` seconds, or got no answer for `unanswered` seconds;
- its client reads fewer than `least_rate` bytes a second of the waiting answers, over `stalled` seconds;
- nothing was sent in either direction for `idle` seconds;
- its address has more than `per_address` connections, or the port more than `total`. Then the network with the most connections
  loses some, until the others fit. The first to be closed are those that never sent a byte, then those with unread answers, then
  those that were never answered, then the longest idle. So a new connection finds a place, and a client that is being served
  keeps its connection.

The kernel also limits the unsent bytes of a connection. On other systems than Linux nothing is limited here.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType

from ..line_limit import limit_lines
from ..network.addresses import host_network, site_network

Peer = tuple[str, int]
"""The address and port of the other end."""

MAX_OPEN_FILES = 65_536
_OTHER_FILES = 1_024  # at most, for PostgreSQL's connections, blobs, the fence, the accept queue
_INTERVAL = 0.5  # seconds between two checks; a flood can exceed the limits by the connections it opens in this time
# The event loop learns of all that ended since its last iteration, and so do their peers, which connect again. Both in steps.
_STEPS, _STEP = 50, 0.01  # at most, and seconds between two: no more than the interval
# A check of ten thousand sessions takes 0.1 s of the interpreter. While nothing is to be ended, it takes a twentieth of the time.
_REST = 20
_LISTEN, _CLOSED = 10, (0, 7)  # net/tcp_states.h; a closed socket only waits for its descriptor to be closed
_NAMED = 8  # the most networks named in a log line
UNSENT = 128 * 1024
"""Unsent bytes of answers per connection in the kernel. Bytes in flight do not count, so distant clients are not slowed down."""
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing discards unread bytes and frees the kernel's buffers at once

_log = logging.getLogger(__name__)
limit_lines(__name__)


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

    @classmethod
    def halved(cls, total: int, *, silent: float, stalled: float, idle: float = idle) -> ConnectionLimits:
        """Return limits of which one address has at most half. `total`: or as many as the process can hold.

        Raises the limit on open files.
        """
        # A quarter stays free, so that a new connection is accepted before the guard looks.
        total = min(total, room_for_connections() * 3 // 4)
        return cls(silent=silent, stalled=stalled, idle=idle, per_address=total // 2, total=total)


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
    if sys.platform == "win32":
        return MAX_OPEN_FILES  # there is no such limit
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        # Each connection is a descriptor, and the usual soft limit is 1,024.
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def room_for_connections() -> int:
    """Return the number of connections that the process can hold in addition to its other files, at least 64."""
    files = raise_open_files()
    return max(64, files - min(_OTHER_FILES, files // 4))


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
        self._spare = _SpareDescriptor()
        self._stop = threading.Event()
        # A thread, because a check of ten thousand sockets takes 0.1 s and must not block the event loop.
        self._thread = threading.Thread(target=self._run, name="connections", daemon=True)

    def __enter__(self) -> ConnectionGuard:
        if sys.platform == "linux":
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._spare.close()

    def holds(self, peer: Peer) -> bool:
        """Return whether the server has accepted the connection of this peer."""
        with closing(_SpareDescriptor()) as spare:  # the thread uses the other one
            return any(seen.peer == peer for _, seen in self._connections(spare))

    def _run(self) -> None:
        pause = _INTERVAL
        while not self._stop.wait(pause):
            began, ended = time.monotonic(), 0
            try:
                ended = self.enforce(began)
            # A failed check must not end the guard. The next check comes in half a second.
            except OSError as error:
                _log.warning("Connections were not looked at: %s", error)
            pause = _INTERVAL if ended else max(_INTERVAL, _REST * (time.monotonic() - began))

    def enforce(self, now: float) -> int:
        """Check all connections once, and return how many were shut down. `now`: monotonic seconds."""
        connections = list(self._connections(self._spare))
        # A connection without unread bytes is dropped, so a measurement covers one uninterrupted time.
        self._unread = {
            seen.peer: self._unread.get(seen.peer, (now, seen.acknowledged)) for _, seen in connections if seen.unread
        }
        doomed = {seen.peer for _, seen in connections if self._has_expired(seen, now)}
        # Expired connections go first. Only if too many remain are others closed.
        excess = self._excess([seen for _, seen in connections if seen.peer not in doomed], now)
        if excess:
            most = Counter(host_network(host) for host, _ in excess).most_common(_NAMED)
            named = ", ".join(f"{network} ({number})" for network, number in most)
            _log.warning("Too many connections to port %d: %d of %d end, of %s", self._port, len(excess), len(connections), named)
        doomed |= excess
        ended = 0
        for fd, seen in connections:
            if seen.peer in doomed and self._end(fd, seen.peer):
                ended += 1
                if not ended % (1 + len(doomed) // _STEPS):
                    self._stop.wait(_STEP)
        return ended

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

    def _excess(self, seen_peers: list[_Seen], now: float) -> set[Peer]:
        by_address: defaultdict[str, list[_Seen]] = defaultdict(list)
        for seen in seen_peers:
            by_address[host_network(seen.peer[0])].append(seen)
        by_site: defaultdict[str, list[_Seen]] = defaultdict(list)
        excess: set[Peer] = set()
        for connections in by_address.values():
            exempt = self._limits.exempt(connections[0].peer[0])
            most = self._limits.total if exempt else self._limits.per_address
            excess |= self._surplus(connections, most, now)
            by_site[site_network(connections[0].peer[0])] += [seen for seen in connections if seen.peer not in excess]
        # By address first, then for the port: one address must not push out the connections of others. Nor may a network of many
        # addresses: each keeps as many as the greediest that still fits.
        level = _level([*map(len, by_site.values())], self._limits.total)
        excess = excess.union(*(self._surplus(connections, level, now) for connections in by_site.values()))
        # More networks than places: each would keep one.
        return excess | self._surplus([seen for seen in seen_peers if seen.peer not in excess], self._limits.total, now)

    def _surplus(self, connections: list[_Seen], most: int, now: float) -> set[Peer]:
        surplus = max(0, len(connections) - most)
        if not surplus:
            return set()
        # Close the worst and take the new ones. Refusing new ones would let the first client lock out everybody
        # behind its address.
        ordered = sorted(connections, key=lambda seen: self._precedence(seen, now))
        return {seen.peer for seen in ordered[:surplus]}

    def _connections(self, spare: _SpareDescriptor) -> Iterator[tuple[int, _Seen]]:
        with spare.returned() as sock:
            for fd in _descriptors():
                seen = None
                with suppress(OSError):  # it may be closed already, or not be a TCP socket
                    spare.show(fd)
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
        with suppress(OSError), self._spare.returned() as sock:
            self._spare.show(fd)
            if sock.getsockname()[1] == self._port and sock.getpeername()[:2] == peer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # Not closed: the descriptor belongs to the server, which closes it when it reads the end.
                sock.shutdown(socket.SHUT_RDWR)
                return True
        return False


def _level(counts: list[int], total: int) -> int:
    """Return the largest number of connections of one network with which those of all networks fit into `total`."""
    left = total
    for position, count in enumerate(sorted(counts)):
        level = left // (len(counts) - position)
        if count > level:
            return max(1, level)
        left -= count
    return total


def _descriptors() -> Iterable[int]:
    try:
        return [int(entry.name) for entry in os.scandir("/proc/self/fd")]
    # No descriptor is left for the directory, so nearly all numbers are in use.
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        return range(raise_open_files())


class _SpareDescriptor:
    """A descriptor that is kept for looking at others: when connections must end, there may be no other one left.

    It is always the same Python socket, because to make one costs more than to look at it.
    """

    def __init__(self) -> None:
        self._unused = os.open(os.devnull, os.O_RDONLY)
        # The addresses of this family are the longest, so Python reads those of each other one, too.
        self._spare = socket.socket(socket.AF_UNIX)

    def show(self, fd: int) -> None:
        """Let the socket be a duplicate of this descriptor, whatever that is. It stays valid when the server closes the original.

        Raises OSError.
        """
        os.dup2(fd, self._spare.fileno(), inheritable=False)

    @contextmanager
    def returned(self) -> Iterator[socket.socket]:
        """Yield the socket, and let it be nothing after the block."""
        try:
            yield self._spare
        finally:
            # Else a connection that the server closes would stay open.
            os.dup2(self._unused, self._spare.fileno(), inheritable=False)

    def close(self) -> None:
        """Give the descriptor back."""
        self._spare.close()
        os.close(self._unused)


def _u32(data: bytes, offset: int) -> int:
    (value,) = struct.unpack_from("=I", data, offset)
    return int(value)


def _u64(data: bytes, offset: int) -> int:
    (value,) = struct.unpack_from("=Q", data, offset)
    return int(value)
