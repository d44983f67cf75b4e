"""The page that makes a ballot."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

from treaty_consensus.kinds import MAX_CANDIDATES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..serving.views import Views


async def context(views: Views, topic: str, did: str | None) -> Mapping[str, object]:
    """Return the values that the page of a ballot in a topic shows. `did`: shows its weight. Raises `Malformed`, `NotFound`."""
    candidates, log, standing, position = await asyncio.gather(
        views.elections.candidates(topic),
        views.elections.log(views.registry.head),
        views.standings.standing(did, None) if did else _nothing(),
        views.elections.voter(topic, did) if did else _nothing(),
    )
    choices = [candidate.uris[0] for candidate in candidates[:1]]
    return {
        "topic": topic,
        "candidates": candidates,
        "log": log,
        "did": did,
        "standing": standing,
        "position": position,
        "most": MAX_CANDIDATES,
        "command": shlex.join(["treaty", "vote", topic, *choices, "none"]),
    }


async def _nothing() -> None:
    """Stand for an answer that was not asked for."""
