"""The bounds on connections, on real sockets: which of them are shut down, and which are left alone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

import pytest

from treaty_io.admission.connections import (
    ConnectionGuard,
    ConnectionLimits,
    bound_unsent,
    raise_open_files,
    room_for_connections,
)

PATIENT = ConnectionLimits(silent=60, unanswered=60, stalled=60, idle=60)


@dataclass
class Port:
    """A listening socket of this process, and both ends of connections to it."""

    stack: ExitStack
    host: str = "127.0.0.1"
    server: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self.server = self.stack.enter_context(socket.create_server((self.host, 0), family=family))

    @property
    def number(self) -> int:
        port: int = self.server.getsockname()[1]
        return port

    def connect(self, source: str | None = None) -> tuple[socket.socket, socket.socket]:
        """The client's end and the server's."""
        client = socket.create_connection((self.host, self.number), source_address=(source or self.host, 0))
        self.stack.enter_context(client)
        return client, self.stack.enter_context(self.server.accept()[0])

    def guard(self, limits: ConnectionLimits = PATIENT) -> ConnectionGuard:
        return ConnectionGuard(self.number, limits)


@pytest.fixture
def port() -> Iterator[Port]:
    with ExitStack() as stack:
        yield Port(stack)


def is_open(client: socket.socket) -> bool:
    """Whether the server's end of a connection still is there."""
    client.settimeout(0.05)
    with suppress(TimeoutError):
        try:
            return client.recv(1) != b""
        except ConnectionError:
            return False
    return True


def is_still_open(client: socket.socket) -> bool:
    """The same, without waiting."""
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def answered(ends: tuple[socket.socket, socket.socket]) -> socket.socket:
    client, server = ends
    client.sendall(b"?")
    server.recv(1)
    server.sendall(b"!")
    assert client.recv(1) == b"!"
    return client


