"""Watch a log: read what is new, tell the findings, then move the cursors.

A cursor moves only after every sink has taken all findings below it. A crash at any moment repeats findings of one round at most,
and loses none. A repeated finding has the same id.

The log breaks a promise: a fork, a bad signature, leaves that were not signed, a log that shrank, a checkpoint that is too old.
That is a grave finding. A registry that does not answer becomes one too, once nothing was read up to a head for `max_age`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from treaty_consensus.codes import LogCode
from treaty_consensus.errors import TreatyError, Unavailable, Untrusted
from treaty_consensus.events import CONSTITUTION, LogEvent, event_of
from treaty_consensus.kinds import Decision
from treaty_consensus.kinds import Identity as IdentityBody
from treaty_io.codes import ClientCheckpointCode, ClientLogCode

from ..protocols.equivocation import document
from ..protocols.verification.steps import VerificationFailed
from ..registries.api import RegistryClient
from ..registries.signed import SignedIds
from ..registries.trust import TrustedRegistries
from .cursor import Cursors
from .findings import Severity, WatchFinding, finding_of, grave
from .tail import LogTail, Round
from .watches import Watch

Sink = Callable[[WatchFinding], Awaitable[None]]

# Leaves that one poll reads. A longer backlog is continued at the next poll, so each poll ends.
MAX_LEAVES = 1 << 20
# Seconds. Doubled at each failure in a row, so that a registry or receiver that is down is not flooded.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
ONCE_ATTEMPTS = 4
_PASSING = frozenset([ClientCheckpointCode.STALE, ClientCheckpointCode.FUTURE, ClientLogCode.ROLLBACK])
"""Grave findings that may pass: a registry that is late, or lags behind. After the others nothing can be read any more."""


ENACTMENT = "enactment"
"""The kind of a finding that other parameters hold."""


def _enactment(event: LogEvent, body: Decision) -> LogEvent:
    sentence = f"From epoch {body.epoch} on the elections follow other constants: those of the statement {body.parameters}."
    return replace(event, kind=ENACTMENT, sentence=sentence, subjects=frozenset([CONSTITUTION]))


@dataclass(frozen=True)
class Expectation:
    """What the owner did: files of statement ids, and the keys of the owner's DIDs as Multikeys."""

    files: Sequence[SignedIds]
    keys: Collection[str] = ()

    def among(self, events: Sequence[LogEvent]) -> frozenset[str]:
        """Return the ids of the events that are expected. Raises OSError."""
        ids = {event.id for event in events}
        expected = frozenset[str]().union(*(file.among(ids) for file in self.files))
        # The operator's testimony is no statement of the owner, but it is true if it names the owner's keys only.
        own = (
            e.id for e in events if isinstance(e.body, IdentityBody) and {key.multikey for key in e.body.keys} <= set(self.keys)
        )
        return expected.union(own)


