"""Follow an election back from its newest decision to one that was seen before.

Each decision names the id of the one before it, and an id is the hash of the whole statement. So the newest decision of an answer
fixes all earlier ones: they are fetched by their ids, and no source can change one. A registry that decided differently for
different agents cannot lead one chain to both.

It is done where an agent missed epochs. At first contact there is nothing to lead to.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from treaty_consensus import statement
from treaty_consensus.errors import Gone, Malformed, NotFound, TooLarge, TreatyError
from treaty_consensus.kinds import Decision, Newer
from treaty_consensus.log.checkpoint import LogKeys
from treaty_consensus.log.proof import Receipt
from treaty_consensus.statement import Statement
from treaty_io.codes import MemoryCode

from ..registries.api import RegistryClient
from ..registries.leaves import SeenLeaf
from .verification.completeness import Gap
from .verification.contradiction import LeftOut
from .verification.records import needs_newer

MAX_EARLIER = 32
"""Decisions that are fetched, each in a request of its own. An agent that missed more epochs compares only what it has."""


class EarlierDecisions(NamedTuple):
    """Decisions by id, each the predecessor of the next. `proven`: those of which the registry showed that its log has them."""

    by_id: Mapping[str, Statement]
    proven: tuple[SeenLeaf, ...]


async def follow_back(client: RegistryClient, gap: Gap, keys: LogKeys) -> EarlierDecisions:
    """Fetch the decisions from the one before `gap.newest` back to the epoch after `gap.seen`, at most 32.

    `keys`: of the log. Raises `LeftOut` (`memory.contradicted`) when the registry does not show one, and `Unavailable`.
    """
    decisions: dict[str, Statement] = {}
    proven: list[SeenLeaf] = []
    newest = gap.newest
    while newest.previous not in (None, gap.seen_id) and newest.epoch > gap.seen.epoch + 1 and len(decisions) < MAX_EARLIER:
        assert newest.previous is not None
        decision = await _decision(client, newest.previous, gap)
        decisions[decision.id] = decision
        # For the proof to others alone: what the chain says is certain without it. A static copy has none.
        with suppress(TreatyError):
            receipt = Receipt.parse(await client.receipt(decision.id))
            receipt.verify(decision.leaf, keys)
            proven.append(SeenLeaf.of(decision, receipt.index, receipt.hashes, receipt.checkpoint))
        assert isinstance(decision.body, Decision)
        # A later decision before an earlier one would make the chain endless.
        if decision.body.epoch >= newest.epoch:
            break
        newest = decision.body
    return EarlierDecisions(decisions, tuple(proven))


async def _decision(client: RegistryClient, digest: str, gap: Gap) -> Statement:
    try:
        decision = statement.read(await client.statement(digest))
    except (NotFound, Gone, Malformed, TooLarge) as error:
        raise _not_shown(digest, gap) from error
    if decision.id == digest and isinstance(decision.body, Newer) and decision.body.topic == gap.seen.topic:
        raise needs_newer(f"The decision {digest}")
    if decision.id != digest or not isinstance(decision.body, Decision) or decision.body.topic != gap.seen.topic:
        raise _not_shown(digest, gap)
    return decision


def _not_shown(digest: str, gap: Gap) -> LeftOut:
    return LeftOut(
        MemoryCode.CONTRADICTED,
        f"Epoch {gap.newest.epoch} of {gap.seen.topic} rests on the decision {digest}, which the registry does not show. So "
        f"nothing shows that it follows the decision of epoch {gap.seen.epoch}, which was proved before.",
        "Do not use it. The registry, or a party on the path to it, hides leaves of the log from you.",
    )
