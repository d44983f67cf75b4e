"""Replay a mirrored log with every check of an audit.

Each report and each ballot carries a checkpoint that its author had seen. If the log's key signed it and the mirrored tree lacks
it, the log showed different histories. This check is added to those of `treaty_consensus.audit`. So is the search for stamped
statements that the log left out (`treaty_consensus.stamped`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import TypeAlias

import msgspec

from treaty_consensus.audit import Replay
from treaty_consensus.election.closing import DueDecision
from treaty_consensus.errors import TreatyError, Untrusted
from treaty_consensus.facts import LOG, LogFact, ParametersFact, find, log_of, parameters_key
from treaty_consensus.kinds import Ballot, Decision, Genesis, Parameters, Report
from treaty_consensus.log.checkpoint import LogKeys, SignedCheckpoint
from treaty_consensus.log_keys import keys_in
from treaty_consensus.rotation import Rotation
from treaty_consensus.sigstore_leaf import CertificateLeaf, RekordLeaf
from treaty_consensus.stamped import LeftOut, Stamped, admissible, is_stamped_in_time
from treaty_consensus.statement import Statement, Verified
from treaty_io.codes import ClientAuditCode, ClientCheckpointCode

from ..protocols import equivocation
from ..protocols.verification.checkpoint import CLOCK_SKEW
from ..protocols.verification.log_keys import follow
from .constitution import ConstitutionHistory
from .mirror import Mirror
from .parallel_verification import Checked, Workers

Taken: TypeAlias = Statement | CertificateLeaf | RekordLeaf
"""A replayed leaf, parsed."""

WORTH_PROCESSES = 8192
"""Leaves of a log from which the time saved exceeds the start of the processes."""
# Most carried checkpoints are minutes old, so older roots are rarely proved from the mirror.
_RECENT_ROOTS = 65_536
# Opening a note verifies a signature; a root costs reads of tiles. Both caches bound memory.
_KEPT_NOTES = 4096


@dataclass(frozen=True)
class AuditedDecision:
    """A decision of the log, and its recomputation. `index`: its leaf. `statement`: its id.

    Both are equal to the byte, unless other anchors were given.
    """

    index: int
    statement: str
    body: Decision
    recomputed: Decision

    @property
    def differs(self) -> bool:
        """Whether the other anchors lead to another result."""
        return (self.body.states, self.body.consensus) != (self.recomputed.states, self.recomputed.consensus)


class Notes(msgspec.Struct, frozen=True, array_like=True):
    """Hold what an audit notes of the replayed leaves."""

    leaves: dict[str, int]
    decisions: list[AuditedDecision]
    witnesses: int
    is_open: bool
    constitution: ConstitutionHistory


@dataclass
class AuditedReplay:
    """A replay of a mirrored log, with what an audit notes of it. Not safe for concurrent use.

    `trusted`: the keys of the log that the reader knows. `evidence`: the folder for proofs that the log signed two histories.
    `topic`: the topic whose newest decision is kept.
    `resumed`: the notes of the leaves that `replay` begins with, when it was resumed.
    `stamped`: the stamped statements that are looked for. `left_out`: those that the log left out, each once.
    `taken`: called with each leaf that every check let pass, in order, in the thread that replays: its index, its bytes, parsed.
    """

    trusted: LogKeys
    mirror: Mirror
    replay: Replay
    evidence: Path
    topic: str | None = None
    taken: Callable[[int, bytes, Taken], None] = lambda _index, _leaf, _taken: None
    resumed: Notes | None = None
    stamped: Sequence[Stamped] = ()
    left_out: list[LeftOut] = field(default_factory=list)
    leaves: Counter[str] = field(default_factory=Counter)
    decisions: list[AuditedDecision] = field(default_factory=list)
    witnesses: int = 0
    newest: DueDecision | None = None
    is_open: bool = False
    constitution: ConstitutionHistory = field(default_factory=ConstitutionHistory)
    _opened: int = 0
    _proven: LogKeys | None = None
    _roots: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._open = lru_cache(_KEPT_NOTES)(self._open_seen)  # cached: many authors saw the same checkpoint
        self._old_root = lru_cache(_KEPT_NOTES)(self.mirror.root_at)
        self._remember_root()
        if self.resumed is not None:
            self.leaves.update(self.resumed.leaves)
            self.decisions += self.resumed.decisions
            self.witnesses, self.is_open = self.resumed.witnesses, self.resumed.is_open
            self.constitution, self._opened = self.resumed.constitution, log_of(self.replay.facts).opened
            self._learn_keys()

    def notes(self) -> Notes:
        """Return what was noted so far."""
        return Notes(dict(self.leaves), self.decisions, self.witnesses, self.is_open, self.constitution)

    def take(self, leaves: list[bytes], checked: Checked | None = None) -> int:
        """Replay more leaves; return the number of all replayed leaves. `checked`: their results ahead, or None.

        Raises `Untrusted` (`audit.*`) at the first leaf that breaks a rule; those before it are replayed.
        """
        for leaf, verified in zip(leaves, checked.result() if checked else repeat(None, len(leaves)), strict=True):
            index, log = self.replay.size, find(self.replay.facts, LOG, LogFact)
            entry = self._append(leaf, verified)
            self._remember_root()
            self.leaves[entry.type if isinstance(entry, Statement) else "sigstore"] += 1
            if isinstance(entry, Statement):
                self._look_at(index, entry)
                # At the first decision of an epoch: all of its leaves precede it.
                if self.stamped and log is not None and isinstance(entry.body, Decision) and not log.remaining:
                    self.left_out += self._omissions(entry.body, log)
            self.taken(index, leaf, entry)
        return self.replay.size

    def _append(self, leaf: bytes, verified: Verified | None) -> Taken:
        if verified is not None:
            try:
                self.replay.apply(verified)
            except Untrusted:
                pass  # nothing was changed; `append` below repeats it and raises the precise error
            else:
                return verified.statement
        return self.replay.append(leaf)

    def _look_at(self, index: int, statement: Statement) -> None:
        match statement.body:
            case Genesis() | Rotation():
                self._learn_keys()
                self._opened = log_of(self.replay.facts).opened
            case Parameters():
                self.is_open |= statement.body.reputation is not None
                self.constitution.announce(index, statement, statement.body, self.replay.facts)
            case Decision():
                self._note_decision(index, statement.id, statement.body)
            case Report() | Ballot():
                self._hear(index, statement.body.seen_checkpoint)

    def check_keys(self) -> LogKeys:
        """Return the keys of the replayed log. Raises `Untrusted` (`audit.fork`) unless they lead to the trusted one."""
        proven = self._proven
        try:
            return follow(self.trusted, proven, self.replay.size) if proven else self.trusted
        except Untrusted as error:
            # A tree with another genesis is no log of this key.
            named = ", then ".join(str(term.log) for term in proven.terms) if proven else "no key"
            raise Untrusted(
                ClientAuditCode.FORK, f"The log's genesis and rotations name {named}; you trust {self.trusted.newest.log}."
            ) from error

    def check_clock(self, signed: SignedCheckpoint, now: float) -> None:
        """Check that the log is not ahead of time: its clock not of the cosignatures of its head, and these not of `now`.

        The clock's key is the operator's. So the cosignatures of the witnesses of the parameters count too, where they are there.

        Raises `Untrusted` (`audit.leaf`, `checkpoint.future`).
        """
        if signed.time is not None:
            self.replay.check_clock(signed.time, "the log's own clock")
            if signed.time - now > CLOCK_SKEW:
                raise Untrusted(
                    ClientCheckpointCode.FUTURE,
                    f"The checkpoint is dated {int(signed.time - now)} seconds in the future.",
                    fix="Check this machine's clock. If it is right, the operator dates its log ahead.",
                )
        if (seen := self._witnessed_at(signed.note)) is not None:
            self.replay.check_clock(seen, "its witnesses")

    def _witnessed_at(self, note: bytes) -> int | None:
        """Return the time that a quorum of the witnesses of the parameters states in a note; None without one."""
        parameters = self.constitution.in_force
        if parameters is None or parameters.witnesses is None:
            return None
        try:
            return parameters.witnesses.parsed.time_of(note)
        except Untrusted:  # none of them has cosigned this head yet
            return None

    def _learn_keys(self) -> None:
        try:
            self._proven = keys_in(self.replay.facts)
        except TreatyError as error:
            raise Untrusted(ClientAuditCode.FORK, f"The log's genesis names no keys: {error.message}") from error
        # From a rotation on its keys sign. Keys that do not lead to the trusted one are refused at the end.
        if any(term.log == self.trusted.newest.log for term in self._proven.terms):
            self.mirror.keys = self._proven
        self._open.cache_clear()

    def _note_decision(self, index: int, statement: str, body: Decision) -> None:
        due = self.replay.recomputed
        assert due is not None, "it was appended"
        self.decisions.append(AuditedDecision(index, statement, body, due.decision))
        if body.topic == self.topic:
            self.newest = due
        # The leaf has opened the next epoch already, so the time of its own was remembered.
        self.constitution.decide(body, self._opened, self.replay.facts)
        if not body.remaining:
            self._opened = log_of(self.replay.facts).opened

    def _omissions(self, body: Decision, log: LogFact) -> list[LeftOut]:
        """Return the stamped statements that the log owed to this decision and does not have. `log`: its fact at the input.

        Of what admission reads of these statements, decisions change nothing but that fact.
        """
        facts, recorded = self.replay.facts, {each.stamped.leaf for each in self.left_out}
        parameters = find(facts, parameters_key(body.parameters), ParametersFact)
        if parameters is None or parameters.witnesses is None or body.input.witnessed is None:
            return []
        witnesses, note = parameters.witnesses, body.input.witnessed.encode()
        sought = {
            each.leaf: each
            for each in self.stamped
            # The cheap checks first: a logged one is not admissible again anyway.
            if each.leaf not in recorded
            and not self.replay.has_logged(each.statement.id)
            and is_stamped_in_time(each, witnesses, note)
            and self._carries_this_log(each.statement, body.input.size)
        }
        statements = [each.statement for each in sought.values()]
        due = admissible(facts, log, body.electorate, statements, body.input.size)
        return [LeftOut(sought[verified.statement.leaf], body.epoch, body.input) for verified in due]

    def _carries_this_log(self, statement: Statement, size: int) -> bool:
        """Tell whether the checkpoint that a statement carries, if its type has one, is of the first `size` leaves."""
        if not isinstance(statement.body, Report | Ballot):
            return True
        seen = self._open(statement.body.seen_checkpoint)
        # A registry refuses any other, rightly.
        return seen is not None and seen.checkpoint.size <= size and self._root_at(seen.checkpoint.size) == seen.checkpoint.root

    def _hear(self, index: int, note: str) -> None:
        seen = self._open(note)
        if seen is None:
            return  # not signed by this log, so it proves nothing
        # The author saw it before this leaf was logged, so a checkpoint of more leaves is of another history.
        if seen.checkpoint.size > index or self._root_at(seen.checkpoint.size) != seen.checkpoint.root:
            raise self._fork(index, seen)
        self.witnesses += 1

    def _open_seen(self, note: str) -> SignedCheckpoint | None:
        try:
            return (self._proven or self.trusted).open_by_any(note.encode())
        except TreatyError:
            return None

    def _remember_root(self) -> None:
        size = self.replay.size
        self._roots[size] = self.replay.root()
        # Older roots are proved from the mirror instead, so that memory does not grow with the log.
        self._roots.pop(size - _RECENT_ROOTS, None)

    def _root_at(self, size: int) -> bytes:
        return self._roots.get(size) or self._old_root(size)

    def _fork(self, index: int, seen: SignedCheckpoint) -> Untrusted:
        proof = self.mirror.equivocation(seen)
        if proof is None:
            fix = "Keep the mirror and publish this leaf: together they prove it."
        else:
            fix = equivocation.fix_for(equivocation.keep(self.evidence, proof))
        return Untrusted(
            ClientAuditCode.FORK,
            f"Leaf {index} carries a checkpoint of {seen.checkpoint.size} leaves, signed by the log, whose root these leaves do "
            "not have: the log showed its author a different history.",
            fix=fix,
        )


async def replayed(run: AuditedReplay, workers: Workers | None) -> AsyncIterator[int]:
    """Replay the mirror from the first leaf that is not replayed yet to its end; yield the number of replayed leaves after each
    bundle. `workers`: verify ahead; fewer than `WORTH_PROCESSES` leaves are verified faster in this process than in new ones.

    Raises as `AuditedReplay.take` and `Mirror.entries`.
    """
    waiting: deque[tuple[list[bytes], Checked | None]] = deque()
    for entries in run.mirror.entries(run.replay.size):
        waiting.append((entries, workers.check(entries, run.replay.facts) if workers else None))
        # Keep some bundles in work, so that the workers are never idle and memory stays bounded.
        if len(waiting) > (workers.ahead if workers else 0):
            yield await asyncio.to_thread(run.take, *waiting.popleft())
    while waiting:
        yield await asyncio.to_thread(run.take, *waiting.popleft())
