"""Serve `/speakers` and `/standing`: the speakers of a protocol, and the standing of a DID."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from treaty_client.registries.replies import Speakers
from treaty_consensus.canonical import parse_digest

from ..catalogue.resources import StandingView
from ..log.changes import PERIODIC
from ..serving.representation import Representation
from ..serving.views import Views
from .documentation import READ, answers
from .requests import target

Hash = Annotated[
    str | None,
    QueryParameter(name="hash", min_length=64, max_length=64, description="The SHA-256 of the document."),
]
OfTopic = Annotated[str | None, QueryParameter(name="topic", max_length=160, description="A topic, in place of a hash.")]
Place = Annotated[str | None, QueryParameter(name="cursor", max_length=600, description="The `next` of the page before.")]


@get(
    "/speakers",
    summary="Who speaks a protocol",
    responses=answers(Speakers, "Those of more standing first, then whose report is newer.", *READ),
)
async def speakers(
    views: NamedDependency[Views], document: Hash = None, topic: OfTopic = None, cursor: Place = None
) -> Representation:
    """Return the agents that reported a document, or any document in a topic.

    Reports are co-signed and optional. An agent that is not listed may also speak the protocol. A listed agent spoke it at its
    newest report.
    """
    digest = None if document is None else parse_digest(document)
    at = target("/speakers", hash=digest, topic=topic, cursor=cursor)
    return await views.json(at, lambda: views.standings.speakers(digest, topic, cursor), PERIODIC)


@get(
    "/standing/{did:str}",
    summary="A DID's standing",
    responses=answers(StandingView, "The sum, and every credit of it.", *READ),
)
async def standing(did: FromPath[str], views: NamedDependency[Views], cursor: Place = None) -> Representation:
    """Return the standing of a DID's principal, and the credits that it is the sum of."""
    at = target(f"/standing/{did}", cursor=cursor)
    return await views.json(at, lambda: views.standings.standing(did, cursor), PERIODIC)
