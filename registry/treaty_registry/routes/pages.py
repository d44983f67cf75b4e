"""Serve what only people ask for: the first page, and the files that pages load. The other pages are at the URIs of the API."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath, QueryParameter
from litestar.response.redirect import ASGIRedirectResponse
from litestar.types import ASGIApp

from ..pages.pages import Pages
from ..pages.renderer import PAGE_REFUSAL_HEADERS
from ..pages.replay import MAX_REPLAYED
from ..serving.representation import Representation
from .requests import HttpRequest, media_type, read_body, source, target

# A form may write each byte in three characters.
_MAX_FORM = 3 * MAX_REPLAYED + 1024
_FORM = "application/x-www-form-urlencoded"
Example = Annotated[Literal["agreed", "nothing", "descriptions"] | None, QueryParameter(name="example")]


@get("/", include_in_schema=False)
async def home(pages: NamedDependency[Pages]) -> Representation:
    """Return the first page."""
    return await pages.home()


@get("/robots.txt", include_in_schema=False)
async def robots(pages: NamedDependency[Pages]) -> Representation:
    """Return what crawlers may read."""
    return await pages.robots()


@get("/sitemap.xml", include_in_schema=False)
async def sitemap(pages: NamedDependency[Pages]) -> Representation:
    """Return the pages that a crawler should find."""
    return await pages.sitemap()


@get("/llms.txt", include_in_schema=False)
async def llms(pages: NamedDependency[Pages]) -> Representation:
    """Return the elected protocols for language models (llmstxt.org)."""
    return await pages.llms()


@get("/favicon.ico", include_in_schema=False)
async def favicon(pages: NamedDependency[Pages]) -> Representation:
    """Return the mark, for browsers that ask for it before they read a page."""
    return pages.assets.files[pages.assets.path("mark.svg")]


@get("/badges/{namespace:str}/{name:str}/{file:str}", include_in_schema=False)
async def badge(
    namespace: FromPath[str], name: FromPath[str], file: FromPath[str], pages: NamedDependency[Pages]
) -> Representation:
    """Return the badge of a protocol, `VERSION.svg`: its state, and its proved use."""
    if not file.endswith(".svg"):
        raise NotFoundException
    return await pages.badge(f"/protocols/{namespace}/{name}/{file.removesuffix('.svg')}")


@get("/static/{file:str}", include_in_schema=False)
async def static(file: FromPath[str], pages: NamedDependency[Pages]) -> Representation:
    """Return a file that pages load. Its path has its hash."""
    asset = pages.assets.get(f"/static/{file}")
    if asset is None:
        raise NotFoundException
    return asset


@get(["/docs", "/docs/{path:path}"], include_in_schema=False)
async def documentation(request: HttpRequest, pages: NamedDependency[Pages]) -> ASGIApp:
    """Return a file of the documentation. The path of a folder leads to that with a slash at its end."""
    # The framework removes a slash at the end of the decoded path.
    path = request.scope["path"].rstrip("/") + ("/" if request.scope["raw_path"].endswith(b"/") else "")
    folder = pages.documentation.folder(path)
    return ASGIRedirectResponse(path=folder, status_code=308) if folder else await pages.documentation.get(path)


@get("/replay", include_in_schema=False)
async def replay(pages: NamedDependency[Pages], example: Example = None) -> Representation:
    """Return the page that replays negotiations."""
    return await pages.replay(target("/replay", example=example), example)


@post("/replay", include_in_schema=False, status_code=200)
async def replay_given(request: HttpRequest, pages: NamedDependency[Pages]) -> Response[bytes]:
    """Replay what a form sent: a transcript, or two descriptions. Nothing is kept, and nothing else is read."""
    if media_type(request) != _FORM:
        raise HTTPException(status_code=415)
    form = await read_body(request, _MAX_FORM)
    page, was_replayed = await pages.replay_given(form, source(request, pages.views.registry.proxies))
    return Response(page, status_code=200 if was_replayed else 400, headers=PAGE_REFUSAL_HEADERS)
