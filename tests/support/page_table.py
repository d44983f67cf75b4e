"""The table of pages: tests over all pages read it, so a new page is one more row.

A path may have `{statement}` in it, the id of a logged statement. Rows are of the registry of `populated_catalogue`, and those
with `is_empty` also of a registry without anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

import httpx
from depth import FULL
from populated_catalogue import ALICE, CROWDED, LONG, LONG_TOPIC
from registries import TOPIC

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@dataclass(frozen=True)
class Row:
    """One page. `json`: the resource of the same path is served as JSON too."""

    path: str
    status: int = 200
    is_empty: bool = False
    json: bool = True


_LONG = LONG.did.removeprefix("did:wba:")
ROWS = (
    Row("/", is_empty=True, json=False),
    Row("/protocols", is_empty=True),
    Row("/protocols?q=product"),
    Row(f"/protocols?q={quote('预订')}"),
    Row("/protocols?q=nothing-has-this&state=active", is_empty=True),
    Row("/protocols?topic=travel/trains&state=revoked"),
    Row("/protocols/alice.example/product-info"),
    Row("/protocols/alice.example/product-info/1.0"),
    Row("/protocols/alice.example/chinese/1.0"),
    Row("/protocols/alice.example/arabic/1.0"),
    Row("/protocols/alice.example/hebrew/1.0"),
    Row("/protocols/alice.example/emoji/1.0"),
    Row("/protocols/alice.example/combining/1.0"),
    Row("/protocols/carol.example/was-revoked/1.0"),
    Row("/protocols/carol.example/was-yanked/1.0"),
    Row(f"/protocols/{_LONG}/{'n' * 39}"),
    Row(f"/protocols/{_LONG}/{'n' * 39}/1.2.3"),
    Row("/topics", is_empty=True),
    Row(f"/topics/{TOPIC}"),
    Row(f"/topics/{CROWDED}"),
    Row(f"/topics/{LONG_TOPIC}"),
    Row(f"/identities/{ALICE.did}"),
    Row(f"/identities/{LONG.did}"),
    Row("/log", is_empty=True),
    Row("/log?before=40"),
    Row("/statements/{statement}", is_empty=True),
    Row(f"/ballots?topic={CROWDED}"),
    Row(f"/ballots?topic={TOPIC}&did={ALICE.did}"),
    Row("/replay", is_empty=True, json=False),
    Row("/replay?example=agreed", json=False),
    Row("/replay?example=nothing", json=False),
    Row("/replay?example=descriptions", json=False),
    Row("/replay?example=other", 400, json=False),
    Row("/protocols/nobody.example/nothing/1.0", 404, is_empty=True),
    Row("/protocols?topic=Not%20A%20Topic", 400, is_empty=True),
    Row("/nothing/here", 404, is_empty=True),
)


# One page of each kind of the documentation, and its longest ones.
DOCUMENTATION = (
    *(Row(f"/docs/{name}.html", json=False) for name in ("concept", "glossary", "decisions/index", "quickstarts/use")),
    *(Row(f"/docs/{name}.html", json=False) for name in ("specification/log", "reference/settings", "guides/calling")),
    Row("/docs/", json=False),
    Row("/docs/search.html?q=log", json=False),
    Row("/docs/absent.html", 404, json=False),
)


def kinds(rows: list[tuple[str, Row]]) -> list[tuple[str, Row]]:
    """Return the first page of each kind: of each resource, with its status. All pages in `make test-deep`."""
    first: dict[object, tuple[str, Row]] = {}
    for path, row in rows:
        parts = path.partition("?")[0].split("/")
        first.setdefault(path if FULL else (parts[1], len(parts), row.status), (path, row))
    return list(first.values())


def paths(url: str, *, empty: bool = False) -> list[tuple[str, Row]]:
    """Return the paths of the pages of a registry, each with its row. The empty registry carries no documentation."""
    statement = httpx.get(f"{url}/log", headers={"Accept": "application/json"}).json()["parameters"]
    rows = [row for row in ROWS if row.is_empty] if empty else [*ROWS, *(DOCUMENTATION if FULL else ())]
    return [(row.path.format(statement=statement), row) for row in rows]
