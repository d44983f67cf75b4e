"""Build the ASGI application of a registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from litestar import Litestar, Response, route
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.types import Scope

from .pages.documentation import ARCHIVE
from .pages.pages import Pages
from .readable import ReadableLog
from .registry import Registry
from .routes import (
    ard,
    blobs,
    feeds,
    health,
    identities,
    log,
    mcp,
    names,
    nodes,
    openapi,
    package_index,
    pages,
    protocols,
    sigstore,
    skills,
    standing,
    statements,
    topics,
)
from .routes.responses import on_exception
from .serving.bodies import MAX_BODY
from .serving.cache import ResponseCache
from .serving.fast_path import DirectRoute, FastPath
from .serving.views import PERIOD, Views

if TYPE_CHECKING:
    from pathlib import Path

    from litestar.types import ASGIApp, Receive, Send

    from .routes.requests import HttpRequest


_READS: list[HTTPRouteHandler] = [
    statements.statement,
    statements.proof,
    blobs.blob,
    protocols.search,
    protocols.versions,
    protocols.version,
    protocols.evidence,
    names.by_hash,
    names.resolve,
    mcp.speak,
    topics.topics,
    topics.topic,
    topics.voter,
    topics.votes,
    topics.vouches,
    topics.grants,
    standing.speakers,
    standing.standing,
    identities.identity,
    log.checkpoint,
    log.tile,
    log.log,
    feeds.log_feed,
    feeds.subject_feed,
    sigstore.client_trust_config,
    sigstore.trusted_root,
    sigstore.rekor_checkpoint,
    sigstore.rekor_tile,
    sigstore.trust_bundle,
    sigstore.configuration,
    sigstore.timestamp_chain,
    pages.home,
    pages.robots,
    pages.sitemap,
    pages.llms,
    pages.favicon,
    pages.badge,
    pages.static,
    pages.replay,
    pages.replay_given,
    pages.documentation,
    skills.elected,
    skills.elected_skill,
    skills.published,
    skills.published_skill,
    package_index.projects,
    package_index.project,
    package_index.file,
    ard.catalog,
    ard.search,
    ard.explore,
    ard.agents,
    health.live,
    health.ready,
]
_WRITES: list[HTTPRouteHandler] = [
    statements.submit,
    blobs.upload,
    identities.testimony,
    identities.validation,
    sigstore.signing_certificate,
    sigstore.timestamp,
    sigstore.log_entry,
    nodes.proposals,
]


_VALUES = "treaty"
"""The key of a scope that has what the routes are given (`_OfOneLog`)."""
_NAMES = ("views", "pages", "registry", "authorities")
_documenting = Lock()  # many clients may ask at once, and making it takes half a second


def openapi_document() -> bytes:
    """Return the OpenAPI document, made from the routes at the first call. It is the same for every registry of a release."""
    with _documenting:
        return _openapi_document()


@cache
def _openapi_document() -> bytes:
    absent = {name: Provide(lambda: None, sync_to_thread=False) for name in _NAMES}
    config = OpenAPIConfig(
        title="Treaty registry",
        version="1",
        description="Publish, elect and fetch what agents agree on. Errors are RFC 9457 problems with a stable `code`.",
        use_handler_docstrings=True,
    )
    return openapi.encoded(
        Litestar(route_handlers=[*_WRITES, *_READS], dependencies=absent, openapi_config=config, logging_config=None)
    )


def create_app(
    log: ReadableLog,
    memory: ResponseCache | None = None,
    period: float = PERIOD,
    site: Path = ARCHIVE,
    views: Views | None = None,
) -> ASGIApp:
    """Return the application for an open registry, or for a mirror, which refuses writes. Close `log` after the application.

    `memory`: the cache of answers, by default a new one. `period`: the seconds that a bundle may be old (`views`). `site`: the
    archive of the documentation (`pages.documentation`). `views`: the maker of answers, by default one of these values.
    """
    views = views or Views(log, memory, period)
    html_pages = Pages(views, site)
    values: dict[str, object] = {"views": views, "pages": html_pages}
    posts: dict[str, DirectRoute] = {mcp.PATH: mcp.McpDoor(views)}
    if isinstance(log, Registry):
        posts |= {path: statements.DirectSubmission(log) for path in statements.submit.paths}
        values |= {"registry": log, "authorities": sigstore.Authorities(log)}
    app = _OfOneLog(_routes(takes_writes=isinstance(log, Registry)), values)
    return FastPath(app, views, html_pages, posts)


class _OfOneLog:
    """The routes, which are given the values of one log with each request."""

    def __init__(self, routes: Litestar, values: Mapping[str, object]) -> None:
        self._routes = routes
        self._values = values

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cast("dict[str, object]", scope)[_VALUES] = self._values
        await self._routes(scope, receive, send)


# Made once in a process: reading the types of all handlers takes a third of a second.
@cache
def _routes(*, takes_writes: bool) -> Litestar:
    writes = _WRITES if takes_writes else [_refusing(handler) for handler in _WRITES]
    dependencies = {name: Provide(_value(name), sync_to_thread=False) for name in _NAMES}
    return Litestar(
        route_handlers=[*writes, *_READS, openapi.schema],
        # In a thread, because it is made at the first request.
        dependencies={**dependencies, "openapi": Provide(openapi_document, sync_to_thread=True)},
        exception_handlers={Exception: _on_exception},
        openapi_config=None,
        request_max_body_size=MAX_BODY,
        logging_config=None,
    )


def _value(name: str) -> Callable[[Scope], object]:
    def value(scope: Scope) -> object:
        return _values(scope)[name]

    return value


def _values(scope: Scope) -> Mapping[str, Any]:
    return cast("Mapping[str, Mapping[str, Any]]", scope)[_VALUES]


def _on_exception(request: HttpRequest, error: Exception) -> Response[bytes]:
    return on_exception(_values(request.scope)["pages"], request, error)


def _refusing(handler: HTTPRouteHandler) -> HTTPRouteHandler:
    """Return a handler that answers the writes of `handler` with the refusal of a log that takes none."""

    async def refuse(views: NamedDependency[Views]) -> Response[bytes]:
        assert views.registry.refusal is not None, "only a registry takes writes"
        raise views.registry.refusal

    # Before the body is read: no write needs one to be refused.
    return route(sorted(handler.paths), http_method=sorted(handler.http_methods))(refuse)
