"""Foreign servers in processes of their own, over https, at a host of the test's."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from loopback import Loopback

from treaty_io.network.hosts import Address


@asynccontextmanager
async def foreign_server(loopback: Loopback, python: Path, script: Path, host: str, **order: object) -> AsyncIterator[int]:
    """Run a script that serves `host` and stops when its input ends; yields its port, which `loopback` knows from now on."""
    certificate = loopback.folder / f"{host}.pem"
    loopback.authority.issue_cert(host).private_key_and_cert_chain_pem.write_to_path(str(certificate))
    process = await asyncio.create_subprocess_exec(
        str(python),
        str(script),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps({"certificate": str(certificate), **order}).encode() + b"\n")
    port: int = json.loads(await process.stdout.readline())["port"]
    loopback.addresses[host] = Address("127.0.0.1", port)
    try:
        yield port
    finally:
        process.stdin.close()
        await process.wait()
