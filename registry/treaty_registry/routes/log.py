"""Serve `/checkpoint`, `/tile/…` (C2SP tlog-tiles) and `/log`."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from ..cache_control import SHARED
from ..catalogue.resources import LogView
from ..log.changes import HEAD
from ..pages.pages import Pages
from ..serving.representation import OCTETS, TEXT, Representation
from ..serving.views import Views, parse_since
from .documentation import READ, answers
from .requests import HttpRequest, is_for_people, target

Before = Annotated[
    str | None,
    QueryParameter(
        name="before",
        pattern="^(0|[1-9][0-9]{0,17})$",
        description="Of the page for people: it shows the entries below this index.",
    ),
]


@get("/checkpoint", summary="The newest checkpoint", responses=answers(str, "A signed note.", *READ, media_type=TEXT))
async def checkpoint(views: NamedDependency[Views]) -> Representation:
    """Return the log's head, signed by its key and cosigned by its clock and its witnesses."""
    return await views.checkpoint()


@get("/tile/{path:path}", summary="A tile", responses=answers(bytes, "Hashes, or entries.", 404, *READ, media_type=OCTETS))
async def tile(path: FromPath[str], views: NamedDependency[Views]) -> Representation:
    """Return a tile: `/tile/LEVEL/INDEX[.p/WIDTH]` or `/tile/entries/INDEX[.p/WIDTH]`, as in C2SP tlog-tiles."""
    return await views.tile(f"/tile{path}")


@get("/log", summary="The log's name, keys and size", responses=answers(LogView, "The log.", *READ))
async def log(
    request: HttpRequest, views: NamedDependency[Views], pages: NamedDependency[Pages], before: Before = None
) -> Representation:
    """Return the names and keys of this registry. Compare them with the values that its operator publishes elsewhere."""
    if is_for_people(request):
        return await pages.log(target("/log", before=before), parse_since(before))
    return await views.json("/log", lambda: views.elections.log(views.registry.head), HEAD, cache_control=SHARED)
