"""Fixtures for the HTTP contract: a client of the registry's application in this process, and agents it can resolve."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from signers import ORIGIN

from treaty_io.network.exchange import BoundedClient
from treaty_registry.app import create_app
from treaty_registry.keys import Operator, load_operator
from treaty_registry.registry import Registry


@pytest.fixture
async def api(registry: Registry) -> AsyncIterator[BoundedClient]:
    """The registry over HTTP, without a socket."""
    transport = httpx.ASGITransport(create_app(registry))  # type: ignore[arg-type]  # the two spell ASGI's types differently
    async with BoundedClient(transport=transport, base_url=f"https://{ORIGIN}") as client:
        yield client


@pytest.fixture
async def newest(registry: Registry) -> AsyncIterator[httpx.AsyncClient]:
    """The same, but that everything is of the newest head."""
    transport = httpx.ASGITransport(create_app(registry, period=0))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}") as client:
        yield client


@pytest.fixture
def operator(registry: Registry, tmp_path: Path) -> Operator:
    """The keys of the registry's operator."""
    return load_operator(tmp_path / "registry" / "keys")
