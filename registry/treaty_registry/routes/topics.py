"""Serve `/topics`, `/ballots`, `/votes`, `/vouches` and `/grants`: elections, and what a DID said in them."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.exceptions import ValidationException
from litestar.params import FromPath, QueryParameter

from treaty_client.registries.replies import Grants, NextBallot, TopicPage, VotingInfo, Vouches
from treaty_consensus.did import MAX_DID

from ..cache_control import SHARED
from ..catalogue.resources import Topic
from ..log.changes import CATALOGUE, HEAD
from ..pages.pages import Pages
from ..serving.representation import BUNDLE, Representation
from ..serving.views import Views, parse_since
from .documentation import BUNDLE_BODY, READ, answers, operation
from .protocols import Since
from .requests import HttpRequest, is_for_people, negotiated, target

After = Annotated[str, QueryParameter(name="after", max_length=160, description="The `next` of the page before.")]
TopicName = Annotated[str, QueryParameter(name="topic", max_length=160)]
AnyTopic = Annotated[str, QueryParameter(name="topic", max_length=160, description="Only this topic, also without a ballot.")]
AnyVoter = Annotated[
    str | None, QueryParameter(name="did", max_length=MAX_DID, description="The voter. The page for people needs none.")
]
Voter = Annotated[str, QueryParameter(name="did", max_length=MAX_DID)]


@get(["/topics", "/topics.json"], summary="All topics", responses=answers(TopicPage, "By name.", *READ))
async def topics(
    request: HttpRequest, views: NamedDependency[Views], pages: NamedDependency[Pages], after: After = ""
) -> Representation:
    """Return the topics that have protocols, each with its consensus."""
    at = target("/topics", after=after or None)
    if is_for_people(request) and not request.url.path.endswith(".json"):
        return await pages.topics(at, after)
    return await views.json(at, lambda: views.elections.topics(after), CATALOGUE, cache_control=SHARED)


@get(
    "/topics/{topic:path}",
    summary="A topic's election",
    description=(
        "Candidates, the matrix of pairwise votes, the newest decision and its proof, as JSON; or, by `Accept` or the suffix "
        "`.bundle`, the publishes of its protocols and the decision with all proofs."
    ),
    operation_class=operation(sends={200: {BUNDLE: BUNDLE_BODY}}),
    responses=answers(Topic, "The election, or the bundle.", 404, 406, *READ),
)
async def topic(
    topic: FromPath[str],
    request: HttpRequest,
    views: NamedDependency[Views],
    pages: NamedDependency[Pages],
    since: Since = None,
) -> Representation:
    name, form = negotiated(request, topic.removeprefix("/"), "json", "bundle", "html")
    if form == "html":
        return await pages.topic(name)
    if form == "bundle":
        return await views.topic_bundle(name, parse_since(since))
    return await views.topic(name)


@get("/ballots", summary="A voter's next ballot", responses=answers(NextBallot, "`seq` and the open epoch.", *READ))
async def voter(
    request: HttpRequest, topic: TopicName, views: NamedDependency[Views], pages: NamedDependency[Pages], did: AnyVoter = None
) -> Representation:
    """Return the fields of a DID's next ballot in a topic."""
    if is_for_people(request):
        return await pages.ballot(target("/ballots", topic=topic, did=did or None), topic, did or None)
    if did is None:
        raise ValidationException(extra=[{"key": "did", "message": "Missing required query parameter"}])
    return await views.json(target("/ballots", topic=topic, did=did), lambda: views.elections.voter(topic, did), HEAD)


@get("/votes", summary="How a DID votes", responses=answers(VotingInfo, "Its ballots, and its use.", *READ))
async def votes(did: Voter, views: NamedDependency[Views], topic: AnyTopic = "") -> Representation:
    """Return the newest standing ballots of a DID, each with what its reports imply in the topic."""
    head = views.registry.head
    at = target("/votes", did=did, topic=topic or None)
    return await views.json(at, lambda: views.voting.voting(did, topic, head), HEAD)


@get("/vouches", summary="A DID's vouches", responses=answers(Vouches, "`seq`, the open epoch, and its vouches.", *READ))
async def vouches(did: Voter, views: NamedDependency[Views]) -> Representation:
    """Return the fields of a DID's next vouch, and its newest vouches in force."""
    return await views.json(target("/vouches", did=did), lambda: views.elections.vouches(did), HEAD)


@get("/grants", summary="A DID's grants", responses=answers(Grants, "Those of its namespace, and those to it.", *READ))
async def grants(did: Voter, views: NamedDependency[Views]) -> Representation:
    """Return the newest grants in force of the namespace of a DID, and to the DID."""
    return await views.json(target("/grants", did=did), lambda: views.elections.grants(did), HEAD)
