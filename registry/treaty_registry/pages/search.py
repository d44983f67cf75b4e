"""The page of search: a form with the facets, and a page of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlencode

from ..catalogue.dates import published
from ..catalogue.facets import VALUES
from ..catalogue.queries import in_order
from ..catalogue.retrieval import Query, Uses

if TYPE_CHECKING:
    from ..catalogue.resources import Summary
    from ..serving.views import Views


class FacetValue(NamedTuple):
    """A value of a facet, as the form offers it. `group`: a heading above this choice and the following ones, or ""."""

    value: str
    label: str
    group: str = ""


class Facet(NamedTuple):
    """A facet in the form."""

    name: str
    label: str
    choices: tuple[FacetValue, ...]


class QueryPart(NamedTuple):
    """A part of the query: its name and its value as text, and the address of the search without it."""

    name: str
    label: str
    value: str
    without: str


_LABELS: Mapping[str, str] = {
    "q": "words",
    "topic": "topic",
    "namespace": "namespace",
    "state": "state",
    "handler": "handler",
    "signed": "signed by",
    "coverage": "vectors reach",
    "origin": "origin",
}
# Values that say little alone. Every other value is its own label.
_CHOICES: Mapping[tuple[str, str], FacetValue] = {
    ("state", "active"): FacetValue("active", "active", "the publisher says"),
    ("state", "consensus"): FacetValue("consensus", "consensus", "the network says"),
    ("state", "former"): FacetValue("former", "former consensus"),
    ("origin", "negotiated"): FacetValue("negotiated", "negotiated by agents"),
    ("origin", "standard"): FacetValue("standard", "a standard"),
    ("handler", "code-free"): FacetValue("code-free", "needs no code"),
    ("handler", "sandboxed"): FacetValue("sandboxed", "code in a sandbox"),
    ("handler", "none"): FacetValue("none", "no handler"),
    ("signed", "did"): FacetValue("did", "the key of a DID", "this registry certifies"),
    ("signed", "sigstore"): FacetValue("sigstore", "any other identity", "Sigstore certifies"),
    ("signed", "github-actions"): FacetValue("github-actions", "GitHub Actions"),
    ("signed", "gitlab"): FacetValue("gitlab", "GitLab CI"),
    ("signed", "google"): FacetValue("google", "a Google account"),
    ("signed", "github"): FacetValue("github", "a GitHub account"),
    ("signed", "microsoft"): FacetValue("microsoft", "a Microsoft account"),
    ("signed", "other"): FacetValue("other", "another issuer"),
    ("coverage", "all"): FacetValue("all", "all operations"),
    ("coverage", "some"): FacetValue("some", "some operations"),
    ("coverage", "none"): FacetValue("none", "no operation"),
}
FACETS = tuple(
    Facet(name, _LABELS[name], tuple(_CHOICES.get((name, value), FacetValue(value, value)) for value in VALUES[name]))
    for name in ("state", "handler", "signed", "coverage", "origin")
)

SORTS = (
    FacetValue("", "best match"),
    FacetValue("use", "proved use"),
    FacetValue("newest", "newest"),
    FacetValue("name", "name"),
)


async def context(views: Views, query: Query) -> Mapping[str, object]:
    """Return what the page of search shows. Raises as `Retrieval.page`."""
    uses: Uses = {}
    page = await views.retrieval.page(query, uses)
    parts = list(_parts(query))
    is_empty = not page.protocols and page.next is None and query.cursor is None
    culprits = await views.retrieval.culprits(query, uses) if is_empty else []
    return {
        "query": query,
        "page": page,
        "folded": _folded(page.protocols),
        "dates": await published(views.registry.pool, [protocol.uri for protocol in page.protocols]),
        "chosen": dict(query.filters),
        "sorts": SORTS,
        "facets": FACETS,
        "filters": [part for part in parts if part.name != "q"],
        "culprits": [part for part in parts if part.name in culprits],
        "words_only": _address(Query(query.text)) if query.text and len(parts) > 1 else None,
        "more": _address(query, cursor=page.next) if page.next else None,
        "topics": sorted({protocol.topic for protocol in page.protocols}),
    }


def _folded(protocols: Iterable[Summary]) -> list[tuple[Summary, list[Summary]]]:
    """Return one row for each protocol of a page: its newest version there, in the place of its first, and the others."""
    rows: dict[str, list[Summary]] = {}
    for protocol in protocols:
        rows.setdefault(protocol.uri.rpartition("/")[0], []).append(protocol)
    ordered = [in_order(versions) for versions in rows.values()]
    return [(versions[0], versions[1:]) for versions in ordered]


def _parts(query: Query) -> Iterable[QueryPart]:
    values = {"q": query.text, "topic": query.topic or "", **dict(query.filters)}
    for name, rest in query.parts():
        choice = _CHOICES.get((name, values[name]))
        yield QueryPart(name, _LABELS[name], choice.label if choice else values[name], _address(rest))


def _address(query: Query, cursor: str | None = None) -> str:
    limit = None if query.limit == Query.limit else str(query.limit)
    parameters = {
        "q": query.text,
        "topic": query.topic,
        **dict(query.filters),
        "sort": query.sort,
        "limit": limit,
        "cursor": cursor,
    }
    text = urlencode({name: value for name, value in parameters.items() if value}, safe="/:", quote_via=quote)
    return f"/protocols?{text}" if text else "/protocols"
