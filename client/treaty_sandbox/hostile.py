"""Replay vectors with hostile messages: the bytes of a peer must never make a handler raise.

Each message that a vector receives is changed (`mutations`), sent twice, and sent late; a shared role also gets it from another
member. The rest of the vector follows, because a message may break a state that only a later event uses. Effects are not
compared: an honest handler may answer, note or ignore. A finding is an exception of the handler, an effect that its host refuses,
or an event that takes too long.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import HandlerPackage, Role
from treaty_handler import Close, Event, PeerJoined, PeerLost, Received, decode_json
from treaty_io.codes import ClientHandlerCode, SandboxCode, SessionCode

from .mutations import mutations
from .vectors import LOCAL, PEER, Vector

if TYPE_CHECKING:
    from .interface import LoadedHandler, LoadedSession
    from .pool import SandboxPool

MAX_EVENTS = 5_000
"""Events of one run: one to two seconds in the sandbox. Of more cases a part is tried, the same one each time."""
MAX_SECONDS = 15
"""After so many seconds a run ends with the cases that it tried, for a handler that is slow. Each vector gets its share."""
MAX_FINDINGS = 8
# Each one costs a start of the sandbox.
_MAX_DEATHS = 12
# Events of the vector that follow a changed message. The last ones of a long vector would find little more.
_MAX_AFTER = 8
# A case makes a session and closes it.
_OVERHEAD = 3
STRANGER = "did:example:stranger"
_FATAL = (ClientHandlerCode.FAILED, SandboxCode.LIMIT, SandboxCode.DIED)
_OVER = (SessionCode.ENDED, SessionCode.IGNORED)


@dataclass(frozen=True, slots=True)
class HostileFinding:
    """A message that a handler does not survive. `step`: of the vector. `change`: of its message. `error`: with its place."""

    vector: str
    role: str
    step: int
    change: str
    error: str


@dataclass(frozen=True, slots=True)
class HostileRun:
    """The result of a run. `tried`: cases, of all that there are."""

    findings: tuple[HostileFinding, ...]
    tried: int
    total: int

    @property
    def summary(self) -> str:
        """The number of messages, for a line."""
        return f"{self.tried} hostile messages" + (f" of {self.total}" if self.tried < self.total else "")


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """The events of a vector up to `place`, and then these. `repeated`: how many messages of the same members came before."""

    vector: Vector
    role: str
    place: int
    change: str
    events: tuple[Event, ...]
    repeated: int

    @property
    def rank(self) -> tuple[int, str]:
        """A fixed order of the cases: new kinds of messages first, and neighbours with changes of all kinds."""
        return self.repeated, hex_digest(f"{self.vector.name} {self.role} {self.place} {self.change}".encode())


async def run_hostile(pool: SandboxPool, package: HandlerPackage, vectors: Sequence[Vector]) -> HostileRun:
    """Replay vectors that hold, with hostile messages. Raises `Unavailable` (`sandbox.unavailable`) and `Refused`, as
    `run_vectors`."""
    roles = package.manifest.roles
    groups = [[*_cases(vector, roles[role])] for vector in vectors for role in vector.roles if role in roles]
    cases = _chosen([case for group in groups for case in group])
    run = _Run(pool, package)
    end = time.monotonic() + MAX_SECONDS
    try:
        for number, group in enumerate(groups):
            share = (end - time.monotonic()) / (len(groups) - number)
            await run.replay([case for case in group if case in cases], share)
    finally:
        await run.close()
    return HostileRun(tuple(run.findings.values()), run.tried, sum(map(len, groups)))


def _chosen(cases: Sequence[_Case]) -> set[_Case]:
    """Return as many cases as `MAX_EVENTS` allows, the same ones each time."""
    left = MAX_EVENTS
    selection = set[_Case]()
    for case in sorted(cases, key=lambda case: case.rank):
        left -= len(case.events) + _OVERHEAD
        if left < 0:
            break
        selection.add(case)
    return selection


def _cases(vector: Vector, role: Role) -> Iterator[_Case]:
    events = [step.event for step in vector.steps]
    last = next((place for place in range(len(events), 0, -1) if not isinstance(events[place - 1], Close | PeerLost)), 0)
    seen: Counter[str] = Counter()
    for place, event in enumerate(events):
        if not isinstance(event, Received):
            continue
        repeated = seen[_members_of(event.data)]
        seen[_members_of(event.data)] += 1
        after = events[place + 1 : last]
        soon, late = after[:_MAX_AFTER], replace(event, at=events[last - 1].at)
        changed: list[tuple[str, list[Event]]] = [
            ("the message twice", [event, event, *soon]),
            ("the message again at the end", [event, *after, late]),
            ("the message only at the end", [*after, late]),
        ]
        changed += [(change, [replace(event, data=data), *soon]) for change, data in mutations(event.data)]
        if role.is_shared:
            changed += [(change, [*others, event, *soon]) for change, others in _from_others(event, events[:place], role)]
        for change, sequence in changed:
            yield _Case(vector, role.name, place, change, (*sequence, *events[last:]), repeated)


def _members_of(data: bytes) -> str:
    try:
        message = decode_json(data)
    except ValueError:
        return ""
    return f"{sorted(message)} {message.get('type')}"[:200] if isinstance(message, dict) else ""


def _from_others(event: Received, before: Sequence[Event], role: Role) -> Iterator[tuple[str, list[Event]]]:
    joined = dict.fromkeys(past.peer for past in before if isinstance(past, PeerJoined) and past.peer != event.peer)
    for peer in islice(joined, _MAX_AFTER):
        yield f"the message from {peer}", [replace(event, peer=peer)]
    stranger = PeerJoined(peer=STRANGER, role=role.peer, at=event.at)
    yield "the message from one that just joined", [stranger, replace(event, peer=STRANGER)]


class _Run:
    """Replays cases, each in a branch of a session that follows the vector."""

    def __init__(self, pool: SandboxPool, package: HandlerPackage) -> None:
        self.findings: dict[str, HostileFinding] = {}
        self.tried = 0
        self._pool, self._package = pool, package
        self._worker: LoadedHandler | None = None
        self._deaths = 0

    async def replay(self, cases: Sequence[_Case], seconds: float) -> None:
        """Replay the cases of one vector in one role, in the order of their places."""
        end = time.monotonic() + seconds
        trunk: LoadedSession | None = None
        at = 0
        for case in cases:
            if len(self.findings) == MAX_FINDINGS or self._deaths == _MAX_DEATHS or time.monotonic() > end:
                break
            if trunk is None or self._worker is None or not self._worker.alive:
                worker = await self._loaded()
                trunk, at = await worker.open(case.role, case.vector.parameters, seed=case.vector.seed), 0
            for step in case.vector.steps[at : case.place]:
                await trunk.handle(step.event)
            at = case.place
            error = await _deliver(await trunk.branch(), case.events)
            self.tried += 1
            if error:
                number = case.vector.steps[case.place].number
                self.findings.setdefault(error, HostileFinding(case.vector.name, case.role, number, case.change, error))
        if trunk is not None:
            await trunk.close()

    async def _loaded(self) -> LoadedHandler:
        if self._worker is None or not self._worker.alive:
            self._deaths += self._worker is not None
            await self.close()
            self._worker = await self._pool.load(self._package, local=LOCAL, peers=[PEER])
        return self._worker

    async def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            await self._worker.close()


async def _deliver(session: LoadedSession, events: Sequence[Event]) -> str:
    """Give the events to a session, and close it. Return the failure of the handler, or ""."""
    for event in events:
        try:
            await session.handle(event)
        except ValueError:  # no host gives this event any more, such as a Result of a call that was not made
            continue
        except TreatyError as error:
            if error.code in _FATAL:
                return error.message
            if error.code in _OVER:
                break
        except Exception as error:  # of the interpreter of forms, which runs in this process
            return f"{type(error).__name__}: {error}"
    await session.close()
    return ""
