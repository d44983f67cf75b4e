"""Mirrors of registries in tests: opened in this process, and every answer compared with that of the registry."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
from http_api import serving
from ports import free_port
from registries import settings_for
from signers import NOW

from treaty_client.registries.trust import RegistryName
from treaty_registry.mirroring.mirrored_log import MirroredLog
from treaty_registry.registry import Registry

_LINK = re.compile(r'(?:href|src)="(/[^"#]*)')
_COMPARED = ("content-type", "etag", "cache-control", "vary", "content-disposition")
ROOTS = (
    *("/", "/protocols", "/topics", "/log", "/checkpoint", "/trust-config.json", "/schema/openapi.json", "/replay", "/nothing"),
    *("/sigstore/trusted-root.json", "/sigstore/api/v2/trustBundle", "/sigstore/api/v1/timestamp/certchain"),
    *("/sigstore/api/v2/configuration", "/sigstore/api/v2/checkpoint", "/tile/0/000.p/5", "/tile/entries/000", "/tile/1/000.p/1"),
)


@asynccontextmanager
async def mirrored(data: Path, database: str, registry: Registry, url: str) -> AsyncIterator[MirroredLog]:
    """A mirror of a registry that is served at `url`. Its clock stands still."""
    settings = replace(settings_for(data, database), origin=None)
    upstream = RegistryName(url, registry.log_key)
    async with MirroredLog.open(settings, upstream, clock=lambda: datetime.fromtimestamp(NOW, UTC)) as log:
        yield log


@asynccontextmanager
async def served(log: MirroredLog) -> AsyncIterator[str]:
    """Serve a mirror over a socket; yields its URL."""
    async with serving(log, free_port()) as url:
        yield url


async def caught_up(log: MirroredLog, registry: Registry) -> None:
    """Wait until the mirror shows the published head of the registry."""
    async with asyncio.timeout(60):
        while log.head.note != registry.head.published.note:  # noqa: ASYNC110 (the follower tells nobody)
            await asyncio.sleep(0.02)


async def read(client: httpx.AsyncClient, path: str, accept: str) -> tuple[object, ...]:
    """The parts of an answer that a mirror repeats: the status, the headers about the content, and every byte."""
    answer = await client.get(path, headers={"Accept": accept})
    return answer.status_code, {name: answer.headers.get(name) for name in _COMPARED}, answer.content


async def crawl(url: str, limit: int = 600) -> list[tuple[str, str]]:
    """The paths that the pages of a registry link to, each as a page and as data: path and `Accept`."""
    found: dict[str, None] = dict.fromkeys(ROOTS)
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        for path in (queue := list(found)):
            answer = await client.get(path, headers={"Accept": "text/html"})
            if answer.headers.get("content-type", "").startswith("text/html"):
                links = [link.replace("&amp;", "&") for link in _LINK.findall(answer.text)]
                new = [link for link in dict.fromkeys(links) if link not in found and len(found) < limit]
                found |= dict.fromkeys(new)
                queue += new
    return [(path, accept) for path in found for accept in ("text/html", "application/json", "application/octet-stream")]


async def differences(url: str, mirror: str, asked: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the questions to which the mirror answers in another way than the registry."""
    async with (
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as registry,
        httpx.AsyncClient(base_url=mirror, trust_env=False, timeout=30) as copy,
    ):
        return [each for each in asked if await read(registry, *each) != await read(copy, *each)]
