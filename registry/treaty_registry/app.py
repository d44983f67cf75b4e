"""Build the ASGI application of a registry."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from litestar import Litestar, Response, route
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig

from .pages.documentation import ARCHIVE
from .pages.pages import Pages
from .readable import ReadableLog
from .registry import Registry
from .routes import (
    blobs,
    feeds,
    health,
    identities,
    log,
    names,
    nodes,
    openapi,
    pages,
    protocols,
    sigstore,
    standing,
    statements,
    topics,
)
from .routes.responses import on_exception
from .serving.bodies import MAX_BODY
from .serving.cache import ResponseCache
from .serving.fast_path import DirectRoute, FastPath
from .serving.views import PERIOD, Views
from .telemetry.middleware import Observed

if TYPE_CHECKING:
    from pathlib import Path

    from litestar.types import ASGIApp


_READS: list[HTTPRouteHandler] = [
    statements.statement,
    statements.proof,
    blobs.blob,
    protocols.search,
    protocols.versions,
    protocols.version,
    names.by_hash,
    names.resolve,
    topics.topics,
    topics.topic,
    topics.voter,
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
    pages.static,
    pages.replay,
    pages.replay_given,
    pages.documentation,
    health.live,
    health.ready,
]
_WRITES: list[HTTPRouteHandler] = [
    statements.submit,
    blobs.upload,
    identities.testimony,
    sigstore.signing_certificate,
    sigstore.timestamp,
    sigstore.log_entry,
    nodes.proposals,
]


# It takes half a second, and is the same for every registry of this release.
@lru_cache(maxsize=1)
def openapi_document() -> bytes:
    """Return the OpenAPI document, made once from the routes in a separate application."""
    absent = {name: Provide(lambda: None, sync_to_thread=False) for name in ("views", "pages", "registry", "authorities")}
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
    shown = Pages(views, site)
    document = openapi_document()  # at the start, because it takes half a second and many clients may request it at once
    values: dict[str, object] = {"openapi": document, "views": views, "pages": shown}
    posts: dict[str, DirectRoute] = {}
    if isinstance(log, Registry):
        writes = _WRITES
        posts = {path: statements.DirectSubmission(log) for path in statements.submit.paths}
        values |= {"registry": log, "authorities": sigstore.Authorities(log)}
    else:
        writes = [_refusing(handler, log) for handler in _WRITES]
    app = Litestar(
        route_handlers=[*writes, *_READS, openapi.schema],
        dependencies={name: Provide(_constant(value), sync_to_thread=False) for name, value in values.items()},
        exception_handlers={Exception: partial(on_exception, shown)},
        openapi_config=None,
        request_max_body_size=MAX_BODY,
        logging_config=None,
    )
    return Observed(FastPath(app, views, shown, posts))


def _refusing(handler: HTTPRouteHandler, log: ReadableLog) -> HTTPRouteHandler:
    """Return a handler that answers the writes of `handler` with the refusal of a log that takes none."""

    async def refuse() -> Response[bytes]:
        assert log.refusal is not None, "only a registry takes writes"
        raise log.refusal

    # Before the body is read: no write needs one to be refused.
    return route(sorted(handler.paths), http_method=sorted(handler.http_methods))(refuse)


def _constant(value: object) -> Callable[[], object]:
    return lambda: value
