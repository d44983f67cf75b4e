"""Serve what only people ask for: the first page, and the files that pages load. The other pages are at the URIs of the API."""

from __future__ import annotations

from litestar import get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.response.redirect import ASGIRedirectResponse
from litestar.types import ASGIApp

from ..pages.pages import Pages
from ..serving.representation import Representation
from .requests import HttpRequest


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


@get(["/docs", "/docs/{path:path}"], include_in_schema=False)
async def documentation(request: HttpRequest, pages: NamedDependency[Pages]) -> ASGIApp:
    """Return a file of the documentation. The path of a folder leads to that with a slash at its end."""
    # The framework removes a slash at the end of the decoded path.
    path = request.scope["path"].rstrip("/") + ("/" if request.scope["raw_path"].endswith(b"/") else "")
    folder = pages.documentation.folder(path)
    return ASGIRedirectResponse(path=folder, status_code=308) if folder else await pages.documentation.get(path)
