"""Build the ASGI application of a registry."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

from litestar import Litestar
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig

from .pages.documentation import ARCHIVE
from .pages.pages import Pages
from .registry import Registry
from .routes import blobs, health, identities, log, names, openapi, pages, protocols, sigstore, standing, statements, topics
from .routes.responses import on_exception
from .serving.bodies import MAX_BODY
from .serving.cache import ResponseCache
from .serving.fast_path import FastPath
from .serving.views import PERIOD, Views
from .telemetry.middleware import Observed

if TYPE_CHECKING:
    from pathlib import Path

    from litestar.types import ASGIApp


_ROUTES = [
    statements.submit,
    statements.statement,
    statements.proof,
    blobs.upload,
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
    identities.testimony,
    log.checkpoint,
    log.tile,
    log.log,
    sigstore.signing_certificate,
    sigstore.timestamp,
    sigstore.log_entry,
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


# It takes half a second, and is the same for every registry of this release.
@lru_cache(maxsize=1)
def openapi_document() -> bytes:
    """Return the OpenAPI document, made once from the routes in a separate application."""
    absent = {name: Provide(lambda: None, sync_to_thread=False) for name in ("views", "pages", "services")}
    config = OpenAPIConfig(
        title="Treaty registry",
        version="1",
        description="Publish, elect and fetch what agents agree on. Errors are RFC 9457 problems with a stable `code`.",
        use_handler_docstrings=True,
    )
    return openapi.encoded(Litestar(route_handlers=_ROUTES, dependencies=absent, openapi_config=config, logging_config=None))


def create_app(
    registry: Registry,
    memory: ResponseCache | None = None,
    period: float = PERIOD,
    site: Path = ARCHIVE,
    views: Views | None = None,
) -> ASGIApp:
    """Return the application for an open registry. The registry must be closed after the application.

    `memory`: the cache of answers, by default a new one. `period`: the seconds that a bundle may be old (`views`). `site`: the
    archive of the documentation (`pages.documentation`). `views`: the maker of answers, by default one of these values.
    """
    views = views or Views(registry, memory, period)
    shown = Pages(views, site)
    document = openapi_document()  # at the start, because it takes half a second and many clients may request it at once
    services = sigstore.Services.of(registry)
    app = Litestar(
        route_handlers=[*_ROUTES, openapi.schema],
        dependencies={
            "openapi": Provide(lambda: document, sync_to_thread=False),
            "views": Provide(lambda: views, sync_to_thread=False),
            "pages": Provide(lambda: shown, sync_to_thread=False),
            "services": Provide(lambda: services, sync_to_thread=False),
        },
        exception_handlers={Exception: partial(on_exception, shown)},
        openapi_config=None,
        request_max_body_size=MAX_BODY,
        logging_config=None,
    )
    return Observed(FastPath(app, views, shown.problem))
