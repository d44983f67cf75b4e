"""Serve `/health` for the supervisor of the process."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency

from ..cache_control import NO_STORE
from ..serving.representation import JSON
from ..serving.views import Views
from .documentation import answers


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    """`status`: `live`, or `ready` to take writes. `witnesses`: those that do not cosign now, with the code of the reason."""

    status: str
    witnesses: Mapping[str, str] = {}


@get("/health/live", summary="The process answers", responses=answers(Health, "Live."))
async def live() -> Response[Health]:
    """The process answers requests. Its dependencies are not checked."""
    return _health("live")


@get("/health/ready", summary="The registry takes writes", responses=answers(Health, "Ready."))
async def ready(views: NamedDependency[Views]) -> Response[Health]:
    """Check that this process leads the log, its checkpoint is fresh, PostgreSQL answers, the disks have space and the clock is
    right.

    If a check fails, the problem names it. Answers within about a second in every case.
    """
    await views.registry.check_ready()
    return _health("ready", views.registry.failing_witnesses)


def _health(status: str, witnesses: Mapping[str, str] = MappingProxyType({})) -> Response[Health]:
    # Never cached: a supervisor must see the present state.
    return Response(Health(status, dict(witnesses)), media_type=JSON, headers={"Cache-Control": NO_STORE})
