"""Auditing a registry: mirror its log, replay every rule, recompute every decision. Needs its URL and its key, and believes
nothing.

Beside what `treaty_consensus.audit` checks, each report and ballot is a witness: it carries a checkpoint that its author had
seen. One that the log's key signed, and that the mirrored tree does not have, proves that the log showed different histories.

The replay begins at leaf 0 every time. A state that was kept from the last audit would save that, but it would be one more thing
to believe: nothing in the log says what it has to be.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from pathlib import Path

from treaty_consensus.admit import identity_key
from treaty_consensus.audit import Replay
from treaty_consensus.election.closing import Due
from treaty_consensus.errors import TreatyError, Untrusted
from treaty_consensus.facts import Facts
from treaty_consensus.kinds import MAX_ROLL, Ballot, Blob, Decision, Genesis, Parameters, Report
from treaty_consensus.log.checkpoint import SignedCheckpoint, open_checkpoint
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.sigstore_leaf import CertificateLeaf, RekordLeaf
from treaty_consensus.statement import Statement, Verified

from ..network.hosts import Network
from ..store import Store
from . import forks
from .ahead import Ahead
from .api import RegistryClient
from .mirror import Mirror
from .scratch import Scratch
from .trust import RegistryName

Progress = Callable[[str, int, int], None]
"""Told what is being done (`mirror`, `replay`), how many leaves are done, and of how many."""

_WORTH_PROCESSES = 8192
"""Leaves of a log for which it is worth starting processes."""
_BUNDLES_AHEAD = 8
_RECENT_ROOTS = 65_536
_KEPT_NOTES = 4096


@dataclass(frozen=True)
class AuditedDecision:
    """A decision of the log, and what it is recomputed to: the same, to the byte, unless other anchors were asked for. `index`:
    its leaf; `statement`: its id."""

    index: int
    statement: str
    body: Decision
    recomputed: Decision

    @property
    def parts(self) -> bool:
        """Whether other anchors would have decided otherwise."""
        return (self.body.states, self.body.consensus) != (self.recomputed.states, self.recomputed.consensus)


@dataclass(frozen=True)
class AuditReport:
    """What an audit found: everything held, else it would have raised.

    `checkpoint`: of exactly the leaves that were audited, its `time` the clock's, in Unix seconds, if it cosigned. `leaves`:
    how many there are of each type. `witnesses`: how many reports and ballots carry a checkpoint that agrees with the log.
    `newest`: the newest decision of the topic that was asked for, with its transcript and roll, as recomputed. `known`: the
    anchors that were asked for and that the log has an identity of. `is_open`: whether any electorate was.
    """

    origin: str
    checkpoint: SignedCheckpoint
    leaves: Mapping[str, int]
    decisions: tuple[AuditedDecision, ...]
    witnesses: int
    newest: Due | None
    known: tuple[str, ...]
    is_open: bool


@dataclass(frozen=True)
class Wishes:
    """What an audit is to tell beside whether everything holds.

    `anchors`: what if trust had started from these; decisions are then recomputed with them, and not compared. `topic`: whose
    newest decision to tell in full.
    """

    anchors: Sequence[str] | None = None
    topic: str | None = None


async def audit(
    registry: RegistryName, folder: Path, evidence: Path, network: Network, *, progress: Progress, wishes: Wishes = Wishes()
) -> AuditReport:
    """Audit a log into `folder`, which a later audit continues; a proof of two histories goes into `evidence`.

    Raises `Untrusted` (`mirror.*`, `audit.*`) at the first thing that does not hold, `Unavailable` when the registry does not
    answer or the disk fails, and `NotFound` or `Gone` when it does not serve a suffix list. The replay takes memory in proportion
    to what the election counts; what it remembers of every leaf is on disk in `folder` while it runs.
    """
    mirror = Mirror(folder, registry.key, evidence)
    async with RegistryClient(registry.base_url, network) as client:
        signed = await mirror.update(client, lambda done, total: progress("mirror", done, total))
        blobs = _Blobs(Store(folder), client, asyncio.get_running_loop())
        with Scratch(folder) as scratch:
            replay = Replay(blobs.get, facts=scratch.facts, digests=scratch.digests, anchors=wishes.anchors)
            run = _Audit(registry.key, mirror, replay, evidence, wishes.topic)
            async for done in _replayed(run, signed.checkpoint.size):
                progress("replay", done, signed.checkpoint.size)
            known = _known(replay.facts, wishes.anchors or ())
    replay.check_checkpoint(signed.checkpoint)
    if run.clock is not None:
        signed = open_checkpoint(signed.note, registry.key, run.clock)
    decisions = tuple(run.decisions)
    return AuditReport(registry.origin, signed, dict(run.leaves), decisions, run.witnesses, run.newest, known, run.is_open)


async def _replayed(run: _Audit, size: int) -> AsyncIterator[int]:
    """Replay the mirror, of `size` leaves; tells every now and then how many are done."""
    waiting: deque[tuple[list[bytes], Future[list[Verified | None]] | None]] = deque()
    with Ahead() as ahead:
        for entries in run.mirror.entries():
            waiting.append((entries, ahead.check(entries, run.replay.facts) if size >= _WORTH_PROCESSES else None))
            if len(waiting) > _BUNDLES_AHEAD:
                yield await asyncio.to_thread(run.take, *waiting.popleft())
        while waiting:
            yield await asyncio.to_thread(run.take, *waiting.popleft())


@dataclass(frozen=True)
class _Blobs:
    """The blobs that a replay asks for, from the mirror's folder or else from the registry. `get` is called from threads."""

    store: Store
    client: RegistryClient
    loop: asyncio.AbstractEventLoop

    def get(self, sha256: str) -> bytes:
        data = self.store.get(sha256)
        if data is None:
            data = self._wait_for(self.client.blob(Blob(sha256, MAX_ROLL)))
            self.store.put(data)
        return data

    def _wait_for(self, answer: Coroutine[object, object, bytes]) -> bytes:
        return asyncio.run_coroutine_threadsafe(answer, self.loop).result()


