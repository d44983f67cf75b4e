"""Fault: the machine's clock is set back or ahead, while the registry runs, and between one start and the next.

A time before the newest signed one is never signed, and a leap that the machine's uptime does not bear out is not, either: no
checkpoint, no statement of the operator, no timestamp, no certificate. Readers are served all the while.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from faulty_machine import Calls, preloaded
from registries import Web, contents, grant, settings_for
from registry_process import empty
from signers import NOW, key_signer
from structlog.testing import capture_logs

from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.note import VerifierKey
from treaty_registry.cli.commands import app
from treaty_registry.log.clock import LEAP, SLEW, LogClock, SignedTime, Uptime, machine_uptime
from treaty_registry.log.entry import Logged
from treaty_registry.log.fence import Fence, create_fence
from treaty_registry.registry import Registry

HOUR, DAY = 3600, 86_400


@dataclass
class Machine:
    """Its clock, which can be set, and its uptime, which cannot; another `boot` begins at 0. A registry of its own runs on it."""

    data: Path
    database: str
    web: Web = field(default_factory=Web)
    time: float = NOW
    uptime: Uptime | None = field(default_factory=lambda: Uptime("b001", 1000))

    def clock(self) -> datetime:
        return datetime.fromtimestamp(self.time, UTC)

    def wait(self, seconds: float) -> None:
        """Time goes by."""
        self.time += seconds
        if self.uptime is not None:
            self.uptime = Uptime(self.uptime.boot, self.uptime.seconds + seconds)

    def registry(self) -> AbstractAsyncContextManager[Registry]:
        settings = settings_for(self.data, self.database)
        return Registry.open(settings, clock=self.clock, uptime=lambda: self.uptime, resolve=self.web.resolve)


@pytest.fixture
def machine(tmp_path: Path, database: str) -> Machine:
    return Machine(tmp_path / "registry", database)


async def write(registry: Registry, name: str) -> Logged | TreatyError:
    try:
        return (await registry.submit([(writer := key_signer(name)).statement(grant(writer)).leaf]))[0]
    except TreatyError as error:
        return error


async def signs(registry: Registry, name: str) -> int:
    """It logs a statement; the time of the checkpoint that it is in."""
    outcome = await write(registry, name)
    assert isinstance(outcome, Logged), outcome
    await registry.check_ready()
    return registry.head.time


async def refuses(registry: Registry, where: str) -> None:
    """Nothing is signed, nothing changes, and the health check says that the clock is `where` the signed time."""
    before, head = await contents(registry), registry.head
    outcome = await write(registry, "refused")
    assert isinstance(outcome, Unavailable) and outcome.code == "log.clock" and where in outcome.message and outcome.fix, outcome
    for signing in (registry.check_ready(), registry.decide()):
        with pytest.raises(Unavailable) as error:
            await signing
        assert error.value.code == "log.clock" and where in error.value.message
    with pytest.raises(Unavailable):
        registry.clock()  # timestamps, certificates and the operator's statements have their time from it
    assert await contents(registry) == before and registry.head is head
    assert await registry.tile("/tile/entries/000.p/1")


@pytest.mark.threat(62)
async def test_a_clock_that_is_set_while_it_runs(machine: Machine) -> None:
    async with machine.registry() as registry:
        assert await signs(registry, "at first") == NOW
        machine.wait(100)
        assert await signs(registry, "later") == NOW + 100
        with capture_logs() as logged:
            machine.time -= HOUR
            await refuses(registry, "behind")
            machine.time += HOUR + DAY
            await refuses(registry, "ahead of")
            machine.time -= DAY
            machine.wait(1)
            assert await signs(registry, "set right") == NOW + 101
        wrong = [entry for entry in logged if entry["log_level"] == "critical"]
        assert [entry["clock"] for entry in wrong] == ["behind", "ahead of"], "each is said once"
        machine.time -= SLEW
        assert await signs(registry, "slewed") == NOW + 101, "the newest time again"
        machine.time += SLEW
        machine.wait(30 * DAY)
        assert await signs(registry, "after a month of sleep") == machine.time


async def test_a_leap_is_signed_once_the_operator_has_looked(machine: Machine) -> None:
    async with machine.registry() as registry:
        await signs(registry, "at first")
        machine.time += LEAP + 60
        await refuses(registry, "ahead of")
        registry.accept_clock()
        assert await signs(registry, "accepted") == NOW + LEAP + 60
        machine.time -= LEAP + 60
        with pytest.raises(Unavailable):
            registry.accept_clock()  # no operator can unsign what was signed
        await refuses(registry, "behind")


@pytest.mark.threat(62)
async def test_a_start_with_a_clock_that_was_set_back(machine: Machine) -> None:
    async with machine.registry() as registry:
        signed = await signs(registry, "at first")
    machine.uptime = Uptime("b002", 50)
    machine.time -= HOUR
    async with machine.registry() as registry:
        assert registry.head.time == signed, "there is something to read, and it has no other time"
        await refuses(registry, "behind")
        machine.wait(HOUR + 1)
        assert await signs(registry, "caught up") == signed + 1


@pytest.mark.parametrize("boot", ["b001", "b002"])
async def test_a_start_with_a_clock_that_was_set_ahead(machine: Machine, boot: str) -> None:
    async with machine.registry() as registry:
        signed = await signs(registry, "at first")
    machine.wait(60)
    machine.time += DAY
    if boot == "b001":
        async with machine.registry() as registry:
            assert registry.head.time == signed
            await refuses(registry, "ahead of")
            machine.time -= DAY
            assert await signs(registry, "set right") == signed + 60
        return
    machine.uptime = Uptime(boot, 50)
    with capture_logs() as logged:
        async with machine.registry() as registry:
            assert await signs(registry, "after another boot nothing tells") == signed + 60 + DAY
    assert any("moved on" in entry["event"] for entry in logged)


@pytest.mark.parametrize(
    ("wall", "uptime", "boot", "code"),
    [
        (0, 0, "b001", ""),
        (-SLEW, 0, "b001", ""),
        (-SLEW - 1, 0, "b001", "log.clock"),
        (LEAP, 0, "b001", ""),
        (LEAP + 1, 0, "b001", "log.clock"),
        (0, LEAP, "b001", ""),
        (0, LEAP + 2, "b001", "log.clock"),
        (DAY, DAY, "b001", ""),
        (DAY + LEAP + 80, DAY, "b001", ""),
        (DAY + LEAP + 90, DAY, "b001", "log.clock"),
        (HOUR, DAY, "b001", "log.clock"),
        (DAY, -500, "b001", ""),
        (DAY, 0, "b002", ""),
        (-HOUR, 0, "b002", "log.clock"),
        (DAY, 0, None, ""),
        (-HOUR, 0, None, "log.clock"),
    ],
)
def test_what_is_plausible(wall: int, uptime: int, boot: str | None, code: str) -> None:
    newest = SignedTime(NOW, Uptime("b001", 1000))
    uptime_now = Uptime(boot, 1000 + uptime) if boot else None
    clock = LogClock(lambda: datetime.fromtimestamp(NOW + wall, UTC), lambda: uptime_now, newest)
    if code:
        with pytest.raises(Unavailable) as refused:
            clock.stamp()
        assert refused.value.code == code
    else:
        assert clock.stamp() == SignedTime(max(NOW, NOW + wall), uptime_now)
        assert clock.now().timestamp() == max(NOW, NOW + wall)
    assert clock.newest == newest


def test_a_leap_names_the_command_that_accepts_it() -> None:
    clock = LogClock(
        lambda: datetime.fromtimestamp(NOW + DAY, UTC), lambda: Uptime("b001", 1), SignedTime(NOW, Uptime("b001", 0))
    )
    with capture_logs() as logged, pytest.raises(Unavailable):
        clock.now()
    _, _, command = logged[0]["todo"].partition("treaty-registry ")
    assert command in app, "a command without options"


def test_the_record_outside_the_database_has_the_newest_time(tmp_path: Path) -> None:
    create_fence(tmp_path / "head", "registry.example")
    fence = Fence(tmp_path / "head", "registry.example")
    assert fence.signed is None
    for size, time in ((1, NOW), (1, NOW + 60), (1, NOW + 120), (2, NOW + 120), (2, NOW + 180)):
        signed = SignedTime(time, Uptime("0ab-1", time - NOW))
        fence.advance(size, bytes([size]) * 32, signed)
        assert fence.signed == signed
        fence.close()
        fence = Fence(tmp_path / "head", "registry.example")
        assert (fence.record.size, fence.signed) == (size, signed)
    fence.close()


def test_this_machine_tells_its_uptime() -> None:
    first, second = machine_uptime(), machine_uptime()
    assert first is not None and second is not None
    assert first.boot == second.boot and first.seconds <= second.seconds
    assert SignedTime.parse(SignedTime(NOW, first).format()) == SignedTime(NOW, Uptime(first.boot, int(first.seconds)))


@asynccontextmanager
async def at(data: Path, ahead: int) -> AsyncIterator[tuple[httpx.AsyncClient, VerifierKey]]:
    """A registry as a process of its own, whose clock is `ahead` seconds ahead."""
    calls = Calls(data, "registry")
    calls.set(ahead=ahead)
    async with empty(data / "registry") as server:
        with preloaded(calls):
            await server.start()
        assert await server.ready()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
            yield client, VerifierKey.parse(server.about["key"])
        await server.stop()


@pytest.mark.deep
@pytest.mark.threat(62)
async def test_a_process_whose_clock_was_set_signs_nothing(data: Path) -> None:
    async def time_of(client: httpx.AsyncClient, key: VerifierKey) -> int:
        answer = (await client.get("/log")).json()
        note = (await client.get("/checkpoint")).content
        time = open_checkpoint(note, key, VerifierKey.parse(answer["clock_key"])).time
        assert time is not None
        return time

    async with at(data, 0) as (client, key):
        assert (await client.get("/health/ready")).status_code == 200
        signed = await time_of(client, key)
    for ahead, code in ((-3_600, "log.clock"), (86_400, "log.clock")):
        async with at(data, ahead) as (client, key):
            ready = await client.get("/health/ready")
            assert (ready.status_code, ready.json()["code"]) == (503, code)
            wrote = await client.post("/statements", content=b"{}", headers={"Content-Type": "application/json"})
            assert (wrote.status_code, wrote.json()["code"]) == (503, code)
            assert await time_of(client, key) == signed
    async with at(data, 0) as (client, key):
        assert (await client.get("/health/ready")).status_code == 200
        assert await time_of(client, key) >= signed
