"""Another process that uses an embedded PostgreSQL."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

HOLD = """
import asyncio, pathlib, sys
from treaty_registry.storage.embedded import embedded_postgres

async def hold():
    async with embedded_postgres(pathlib.Path(sys.argv[1])):
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(hold())
"""


async def another_process(data: Path) -> asyncio.subprocess.Process:
    """A process that uses the server until its standard input ends."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLD, str(data), stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process
