"""The machines and processes of a history, the network between them and the database, and the world that holds them together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from registries import did_document
from signers import NOW, ORIGIN, Signer

from treaty_consensus.did import Did
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_io.network.did_documents import DidDocument, read_did_document
from treaty_registry.codes import RegistryLogCode
from treaty_registry.log.clock import Uptime
from treaty_registry.log.fence import read_fence, signed_time
from treaty_registry.registry import Registry
from treaty_registry.settings import Settings, WitnessName

from .blobs import Blobs
from .connection import SimulatedConnection
from .disk import Disk, DiskPath, SystemCalls
from .objects import ObjectStore
from .scheduler import Scheduler, SimulatedLoop
from .server import Server


@dataclass
class Machine:
    """A machine with a disk and a clock. `ahead`: seconds by which its clock is wrong. `cut`: it does not reach the database
    until then. `apart`: nor the other machines and the object store until then."""

    world: World
    name: str
    disk: Disk = field(init=False)
    ahead: float = 0.0
    cut: float = 0.0
    apart: float = 0.0
    slow_disk: float = 0.0
    boots: int = 0
    booted: float = 0.0

    def __post_init__(self) -> None:
        self.disk = Disk(self.name)

    @property
    def data(self) -> DiskPath:
        """The data directory of the registry."""
        return DiskPath(self.disk)

    def clock(self) -> datetime:
        """Return the time that this machine has."""
        return datetime.fromtimestamp(NOW + self.world.scheduler.now + self.ahead, UTC)

    def uptime(self) -> Uptime:
        """Return the time since this machine started."""
        return Uptime(f"{self.boots:08x}", self.world.scheduler.now - self.booted)


class Network:
    """The time that messages take. They arrive in the order of a connection; those of several connections overtake each other."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.slow = 0.0

    def arrival(self, machine: Machine) -> float:
        """Return when a message of a machine to the database, or back, arrives."""
        rng = self._scheduler.rng
        delay = 0.0002 + rng.random() * 0.003 + (rng.random() * self.slow if self.slow else 0.0)
        return max(self._scheduler.now, machine.cut) + delay

    def between(self, sender: Machine, receiver: Machine) -> float:
        """Return when a message of one machine to another arrives."""
        rng = self._scheduler.rng
        delay = 0.0002 + rng.random() * 0.003 + (rng.random() * self.slow if self.slow else 0.0)
        return max(self._scheduler.now, sender.apart, receiver.apart) + delay


class _Settings(Settings):
    """Settings whose record, where it is a file, is on a simulated disk."""

    @property
    def fence(self) -> Any:
        return self.data / "head"


