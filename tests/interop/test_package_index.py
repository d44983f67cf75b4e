"""The real pip and uv install from the indexes of a registry by hash, and see yanked and withdrawn files as they should."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from build_cache import trusting_the_machine
from claims import wheel_with
from http_api import attach, post, publish, put, say, serving
from ports import free_port
from registries import Web, blob, publication, settings_for
from signers import Signer

from treaty_consensus import __version__, kinds
from treaty_registry.keys import load_operator
from treaty_registry.registry import Registry
from treaty_registry.storage.own_wheels import OwnWheels

ROOT = Path(__file__).parents[2]
NAME = "treaty-handler-echo"
BIN = Path(sys.executable).parent
LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
from importlib.metadata import entry_points
(point,) = entry_points(group="treaty.handlers")
print(point.load().__module__)
"""


def run(*command: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run pip, uv or Python without settings of the environment for the installers."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=folder)


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
        pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "--no-cache-dir", *common]
        uv = [str(BIN / "uv"), "pip", *common, "--no-config", "--no-cache", "--python", sys.executable]
        done = run(*{"pip": pip, "uv": uv}[tool])
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


async def test_the_guides_project_takes_a_package_from_one_index(index: Index, tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "guides" / "packages.md").read_text()
    (project,) = re.findall(r"^```toml\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(project.replace("https://registry.example/index/alice.example/simple/", index.url))
    # An index in which nothing is: the package comes from its own, and no other is asked for it.
    empty = index.url.replace("alice.example", "bob.example")
    command = [str(BIN / "uv"), "pip", "compile", "pyproject.toml", "--no-cache", "--generate-hashes", "--index-url", empty]
    done = await asyncio.to_thread(run, *command, "--python", sys.executable, folder=tmp_path)
    assert f"{NAME}==1.0" in done.stdout and index.digests["1.0"] in done.stdout, done.stderr
    nowhere = await asyncio.to_thread(index.install, "uv", tmp_path / "target", NAME, "--index-url", empty)
    assert nowhere[0] == "", "no index falls to another"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheels of Treaty and its runtime."""
    folder = tmp_path_factory.mktemp("wheels")
    for project in (ROOT, ROOT / "client" / "treaty_handler"):
        done = run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder), folder=project)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
async def own(wheels: Path, tmp_path: Path, database: str, web: Web, alice: Signer) -> AsyncIterator[str]:
    """The URL of a registry with wheels of its own, and a handler without code in the index of alice.example."""
    settings = replace(settings_for(tmp_path / "registry", database), wheels=OwnWheels.read(wheels))
    async with (
        Registry.open(settings, resolve=web.resolve) as registry,
        serving(registry, free_port()) as url,
        httpx.AsyncClient(base_url=url, trust_env=False) as api,
    ):
        made = publication(alice, "asked")
        await publish(api, alice, made)
        uri, document = made.body.uri, made.body.document.sha256
        filename, wheel, entry_point = wheel_with({}, uri=uri, document=document, is_code_free=True)
        signed = alice.statement(kinds.Handler(uri, document, filename, blob(wheel), entry_point, blob(b"{}")))
        for data in (wheel, b"{}"):
            await put(api, data, signed)
        assert (await post(api, signed)).status_code == 201
        yield url


async def test_an_installed_handler_is_imported_with_the_runtime_of_the_registry(own: str, tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    for namespace, name in (("alice.example", "treaty-handler-asked"), ("treaty", "treaty-handler")):
        loaded = run(sys.executable, "-I", "-S", "-c", LOAD, target)
        assert loaded.returncode, "the runtime is not there yet"
        place = ["--target", target, "--python", sys.executable, "--no-cache", "--no-config"]
        simple = f"{own}/index/{namespace}/simple/"
        done = await asyncio.to_thread(run, str(BIN / "uv"), "pip", "install", "--index-url", simple, *place, name)
        assert done.returncode == 0, done.stderr
    assert run(sys.executable, "-I", "-S", "-c", LOAD, target).stdout == "treaty_handler.declarative.session\n"


@pytest.mark.deep  # it takes the libraries of Treaty from PyPI
async def test_uvx_starts_treaty_from_the_index_of_a_registry(own: str) -> None:
    command = [str(BIN / "uvx"), "--no-cache", "--index", f"{own}/index/treaty/simple/", "--from", "treaty-agents", "treaty"]
    with trusting_the_machine():
        done = await asyncio.to_thread(subprocess.run, [*command, "--version"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, __version__), done.stderr
