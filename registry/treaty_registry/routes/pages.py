"""Serve what only people ask for: the first page, and the files that pages load. The other pages are at the URIs of the API."""

from __future__ import annotations

from litestar import get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from ..pages.pages import Pages
from ..serving.representation import Representation


@get("/", include_in_schema=False)
async def home(pages: NamedDependency[Pages]) -> Representation:
    """Return the first page."""
    return await pages.home()


@get("/static/{file:str}", include_in_schema=False)
async def static(file: FromPath[str], pages: NamedDependency[Pages]) -> Representation:
    """Return a file that pages load. Its path has its hash."""
    found = pages.assets.get(f"/static/{file}")
    if found is None:
        raise NotFoundException
    return found
