"""An agent that gets SIGTERM finishes its calls and tells its peers to go elsewhere. Real processes, sockets and signals."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from office_process import PROTOCOL, SHORT_DAY, SLOW
from ports import free_port

from treaty_agent import Agent, Identity, LocalProtocols, OutcomeUnknown
from treaty_consensus.errors import TreatyError, Unavailable

OFFICE = Path(__file__).parents[1] / "support" / "office_process.py"
NOON = "2030-05-02T12:00"


class Office:
    """An office's process, which may be ended and started again at its port."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        Identity.create().save(home / "identity.json")
        self.home, self.port = home, free_port()
        self.process: subprocess.Popen[str] | None = None

    def start(self, drain: float = 10.0) -> None:
        command = [sys.executable, str(OFFICE), str(self.home), str(self.port), str(drain)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.line() == str(self.port)

    def line(self) -> str:
        assert self.process is not None and self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def ended(self) -> int:
        """The status with which the process ends."""
        assert self.process is not None and self.process.stdout is not None
        status = self.process.wait(timeout=60)
        self.process.stdout.close()
        self.process = None
        return status

    def go(self) -> None:
        (self.home / "go").touch()

    def bookings(self) -> list[str]:
        return (self.home / "bookings").read_text().split()


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    office = Office(tmp_path / "office")
    yield office
    if office.process is not None:
        office.process.kill()
        office.ended()


@asynccontextmanager
async def customer(tmp_path: Path) -> AsyncIterator[Agent]:
    async with Agent(Identity.create(), LocalProtocols([PROTOCOL]), home=tmp_path / "customer") as agent:
        yield agent


async def refuses(port: int) -> None:
    """Wait until nothing listens at a port."""
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return
        await asyncio.sleep(0.02)


@pytest.mark.sample(2)
@pytest.mark.parametrize("scheme", ["ws", "http"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_calls_under_way_are_answered_and_the_process_ends_well(
    tmp_path: Path, office: Office, scheme: str, number: signal.Signals
) -> None:
    office.start()
    async with (
        customer(tmp_path) as agent,
        agent.connect(f"{scheme}://127.0.0.1:{office.port}", topic="scheduling/appointment") as session,
    ):
        calls = [asyncio.create_task(session.call("book", start=NOON, name=f"{SLOW}-{n}")) for n in range(3)]
        for _ in calls:
            assert await asyncio.to_thread(office.line) == "CALLED"
        office.signal(number)
        await refuses(office.port)
        assert not any(call.done() for call in calls)
        office.go()
        assert await asyncio.gather(*calls) == [f"{SLOW}-{n}" for n in range(3)]
        assert await asyncio.to_thread(office.line) == "ENDED"
        assert office.ended() == 0
        with pytest.raises(Unavailable) as over:
            await session.call("book", start=NOON, name="late")
        assert over.value.code == "session.draining"
    assert sorted(office.bookings()) == [f"{SLOW}-{n}" for n in range(3)]


async def test_a_drained_stream_ends_with_a_retryable_error(tmp_path: Path, office: Office) -> None:
    office.start(drain=3600)
    async with (
        customer(tmp_path) as agent,
        agent.connect(f"ws://127.0.0.1:{office.port}", topic="scheduling/appointment") as session,
    ):
        with pytest.raises(Unavailable) as over:
            async with session.stream("find", day="2030-05-02") as slots:
                async for _ in slots:
                    office.signal(signal.SIGTERM)
        assert over.value.code == "session.draining"
    assert office.ended() == 0


@pytest.mark.deep
async def test_a_stream_that_ends_soon_is_not_cut(tmp_path: Path, office: Office) -> None:
    office.start(drain=3600)
    async with (
        customer(tmp_path) as agent,
        agent.connect(f"ws://127.0.0.1:{office.port}", topic="scheduling/appointment") as session,
    ):
        starts = []
        async with session.stream("find", day=SHORT_DAY) as slots:
            async for slot in slots:
                starts.append(slot["start"])
                office.signal(signal.SIGTERM) if len(starts) == 1 else None
    assert starts == [f"{SHORT_DAY}T09:00", f"{SHORT_DAY}T10:00"]
    assert office.ended() == 0


@pytest.mark.deep
async def test_an_endless_call_holds_the_process_for_a_bounded_time(tmp_path: Path, office: Office) -> None:
    office.start(drain=0.5)
    async with (
        customer(tmp_path) as agent,
        agent.connect(f"ws://127.0.0.1:{office.port}", topic="scheduling/appointment") as session,
    ):
        call = asyncio.create_task(session.call("book", start=NOON, name=SLOW))
        await asyncio.to_thread(office.line)
        office.signal(signal.SIGTERM)
        with pytest.raises(OutcomeUnknown):
            await call
    assert office.ended() == 0


async def test_a_second_signal_ends_at_once(tmp_path: Path, office: Office) -> None:
    office.start(drain=3600)
    async with customer(tmp_path) as agent:
        with suppress(TreatyError):
            async with agent.connect(f"ws://127.0.0.1:{office.port}", topic="scheduling/appointment") as session:
                call = asyncio.create_task(session.call("book", start=NOON, name=SLOW))
                await asyncio.to_thread(office.line)
                office.signal(signal.SIGTERM)
                await refuses(office.port)
                office.signal(signal.SIGTERM)
                with pytest.raises(OutcomeUnknown):
                    await call
    assert office.ended() == -signal.SIGTERM


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.parametrize("scheme", ["ws", "http"])
async def test_a_replaced_office_loses_and_repeats_no_call(tmp_path: Path, office: Office, scheme: str) -> None:
    """Bookings may not be repeated, and thirty are under way or on their way all the time."""
    office.start()
    done: list[str] = []
    async with (
        customer(tmp_path) as agent,
        agent.peer(f"{scheme}://127.0.0.1:{office.port}", topic="scheduling/appointment") as peer,
    ):
        enough = asyncio.Event()

        async def customer_of_many(number: int) -> None:
            count = 0
            while not enough.is_set():
                count += 1
                done.append(await peer.call("book", start=NOON, name=f"{number}.{count}"))

        async def replaced() -> None:
            for _ in range(2):
                before = len(done)
                while len(done) < before + 100:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                office.signal(signal.SIGTERM)
                assert await asyncio.to_thread(office.line) == "ENDED"
                assert await asyncio.to_thread(office.ended) == 0
                await asyncio.to_thread(office.start)
            enough.set()

        await asyncio.gather(replaced(), *map(customer_of_many, range(30)))
    assert sorted(done) == sorted(office.bookings())