@dataclass
class Watcher:
    """One run. `sinks`: each gets every finding, in order, and raises `Unavailable` or OSError unless it took the finding."""

    client: RegistryClient
    registries: TrustedRegistries
    origin: str
    tail: LogTail
    cursors: Cursors
    watches: Sequence[Watch]
    expectation: Expectation
    sinks: Sequence[Sink]
    max_age: int
    clock: Callable[[], float]
    warn: Callable[[TreatyError, float], None]
    counts: dict[Severity, int] = field(default_factory=lambda: {"expected": 0, "unexpected": 0, "grave": 0})
    is_behind: bool = False
    """Whether the last poll left leaves for the next one."""

    def __post_init__(self) -> None:
        self._begun = self.clock()
        self._told: set[str] = set()

    async def begin(self, index: int | None) -> int:
        """Give every watch a cursor, before any leaf is read. Return the first index that is read.

        `index`: where all watches begin. Without it a new watch begins at the newest checkpoint that the home has seen, else at
        the present head. Raises as `LogTail.head`.
        """
        if index is not None:
            self.cursors.place(self.watches, index)
        new = [watch for watch in self.watches if not self.cursors.has(watch)]
        if new:
            seen = self.tail.seen or await self.tail.head()
            # Durable before the home sees a newer checkpoint: else the next start would begin behind it.
            self.cursors.place(new, seen.checkpoint.size)
        return min(map(self.cursors.of, self.watches))

    async def poll(self, *, attempts: int | None) -> None:
        """Read and tell what is new. `attempts`: for each delivery; None for no end.

        Raises as `LogTail.head` and `LogTail.rounds`, `Unavailable` (`watch.webhook`) and OSError after the last attempt.
        """
        head = await self.tail.head()
        begin = min(map(self.cursors.of, self.watches))
        async for read in self.tail.rounds(begin, head.checkpoint):
            end = read.first + len(read.leaves)
            await self._tell_round(read, attempts)
            # Only now: all findings of the round were taken by all sinks.
            self.cursors.advance(self.watches, end)
            self.is_behind = end < head.checkpoint.size and end - begin >= MAX_LEAVES
            if self.is_behind:
                return
        assert head.time is not None
        self.is_behind = False
        self.cursors.advance(self.watches, head.checkpoint.size, read=head.time)
        self._told.clear()  # the log keeps its promises again, so a later breach is told anew

    async def follow(self, interval: float) -> None:
        """Poll until a grave finding that cannot pass, which is told and then raised. `interval`: seconds between polls."""
        failures = 0
        while True:
            try:
                await self.poll(attempts=None)
                failures = 0
            except TreatyError as error:
                if not await self.tell_grave(error, attempts=None):
                    self.warn(error, 0)
                elif error.code not in _PASSING:
                    raise
                failures += 1
                await self.tell_silence(attempts=None)
            pause = (
                0.0 if self.is_behind else interval if not failures else min(interval * 2**failures, max(interval, LONGEST_PAUSE))
            )
            # At random, so that many watches do not ask at the same moment.
            await asyncio.sleep(pause * random.uniform(0.9, 1.1))  # noqa: S311

    async def tell_grave(self, error: TreatyError, *, attempts: int | None) -> bool:
        """Tell an error that is the log's own, once, with the proof. Return whether it is one."""
        # By the cause: a step that could not reach the registry proves nothing against it.
        is_grave = isinstance(error, Untrusted) or (isinstance(error, VerificationFailed) and error.family == Untrusted.__name__)
        if not is_grave:
            return False
        notes = error.evidence if isinstance(error, VerificationFailed) else ()
        evidence_path: Path | None = None
        if len(notes) == 2 and error.code == LogCode.CONSISTENCY:
            keys = self.registries.get(self.origin).keys
            evidence_path = await document(self.client, keys, notes[0], notes[1], self.registries.evidence)
        await self._tell(grave(self.origin, error, notes=notes, evidence=evidence_path), attempts)
        return True

    async def tell_silence(self, *, attempts: int | None) -> None:
        """Tell that nothing was read up to a head of the last `max_age` seconds, if so. A registry can hide news by silence."""
        age = int(self.clock() - (self.cursors.read or self._begun))
        if age > self.max_age:
            error = Untrusted(
                ClientCheckpointCode.STALE,
                f"For {age} seconds the registry has shown no whole log.",
                fix="Check this network. If others can reach the registry, ask its operator.",
            )
            await self._tell(grave(self.origin, error), attempts)

    async def _tell_round(self, read: Round, attempts: int | None) -> None:
        events = (event_of(read.first + place, leaf) for place, leaf in enumerate(read.leaves))
        # A leaf that no one can parse may hide anything, so it concerns every watch.
        concerned = [
            (event, [watch for watch in self.watches if event.kind == "unknown" or watch.matches(event)])
            for event in self._with_enactments(events)
        ]
        watched = [(event, watches) for event, watches in concerned if watches]
        expected = await asyncio.to_thread(self.expectation.among, [event for event, _ in watched])
        for event, watches in watched:
            for watch in watches:
                if event.index >= self.cursors.of(watch):
                    await self._tell(finding_of(self.origin, event, watch, is_expected=event.id in expected), attempts)
            if event.kind == ENACTMENT and isinstance(event.body, Decision):
                # Not yet a cursor: the decision itself, of the same index, may concern another watch.
                self.cursors.parameters = event.body.parameters
                continue
            # Kept after a failure later in the round, so that only few findings are repeated.
            self.cursors.advance(self.watches, event.index + 1)

    def _with_enactments(self, events: Iterable[LogEvent]) -> Iterator[LogEvent]:
        """Yield the events, and before each decision under other parameters than the decision before: that these hold now.

        No leaf says so: which parameters hold follows from their notice.
        """
        watch = next((watch for watch in self.watches if watch.kind == "constitution"), None)
        newest = self.cursors.parameters
        for event in events:
            if watch is not None and isinstance(event.body, Decision) and event.index >= self.cursors.of(watch):
                if newest and newest != event.body.parameters:
                    yield _enactment(event, event.body)
                elif not newest:
                    self.cursors.parameters = event.body.parameters
                newest = event.body.parameters
            yield event

    async def _tell(self, finding: WatchFinding, attempts: int | None) -> None:
        if finding.id in self._told:
            return
        # Counted first: a finding that a sink refuses was found all the same.
        self.counts[finding.severity] += 1
        for sink in self.sinks:
            await self._deliver(sink, finding, attempts)
        # A breach lasts, and is met again at the next poll.
        if finding.severity == "grave":
            self._told.add(finding.id)

    async def _deliver(self, sink: Sink, finding: WatchFinding, attempts: int | None) -> None:
        delivered = 0
        while True:
            try:
                await sink(finding)
                return
            except Unavailable as error:
                delivered += 1
                if attempts is not None and delivered >= attempts:
                    raise
                pause = min(FIRST_PAUSE * 2 ** (delivered - 1), LONGEST_PAUSE)
                self.warn(error, pause)
                await asyncio.sleep(pause)
