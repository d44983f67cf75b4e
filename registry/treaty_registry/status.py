"""Tell the state of a running registry, and what an operator has to do about it: `treaty-registry status` and `doctor`.

`read_status` reads the state within seconds, also when PostgreSQL or a witness does not answer. `problems_of` decides from that
state alone, so each problem can be tested without a fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from treaty_consensus import __version__
from treaty_consensus.errors import TreatyError

from .codes import RegistryWitnessCode
from .log.checkpoints import RENEWAL, Head
from .operator.acts import Act, Acts
from .registry import Registry
from .storage.postgres import DATABASE_ERRORS
from .storage.space import FreeSpace

_ACTS = 10
_PATIENCE = 3.0  # seconds for the database
_HOUR, _DAY = 3600, 86_400
BACKUP_AGE = 26 * _HOUR
"""Seconds: a daily backup may be two hours late."""
CERTIFICATE_LEFT = 14 * _DAY
"""Seconds: tools that renew certificates do so a month before their end."""
DISK_LEFT = 4
"""The free space that is enough: so many times what a write needs, and a GiB."""
QUEUE_LONG = 1000
"""Statements that wait: several seconds of a small machine."""


@dataclass(frozen=True)
class HeadStatus:
    """A head: its leaves, and the time of its signature in Unix seconds."""

    size: int
    time: int

    @classmethod
    def of(cls, head: Head) -> HeadStatus:
        """Return the status of a head."""
        return cls(head.size, head.time)


@dataclass(frozen=True)
class WitnessStatus:
    """A witness: the newest head that it cosigned while this process runs, 0 for none; and the code of its failure, or ""."""

    name: str
    size: int
    time: int
    failure: str


@dataclass(frozen=True)
class DiskStatus:
    """A disk that writes need. `kept`: the bytes below which nothing is written."""

    purpose: str
    folder: str
    free: int
    kept: int


@dataclass(frozen=True)
class RegistryStatus:
    """The state of a registry as one process sees it. Times are Unix seconds; `now` is the machine's.

    `ready`: the code of the reason why no writes are taken, or "". `leader`: the URL of the leader where it is another node, ""
    for none, None where this process leads. `witnessed`: the newest head with cosignatures. `backup`: the newest one that is
    known. `certificates`: name → the end of its validity. `database_clock`: PostgreSQL's clock minus the machine's, in seconds;
    None when it does not answer.
    """

    version: str
    origin: str
    base_url: str
    now: int
    ready: str
    reason: str
    fix: str
    leads: bool
    leader: str | None
    signed: HeadStatus
    published: HeadStatus
    witnessed: HeadStatus | None
    witnesses: list[WitnessStatus]
    backup: int | None
    certificates: dict[str, int]
    disks: list[DiskStatus]
    clock: str
    database_clock: float | None
    queues: dict[str, int]
    epoch_lag: float
    contact: str | None
    blocked: int
    quotas: int
    acts: list[Act] = field(default_factory=list)


@dataclass(frozen=True)
class Diagnosis:
    """A problem and its fix. `kind`: a `problem` needs an act now; an `advice` says what the installation lacks."""

    kind: Literal["problem", "advice"]
    what: str
    fix: str


async def read_status(registry: Registry) -> RegistryStatus:
    """Return the state of an open registry. Never raises for a part that does not answer."""
    ready, reason, fix, clock = "", "", "", ""
    try:
        await registry.check_ready()
    except TreatyError as error:
        ready, reason, fix = error.code, error.message, error.fix
    try:
        registry.clock()
    except TreatyError as error:
        clock = error.code
    head, now = registry.head, datetime.now().timestamp()
    followed = registry.nodes.led_elsewhere if registry.nodes else None
    await registry.upkeep.read()
    database_clock, blocked, quotas, acts = await _from_database(registry)
    return RegistryStatus(
        version=__version__,
        origin=registry.origin,
        base_url=registry.base_url,
        now=int(now),
        ready=ready,
        reason=reason,
        fix=fix,
        leads=registry.leader.leads,
        leader=None if registry.leader.leads else followed.url if followed else "",
        signed=HeadStatus.of(head),
        published=HeadStatus.of(head.published),
        witnessed=HeadStatus.of(head.witnessed) if head.witnessed else None,
        witnesses=[WitnessStatus(*state) for state in registry.witnesses.states],
        backup=registry.upkeep.backup,
        certificates=registry.upkeep.certificates,
        disks=await asyncio.to_thread(_disks, registry.disks),
        clock=clock,
        database_clock=database_clock,
        queues={"admission": registry.intake.queue.waiting, "sequencer": registry.sequencer.waiting},
        epoch_lag=registry.schedule.lag(now),
        contact=registry.contact,
        blocked=blocked,
        quotas=quotas,
        acts=acts,
    )


async def _from_database(registry: Registry) -> tuple[float | None, int, int, list[Act]]:
    """Return the database's clock against the machine's, blocks, quotas and acts; nothing when it is silent."""
    with suppress(TreatyError, TimeoutError, *DATABASE_ERRORS):
        async with asyncio.timeout(_PATIENCE):
            time = await registry.pool.fetchval("select extract(epoch from clock_timestamp())::float8")
            difference = time - datetime.now().timestamp()
            senders = await registry.intake.senders.listed()
            blocked = sum(sender.blocked is not None for sender in senders)
            quotas = sum(sender.factor is not None for sender in senders)
            return difference, blocked, quotas, await Acts(registry.pool).newest(_ACTS)
    return None, 0, 0, []


def _disks(rooms: Iterable[FreeSpace]) -> list[DiskStatus]:
    """Return the state of each disk; one that cannot be asked has nothing left. Blocking."""
    disks = []
    for room in rooms:
        free = 0
        with suppress(OSError):
            free = room.free
        disks.append(DiskStatus(room.purpose, str(room.folder), free, room.kept))
    return disks


def problems_of(status: RegistryStatus) -> list[Diagnosis]:
    """Return the problems of a registry, the gravest first, then the advice."""
    return [*_of_writes(status), *_of_heads(status), *_of_machine(status), *_of_installation(status)]


def _of_writes(status: RegistryStatus) -> Iterator[Diagnosis]:
    if status.ready:
        fix = status.fix or "Read the lines of level error: journalctl -u treaty-registry -p err"
        yield Diagnosis("problem", f"No writes are taken ({status.ready}): {status.reason}", fix)
    if status.clock and status.clock != status.ready:
        yield Diagnosis("problem", f"The clock is wrong ({status.clock}).", "Set it right; then: treaty-registry accept-clock")
    if status.leader == "":
        yield Diagnosis(
            "problem", "No process leads the log.", "See that one node runs and reaches PostgreSQL; its log says why not."
        )
    if status.database_clock is None:
        yield Diagnosis(
            "problem", "PostgreSQL does not answer.", "Start it, or free its connections; the registry goes on by itself."
        )
    elif abs(status.database_clock) > 5:
        yield Diagnosis(
            "problem",
            f"The clocks of PostgreSQL and of this machine differ by {abs(status.database_clock):.0f} seconds.",
            "Synchronize both with NTP: timedatectl set-ntp true",
        )
    for name, waiting in status.queues.items():
        if waiting >= QUEUE_LONG:
            yield Diagnosis(
                "problem", f"{waiting} statements wait ({name}).", "treaty-registry senders shows who sends; then block or lower."
            )


def _of_heads(status: RegistryStatus) -> Iterator[Diagnosis]:
    age = status.now - status.published.time
    if age > 3 * RENEWAL:
        yield Diagnosis(
            "problem",
            f"The published head is {age} seconds old; agents refuse it soon.",
            "If the signed one is newer, witnesses fail: see below. Otherwise nothing is signed: read the log of the leader.",
        )
    for witness in status.witnesses:
        if witness.failure:
            fix = (
                "It knows another history. Stop, and follow the runbook: the log may have forked."
                if witness.failure in (RegistryWitnessCode.AHEAD, RegistryWitnessCode.HISTORY)
                else "See that it runs and is reached from here; the runbook has an entry for it."
            )
            yield Diagnosis("problem", f"The witness {witness.name} does not cosign ({witness.failure}).", fix)
    if status.epoch_lag > _HOUR:
        yield Diagnosis(
            "problem",
            f"The close of the epoch is {status.epoch_lag / _HOUR:.1f} hours late.",
            "The log of the leader says why; with a quorum of witnesses, too few of them answer.",
        )


def _of_machine(status: RegistryStatus) -> Iterator[Diagnosis]:
    for disk in status.disks:
        if disk.free < DISK_LEFT * disk.kept + 1024**3:
            yield Diagnosis(
                "problem",
                f"The disk of the {disk.purpose} ({disk.folder}) has {disk.free // 1024**2} MiB left.",
                f"Free space or enlarge it. Below {disk.kept // 1024**2} MiB nothing is written.",
            )
    for name, end in status.certificates.items():
        if end - status.now < CERTIFICATE_LEFT:
            days = max(0, (end - status.now) // _DAY)
            fix = (
                "Renew it; the registry reads the file again at a restart."
                if name == "https"
                else ("Rotate it: treaty-registry prepare-rotation --only authority, then rotate")
            )
            yield Diagnosis("problem", f"The certificate of {name} ends in {days} days.", fix)


def _of_installation(status: RegistryStatus) -> Iterator[Diagnosis]:
    if status.backup is None:
        yield Diagnosis("problem", "No backup is known.", "treaty-registry backup DIR, from a timer: see “Operating a registry”.")
    elif status.now - status.backup > BACKUP_AGE:
        hours = (status.now - status.backup) // _HOUR
        yield Diagnosis(
            "problem", f"The newest backup is {hours} hours old.", "systemctl status treaty-backup.timer treaty-backup"
        )
    if not status.witnesses:
        yield Diagnosis("advice", "No witness cosigns the log.", "serve --witness URL#KEY: one of somebody else's.")
    if status.contact is None:
        yield Diagnosis("advice", "Pages and refusals name no contact for abuse.", "serve --contact abuse@example.com")


def failing(problems: Sequence[Diagnosis]) -> bool:
    """Whether one of them needs an act now."""
    return any(problem.kind == "problem" for problem in problems)