class Process:
    """One `treaty-registry serve`. It runs the product's `Registry` on its own event loop."""

    def __init__(self, world: World, machine: Machine, name: str) -> None:
        self.world = world
        self.machine = machine
        self.name = name
        self.faults = world.faults
        self.connections: list[SimulatedConnection] = []
        self.loop = SimulatedLoop(world.scheduler, self, self._thread_delay)  # type: ignore[abstract]
        self.registry: Registry | None = None
        self._recoveries = world.faults.recoveries
        self.served = 0
        """The size of the head that a reader saw last."""
        self.published = (0, 0)
        """The size and the time of the checkpoint that a reader saw last."""
        self._context: AbstractAsyncContextManager[Registry] | None = None
        self.url = f"http://{name.replace(' ', '-')}"
        """Where other nodes reach it."""
        shared: dict[str, Any] = {"node": self.url, "blobs": "memory://blobs", "head": world.record} if world.record else {}
        self.settings = _Settings(
            data=machine.data,  # type: ignore[arg-type]
            origin=ORIGIN,
            database="postgresql://simulated",
            witnesses=world.witnesses,
            **shared,
        )
        world.scheduler.note(f"{name}: starts on {machine.name}")
        world.scheduler.after(0.0, self.loop, lambda: self.loop.create_task(self._open()))

    @property
    def alive(self) -> bool:
        """Whether it was not killed and has not ended."""
        return not self.loop.dead

    async def _open(self) -> None:
        machine = self.machine
        self._context = Registry.open(self.settings, clock=machine.clock, uptime=machine.uptime, resolve=self.world.resolve)
        try:
            self.registry = await self._context.__aenter__()
        except Exception as error:
            self.world.scheduler.note(f"{self.name}: did not start: {type(error).__name__}: {error}")
            is_expected = isinstance(error, TreatyError | OSError) or "asyncpg" in type(error).__module__
            # An old backup has no leaves below the head that the process has just signed. Its next start names the cause.
            if not is_expected and not self.world.faults.restored and self.world.faults.recoveries == self._recoveries:
                self.world.found(f"{self.name} did not start because of an internal error: {error!r}")
            self._end()
        else:
            self.world.scheduler.note(f"{self.name}: serves, {self.registry.head.size} leaves")

    def stop(self) -> None:
        """Begin to stop, as SIGTERM does."""
        context = self._context
        if context is not None and self.registry is not None:
            self.world.scheduler.note(f"{self.name}: stops")
            self.registry = None
            self.world.scheduler.after(0.0, self.loop, lambda: self.loop.create_task(self._close(context)))

    async def _close(self, context: AbstractAsyncContextManager[Registry]) -> None:
        await context.__aexit__(None, None, None)
        self.world.scheduler.note(f"{self.name}: stopped")
        self._end()

    def kill(self, why: str, *, silent: float = 0.0) -> None:
        """End the process at once. The database learns it after `silent` seconds, or in the time of a message."""
        if self.alive:
            self.world.scheduler.note(f"{self.name}: killed {why}")
            self._end(silent)

    def _end(self, silent: float = 0.0) -> None:
        self.loop.kill()
        self.registry = None
        self.world.files.died(self)
        for connection in self.connections:
            when = self.world.network.arrival(self.machine) + silent
            self.world.scheduler.at(when, None, connection.session.end)
        self.world.processes.remove(self)
        self.world.ended.append(self)

    def _thread_delay(self) -> float:
        rng = self.world.scheduler.rng
        return 0.0001 + rng.random() * (self.machine.slow_disk or 0.0004)


class Kind(Enum):
    """What runs: one process in a directory, with a record of its own, or nodes that share a file or an object."""

    ALONE = "one process for each directory"
    FILE = "nodes that share a file"
    OBJECT = "nodes that share an object"


