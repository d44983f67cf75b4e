"""The fault matrix: each fault of `FAULTS` at each step of a write of `STEPS`, on real processes, judged by one oracle.

Two writers send until they are acknowledged. The write of one of them comes to the step, the fault is made there and ends some
time later. Meanwhile every answer is an acknowledgement, or a 503 with the time after which to try again. By default a fault
that costs a restart is made around the commit, and the others at every second step; TREATY_DEPTH=full makes all of them at
all steps.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import pytest
import pytest_asyncio
from conftest import temporary_directory
from depth import FULL
from fault_oracle import Seen, check_acknowledged, check_history, judge
from faulty_machine import HELD, FaultyMachine, faulty_machine
from registries import grant
from signers import NOW, key_signer

from treaty_consensus.errors import TreatyError
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.note import sign
from treaty_registry.keys import load_operator

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECORD = "record"
STEPS = [(step, when) for step in ("look up", "append", "commit", RECORD) for when in ("before", "after")]
"""The steps of a write: three statements of SQL, and the record of the head on the registry's own disk."""
_PATIENCE = 90.0


@dataclass
class Scene:
    """The machine and its writers. `sent`: the leaf whose write is at the step. `asking`: its open request."""

    machine: FaultyMachine
    seen: Seen = field(default_factory=Seen)
    sent: bytes = b""
    asking: asyncio.Task[httpx.Response] | None = None
    others: list[asyncio.Task[None]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def leaf(self) -> bytes:
        """Return a new statement."""
        writer = key_signer("writer")
        return writer.statement(grant(writer, next(self.numbers)), log=self.machine.server.about["origin"], issued=NOW).leaf

    async def write(self, leaf: bytes, *, first: bool = False) -> None:
        """Send a statement until it is acknowledged."""
        url = f"http://127.0.0.1:{self.machine.server.port}"
        while True:
            # A connection for each request: one that is kept would be sent again by the client after a restart.
            async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
                asking = asyncio.create_task(
                    client.post("/statements", content=leaf, headers={"Content-Type": "application/json"})
                )
                if first:
                    self.asking = asking
                await asyncio.wait([asking])
                # A fault may have cancelled it, or cut its connection.
                with suppress(httpx.HTTPError):
                    if not asking.cancelled() and self.seen.answer(leaf, asking.result()):
                        return
            await asyncio.sleep(0.05)

    async def read(self) -> None:
        """Keep the newest checkpoint, if it is served."""
        url = f"http://127.0.0.1:{self.machine.server.port}/checkpoint"
        with suppress(httpx.HTTPError):
            async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
                answer = await client.get(url)
            assert answer.status_code in (200, 503), answer.text
            if answer.status_code == 200:
                self.seen.checkpoints.add(answer.text)


Make = Callable[[Scene], Awaitable[None] | None]


@dataclass(frozen=True)
class Fault:
    """A row of the table. `seconds`: until it ends. `dear`: whether it costs a restart."""

    name: str
    make: Make
    seconds: float = 0.3
    dear: bool = False


async def _kill(scene: Scene) -> None:
    await scene.machine.server.kill()


async def _kill_database(scene: Scene) -> None:
    await asyncio.to_thread(scene.machine.database.kill)


def _calls(**values: int) -> Make:
    """Let system calls of the registry and of PostgreSQL fail."""

    def make(scene: Scene) -> None:
        for calls in (scene.machine.calls, scene.machine.database.calls):
            calls.set(**values)

    return make


def _cancel(scene: Scene) -> None:
    assert scene.asking is not None
    scene.asking.cancel()


def _again(scene: Scene) -> None:
    """The statement arrives on three more connections."""
    scene.others += [asyncio.create_task(scene.write(scene.sent)) for _ in range(3)]


async def _overtaken(scene: Scene) -> None:
    """Later statements of the same author arrive while the first one is at the step, the newest first, and one of them twice."""
    leaves = [scene.leaf() for _ in range(4)]
    for leaf in (*reversed(leaves), leaves[2]):
        scene.others.append(asyncio.create_task(scene.write(leaf)))
        await asyncio.sleep(0.01)


FAULTS = [
    Fault("kill -9 of the registry", _kill, dear=True),
    Fault("kill -9 of PostgreSQL", _kill_database, dear=True),
    Fault("SIGSTOP of the registry", lambda scene: os.kill(scene.machine.pid, signal.SIGSTOP)),
    Fault("SIGSTOP of PostgreSQL", lambda scene: scene.machine.database.suspend()),
    Fault("SIGSTOP of PostgreSQL for longer than the registry waits", lambda scene: scene.machine.database.suspend(), 7.0, True),
    Fault("disk full", _calls(write_error=errno.ENOSPC), dear=True),
    Fault("slow disk", _calls(slow=150)),
    Fault("disk slower than the registry waits", _calls(slow=6_000), 6.5, True),
    Fault("fsync error", _calls(sync_error=errno.EIO), dear=True),
    Fault("reset of the connections to PostgreSQL", lambda scene: scene.machine.relay.reset()),
    Fault("reset of the author's connection", _cancel),
    Fault("clock a day ahead", lambda scene: scene.machine.calls.set(ahead=86_400)),
    Fault("clock an hour behind", lambda scene: scene.machine.calls.set(ahead=-3_600)),
    Fault("duplicate requests", _again),
    Fault("reordered requests", _overtaken),
]
"""The table. Each is a fault of the machine or of the network, and none is known to the registry."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scene() -> AsyncIterator[Scene]:
    with temporary_directory() as folder:
        async with faulty_machine(folder, "--quota", "100000") as machine:
            yield Scene(machine)


def steps_of(fault: Fault) -> list[tuple[str, str]]:
    """Return the steps at which a fault is made; of two that follow each other in the table, every step has one."""
    if FULL:
        return STEPS
    # A process that is killed before it sends its commit, and one whose commit is told and not recorded: a statement that is held
    # back before it is forwarded arrives although its sender was killed.
    if fault.name.startswith("kill"):
        return [("append", "after"), (RECORD, "before")]
    return [("commit", "before"), ("commit", "after")] if fault.dear else STEPS[FAULTS.index(fault) % 2 :: 2]


@pytest.mark.sample(2)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_a_fault_at_each_step_of_a_write(scene: Scene, fault: Fault) -> None:
    scene.seen.refusals.clear()
    for step, when in steps_of(fault):
        try:
            async with asyncio.timeout(_PATIENCE):
                await _cell(scene, fault, step, when)
        except BaseException as error:
            error.add_note(f"{fault.name}, {when} {step}; refusals {sorted(scene.seen.refusals)}")
            data = scene.machine.server.data
            error.add_note((data.parent / f"{data.name}.log").read_text()[-4_000:])
            raise
    await check_acknowledged(scene.machine.server, scene.seen)
    await check_history(scene.machine.server, scene.seen)


async def _cell(scene: Scene, fault: Fault, step: str, when: str) -> None:
    machine, reached = scene.machine, asyncio.Event()
    before = len(scene.seen.acknowledged)

    async def make() -> None:
        await scene.read()  # an answer at this moment must be true for ever
        damage = fault.make(scene)
        if damage is not None:
            await damage
        reached.set()

    scene.sent = scene.leaf()
    if step == RECORD:
        machine.calls.set(hold=1 if when == "before" else 2)
    else:
        machine.relay.arm(step, when, make)
    writing = [asyncio.create_task(scene.write(scene.sent, first=True)), asyncio.create_task(scene.write(scene.leaf()))]
    if step == RECORD:
        while machine.calls.get("hold") != HELD:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.001)
        await make()
        machine.calls.set(hold=0)
    await reached.wait()
    reading = asyncio.create_task(scene.read())
    await asyncio.sleep(fault.seconds)
    await machine.heal()
    await asyncio.gather(*writing, *scene.others, reading)
    assert len(scene.seen.acknowledged) >= before + 2
    scene.others.clear()
    await scene.read()


async def test_after_all_faults_the_tables_follow_from_the_log(scene: Scene) -> None:
    await judge(scene.machine.server, scene.seen)


async def test_the_oracle_sees_a_lost_statement_and_a_fork(scene: Scene) -> None:
    server, seen = scene.machine.server, scene.seen
    leaf, lost = scene.leaf(), scene.leaf()
    await scene.write(leaf)
    receipt = dict(seen.acknowledged)[leaf]
    with pytest.raises((AssertionError, TreatyError)):
        await check_acknowledged(server, Seen([(lost, receipt)]))
    keys = load_operator(server.data / "keys")
    fork = sign(Checkpoint(keys.origin, 3, bytes(32)).format(), [keys.log_key, keys.clock_key], time=NOW)
    with pytest.raises(AssertionError):
        await check_history(server, Seen(checkpoints={fork.decode()}))
