"""The page that makes a ballot."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

from msgspec.structs import replace

from treaty_client.audit.renewal import sentences
from treaty_client.registries.replies import VotingInfo
from treaty_consensus.kinds import MAX_CANDIDATES, NEGATIVE_STATES, NONE

from .renderer import Gathered

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from ..serving.views import Views


async def gather(views: Views, topic: str, did: str | None) -> Gathered:
    """Read the page of a ballot in a topic. `did`: shows its weight. Raises `Malformed`, `NotFound`."""
    candidates, log, standing, position, voting = await asyncio.gather(
        views.elections.candidates(topic),
        views.elections.log(views.registry.head),
        views.standings.standing(did, None) if did else _nothing(),
        views.elections.voter(topic, did) if did else _nothing(),
        views.voting.voting(did, topic, views.registry.head) if did else _nothing(),
    )
    usable = [candidate for candidate in candidates if candidate.status not in NEGATIVE_STATES]
    uris = {NONE: NONE, **{candidate.hash: candidate.uris[0] for candidate in usable}}
    earlier = _earlier(voting, uris) if voting else []
    values = {
        "topic": topic,
        "candidates": usable,
        "withdrawn": [candidate for candidate in candidates if candidate.status in NEGATIVE_STATES],
        "log": replace(log, size=0),  # the page does not show the size, which every leaf changes
        "did": did,
        "standing": standing,
        "position": position,
        "renewal": [*_renewal(voting)] if voting else [],
        "earlier": earlier,
    }
    tiers = earlier or [*([usable[0].hash] for _ in usable[:1]), [NONE]]
    command = shlex.join(["treaty", "vote", topic, *(",".join(uris[choice] for choice in tier) for tier in tiers)])
    return Gathered(values, lambda: {**values, "most": MAX_CANDIDATES, "command": command})


def _earlier(voting: VotingInfo, offered: Container[str]) -> list[list[str]]:
    """Return the newest ballot of the DID, best first, without choices that the page does not offer."""
    tiers = [[choice for choice in tier if choice in offered] for vote in voting.votes for tier in vote.tiers or ()]
    return [tier for tier in tiers if tier]


def _renewal(voting: VotingInfo) -> Iterator[str]:
    """Yield the sentences of `treaty vote --check`."""
    for vote in voting.votes:
        yield from sentences(vote, voting)


async def _nothing() -> None:
    """Stand for an answer that was not asked for."""
