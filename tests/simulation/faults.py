"""The faults of a history. A seed draws which kinds happen, how often, and when; `heal` ends all of them.

Faults at a step: before or after a statement of PostgreSQL the process is killed, told to stop, or suspended, or its connection
breaks, or the message is late.
Faults at a time: see `EVENTS`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from .processes import Machine, Process, World, attend
from .server import advisory_holders

if TYPE_CHECKING:
    from .connection import SimulatedConnection
    from .tables import Tables

_STEPS = ("kill", "cut", "late", "suspend", "stop")
_NOTICE = 12.0
"""Seconds after which an end at the latest learns that its connection is broken."""


def _commits(sql: str) -> bool:
    """Whether a statement ends a transaction: that of several statements, or its own with new leaves."""
    return sql.startswith("COMMIT") or "ended_ballots as" in sql


class Faults:
    """Draws and makes the faults of one history."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._steps = [kind for kind in _STEPS if rng.random() < 0.6]
        self._rate = rng.choice((0.0, 0.005, 0.02, 0.06)) if self._steps else 0.0
        self.witness_losses = rng.choice((0.0, 0.2))
        self.message_losses = rng.choice((0.0, 0.0, 0.1))
        """How often a message between nodes, or its answer, is lost or comes twice."""
        self._met: set[tuple[str, str]] = set()
        self.healed = False
        self.backups: list[Tables] = []
        self._removed: tuple[Tables, tuple[int, bytes]] | None = None
        self._split = False
        self.swapped = False
        """Whether a pooler has lost a lock."""
        self.recoveries = 0
        """How often the newest state came back in place of an old backup."""

    # At a step.

    def before_statement(self, process: Process, connection: SimulatedConnection, sql: str) -> bool:
        """Maybe make a fault before a statement reaches the server. Returns True when it never does."""
        return self._fault(process, connection, sql, "before")

    def after_statement(self, process: Process, connection: SimulatedConnection, sql: str) -> bool:
        """Maybe make a fault after a statement took effect. Returns True when its answer never arrives."""
        return self._fault(process, connection, sql, "after")

    def _fault(self, process: Process, connection: SimulatedConnection, sql: str, when: str) -> bool:
        if self._split and when == "after" and _commits(sql) and not self.healed:
            self._split = False
            self._divide(process)
            return False
        # More often at a commit, because it matters most, and at the first statement of its kind: some are so rare that by chance
        # alone none of them would fail.
        rate = self._rate * (5 if _commits(sql) or (sql, when) not in self._met else 1)
        self._met.add((sql, when))
        if self.healed or not process.alive or self._rng.random() >= rate:
            return False
        kind = self._rng.choice(self._steps)
        what = " ".join(sql.split())[:30]
        if kind == "kill":
            process.kill(f"{when} «{what}»")
            return True
        if kind == "cut":
            process.world.scheduler.note(f"{process.name}: connection breaks {when} «{what}»")
            self.break_connection(process, connection)
            return True
        if kind == "stop":
            process.stop()
            # A loss at that moment: the statement that the stop cancels then raises its own error.
            if lost := self._rng.random() < 0.5:
                self.break_connection(process, connection)
            return lost
        if kind == "suspend":
            process.world.scheduler.note(f"{process.name}: suspended {when} «{what}»")
            process.loop.suspend()
            process.world.scheduler.after(self._rng.random() * 15, None, lambda: self.resume(process))
            return False
        process.machine.cut = max(process.machine.cut, process.world.scheduler.now + self._rng.random() * 7)
        return False

    def split(self) -> None:
        """Let the leader stand still after its next commit, before it records it."""
        self._split = True

    def _divide(self, process: Process) -> None:
        scheduler = process.world.scheduler
        scheduler.note(f"{process.name}: suspended before it records its commit")
        process.loop.suspend()
        # Until another node leads and has logged more. Then both believe to lead.
        for number in range(1, 1 + self._rng.randrange(1, 4)):
            scheduler.after(6.0 + number + self._rng.random(), None, process.world.write_more)
        scheduler.after(8.0 + self._rng.random() * 8, None, lambda: self.resume(process))

    def break_connection(self, process: Process, connection: SimulatedConnection) -> None:
        """Break a connection. Each end learns it on its own, at once or late."""
        scheduler = process.world.scheduler
        scheduler.after(self._notice(), process.loop, connection.lose)
        scheduler.after(self._notice(), None, connection.session.end)

    def _notice(self) -> float:
        return self._rng.random() * self._rng.choice((0.01, 1.0, _NOTICE))

    def resume(self, process: Process) -> None:
        """Let a suspended process go on, unless it stands still for ever."""
        if process is not process.world.still:
            process.loop.resume()

    # At a time.

    def plan(self, world: World, duration: float) -> None:
        """Draw the events of a history and enter them."""
        several = len(world.machines) > 1
        # A record of one machine does not know the heads that another has signed. So a backup is restored only where one
        # directory has the record of all, or the nodes share it.
        may_restore = world.record or not several
        kinds = [kind for kind in EVENTS if self._rng.random() < 0.45 and (may_restore or kind is not restore)]
        if (several or world.record) and self._rng.random() < 0.3:
            kinds += [swap_session] * 2
        for _ in range(self._rng.randrange(1, 9) if kinds else 0):
            kind = self._rng.choice(kinds)
            world.scheduler.at(self._rng.random() * duration, None, lambda kind=kind: self._make(kind, world))  # type: ignore[misc]
        for number in range(1, 4):
            world.scheduler.at(
                duration * number / 4 * self._rng.random(), None, lambda: self.backups.append(world.server.tables.copy())
            )

    def _make(self, kind: Event, world: World) -> None:
        if not self.healed:
            kind(world, self, self._rng)

    @property
    def restored(self) -> bool:
        """Whether an old backup is in place of the database."""
        return self._removed is not None

    def restore(self, world: World) -> None:
        """Put an old backup in place of the database."""
        if self.backups and self._removed is None:
            backup = self._rng.choice(self.backups)
            world.scheduler.note(f"the database is restored from a backup of {backup.rows['head'][True,]['size']} leaves")
            newest = world.server.tables
            world.server.stop()
            world.server.restore(backup)
            self._removed = newest, world.server.head
            world.server.start()

    def undo_restore(self, world: World) -> None:
        """Bring the newest state back, as the refusal of the registry asks. A state that the log has continued stays."""
        self.recoveries += self._removed is not None
        if self._removed is not None and world.server.head == self._removed[1]:
            world.scheduler.note("the database is recovered to its newest state")
            world.server.stop()
            world.server.restore(self._removed[0])
        self._removed = None

    def heal(self, world: World) -> None:
        """End every fault, and let the operator set right what only people can."""
        self.healed = True
        world.scheduler.note("all faults end")
        world.server.resume()
        world.server.disk_full = False
        world.server.durable["synchronous_commit"] = "on"
        self.undo_restore(world)
        world.server.start()
        if world.server.replica is not None:
            world.server.replica.late = 0.0
        if world.store is not None:
            world.store.down, world.store.losses = False, 0.0
        self.message_losses = 0.0
        world.network.slow = 0.0
        for machine in world.machines:
            machine.cut = machine.apart = machine.slow_disk = 0.0
            machine.disk.broken = machine.disk.tears = False
        for host in world.hosts.values():
            host.down = False
        # One of several nodes may stand still for ever: the others go on without it. Not where a pooler has lost its lock too:
        # then no row tells whose open transaction has the row of the head.
        for process in [process for process in world.processes if process.loop.suspended]:
            lasting = world.record is not None and len(world.processes) > 1 and self._rng.random() < 0.5
            lasting = lasting and not self.swapped
            process.loop.resume() if not lasting or world.still else world.leave(process)
        attend(world)


