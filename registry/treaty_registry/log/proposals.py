"""Judge the leaves that are proposed to the log, one after the other, and hold what becomes of each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treaty_consensus.admit import admit
from treaty_consensus.errors import TreatyError
from treaty_consensus.facts import Fact
from treaty_consensus.log.checkpoint import SignedCheckpoint
from treaty_consensus.statement import Verified
from treaty_io import tracing

from ..catalogue.handler_facts import HandlerFacts
from .entry import BlobReader, Entry
from .wheel_names import WheelNames


@dataclass(frozen=True)
class LogPosition:
    """The position of a leaf in the tree of `signed`. `proof`: its inclusion proof, or None when the leaf was logged before."""

    index: int
    signed: SignedCheckpoint
    proof: list[bytes] | None


@dataclass(eq=False)
class Proposal:
    """A leaf to append. `verified` is None for a Sigstore leaf, to which no rule of admission applies. `handler`: see `Entry`."""

    leaf: bytes
    verified: Verified | None = None
    handler: HandlerFacts | None = None
    outcome: asyncio.Future[LogPosition | TreatyError] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    proposed: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    span: tracing.Parent = None
    """The span of its submitter, which the commit names."""

    @property
    def id(self) -> bytes | None:
        """Return the id of the statement, or None."""
        return bytes.fromhex(self.verified.statement.id) if self.verified else None

    def set_result(self, outcome: LogPosition | TreatyError) -> None:
        """Pass the position or the refusal to the submitter, unless it was cancelled."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)


@dataclass
class Batch:
    """The results of judging proposals.

    `added`: the proposals to commit, in the order of `entries`. `known`: the proposals that are logged already, or are earlier
    in this batch under the same id, with their index. `refused`: the others.
    """

    entries: list[Entry] = field(default_factory=list)
    facts: dict[str, Fact] = field(default_factory=dict)
    added: list[Proposal] = field(default_factory=list)
    known: list[tuple[Proposal, int]] = field(default_factory=list)
    refused: list[tuple[Proposal, TreatyError]] = field(default_factory=list)


def judge(
    proposals: Sequence[Proposal],
    facts: Mapping[str, Fact],
    logged: Mapping[bytes, int],
    names: WheelNames,
    size: int,
    blobs: BlobReader,
) -> Batch:
    """Judge proposals in order on top of a log of `size` leaves.

    `facts`: the facts that the proposals read. `logged`: the ids among them that are logged, with their index. `names`: of their
    wheels; those of admitted ones are added.
    """
    batch, state, positions = Batch(), dict(facts), dict(logged)
    for proposal in proposals:
        index, id_ = size + len(batch.entries), proposal.id
        # Sending a statement again is harmless: it gets its first position.
        if id_ in positions:
            batch.known.append((proposal, positions[id_]))
            continue
        if proposal.verified is not None and id_ is not None:
            try:
                changes = admit(state, proposal.verified, index)
                names.check(proposal.verified.statement)
            except TreatyError as error:
                batch.refused.append((proposal, error))
                continue
            # Later statements of the batch are judged as if this one were logged, because they will follow it.
            state.update(changes)
            names.take(proposal.verified.statement)
            batch.facts.update(changes)
            positions[id_] = index
        statement = proposal.verified.statement if proposal.verified else None
        batch.entries.append(Entry(index, proposal.leaf, statement, blobs, proposal.handler))
        batch.added.append(proposal)
    return batch
