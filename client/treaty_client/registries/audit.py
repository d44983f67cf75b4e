"""Auditing a registry: mirror its log, replay every rule, recompute every decision. Needs its URL and its key, and believes
nothing.

Beside what `treaty_consensus.audit` checks, each report and ballot is a witness: it carries a checkpoint that its author had
seen. One that the log's key signed, and that the mirrored tree does not have, proves that the log showed different histories.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from treaty_consensus.audit import Replay
from treaty_consensus.errors import TreatyError, Untrusted
from treaty_consensus.kinds import Ballot, Decision, Genesis, Report
from treaty_consensus.log.checkpoint import SignedCheckpoint, open_checkpoint
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.statement import Statement

from ..network.hosts import Network
from .api import RegistryClient
from .mirror import Mirror
from .trust import RegistryName

Progress = Callable[[str, int, int], None]
"""Told what is being done (`mirror`, `replay`), how many leaves are done, and of how many."""


@dataclass(frozen=True)
class AuditedDecision:
    """A decision that was recomputed to the same bytes. `index`: its leaf; `statement`: its id."""

    index: int
    statement: str
    body: Decision


@dataclass(frozen=True)
class AuditReport:
    """What an audit found: everything held, else it would have raised.

    `checkpoint`: of exactly the leaves that were audited, its `time` the clock's, in Unix seconds, if it cosigned. `leaves`:
    how many there are of each type. `witnesses`: how many checkpoints seen by others agree with the log.
    """

    origin: str
    checkpoint: SignedCheckpoint
    leaves: Mapping[str, int]
    decisions: tuple[AuditedDecision, ...]
    witnesses: int


async def audit(registry: RegistryName, folder: Path, network: Network, *, progress: Progress) -> AuditReport:
    """Audit a log into `folder`, which a later audit continues.

    Raises `Untrusted` (`mirror.*`, `audit.*`) at the first thing that does not hold, and `Unavailable` when the registry does not
    answer. The replay always begins at leaf 0; it takes memory in proportion to the number of names, not of bytes, in the log.
    """
    mirror = Mirror(folder, registry.key)
    async with RegistryClient(registry.base_url, network) as client:
        signed = await mirror.update(client, lambda done, total: progress("mirror", done, total))
    run = _Audit(registry.key, mirror)
    size = signed.checkpoint.size
    for entries in mirror.entries():
        await asyncio.to_thread(run.take, entries)
        progress("replay", run.replay.size, size)
    run.replay.check_checkpoint(signed.checkpoint)
    if run.clock is not None:
        signed = open_checkpoint(signed.note, registry.key, run.clock)
    return AuditReport(registry.origin, signed, dict(run.leaves), tuple(run.decisions), run.witnesses)


@dataclass
class _Audit:
    """The state of one audit. Not safe for concurrent use."""

    key: VerifierKey
    mirror: Mirror
    replay: Replay = field(default_factory=Replay)
    leaves: Counter[str] = field(default_factory=Counter)
    decisions: list[AuditedDecision] = field(default_factory=list)
    witnesses: int = 0
    clock: VerifierKey | None = None
    _seen: set[str] = field(default_factory=set)

    def take(self, entries: list[bytes]) -> None:
        """Replay some more leaves."""
        for leaf in entries:
            index = self.replay.size
            taken = self.replay.append(leaf)
            if not isinstance(taken, Statement):
                self.leaves["sigstore"] += 1
                continue
            self.leaves[taken.type] += 1
            match taken.body:
                case Genesis():
                    self._check_genesis(taken.body)
                case Decision():
                    self.decisions.append(AuditedDecision(index, taken.id, taken.body))
                case Report() | Ballot():
                    self._hear(index, taken.body.seen_checkpoint)

    def _check_genesis(self, genesis: Genesis) -> None:
        if genesis.log_key != str(self.key):
            raise Untrusted("audit.genesis", f"The log's genesis names the key {genesis.log_key}, you trust {self.key}.")
        self.clock = VerifierKey.parse(genesis.clock_key)

    def _hear(self, index: int, note: str) -> None:
        if note in self._seen:
            return
        try:
            seen = open_checkpoint(note.encode(), self.key).checkpoint
        except TreatyError:
            return  # whatever its author saw, this log did not sign it: it proves nothing
        # Its author had seen it before this leaf was logged, so the log it is of cannot have been larger.
        if seen.size > index or self.mirror.root_at(seen.size) != seen.root:
            raise Untrusted(
                "audit.fork",
                f"Leaf {index} carries a checkpoint of {seen.size} leaves, signed by the log, whose root these leaves do not "
                "have: the log showed somebody else a different history.",
                fix="Keep the mirror and publish this leaf: together they prove it.",
            )
        self._seen.add(note)
        self.witnesses += 1