@pytest.mark.threat(190)
def test_many_are_ended_in_steps(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ends are work for the event loop, and their peers connect again."""
    clients = [port.connect()[0] for _ in range(120)]
    guard, open_then = port.guard(replace(PATIENT, total=20)), list[int]()
    monkeypatch.setattr(threading.Event, "wait", lambda *_: open_then.append(sum(map(is_still_open, clients))))
    assert guard.enforce(time.monotonic()) == 100
    assert open_then[0] > 100
    assert open_then[-1] < 25
    assert len(open_then) <= 50


@pytest.mark.threat(76)
def test_a_connection_that_sends_nothing_is_ended(port: Port) -> None:
    silent, spoken = port.connect()[0], answered(port.connect())
    guard = port.guard(replace(PATIENT, silent=0.1))
    assert guard.enforce(time.monotonic()) == 0
    time.sleep(0.2)
    assert guard.enforce(time.monotonic()) == 1
    assert not is_open(silent) and is_open(spoken)


@pytest.mark.threat(114)
def test_the_kernel_takes_little_of_an_answer_that_nobody_reads(port: Port) -> None:
    def taken(server: socket.socket) -> int:
        server.settimeout(0.2)
        total = 0
        with suppress(TimeoutError):
            while True:
                total += server.send(b"x" * 16_384)
        return total

    unbounded = taken(port.connect()[1])
    bound_unsent(port.server)
    bounded = taken(port.connect()[1])
    assert bounded < 512 * 1024 < unbounded


def test_a_connection_that_never_gets_an_answer_is_ended(port: Port) -> None:
    client, _ = port.connect()
    client.sendall(b"PRI")
    client_answered = answered(port.connect())
    time.sleep(0.2)
    assert port.guard(replace(PATIENT, unanswered=0.1)).enforce(time.monotonic()) == 1
    assert not is_open(client) and is_open(client_answered)


@pytest.mark.threat(76)
def test_a_connection_at_rest_is_ended(port: Port) -> None:
    rests = answered(port.connect())
    time.sleep(0.2)
    works = answered(port.connect())
    assert port.guard(replace(PATIENT, idle=0.15)).enforce(time.monotonic()) == 1
    assert not is_open(rests) and is_open(works)


@pytest.mark.threat(76)
def test_a_slow_reader_is_ended_and_a_steady_one_goes_on(port: Port) -> None:
    (stuck, one), (slow, other) = port.connect(), port.connect()
    for client, server in ((stuck, one), (slow, other)):
        answered((client, server))
        server.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                server.send(bytes(65_536))
    guard = port.guard(replace(PATIENT, stalled=20, least_rate=1_000))
    guard.enforce(0)
    slow.settimeout(1)
    size = 0
    while size < 2_000_000:
        size += len(slow.recv(65_536))
    assert guard.enforce(19) == 0
    assert guard.enforce(21) == 1
    other.setblocking(True)
    assert is_open(slow)
    with pytest.raises(OSError):
        one.send(b"more")


@pytest.mark.threat(76)
def test_an_addresss_silent_and_idle_connections_go_first(port: Port) -> None:
    idle = answered(port.connect())
    time.sleep(0.05)
    busy = [answered(port.connect()) for _ in range(4)]
    silent = [port.connect()[0] for _ in range(3)]
    elsewhere = port.connect("127.0.0.2")[0]
    assert port.guard(replace(PATIENT, per_address=4)).enforce(time.monotonic()) == 4
    assert [is_open(client) for client in silent] == [False] * 3
    assert not is_open(idle)
    assert all(is_open(client) for client in (*busy, elsewhere))


def test_a_proxy_may_bring_everybodys_connections(port: Port) -> None:
    clients = [port.connect()[0] for _ in range(8)]
    limits = replace(PATIENT, per_address=4, exempt=lambda address: address == "127.0.0.1")
    assert port.guard(limits).enforce(time.monotonic()) == 0
    assert port.guard(replace(limits, total=6)).enforce(time.monotonic()) == 2
    assert sum(is_open(client) for client in clients) == 6


@pytest.mark.threat(76)
def test_the_port_has_so_many_from_all_addresses(port: Port) -> None:
    clients = []
    for number in range(8):
        clients.append(port.connect(f"127.0.0.{1 + number}")[0])
        time.sleep(0.03)  # the kernel counts their ages in ticks of up to 10 ms
    assert port.guard(replace(PATIENT, total=5)).enforce(time.monotonic()) == 3
    assert [is_open(client) for client in clients] == [False] * 3 + [True] * 5  # the oldest of the silent ones first


@pytest.mark.threat(76)
def test_a_network_with_many_addresses_gives_way_to_others(port: Port) -> None:
    crowd = []
    for number in range(1, 9):
        crowd.append(answered(port.connect(f"127.0.9.{number}")))
        time.sleep(0.03)  # the kernel counts their ages in ticks of up to 10 ms
    others = [answered(port.connect(f"127.0.{network}.1")) for network in (1, 2)]
    guard = port.guard(replace(PATIENT, per_address=2, total=6))
    assert guard.enforce(time.monotonic()) == 4
    assert [is_open(client) for client in others] == [True, True]
    assert [is_open(client) for client in crowd] == [False] * 4 + [True] * 4, "the longest idle go first"


def test_ipv6(port: Port) -> None:
    with suppress(OSError):  # a machine without it
        six = Port(port.stack, "::1")
        clients = [six.connect()[0] for _ in range(3)]
        assert six.guard(replace(PATIENT, per_address=2)).enforce(time.monotonic()) == 1
        assert sum(is_open(client) for client in clients) == 2


def test_other_sockets_of_the_process_are_left_alone(port: Port) -> None:
    other = Port(port.stack)
    pair = port.stack.enter_context(socket.socket()), *socket.socketpair()
    foreign = other.connect()[0]
    port.connect()
    assert port.guard(replace(PATIENT, total=0)).enforce(time.monotonic()) == 1
    assert is_open(foreign)
    pair[1].sendall(b"x")
    assert pair[2].recv(1) == b"x"
    for end in pair[1:]:
        end.close()


def test_it_looks_by_itself_and_stops(port: Port) -> None:
    silent = port.connect()[0]
    with port.guard(replace(PATIENT, silent=0)):
        silent.settimeout(10)
        with suppress(ConnectionError):
            assert silent.recv(1) == b""
    later = port.connect()[0]
    time.sleep(0.6)
    assert is_open(later)


def test_there_is_room_for_many() -> None:
    assert room_for_connections() >= 64
    assert raise_open_files() == raise_open_files()