class World:
    """Everything of one history. `found` collects the oracle's findings while it runs. `kind`: which deployment it is of."""

    def __init__(self, scheduler: Scheduler, faults: Any, files: SystemCalls, authors: list[Signer], kind: Kind) -> None:
        self.scheduler = scheduler
        self.faults = faults
        self.files = files
        self.record = {Kind.FILE: "file:///shared/head", Kind.OBJECT: "s3://bucket/head"}.get(kind)
        self.store = ObjectStore(scheduler.rng.choice((0.0, 0.02, 0.1))) if kind is Kind.OBJECT else None
        self.server = Server(scheduler, replicated=scheduler.rng.random() < 0.4)
        self.begun: Checkpoint | None = None
        """The head that the machines have signed before the history."""
        self.network = Network(scheduler)
        self.blobs = Blobs()
        self.machines: list[Machine] = []
        self.per_machine = 1
        """How many processes run on each machine."""
        self.processes: list[Process] = []
        self.still: Process | None = None
        """A node that stands still for ever, and is replaced by a new one."""
        self.ended: list[Process] = []
        """Processes that are gone. They are kept so that nothing of them is collected, and runs, while the history goes on."""
        self.witnesses: tuple[WitnessName, ...] = ()
        self.hosts: dict[str, Any] = {}
        self.write_more: Callable[[], None] = lambda: None
        """Let an author send one statement more."""
        self.findings: list[str] = []
        self.signed: list[tuple[Process, Checkpoint, int]] = []
        self._authors = {author.did: author for author in authors}
        self._counter = 0

    def start(self, machine: Machine) -> Process:
        """Start a process on a machine."""
        self._counter += 1
        process = Process(self, machine, f"process {self._counter}")
        self.processes.append(process)
        return process

    def leave(self, process: Process) -> None:
        """Let a suspended process stand still for ever. Its connections stay open."""
        self.scheduler.note(f"{process.name}: stands still for ever")
        self.still = process
        self.processes.remove(process)

    def found(self, finding: str) -> None:
        """Record that the history broke a rule."""
        self.scheduler.note(f"FOUND: {finding}")
        self.findings.append(finding)

    async def resolve(self, did: Did) -> DidDocument:
        """Return the document of an author."""
        return read_did_document(did, did_document(self._authors[did.text]))

    def newest_record(self, machine: Machine) -> Checkpoint | None:
        """Return the record of the newest signed head that a process of a machine has, or None before there is one."""
        if self.store is not None:
            return None if self.store.content is None else Checkpoint.parse(self.store.content.decode())
        return read_fence(machine.data / "head", ORIGIN) if (machine.data / "head").exists() else None  # type: ignore[arg-type]

    def sign(self, process: Process, checkpoint: Checkpoint, time: int) -> None:
        """Check a signature at the moment when it is made."""
        size, root = checkpoint.size, checkpoint.root
        self.scheduler.note(f"{process.name}: signs {size} leaves, root {root.hex()[:8]}, time +{time - NOW}")
        if (size, root) not in self.server.heads:
            self.found(f"{process.name} signed {size} leaves that are not committed.")
        record = self.newest_record(process.machine)
        if record is None or (record.size, _time(record)) < (size, time):
            self.found(f"{process.name} signed {size} leaves, or a time, that are not recorded.")
        for other, before, then in self.signed:
            if before.size == size and before.root != root:
                self.found(f"{process.name} signed another root of {size} leaves than {other.name}.")
            # Of several nodes a replaced one may sign what it had recorded before.
            own = other is process if self.record else other.machine is process.machine
            if own and then > time and before.size:  # that of an empty log is not shown
                self.found(f"{process.name} signed the time {time - NOW} after {then - NOW}.")
            if other is process and before.size > size:
                self.found(f"{process.name} signed {size} leaves after {before.size}.")
            if self.record and record is not None and before.size > record.size:
                self.found(f"The record has {record.size} leaves, and {before.size} are signed.")
        self.signed.append((process, checkpoint, time))

    def read(self) -> None:
        """Look at a process as a reader does: it serves a signed head, and none before an earlier one."""
        for process in self.processes:
            head = process.registry.leader.head if process.registry is not None else None
            if head is None:
                continue
            if not any((head.size, head.root) == (signed.size, signed.root) for _, signed, _ in self.signed):
                self.found(f"{process.name} serves {head.size} leaves that no process signed.")
            if head.size < process.served:
                self.found(f"{process.name} serves {head.size} leaves after {process.served}.")
            process.served = head.size
            published = head.published.size, head.published.time
            if published < process.published:
                self.found(f"{process.name} publishes {published[0]} leaves after {process.published[0]}.")
            process.published = published

    def log(self, process: Process | None, level: str, event: str, fields: dict[str, Any]) -> None:
        """Take a line of the product's log."""
        error = fields.pop("exc_info", None)
        text = ", ".join(f"{name}={str(value)[:100]}" for name, value in fields.items())
        self.scheduler.note(f"{process.name if process else '?'}: log {level}: {event} {text} {error!r}")
        # After the restore of an old backup the alarm is right.
        if event == "batch lost" or (event == "the log was forked" and not self.faults.restored):
            self.found(f"The log says: {event} ({error!r} {text}).")
        if event == "batch failed" and not isinstance(error, TreatyError | OSError) and "asyncpg" not in type(error).__module__:
            self.found(f"A batch failed because of an internal error: {error!r}.")


def newest_signed_time(machine: Machine) -> int | None:
    """Return the newest time in the record of a machine."""
    record = machine.world.newest_record(machine)
    return _time(record) if record is not None and record.extensions else None


def _time(record: Checkpoint) -> int:
    signed = signed_time(record)
    return signed.time if signed else 0


def attend(world: World) -> None:
    """Do the operator's part: set clocks, accept one that is right, and start processes that are gone."""
    for machine in world.machines:
        try:
            newest = newest_signed_time(machine)
        except TreatyError as error:
            world.found(f"The record of {machine.name} cannot be read: {error}")
            return
        # A clock is never set back behind a time that was signed: signing would wait until it has caught up.
        machine.ahead = max(0.0, (newest or 0) - NOW - world.scheduler.now)
        for _ in range(world.per_machine - sum(process.machine is machine for process in world.processes)):
            world.start(machine)
    for process in world.processes:
        if process.registry is not None:
            try:
                process.registry.clock()
            except Unavailable as error:
                if error.code == RegistryLogCode.CLOCK and "ahead of" in error.message:
                    process.registry.accept_clock()
            except TreatyError as error:
                world.found(f"{process.name} does not tell the time: {error}")
