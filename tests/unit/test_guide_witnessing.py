"""The guide to witnesses is executed: a witness, a log that it watches, and an agent that asks for it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from ports import free_port
from witnesses import LOG, History, leaves

from treaty_client.policy import load_policy
from treaty_consensus.kinds import Witnesses
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.equivocation import Equivocation
from treaty_consensus.log.note import VerifierKey

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "witnessing.md").read_text(encoding="utf-8")
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@asynccontextmanager
async def server(command: str, folder: Path, **variables: str) -> AsyncIterator[dict[str, Any]]:
    """A command of the guide that runs until it is ended; what it printed when it was ready."""
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


def run(command: str, folder: Path, **variables: str) -> str:
    environment = {**os.environ, "PATH": PATH, "TREATY_HOME": str(folder / "home"), **variables}
    done = subprocess.run(
        ["bash", "-euc", command], cwd=folder, env=environment, check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout


@pytest.mark.deep
async def test_a_log_is_witnessed_and_an_agent_asks_for_it(data: Path) -> None:
    witness_port, registry_port = str(free_port()), str(free_port())
    watch, serve, check = (block.replace("8081", witness_port).replace("8080", registry_port) for block in blocks("sh"))
    output = await asyncio.to_thread(run, "treaty-registry init --data registry --origin registry.localhost --json", data)
    log_key = json.loads(output)["key"]
    async with server(watch, data, LOG_KEY=log_key) as witness:
        assert witness["key"].startswith("w1.example+")
        async with server(serve, data, WITNESS_KEY=witness["key"]) as registry, asyncio.timeout(60):
            parameters, policy, via = (block.replace("$WITNESS_KEY", witness["key"]) for block in blocks("toml"))
            (data / "policy.toml").write_text(policy)
            witnesses = load_policy(data / "policy.toml").witnesses
            stated = msgspec.convert(tomllib.loads(parameters)["witnesses"], Witnesses)
            assert witnesses is not None and witnesses == stated.parsed
            (data / "via.toml").write_text(via)
            assert [*load_policy(data / "via.toml").via] == ["registry.example"]
            note = b""
            async with httpx.AsyncClient(trust_env=False) as client:
                while b"w1.example" not in note:
                    await asyncio.sleep(0.1)
                    note = (await client.get(f"{registry['base_url']}/checkpoint")).content
            witnesses.check(note, open_checkpoint(note, VerifierKey.parse(log_key)).checkpoint)
    one, another = History.of(leaves(9)), History.of(leaves(9, fork_at=3))
    (data / "x.equivocation.json").write_bytes(Equivocation.of(LOG.verifier, one.note(9), another.note(9)).format())
    assert "signed two histories" in await asyncio.to_thread(run, check, data, PROOF="x.equivocation.json")
