"""`/health`: for whoever keeps the process running."""

from __future__ import annotations

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency

from treaty_consensus.errors import Unavailable

from ..serving.representation import JSON, NO_STORE
from ..serving.views import Views
from .documentation import answers


class Health(msgspec.Struct, frozen=True):
    """`live`, or `ready` to take writes."""

    status: str


@get("/health/live", summary="The process answers", responses=answers(Health, "Live."))
async def live() -> Response[Health]:
    """Says nothing of what the process depends on."""
    return _health("live")


@get("/health/ready", summary="The registry takes writes", responses=answers(Health, "Ready."))
async def ready(views: NamedDependency[Views]) -> Response[Health]:
    """This process leads the log, its checkpoint is fresh and PostgreSQL answers."""
    if not await views.registry.is_ready():
        raise Unavailable("registry.not-ready", "This process does not take writes now.")
    return _health("ready")


def _health(status: str) -> Response[Health]:
    return Response(Health(status), media_type=JSON, headers={"Cache-Control": NO_STORE})
