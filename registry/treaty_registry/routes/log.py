"""Serve `/checkpoint`, `/tile/…` (C2SP tlog-tiles) and `/log`."""

from __future__ import annotations

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath

from ..catalogue.resources import LogView
from ..log.changes import HEAD
from ..serving.representation import OCTETS, TEXT, Representation
from ..serving.views import Views
from .documentation import READ, answers


@get("/checkpoint", summary="The newest checkpoint", responses=answers(str, "A signed note.", *READ, media_type=TEXT))
async def checkpoint(views: NamedDependency[Views]) -> Representation:
    """Return the log's head, signed by its key and cosigned by its clock and its witnesses."""
    return await views.checkpoint()


@get("/tile/{path:path}", summary="A tile", responses=answers(bytes, "Hashes, or entries.", 404, *READ, media_type=OCTETS))
async def tile(path: FromPath[str], views: NamedDependency[Views]) -> Representation:
    """Return a tile: `/tile/LEVEL/INDEX[.p/WIDTH]` or `/tile/entries/INDEX[.p/WIDTH]`, as in C2SP tlog-tiles."""
    return await views.tile(f"/tile{path}")


@get("/log", summary="The log's name, keys and size", responses=answers(LogView, "The log.", *READ))
async def log(views: NamedDependency[Views]) -> Representation:
    """Return the names and keys of this registry. Compare them with the values that its operator publishes elsewhere."""
    return await views.json("/log", lambda: views.elections.log(views.registry.head), HEAD)
