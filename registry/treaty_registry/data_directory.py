"""Opening a registry's data directory (`settings`): its database, its operator's keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from treaty_consensus.errors import NotFound

from .keys import Operator, create_operator, load_operator
from .log.fence import create_fence
from .settings import Settings
from .storage.embedded import embedded_postgres


@asynccontextmanager
async def running_database(settings: Settings) -> AsyncIterator[str]:
    """The URL of the database: the one of the settings, or the embedded one, started and in the end stopped if need be."""
    if settings.database is not None:
        yield settings.database
        return
    settings.data.mkdir(parents=True, exist_ok=True)
    async with embedded_postgres(settings.data) as url:
        yield url


def open_operator(settings: Settings) -> Operator:
    """The operator's keys. Makes them, and the fence's record, when the data directory has none. Blocking.

    Raises `NotFound` when there are none and no origin to make them for, `Conflict` when the settings name another origin.
    """
    if not settings.keys.exists():
        if settings.origin is None:
            raise NotFound(
                "keys.missing",
                f"There is no log in {settings.data}.",
                fix="Name its origin to make one: --origin registry.example",
            )
        create_fence(settings.fence, settings.origin)
        create_operator(settings.keys, settings.origin)
    operator = load_operator(settings.keys)
    settings.check_origin(operator.origin)
    return operator