Event = Callable[[World, Faults, random.Random], None]


def _process(world: World, rng: random.Random) -> Process | None:
    return rng.choice(world.processes) if world.processes else None


def kill(world: World, faults: Faults, rng: random.Random) -> None:
    """Kill a process; the machine goes on."""
    if process := _process(world, rng):
        process.kill("by SIGKILL")


def power_loss(world: World, faults: Faults, rng: random.Random) -> None:
    """A machine goes off without a word to the database, and starts again."""
    machine: Machine = rng.choice(world.machines)
    for process in [process for process in world.processes if process.machine is machine]:
        process.kill("by a power loss", silent=rng.random() * _NOTICE)
    machine.boots, machine.booted = machine.boots + 1, world.scheduler.now


def stop(world: World, faults: Faults, rng: random.Random) -> None:
    """Stop a process in order."""
    if process := _process(world, rng):
        process.stop()


def suspend(world: World, faults: Faults, rng: random.Random) -> None:
    """Suspend a process for some seconds."""
    if process := _process(world, rng):
        world.scheduler.note(f"{process.name}: suspended")
        process.loop.suspend()
        world.scheduler.after(rng.random() * 15, None, lambda: faults.resume(process))


def split_brain(world: World, faults: Faults, rng: random.Random) -> None:
    """The leader stands still after a commit, and goes on when another node leads."""
    if world.record:
        faults.split()
        world.write_more()


def pause_database(world: World, faults: Faults, rng: random.Random) -> None:
    """Suspend PostgreSQL for some seconds."""
    world.scheduler.note("the database stands still")
    world.server.pause()
    world.scheduler.after(rng.random() * 15, None, world.server.resume)


