"""One seed is one history: a world, faults and authors drawn from the seed, run to its end and judged."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from . import oracle
from .clients import Clients
from .disk import SystemCalls
from .faults import Faults
from .filled import fill
from .operators import operator
from .processes import Kind, Machine, World, attend
from .scheduler import Scheduler
from .wishes import AUTHORS
from .witnesses import WitnessHost

_RECOVERY = 400.0
"""Seconds of virtual time in which everything must be settled once all faults have ended."""
_ENDING = 60.0
"""Seconds in which every process must stop in order."""


_WRONG_CLOCK = 25
"""One of so many histories starts with a wrong clock. By chance alone few would, and a first start has rules of its own."""


@dataclass(frozen=True)
class History:
    """The result of one seed. `findings`: the broken rules. `steps`: what happened."""

    seed: int
    findings: list[str]
    steps: list[str]

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}", *self.steps, "", *self.findings])


def run(seed: int) -> History:
    """Run a history; within `seams.simulated`."""
    scheduler = Scheduler(seed)
    rng = scheduler.rng
    faults = Faults(rng)
    kind = rng.choice((Kind.ALONE, Kind.ALONE, Kind.FILE, Kind.OBJECT, Kind.OBJECT))
    world = World(scheduler, faults, SystemCalls(), AUTHORS, kind)
    # Alone: one directory, in which processes follow each other; or several machines with the log's keys, which take over from
    # each other. Nodes share a file on one machine, or an object among several.
    count = rng.choice((1, 1, 2, 2, 3))
    for number in range(1 if kind is Kind.FILE else max(count, 2) if kind is Kind.OBJECT else count):
        world.machines.append(Machine(world, f"machine {number + 1}"))
    world.per_machine = max(count, 2) if kind is Kind.FILE else 1
    scheduler.note(f"{kind.value}, {len(world.machines)} machines{', a synchronous replica' if world.server.replica else ''}")
    if rng.random() < 0.08:
        fill(world, rng)
    if seed % _WRONG_CLOCK == _WRONG_CLOCK - 1:
        _start_with_a_wrong_clock(world)
    hosts = [WitnessHost(world, number, operator().log_key.verifier) for number in range(rng.choice((0, 0, 1, 2)))]
    world.witnesses = tuple(host.name for host in hosts)
    world.hosts = {host.name.url.removeprefix("https://"): host for host in hosts}
    duration = rng.choice((5.0, 15.0, 40.0, 90.0))
    for machine in world.machines:
        scheduler.after(rng.random(), None, lambda machine=machine: world.start(machine))  # type: ignore[misc]
    clients = Clients(world, duration)
    faults.plan(world, duration)
    _supervise(world)
    scheduler.run(lambda: scheduler.now >= duration or bool(world.findings), duration)
    scheduler.now = max(scheduler.now, duration)
    faults.heal(world)
    if not world.findings:
        _settle(world, clients)
    if not world.findings:
        oracle.judge(world, clients)
    for process in (*world.processes, *([world.still] if world.still else [])):
        process.loop.kill()
    result = History(seed, world.findings, scheduler.steps)
    if seed % 64 == 0:
        gc.collect()
    return result


def _start_with_a_wrong_clock(world: World) -> None:
    behind = 10.0 ** world.scheduler.rng.choice((2, 3, 4, 5))
    world.scheduler.note(f"the clocks are {behind:.0f} seconds behind")

    def right() -> None:
        for machine in world.machines:
            machine.ahead = 0.0
        world.scheduler.note("the clocks are right")

    for machine in world.machines:
        machine.ahead = -behind
    world.scheduler.after(world.scheduler.rng.random() * 8, None, right)


def _supervise(world: World) -> None:
    """Start a process again some time after it has ended, and sometimes a second one beside it."""
    rng, faults = world.scheduler.rng, world.faults
    for machine in world.machines:
        running = sum(process.machine is machine for process in world.processes)
        if running < world.per_machine or (running == world.per_machine and rng.random() < 0.02 and not faults.healed):
            world.start(machine)
    world.read()
    if not faults.healed:
        world.scheduler.after(1 + rng.random() * 4, None, lambda: None if faults.healed else _supervise(world))


def _settle(world: World, clients: Clients) -> None:
    """Let everything recover, and stop all processes in order. Both must end."""
    scheduler = world.scheduler
    limit = scheduler.now + _RECOVERY

    def settled() -> bool:
        if world.findings or not clients.settled:
            return bool(world.findings)
        # A leader that does not know of the newest commit learns it when it renews its checkpoint.
        serving = [process.registry for process in world.processes if process.registry is not None]
        newest = [registry for registry in serving if registry.head.size == world.server.head[0]]
        # All nodes follow the one that leads.
        follow = not world.record or len(newest) == len(world.processes) >= world.per_machine * len(world.machines)
        return follow and any(registry.leader.leads for registry in newest)

    while not settled() and scheduler.now < limit:
        attend(world)
        world.read()
        scheduler.run(settled, scheduler.now + 5)
        scheduler.now = max(scheduler.now, min(limit, scheduler.now))
        if not settled():
            scheduler.after(5.0, None, lambda: None)
    if not settled():
        waiting = [wish.name for wish in clients.wishes if not wish.settled]
        world.found(
            f"{_RECOVERY:.0f} seconds after the last fault {waiting} wait, or no process leads, or not all show the newest head."
        )
        return
    for process in list(world.processes):
        process.stop() if process.registry is not None else process.kill("at the end")
    if not scheduler.run(lambda: not world.processes, scheduler.now + _ENDING):
        world.found(f"{[process.name for process in world.processes]} do not stop.")