@dataclass
class _Audit:
    """The state of one audit. Not safe for concurrent use."""

    key: VerifierKey
    mirror: Mirror
    replay: Replay
    evidence: Path
    topic: str | None
    leaves: Counter[str] = field(default_factory=Counter)
    decisions: list[AuditedDecision] = field(default_factory=list)
    witnesses: int = 0
    clock: VerifierKey | None = None
    newest: Due | None = None
    is_open: bool = False
    _roots: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._open = lru_cache(_KEPT_NOTES)(self._open_seen)  # many have seen the same checkpoint
        self._old_root = lru_cache(_KEPT_NOTES)(self.mirror.root_at)
        self._remember_root()

    def take(self, leaves: list[bytes], checked: Future[list[Verified | None]] | None) -> int:
        """Replay some more leaves, which were checked ahead or were not; returns how many there are by now."""
        for leaf, verified in zip(leaves, checked.result() if checked else repeat(None, len(leaves)), strict=True):
            index = self.replay.size
            taken = self._append(leaf, verified)
            self._remember_root()
            self.leaves[taken.type if isinstance(taken, Statement) else "sigstore"] += 1
            if isinstance(taken, Statement):
                self._look_at(index, taken)
        return self.replay.size

    def _append(self, leaf: bytes, verified: Verified | None) -> Statement | CertificateLeaf | RekordLeaf:
        if verified is not None:
            try:
                self.replay.apply(verified)
            except Untrusted:
                pass  # it changed nothing; what follows says why, and the same as if nothing had been checked ahead
            else:
                return verified.statement
        return self.replay.append(leaf)

    def _look_at(self, index: int, made: Statement) -> None:
        match made.body:
            case Genesis():
                self._check_genesis(made.body)
            case Parameters():
                self.is_open |= made.body.reputation is not None
            case Decision():
                self._note_decision(index, made.id, made.body)
            case Report() | Ballot():
                self._hear(index, made.body.seen_checkpoint)

    def _check_genesis(self, genesis: Genesis) -> None:
        if genesis.log_key != str(self.key):
            raise Untrusted("audit.genesis", f"The log's genesis names the key {genesis.log_key}, you trust {self.key}.")
        self.clock = VerifierKey.parse(genesis.clock_key)

    def _note_decision(self, index: int, statement: str, body: Decision) -> None:
        due = self.replay.recomputed
        assert due is not None, "it was appended"
        self.decisions.append(AuditedDecision(index, statement, body, due.decision))
        if body.topic == self.topic:
            self.newest = due

    def _hear(self, index: int, note: str) -> None:
        seen = self._open(note)
        if seen is None:
            return  # whatever its author saw, this log did not sign it: it proves nothing
        # Its author had seen it before this leaf was logged, so the log it is of cannot have been larger.
        if seen.checkpoint.size > index or self._root_at(seen.checkpoint.size) != seen.checkpoint.root:
            raise self._fork(index, seen)
        self.witnesses += 1

    def _open_seen(self, note: str) -> SignedCheckpoint | None:
        try:
            return open_checkpoint(note.encode(), self.key)
        except TreatyError:
            return None

    def _remember_root(self) -> None:
        size = self.replay.size
        self._roots[size] = self.replay.root()
        self._roots.pop(size - _RECENT_ROOTS, None)

    def _root_at(self, size: int) -> bytes:
        return self._roots.get(size) or self._old_root(size)

    def _fork(self, index: int, seen: SignedCheckpoint) -> Untrusted:
        proof = self.mirror.equivocation(seen)
        if proof is None:
            fix = "Keep the mirror and publish this leaf: together they prove it."
        else:
            fix = forks.advice(forks.keep(self.evidence, proof))
        return Untrusted(
            "audit.fork",
            f"Leaf {index} carries a checkpoint of {seen.checkpoint.size} leaves, signed by the log, whose root these leaves do "
            "not have: the log showed somebody else a different history.",
            fix=fix,
        )


def _known(facts: Facts, anchors: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        domain for domain in anchors if any(identity_key(f"did:{method}:{domain}") in facts for method in ("wba", "web"))
    )
