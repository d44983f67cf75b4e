"""The HTTP side of a registry as one ASGI application."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from litestar import Litestar
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig

from .registry import Registry
from .routes import blobs, health, identities, log, names, openapi, protocols, sigstore, standing, statements, topics
from .routes.responses import on_exception
from .serving.bodies import MAX_BODY
from .serving.fast_path import FastPath
from .serving.memory import Memory
from .serving.views import PERIOD, Views

if TYPE_CHECKING:
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
    health.live,
    health.ready,
]


@lru_cache(maxsize=1)
def _openapi() -> bytes:
    """The OpenAPI document, from the routes in an application of their own: made once, it is bytes like any other."""
    absent = {name: Provide(lambda: None, sync_to_thread=False) for name in ("views", "services")}
    config = OpenAPIConfig(
        title="Treaty registry",
        version="1",
        description="Publish, elect and fetch what agents agree on. Errors are RFC 9457 problems with a stable `code`.",
        use_handler_docstrings=True,
    )
    return openapi.encoded(Litestar(route_handlers=_ROUTES, dependencies=absent, openapi_config=config))


def create_app(registry: Registry, memory: Memory | None = None, period: float = PERIOD) -> ASGIApp:
    """The application for an open registry, which outlives it. `memory`: what to remember in, a new one by default; `period`: the
    seconds that a bundle may be old (`views`)."""
    views = Views(registry, memory, period)
    services = sigstore.Services.of(registry)
    app = Litestar(
        route_handlers=[*_ROUTES, openapi.schema],
        dependencies={
            "openapi": Provide(_openapi, sync_to_thread=True),
            "views": Provide(lambda: views, sync_to_thread=False),
            "services": Provide(lambda: services, sync_to_thread=False),
        },
        exception_handlers={Exception: on_exception},
        openapi_config=None,
        request_max_body_size=MAX_BODY,
        logging_config=None,
    )
    return FastPath(app, views)
