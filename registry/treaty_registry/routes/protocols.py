"""Serve `/protocols`: search, a protocol's versions, and one version in each of its forms."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from ..catalogue.resources import Page, Record, Versions
from ..catalogue.retrieval import MAX_PAGE, Query, parse_sort
from ..catalogue.search import MAX_QUERY
from ..pages.pages import Pages
from ..serving.negotiation import split_form
from ..serving.representation import BUNDLE, MARKDOWN, Representation
from ..serving.views import Views, parse_since
from .documentation import BUNDLE_BODY, READ, TEXT_BODY, answers, operation
from .requests import HttpRequest, is_for_people, negotiated, number, target

Words = Annotated[
    str,
    QueryParameter(
        name="q", max_length=MAX_QUERY, description="A sentence or words, in any language; each word that a card has counts."
    ),
]
SortName = Annotated[
    str, QueryParameter(name="sort", max_length=160, description="The order: use, newest or name; the best match without it.")
]
Limit = Annotated[str | None, QueryParameter(name="limit", pattern="^([1-9][0-9]?|100)$", description="1 to 100; 20 without it.")]
Cursor = Annotated[str | None, QueryParameter(name="cursor", max_length=40, description="The `next` of the page before.")]
InTopic = Annotated[str, QueryParameter(name="topic", max_length=160, description="A topic; those below it count too.")]
# An empty filter is none: a form of a page sends those that were left alone.
State = Annotated[
    str, QueryParameter(name="state", max_length=160, description="The publisher's state of the protocol, or the network's.")
]
Origin = Annotated[str, QueryParameter(name="origin", max_length=160, description="How the protocol came about.")]
InNamespace = Annotated[str, QueryParameter(name="namespace", max_length=247, description="The namespace of its URI.")]
HandlerForm = Annotated[
    str, QueryParameter(name="handler", max_length=160, description="The form of the publisher's newest usable handler.")
]
Signed = Annotated[
    str, QueryParameter(name="signed", max_length=160, description="The identity that this handler's bundle says signed it.")
]
Coverage = Annotated[
    str, QueryParameter(name="coverage", max_length=160, description="How many operations this handler's vectors reach.")
]
Since = Annotated[
    str | None,
    QueryParameter(
        name="since",
        pattern="^(0|[1-9][0-9]{0,17})$",
        description="Of a bundle: the log's size you know; adds a consistency proof.",
    ),
]
# PEP 440 in normal form, without a local part.
_VERSION = "^[0-9][0-9a-z.!]{0,63}$"
Compared = Annotated[
    str | None, QueryParameter(name="from", pattern=_VERSION, description="Of the page for people: a version to compare.")
]
ComparedTo = Annotated[
    str | None, QueryParameter(name="to", pattern=_VERSION, description="Of the page for people: the version to compare it with.")
]


@get("/protocols", summary="Search", responses=answers(Page, "A page of protocols, best first.", *READ))
async def search(
    request: HttpRequest,
    views: NamedDependency[Views],
    pages: NamedDependency[Pages],
    q: Words = "",
    topic: InTopic = "",
    in_state: State = "",  # `state` is a name of the framework
    origin: Origin = "",
    namespace: InNamespace = "",
    signed: Signed = "",
    coverage: Coverage = "",
    handler: HandlerForm = "",
    sort: SortName = "",
    limit: Limit = None,
    cursor: Cursor = None,
) -> Representation:
    """Search protocols by the text of their cards, in any language, by topic, and by facets. All that is given must match."""
    facets = {
        "state": in_state,
        "origin": origin,
        "namespace": namespace,
        "signed": signed,
        "coverage": coverage,
        "handler": handler,
    }
    filters = {facet: value for facet, value in facets.items() if value}
    size = number(limit, default=20, least=1, most=MAX_PAGE, name="limit")
    query = Query(q, topic or None, size, cursor, tuple(filters.items()), parse_sort(sort))
    at = target("/protocols", q=q or None, topic=query.topic, **filters, sort=query.sort, limit=limit, cursor=cursor)
    return await (pages.search(at, query) if is_for_people(request) else views.page(at, query))


@get("/protocols/{namespace:str}/{name:str}", summary="All versions", responses=answers(Versions, "Newest first.", 404, *READ))
async def versions(
    namespace: FromPath[str],
    name: FromPath[str],
    request: HttpRequest,
    views: NamedDependency[Views],
    pages: NamedDependency[Pages],
    old: Compared = None,
    new: ComparedTo = None,
) -> Representation:
    """Return the versions of one protocol. NAME.json is the same for a browser too."""
    stem, form = split_form(name)
    if form == "json":
        return await views.versions(namespace, stem)
    if is_for_people(request):
        pair = (old, new) if old and new else None
        at = target(f"/protocols/{namespace}/{name}", **{"from": old, "to": new} if pair else {})
        return await pages.versions(at, namespace, name, pair)
    return await views.versions(namespace, name)


@get(
    "/protocols/{namespace:str}/{name:str}/{version:str}",
    summary="One version",
    description=(
        "The protocol at this URI: its record as JSON (`.json`), its document as Markdown, byte for byte what the hash is of "
        "(`.md`), or a bundle with all proofs (`.bundle`). The form is what `Accept` prefers, or the suffix of the path."
    ),
    operation_class=operation(sends={200: {MARKDOWN: TEXT_BODY, BUNDLE: BUNDLE_BODY}}),
    responses=answers(Record, "The record, the document or the bundle.", 404, 406, 410, *READ),
)
async def version(
    namespace: FromPath[str],
    name: FromPath[str],
    version: FromPath[str],
    request: HttpRequest,
    views: NamedDependency[Views],
    pages: NamedDependency[Pages],
    since: Since = None,
) -> Representation:
    path, form = negotiated(request, f"/protocols/{namespace}/{name}/{version}", "json", "md", "bundle", "html")
    if form == "html":
        return await pages.protocol(path)
    if form == "bundle" and since is not None:
        return await views.bundle(path, parse_since(since))
    return await views.protocol(path, form)


@get(
    "/protocols/{namespace:str}/{name:str}/{version:str}/evidence.bundle",
    summary="Who agreed on one version",
    description=(
        "The bundle of a version with the newest report of each agent that agreed on its document, at most 256, in `reports`. "
        "`treaty verify FILE` checks it offline."
    ),
    operation_class=operation(sends={200: {BUNDLE: BUNDLE_BODY}}),
    responses=answers(None, "The bundle with reports.", 404, *READ, media_type=BUNDLE),
)
async def evidence(
    namespace: FromPath[str], name: FromPath[str], version: FromPath[str], views: NamedDependency[Views]
) -> Representation:
    """Return the evidence about a version."""
    return await views.evidence(f"/protocols/{namespace}/{name}/{version}")
