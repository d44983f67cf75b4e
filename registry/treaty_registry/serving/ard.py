"""Serve protocols by Agentic Resource Discovery (ARD 0.9): an AI Catalog, a ranked search, its facets and a list.

    GET  /.well-known/ai-catalog.json    the registry, and the elected protocols
    POST /search                         {"query": {"text", "filter"?}, "federation"?, "pageSize"?, "pageToken"?}
                                         → {"results": [entry + "score" + "source"], "referrals"?, "pageToken"?}
    POST /explore                        {"query"?, "resultType": {"facets": [{"field", "limit"?, "minCount"?}]}}
                                         → {"resultType": "facets", "facets":
                                            {FIELD: {"buckets": [{"value", "count"}], "otherCount"}}}
    GET  /agents                         → {"items": [entry], "pageToken"?}, the newest first

An entry is bound to its document by a trust manifest of the operator, whose key the genesis names. The registry asks no other
one, so it has no referrals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec

from treaty_consensus.errors import Malformed
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io.identity.ai_catalog import CATALOG_PATH, CATALOG_TYPE, air_name, attestation, catalog, trust_manifest

from ..catalogue.facets import UNUSABLE, USABLE
from ..catalogue.resources import Page, Summary
from ..catalogue.retrieval import MAX_PAGE, Query
from ..codes import HttpCode, SearchCode
from ..log.changes import CATALOGUE, PERIODIC
from .representation import BUNDLE, JSON, Representation

if TYPE_CHECKING:
    from ..readable import ReadableLog
    from .views import Made, Views

PATH = CATALOG_PATH
MAX_REQUEST = 16 * 1024
"""Bytes. A text has at most 400 characters, and filters are three."""
MAX_ELECTED = 64
"""Elected protocols in the catalog: the newest."""
MAX_FACETS = 8
REGISTRY_TYPE = "application/ai-registry+json"
PROTOCOL_TYPE = "text/markdown"
_FIELDS = ("type", "version", "tags", "metadata.topic", "metadata.namespace", "metadata.state")
_FILTERS = ("type", "metadata.topic", "metadata.namespace", "metadata.state")
_T = TypeVar("_T", bound=msgspec.Struct)


class ArdQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The words of a search, and its filters: field → one value, or for `type` any of several."""

    text: str = ""
    filter: dict[str, str | list[str]] = {}


