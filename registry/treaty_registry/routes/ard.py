"""Serve protocols by Agentic Resource Discovery (`serving.ard`)."""

from __future__ import annotations

from typing import Annotated

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from treaty_consensus.errors import Malformed

from ..catalogue.retrieval import MAX_PAGE
from ..codes import SearchCode
from ..networks import sender
from ..serving import ard
from ..serving.representation import Representation
from ..serving.views import Views
from .requests import HttpRequest, number, read_body, source

Size = Annotated[str | None, QueryParameter(name="pageSize", max_length=8)]
Token = Annotated[str | None, QueryParameter(name="pageToken", max_length=40)]
_LISTED = frozenset(("pageSize", "pageToken"))


@get(ard.PATH, include_in_schema=False)
async def catalog(views: NamedDependency[Views]) -> Representation:
    """Return the AI Catalog."""
    return await ard.elected(views)


@post("/search", include_in_schema=False)
async def search(request: HttpRequest, views: NamedDependency[Views]) -> Representation:
    """Search by ARD."""
    return await ard.search(views, await _body(request, views))


@post("/explore", include_in_schema=False)
async def explore(request: HttpRequest, views: NamedDependency[Views]) -> Representation:
    """Count the values of fields by ARD."""
    return await ard.explore(views, await _body(request, views))


@get("/agents", include_in_schema=False)
async def agents(request: HttpRequest, views: NamedDependency[Views], size: Size = None, token: Token = None) -> Representation:
    """List entries by ARD, the newest first."""
    if unknown := request.query_params.keys() - _LISTED:
        # An ignored filter would give more than was asked for.
        raise Malformed(SearchCode.QUERY, f"`{min(unknown)[:80]}` is not supported here.", fix="POST /search has filters.")
    return await ard.agents(views, number(size, default=20, least=1, most=MAX_PAGE, name="pageSize"), token)


async def _body(request: HttpRequest, views: Views) -> bytes:
    # Searches have turns by network.
    sender.set(source(request, views.registry.proxies))
    return await read_body(request, ard.MAX_REQUEST)
