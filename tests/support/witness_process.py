"""A witness as a process of its own, started, killed and ended by the test that needs it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from ports import free_port

from treaty_consensus.log.note import VerifierKey
from treaty_registry.settings import WitnessName

PROGRAM = Path(sys.executable).with_name("treaty-registry")


@dataclass
class WitnessProcess:
    """`treaty-registry witness` on one data directory and port. `about`: what it printed when it was ready."""

    data: Path
    logs: Sequence[VerifierKey]
    name: str | None = None
    port: int = 0
    options: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it listens; what it refuses is in `about`."""
        self.port = self.port or free_port()
        arguments = ["witness", "--data", str(self.data), "--port", str(self.port), "--json"]
        arguments += [part for log in self.logs for part in ("--log", str(log))] + (["--name", self.name] if self.name else [])
        arguments += self.options
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with (self.data.parent / f"{self.data.name}.log").open("ab") as errors:
            pipe = asyncio.subprocess.PIPE
            self.process = await asyncio.create_subprocess_exec(PROGRAM, *arguments, stdout=pipe, stderr=errors)
        assert self.process.stdout is not None
        self.about = json.loads(await self.process.stdout.readline())

    async def kill(self) -> None:
        """End it as a power failure would."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        """End it as its operator would; the exit status."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.terminate()
        return await self.ended()

    async def ended(self) -> int:
        """Wait for the end that it makes itself; the exit status."""
        assert self.process is not None
        return await self.process.wait()

    @property
    def key(self) -> VerifierKey:
        return VerifierKey.parse(self.about["key"])

    @property
    def keys(self) -> list[VerifierKey]:
        """All its keys: one of Ed25519, and one of ML-DSA-44."""
        return [VerifierKey.parse(key) for key in self.about["keys"]]

    @property
    def at(self) -> WitnessName:
        """How a registry names it."""
        return WitnessName.parse(f"{self.about['url']}#{self.about['key']}")

    @property
    def said(self) -> str:
        """What it logged so far."""
        return (self.data.parent / f"{self.data.name}.log").read_text()

    async def ask(self, body: bytes, method: str = "POST", path: str = "/add-checkpoint") -> httpx.Response:
        """Send it one request."""
        async with httpx.AsyncClient(base_url=self.about["url"], trust_env=False) as client:
            return await client.request(method, path, content=body)


@asynccontextmanager
async def witness_process(data: Path, *logs: VerifierKey, name: str | None = None) -> AsyncIterator[WitnessProcess]:
    """A running witness, ended with the block."""
    witness = WitnessProcess(data, logs, name)
    await witness.start()
    try:
        yield witness
    finally:
        await witness.kill()
