"""The real pip and uv install from the index of a namespace by hash, and see yanked and withdrawn files as they should."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from http_api import attach, publish, say, serving
from ports import free_port
from registries import publication
from signers import Signer

from treaty_consensus import kinds
from treaty_registry.keys import load_operator
from treaty_registry.registry import Registry

NAME = "treaty-handler-echo"


@dataclass(frozen=True)
class Index:
    """The index of alice.example: 1.0, 1.1 which is yanked, 1.2 which is withdrawn, and 2.0. `digests`: by version."""

    url: str
    digests: Mapping[str, str]

    def install(self, tool: str, target: Path, requirement: str, *options: str) -> tuple[str, str]:
        """Install with pip or uv into an empty folder; return the version that is installed, or "", and all that it printed."""
        requirements = target.with_suffix(".txt")
        requirements.write_text(requirement)
        common = ["install", "--no-deps", "--index-url", self.url, "--target", str(target), "-r", str(requirements), *options]
        pip = ["-m", "pip", "--isolated", "--disable-pip-version-check", "--no-cache-dir", *common]
        uv = ["pip", *common, "--no-config", "--no-cache", "--python", sys.executable]
        command = {"pip": [sys.executable, *pip], "uv": [str(Path(sys.executable).with_name("uv")), *uv]}[tool]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        said = done.stdout + done.stderr
        (version,) = [path.name.split("-")[1].removesuffix(".dist") for path in target.glob("*.dist-info")] or [""]
        shutil.rmtree(target, ignore_errors=True)
        assert (done.returncode == 0) == bool(version), said
        return version, said


@pytest.fixture
async def index(registry: Registry, alice: Signer, tmp_path: Path) -> AsyncIterator[Index]:
    async with serving(registry, free_port()) as url, httpx.AsyncClient(base_url=url, trust_env=False) as api:
        made = publication(alice, "echo")
        await publish(api, alice, made)
        digests = {}
        for version in ("1.0", "1.1", "1.2", "2.0"):
            body = (await attach(api, alice, made, version)).body
            assert isinstance(body, kinds.Handler)
            digests[version] = body.wheel.sha256
        await say(api, alice, kinds.Status(made.body.uri, "yanked", wheel=digests["1.1"]))
        operator = load_operator(tmp_path / "registry" / "keys")
        withdrawal = operator.state(kinds.Withdrawal(digests["1.2"], "illegal"), issued=registry.clock())
        await registry.submit([withdrawal.statement.leaf])
        yield Index(f"{url}/index/alice.example/simple/", digests)


@pytest.mark.sample(1)
@pytest.mark.parametrize("tool", ["uv", "pip"])
async def test_installers_take_files_by_their_hashes(index: Index, tool: str, tmp_path: Path) -> None:
    async def installed(requirement: str, *options: str) -> tuple[str, str]:
        return await asyncio.to_thread(index.install, tool, tmp_path / "target", requirement, *options)

    async def pinned(version: str, digest: str) -> tuple[str, str]:
        return await installed(f"{NAME}=={version} --hash=sha256:{digest}", "--require-hashes")

    assert (await pinned("1.0", index.digests["1.0"]))[0] == "1.0"
    version, said = await pinned("1.1", index.digests["1.1"])
    assert version == "1.1" and "Its publisher took this handler back." in said, "a yanked file is for those who pin it"
    assert (await pinned("1.0", index.digests["2.0"]))[0] == "", "the hash of another file"
    assert (await pinned("1.2", index.digests["1.2"]))[0] == "", "a withdrawn file is not there"
    assert (await installed(NAME))[0] == "2.0"
    assert (await installed(f"{NAME}<2"))[0] == "1.0", "neither the yanked nor the withdrawn file"
    assert (await installed("treaty-handler-unknown"))[0] == ""