class ArdSearch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /search`."""

    query: ArdQuery
    federation: Literal["auto", "referrals", "none"] = "auto"
    pageSize: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)] = 10  # noqa: N815 (a name of ARD)
    pageToken: str | None = None  # noqa: N815


class ArdFacet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field whose values are counted."""

    field: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)] = 20
    minCount: Annotated[int, msgspec.Meta(ge=1)] = 1  # noqa: N815


class ArdFacets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The only kind of result that ARD defines for `POST /explore`."""

    facets: Annotated[list[ArdFacet], msgspec.Meta(min_length=1, max_length=MAX_FACETS)]


class ArdExploration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /explore`."""

    resultType: ArdFacets  # noqa: N815
    query: ArdQuery = ArdQuery()


async def elected(views: Views) -> Representation:
    """Return the AI Catalog of the registry."""
    log = views.registry

    async def view() -> Made:
        page = await views.retrieval.page(Query(limit=MAX_ELECTED, filters=(("state", "consensus"),)))
        entries = [_registry_entry(log), *(_entry(log, summary) for summary in page.protocols)]
        body = msgspec.json.encode(catalog(log.origin, log.operator, entries))
        return Representation(body, CATALOG_TYPE), (CATALOGUE, PERIODIC)

    return await views.made(PATH, view)


async def search(views: Views, body: bytes) -> Representation:
    """Return the best results of a search. Raises `Malformed`."""
    asked = _parse(body, ArdSearch)
    if not asked.query.text.strip():
        raise Malformed(
            HttpCode.REQUEST, "`query.text` is a sentence or words.", fix="GET /agents lists protocols without words."
        )
    source = views.registry.base_url

    def answer(page: Page) -> dict[str, object]:
        results = [{**_entry(views.registry, result), "score": result.score, "source": source} for result in page.protocols]
        return {"results": results, **({"referrals": []} if asked.federation == "referrals" else {}), **_token(page)}

    query = _query(asked.query, asked.pageSize, asked.pageToken)
    return await _answered(views, f"search {asked.federation}", query, answer)


async def explore(views: Views, body: bytes) -> Representation:
    """Return how often each value of some fields occurs in the best `MAX_PAGE` results of a search. Raises `Malformed`."""
    asked = _parse(body, ArdExploration)
    facets = asked.resultType.facets
    for facet in facets:
        if facet.field not in _FIELDS:
            raise Malformed(SearchCode.QUERY, f"A facet's field is one of {', '.join(_FIELDS)}.")

    def answer(page: Page) -> dict[str, object]:
        return {"resultType": "facets", "facets": {facet.field: _counted(facet, page.protocols) for facet in facets}}

    return await _answered(views, f"explore {facets}", _query(asked.query, MAX_PAGE, None), answer)


async def agents(views: Views, size: int, token: str | None) -> Representation:
    """Return entries, the newest first. Raises `Malformed`."""

    def answer(page: Page) -> dict[str, object]:
        return {"items": [_entry(views.registry, summary) for summary in page.protocols], **_token(page)}

    return await _answered(views, "agents", Query(limit=size, cursor=token), answer)


async def _answered(views: Views, kind: str, query: Query | None, answer: Callable[[Page], dict[str, object]]) -> Representation:
    """Return the answer about the page of a query; that about no results for None."""
    if query is None:
        return Representation(msgspec.json.encode(answer(Page([], None))), JSON)
    asked = query

    async def view() -> Made:
        return Representation(msgspec.json.encode(answer(await views.retrieval.page(asked))), JSON), (CATALOGUE,)

    # No path begins like this, so no GET is answered with it.
    return await views.made(f"ard {kind} {query}", view, views.searches)


def _parse(body: bytes, form: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=form)
    # A text that is no UTF-8 is a UnicodeDecodeError.
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(HttpCode.REQUEST, f"This is no request of ARD: {str(error)[:200]}.") from error


def _query(query: ArdQuery, limit: int, cursor: str | None) -> Query | None:
    """Return the search for a query, or None if nothing matches its filters. Raises `Malformed`."""
    filters: dict[str, str] = {}
    for field, value in query.filter.items():
        values = [value] if isinstance(value, str) else value
        if field not in _FILTERS:
            # Ignored, it would give more than was asked for.
            raise Malformed(SearchCode.QUERY, f"A filter is one of {', '.join(_FILTERS)}, not {field[:80]!r}.")
        if field == "type":
            if PROTOCOL_TYPE not in values:
                return None
        elif len(values) != 1:
            raise Malformed(SearchCode.QUERY, f"The filter {field!r} has one value here.")
        else:
            filters[field.removeprefix("metadata.")] = values[0]
    if filters.get("state", USABLE[0]) not in (*USABLE, *UNUSABLE):
        raise Malformed(SearchCode.QUERY, f"`metadata.state` is one of {', '.join((*USABLE, *UNUSABLE))}.")
    return Query(query.text, filters.pop("topic", None), limit, cursor, tuple(filters.items()))


def _token(page: Page) -> dict[str, str]:
    return {"pageToken": page.next} if page.next is not None else {}


def _counted(facet: ArdFacet, results: Sequence[Summary]) -> dict[str, object]:
    counts = Counter(value for summary in results for value in _values(summary, facet.field))
    # Of equal counts by value, so that each node answers the same.
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [(value, count) for value, count in ordered if count >= facet.minCount][: facet.limit]
    buckets = [{"value": value, "count": count} for value, count in shown]
    return {"buckets": buckets, "otherCount": counts.total() - sum(count for _, count in shown)}


def _values(summary: Summary, field: str) -> Iterator[str]:
    uri = parse_protocol_uri(summary.uri)
    match field:
        case "type":
            yield PROTOCOL_TYPE
        case "version":
            yield uri.version
        case "tags":
            yield from dict.fromkeys(summary.tags)
        case "metadata.topic":
            yield summary.topic
        case "metadata.namespace":
            yield uri.namespace
        case "metadata.state":
            yield summary.status


def _entry(log: ReadableLog, summary: Summary) -> dict[str, object]:
    """Return the entry of a protocol. Its texts are the publisher's."""
    uri, document = parse_protocol_uri(summary.uri), f"{summary.uri}.md"
    return {
        "identifier": _name(log, uri.namespace, uri.name),
        "displayName": summary.title or uri.name,
        "type": PROTOCOL_TYPE,
        "url": document,
        "description": summary.summary,
        "tags": summary.tags,
        "version": uri.version,
        "metadata": {
            "topic": summary.topic,
            "namespace": uri.namespace,
            "state": summary.status,
            "election": summary.election,
            "publisher": summary.publisher,
        },
        "trustManifest": trust_manifest(
            log.operator,
            log.signer,
            [
                attestation("treaty-document", document, PROTOCOL_TYPE, summary.hash),
                attestation("treaty-bundle", f"{summary.uri}.bundle", BUNDLE),
            ],
            source=summary.uri,
            digest=summary.hash,
        ),
    }


def _registry_entry(log: ReadableLog) -> dict[str, object]:
    base = log.base_url.rstrip("/")
    return {
        "identifier": air_name(_host(log), "registry"),
        "displayName": log.origin,
        "type": REGISTRY_TYPE,
        "url": f"{base}/search",
        "description": "A registry of protocols of AI agents: published, elected, and pinned by their hashes.",
        "trustManifest": trust_manifest(log.operator, log.signer, [attestation("treaty-log", f"{base}/log", JSON)]),
    }


def _host(log: ReadableLog) -> str:
    return log.origin.partition(":")[0]


def _name(log: ReadableLog, namespace: str, name: str) -> str:
    # A did:key has no domain, so it stands below the registry's.
    return air_name(_host(log), namespace, name) if namespace.startswith("did:") else f"urn:air:{namespace}:{name}"
