"""A registry that rotates its keys, with a clock that the test moves, and agents that read from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from registries import Web, grant, log, publication, publish, settings_for
from signers import NOW, domain_signer, key_signer

from treaty_client.policy import Policy
from treaty_client.protocols.fetch import Fetcher
from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network
from treaty_registry.app import create_app
from treaty_registry.mirroring.mirrored_log import MirroredLog
from treaty_registry.operator.rotations import ROLES, prepare
from treaty_registry.registry import Registry

DAY = 24 * 3600
OVERLAP = 90 * DAY
ALICE, WRITER = domain_signer("alice.example"), key_signer("writer")


@dataclass
class Time:
    """The clock of the registry and of its readers. It moves when a test moves it."""

    now: int = NOW

    def clock(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)


@dataclass
class Place:
    """A registry's data directory and database, and the time there."""

    data: Path
    database: str
    web: Web
    time: Time = field(default_factory=Time)

    @property
    def keys(self) -> Path:
        return self.data / "keys"

    @asynccontextmanager
    async def open(self, data: Path | None = None) -> AsyncIterator[Registry]:
        settings = settings_for(data or self.data, self.database)
        async with Registry.open(settings, clock=self.time.clock, resolve=self.web.resolve) as registry:
            yield registry

    @asynccontextmanager
    async def rotated(self) -> AsyncIterator[Registry]:
        """A registry with a protocol, whose keys were rotated at its newest leaf."""
        self.web.serve(ALICE)
        async with self.open() as registry:
            await publish(registry, ALICE, publication(ALICE))
            prepare(self.keys, [*ROLES])
            await registry.rotate(OVERLAP)
            yield registry


@dataclass(frozen=True)
class InProcess(Network):
    """A network with one host: the application of the registry."""

    app: Any = None

    def client(self, *, timeout: float | None = None) -> BoundedClient:
        return BoundedClient(transport=httpx.ASGITransport(self.app))


@asynccontextmanager
async def agent(home: Path, registry: Registry, time: Time) -> AsyncIterator[Fetcher]:
    network = InProcess(app=create_app(registry, period=0))
    async with Fetcher(home, Policy(), network, clock=lambda: time.now) as fetcher:
        yield fetcher


async def moved(registry: Registry, number: int) -> None:
    """A new head, signed at the present time."""
    await log(registry, grant(WRITER, number), WRITER)


async def shows(mirror: MirroredLog, registry: Registry) -> None:
    async with asyncio.timeout(30):
        while mirror.head.note != registry.head.published.note:  # noqa: ASYNC110 (the follower tells nobody)
            await asyncio.sleep(0.02)
