"""Fixtures of the pages: the application, agents, and a real browser."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import httpx
import pytest
from build_cache import kept
from built_site import built_site
from chromium import chromium
from depth import FULL
from docs.site.archive import pack
from http_api import serving
from playwright import sync_api
from playwright.async_api import Browser, async_playwright
from populated_catalogue import attack, in_a_thread, nothing, populate
from ports import free_port
from postgres_server import Postgres
from signers import ORIGIN

from treaty_registry.app import create_app
from treaty_registry.registry import Registry

# In a container its own sandbox needs rights that a test does not have.
_OPTIONS = ["--no-sandbox"]


@pytest.fixture(scope="session")
def axe(request: pytest.FixtureRequest) -> str:
    """The source of axe-core, which `npm` installs as the lock file pins it."""
    source = Path(__file__).parent / "axe"

    def install(folder: Path) -> None:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)

    folder = kept(request.config.cache.mkdir("js") / "axe", install)
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def window(postgres: Postgres) -> Iterator[sync_api.Browser]:
    """Debian's Chromium for a module whose tests are no coroutines. It ends before the server does, whose fixture has a loop."""
    program = chromium()
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program.path, args=_OPTIONS, env=_environment(program.environment))
        yield running
        running.close()


@pytest.fixture(scope="session")
def documentation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the site. Sphinx takes a minute for it, so that `make test` has an archive of one page."""
    if FULL:
        return built_site(request.config.cache.mkdir("site"))
    folder = tmp_path_factory.mktemp("documentation")
    (folder / "html").mkdir()
    links = '<link rel="stylesheet" href="/docs/a.css"><link rel="stylesheet" href="/docs/b.css">'
    (folder / "html" / "index.html").write_text(f'<!DOCTYPE html><title>Treaty</title>{links}<script src="/docs/c.js"></script>')
    pack(folder / "html", folder / "site.zip")
    return folder / "site.zip"


@pytest.fixture(scope="session")
def populated(postgres: Postgres, documentation: Path) -> Iterator[str]:
    """The URL of a registry with everything in it, which tests only read."""
    with in_a_thread(postgres, populate, documentation) as url:
        yield url


@pytest.fixture(scope="session")
def empty(postgres: Postgres) -> Iterator[str]:
    """The URL of a registry with nothing in it."""
    with in_a_thread(postgres, nothing) as url:
        yield url


@pytest.fixture(scope="session")
def hostile(postgres: Postgres, documentation: Path) -> Iterator[str]:
    """The URL of a registry of hostile texts."""
    with in_a_thread(postgres, attack, documentation) as url:
        yield url


def _environment(more: Mapping[str, str]) -> dict[str, str | float | bool]:
    return {**os.environ, **more}


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
        program = chromium()
        environment = _environment(program.environment)
        running = await playwright.chromium.launch(executable_path=program.path, args=_OPTIONS, env=environment)
        yield running
        await running.close()
