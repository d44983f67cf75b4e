"""Fixtures of the pages: the application, agents, and a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from http_api import serving
from playwright.async_api import Browser, async_playwright
from ports import free_port
from registries import Web
from signers import ORIGIN, Signer, domain_signer

from treaty_registry.app import create_app
from treaty_registry.registry import Registry

CHROMIUM = "/usr/bin/chromium"


@pytest.fixture
async def api(registry: Registry) -> AsyncIterator[httpx.AsyncClient]:
    """The registry over HTTP, without a socket, where everything is of the newest head."""
    transport = httpx.ASGITransport(create_app(registry, period=0))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}") as client:
        yield client


@pytest.fixture
async def site(registry: Registry) -> AsyncIterator[str]:
    """The URL of the same registry behind a socket. A browser has WebCrypto there, because it is on loopback."""
    async with serving(registry, free_port()) as base_url:
        yield base_url


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """Debian's Chromium."""
    async with async_playwright() as playwright:
        # In a container its own sandbox needs rights that a test does not have.
        running = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        await running.close()


@pytest.fixture
def alice(web: Web) -> Signer:
    return _agent(web, "alice.example")


@pytest.fixture
def bob(web: Web) -> Signer:
    return _agent(web, "bob.example")


def _agent(web: Web, domain: str) -> Signer:
    agent = domain_signer(domain)
    web.serve(agent)
    return agent
