"""The guide to mirrors is executed: a mirror, an agent that falls back to it, and its promotion."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ports import free_port

from treaty_client.policy import load_policy
from treaty_client.protocols.fetch import Fetcher
from treaty_io.network.hosts import Network

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "mirroring.md").read_text(encoding="utf-8")
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@asynccontextmanager
async def server(command: str, folder: Path, **variables: str) -> AsyncIterator[dict[str, Any]]:
    """A command that runs until it is ended; what it printed when it was ready."""
    environment = {**os.environ, "PATH": PATH, **variables}
    with (folder / "log").open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euc", f"exec {command.strip()} --json"), cwd=folder, env=environment, stdout=-1, stderr=errors
        )
    assert process.stdout is not None
    try:
        yield json.loads(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


def run(command: str, folder: Path) -> Any:
    environment = {**os.environ, "PATH": PATH, "TREATY_HOME": str(folder / "home")}
    done = subprocess.run(
        ["bash", "-euc", f"{command.strip()} --json"], cwd=folder, env=environment, check=False, capture_output=True, timeout=120
    )
    return json.loads(done.stdout)


@pytest.mark.deep
async def test_a_registry_is_mirrored_read_and_continued(data: Path) -> None:
    port, mirror_port = str(free_port()), str(free_port())
    mirror = blocks("sh")[0].replace("8082", mirror_port)
    promote, serve = blocks("sh")[1].strip().split("\n")
    url, mirror_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{mirror_port}"
    begin = f"treaty-registry serve --new --data registry --port {port} --origin registry.localhost --base-url {url}"
    async with server(begin, data) as registry:
        await asyncio.to_thread(run, f"treaty trust add '{registry['name']}' --yes", data)
        async with server(mirror, data, REGISTRY=registry["name"]) as mirrored:
            assert (mirrored["origin"], mirrored["url"]) == ("registry.localhost", mirror_url)
        async with httpx.AsyncClient(trust_env=False) as client:
            note = (await client.get(f"{url}/checkpoint")).content
    # The registry is down, and the mirror starts without it.
    policy = blocks("toml")[0].replace("$ORIGIN", "registry.localhost").replace("$MIRROR", mirror_url)
    (data / "home" / "policy.toml").write_text(policy)
    refused = await asyncio.to_thread(run, "treaty topics", data)
    assert refused["error"]["code"] == "registry.unreachable" and url in refused["error"]["message"]
    assert mirror_url in refused["error"]["message"]
    async with server(mirror, data, REGISTRY=registry["name"]):
        assert (await asyncio.to_thread(run, "treaty topics", data))["topics"] == []
        async with Fetcher(data / "home", load_policy(data / "home" / "policy.toml"), Network()) as fetcher:
            assert (await fetcher.head("registry.localhost").refresh()).note == note
    shutil.copytree(data / "registry" / "keys", data / "backup" / "keys")
    (data / "old").mkdir()
    shutil.copy(data / "registry" / "head", data / "old" / "head")
    refused = await asyncio.to_thread(run, "treaty-registry serve --data mirror", data)
    assert refused["error"]["code"] == "settings.directory"
    promotion = await asyncio.to_thread(run, promote, data)
    assert promotion["origin"] == "registry.localhost", promotion
    async with server(serve, data, PORT=port, URL=url) as promoted:
        assert promoted["name"] == registry["name"] and promoted["size"] == promotion["size"]
        assert (await asyncio.to_thread(run, "treaty topics", data))["topics"] == []
