"""Mirrors of registries in tests: opened in this process, and every answer compared with that of the registry."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from http_api import serving
from ports import free_port
from registries import settings_for
from signers import NOW

from treaty_client.registries.trust import RegistryName
from treaty_registry.mirroring.mirrored_log import MirroredLog
from treaty_registry.registry import Registry
from treaty_registry.storage.embedded import embedded_postgres

PROGRAM = Path(sys.executable).with_name("treaty-registry")

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
    async with serving(log, free_port(), period=0) as url:
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
    targets: dict[str, None] = dict.fromkeys(ROOTS)
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        for path in (queue := list(targets)):
            answer = await client.get(path, headers={"Accept": "text/html"})
            if answer.headers.get("content-type", "").startswith("text/html"):
                links = [link.replace("&amp;", "&") for link in _LINK.findall(answer.text)]
                new = [link for link in dict.fromkeys(links) if link not in targets and len(targets) < limit]
                targets |= dict.fromkeys(new)
                queue += new
    return [(path, accept) for path in targets for accept in ("text/html", "application/json", "application/octet-stream")]


async def differences(url: str, mirror: str, targets: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the questions to which the mirror answers in another way than the registry."""
    async with (
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as registry,
        httpx.AsyncClient(base_url=mirror, trust_env=False, timeout=30) as copy,
    ):
        return [each for each in targets if await read(registry, *each) != await read(copy, *each)]


@dataclass
class MirrorProcess:
    """`treaty-registry mirror` on one data directory, started and killed many times. `about`: what it printed."""

    data: Path
    upstream: str
    port: int = field(default_factory=free_port)
    options: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it, without waiting."""
        arguments = ["mirror", self.upstream, "--data", str(self.data), "--port", str(self.port), "--json", *self.options]
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with (self.data.parent / f"{self.data.name}.log").open("ab") as errors:
            self.process = await asyncio.create_subprocess_exec(PROGRAM, *arguments, stdout=-1, stderr=errors)

    async def ready(self) -> bool:
        """Wait until it listens; False when it ended instead, with the reason in `about`."""
        assert self.process is not None and self.process.stdout is not None
        line = await self.process.stdout.readline()
        self.about = json.loads(line) if line else {"error": "nothing said"}
        return "error" not in self.about

    async def kill(self) -> None:
        """End it as a power failure would."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def stop(self) -> int:
        """End it as its operator would; the exit status."""
        assert self.process is not None
        self.process.terminate()
        return await self.process.wait()

    async def health(self) -> tuple[int, str]:
        """The status of its health check, and the code."""
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
            answer = await client.get("/health/ready")
        return answer.status_code, answer.json().get("code", "")

    async def note(self) -> bytes:
        """The checkpoint that it serves."""
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
            return (await client.get("/checkpoint")).content


@asynccontextmanager
async def mirror_process(data: Path, upstream: str) -> AsyncIterator[MirrorProcess]:
    """A mirror to be started; nothing of it runs on after the block."""
    mirror = MirrorProcess(data, upstream)
    try:
        yield mirror
    finally:
        await mirror.kill()
        async with embedded_postgres(data):
            pass  # a killed mirror leaves its PostgreSQL running: attach to it, and stop it as the last one


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    """Wait until this holds."""
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110 (another process changes it)
            await asyncio.sleep(0.05)
