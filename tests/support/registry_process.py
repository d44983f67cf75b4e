"""A registry as a process of its own, started, asked and killed."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from treaty_consensus.log.tiles import Bundle, decode_bundle
from treaty_registry.storage.embedded import embedded_postgres

PROGRAM = Path(sys.executable).with_name("treaty-registry")


@dataclass
class Server:
    """`treaty-registry serve` on one data directory, started and killed many times."""

    data: Path
    port: int
    process: asyncio.subprocess.Process | None = None
    options: tuple[str, ...] = ()
    about: dict[str, str] = field(default_factory=dict)
    program: Path = PROGRAM

    async def start(self) -> None:
        # A start that was killed may have made the keys: the next one goes on without it.
        new = [] if (self.data / "keys").exists() else ["--new"]
        arguments = ["serve", *new, "--data", str(self.data), "--port", str(self.port), "--json", *self.options]
        errors = (self.data.parent / f"{self.data.name}.log").open("ab")
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(self.program, *arguments, stdout=pipe, stderr=errors)
        errors.close()

    async def ready(self) -> bool:
        """Wait until it listens; False when it ended instead."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        about = json.loads(line) if line else {"error": "nothing said"}
        if "error" in about:
            print(about)
            return False
        self.about = about
        return True

    async def kill(self) -> None:
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return await self.process.wait()

    async def run(self, command: str, *options: str) -> dict[str, object]:
        pipe = asyncio.subprocess.PIPE
        place = ["--data", str(self.data), *(self.options[:2] if self.options[:1] == ("--database",) else ())]
        process = await asyncio.create_subprocess_exec(self.program, command, *place, "--json", *options, stdout=pipe)
        output, _ = await process.communicate()
        value: dict[str, object] = json.loads(output)
        assert process.returncode == 0, value
        return value

    async def leaves(self) -> list[bytes]:
        """The log, as its entry bundles have it."""
        leaves: list[bytes] = []
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", trust_env=False) as client:
            size = int((await client.get("/checkpoint")).text.split("\n")[1])
            while len(leaves) < size:
                bundle = Bundle(len(leaves) // 256, min(256, size - len(leaves)))
                answer = await client.get(bundle.path)
                leaves += decode_bundle(answer.content, bundle.width)
        return leaves


@asynccontextmanager
async def empty(data: Path, *options: str) -> AsyncIterator[Server]:
    """A server to be started on an empty data directory; nothing of it runs on after the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    server = Server(data, port, options=options)
    try:
        yield server
    finally:
        if server.process is not None and server.process.returncode is None:
            await server.kill()
        async with embedded_postgres(data):
            pass  # a killed registry leaves its PostgreSQL running: attach to it, and stop it as the last one