def fail_over(world: World, faults: Faults, rng: random.Random) -> None:
    """PostgreSQL ends, and starts again or its replica is promoted. Clients learn it when their connections tell them."""
    world.scheduler.note("the database fails over")
    late = rng.random() < 0.5
    for process in world.processes:
        if late:
            process.machine.cut = max(process.machine.cut, world.scheduler.now + rng.random() * _NOTICE)
    world.server.stop(promote=rng.random() < 0.7)
    world.scheduler.after(rng.random() * 6, None, world.server.start)


def fill_disk(world: World, faults: Faults, rng: random.Random) -> None:
    """PostgreSQL's disk is full for some seconds."""
    world.scheduler.note("the database's disk is full")
    world.server.disk_full = True

    def clear() -> None:
        world.server.disk_full = False

    world.scheduler.after(rng.random() * 10, None, clear)


def partition(world: World, faults: Faults, rng: random.Random) -> None:
    """A machine does not reach the database, or the other machines, or neither, for some seconds; some connections break."""
    machine, reach = rng.choice(world.machines), rng.choice(("the database", "the others", "anything"))
    world.scheduler.note(f"{machine.name} does not reach {reach}")
    until = world.scheduler.now + rng.random() * 20
    if reach != "the database":
        machine.apart = until
    if reach == "the others":
        return
    machine.cut = until
    for process in world.processes:
        if process.machine is machine:
            for connection in process.connections:
                if not connection.is_closed() and rng.random() < 0.5:
                    faults.break_connection(process, connection)


def delay_replica(world: World, faults: Faults, rng: random.Random) -> None:
    """The replica receives nothing for some seconds, so no commit is confirmed."""
    if world.server.replica is not None:
        world.scheduler.note("the replica receives nothing")
        world.server.replica.late = world.scheduler.now + rng.random() * 20


def break_store(world: World, faults: Faults, rng: random.Random) -> None:
    """The object store does not answer, or answers again."""
    if world.store is not None:
        world.store.down = rng.random() < 0.6
        world.scheduler.note(f"the object store {'does not answer' if world.store.down else 'answers'}")


def slow_network(world: World, faults: Faults, rng: random.Random) -> None:
    """Messages take up to some seconds, and overtake those of other connections."""
    world.network.slow = rng.choice((0.0, 0.1, 2.0, 6.0))
    world.scheduler.note(f"messages take up to {world.network.slow} seconds")


def set_clock(world: World, faults: Faults, rng: random.Random) -> None:
    """The clock of a machine is set."""
    machine = rng.choice(world.machines)
    machine.ahead = rng.choice((0.0, -8.0, -8.0, -30.0, 5.0, 200.0, 4000.0, 86400.0, -86400.0)) * rng.random()
    world.scheduler.note(f"the clock of {machine.name} is {machine.ahead:+.1f} seconds wrong")


def break_disk(world: World, faults: Faults, rng: random.Random) -> None:
    """The disk of the record fails, is slow, or tears a write."""
    machine = rng.choice(world.machines)
    fault = rng.choice(("broken", "slow", "tears"))
    world.scheduler.note(f"the disk of {machine.name}: {fault}")
    machine.disk.broken = fault == "broken"
    machine.slow_disk = 12.0 if fault == "slow" else 0.0
    machine.disk.tears = fault == "tears"


def restore(world: World, faults: Faults, rng: random.Random) -> None:
    """An old backup of the database is restored; some seconds later people bring the newest state back."""
    faults.restore(world)
    world.scheduler.after(5 + rng.random() * 20, None, lambda: None if faults.healed else _recover(world, faults))


def _recover(world: World, faults: Faults) -> None:
    faults.undo_restore(world)
    world.server.start()


def break_witness(world: World, faults: Faults, rng: random.Random) -> None:
    """A witness goes down, or comes back."""
    for host in world.hosts.values():
        host.down = rng.random() < 0.5


def loosen_durability(world: World, faults: Faults, rng: random.Random) -> None:
    """PostgreSQL is started with a `synchronous_commit` with which a failover would lose commits."""
    setting = "off" if world.server.replica is None else rng.choice(("off", "local"))
    world.scheduler.note(f"the database restarts with synchronous_commit = {setting}")
    world.server.stop()
    world.server.flushed = world.server.tables.copy()
    world.server.durable["synchronous_commit"] = setting
    world.server.start()


def swap_session(world: World, faults: Faults, rng: random.Random) -> None:
    """A pooler in front of PostgreSQL loses the lock of a connection that lives on."""
    for session in list(advisory_holders(world.server)):
        faults.swapped = True
        world.scheduler.note("the leader's lock is lost while its connection lives")
        session.lose_locks()


EVENTS: tuple[Event, ...] = (
    kill,
    power_loss,
    stop,
    suspend,
    split_brain,
    pause_database,
    fail_over,
    fill_disk,
    partition,
    delay_replica,
    break_store,
    slow_network,
    set_clock,
    break_disk,
    restore,
    break_witness,
    loosen_durability,
)
