"""The page that makes a ballot."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from treaty_consensus.kinds import MAX_CANDIDATES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..serving.views import Views


async def context(views: Views, topic: str, did: str | None) -> Mapping[str, object]:
    """Return the values that the page of a ballot in a topic shows. `did`: shows its weight. Raises `Malformed`, `NotFound`."""
    head = views.registry.head
    election = await views.elections.topic(topic, head)
    choices = [candidate.uris[0] for candidate in election.candidates[:1]]
    return {
        "topic": election,
        "log": await views.elections.log(head),
        "did": did,
        "standing": await views.standings.standing(did, None) if did else None,
        "position": await views.elections.voter(topic, did) if did else None,
        "most": MAX_CANDIDATES,
        "command": shlex.join(["treaty", "vote", topic, *choices, "none"]),
    }
