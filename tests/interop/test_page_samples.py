"""The programs of other languages that the page of a protocol offers: each runs as it is, with the others and with an agent."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import go_programs
import pytest

from treaty_agent import Agent, AgentConfig, Identity, LocalProtocols
from treaty_client.protocols.project import load_project
from treaty_registry.catalogue.packages import read_package
from treaty_registry.pages.foreign_samples import ForeignSamples
from treaty_registry.pages.snippets import snippets

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
GO = ROOT / "protocols" / "message-routing" / "peers" / "go"
SLOT = {"start": "2030-05-02T09:00", "minutes": 30}
pytestmark = pytest.mark.deep


def samples(name: str) -> tuple[str, ForeignSamples]:
    """The URI of an example, and its samples."""
    (uri,) = LocalProtocols([EXAMPLES / name]).uris
    project = load_project(EXAMPLES / name)
    view = read_package(*project.build_wheel(uri))
    foreign = snippets(uri, project.protocol_hash, project.name, "did:wba:alice.example", view).foreign
    assert foreign is not None
    return uri, foreign


def beside_node(node_peer: Path, name: str, folder: Path) -> Path:
    """A copy of `examples/node` with the document and the manifest of an example, as a reader puts them there."""
    shutil.copytree(node_peer, folder, symlinks=True)
    for file in ("document.md", "manifest.json"):
        shutil.copy(EXAMPLES / name / file, folder)
    return folder


@asynccontextmanager
async def serving(folder: Path, program: str) -> AsyncIterator[str]:
    """Run a provider at a free port, and yield its URL."""
    (folder / "provider.js").write_text(program.replace("8765", "0"))
    process = await asyncio.create_subprocess_exec("node", "provider.js", cwd=folder, stdout=PIPE)
    try:
        assert process.stdout is not None
        yield (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def printed(*command: str | Path, folder: Path, lines: int) -> list[Any]:
    """The first lines that a caller prints, as values. It is ended then."""
    process = await asyncio.create_subprocess_exec(*map(str, command), cwd=folder, stdout=PIPE)
    try:
        assert process.stdout is not None
        return [json.loads(await asyncio.wait_for(process.stdout.readline(), 30)) for _ in range(lines)]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_the_node_samples_speak_with_each_other_and_with_an_agent(node_peer: Path, tmp_path: Path) -> None:
    uri, foreign = samples("greeting")
    folder = beside_node(node_peer, "greeting", tmp_path / "node")
    (folder / "caller.js").write_text(foreign.node_caller)
    agent = Agent(Identity.create(), LocalProtocols([EXAMPLES / "greeting"]), AgentConfig(home=tmp_path / "home"))
    async with agent, serving(folder, foreign.node_provider) as url:
        assert await printed("node", "caller.js", url, folder=folder, lines=1) == ["Hello, Ada!"]
        async with agent.connect(url, protocols=[uri], role="guest") as session:
            assert await session.call("greet", name="Ada") == "Hello, Ada!"

        @agent.provides(uri, role="host")
        async def greet(**arguments: Any) -> str:
            return f"Good day, {arguments['name']}!"

        async with agent.listen("127.0.0.1", 0) as port:
            at = f"ws://127.0.0.1:{port}"
            assert await printed("node", "caller.js", at, folder=folder, lines=1) == ["Good day, Ada!"]


async def test_the_node_samples_have_a_provider_of_a_stream(node_peer: Path, tmp_path: Path) -> None:
    uri, foreign = samples("appointment")
    folder = beside_node(node_peer, "appointment", tmp_path / "node")
    agent = Agent(Identity.create(), LocalProtocols([EXAMPLES / "appointment"]), AgentConfig(home=tmp_path / "home"))
    async with (
        agent,
        serving(folder, foreign.node_provider) as url,
        agent.connect(url, protocols=[uri], role="customer") as session,
    ):
        assert [slot async for slot in session.stream("find", day="2030-05-02")][:1] == [SLOT]
        assert await session.call("book", start=SLOT["start"], name="Ada") == "B1"


@go_programs.needs_go("the samples in Go")
async def test_the_go_sample_calls_a_provider(node_peer: Path, tmp_path: Path) -> None:
    _, foreign = samples("greeting")
    folder = beside_node(node_peer, "greeting", tmp_path / "node")
    source = tmp_path / "go"
    shutil.copytree(GO, source)
    (source / "agent.go").unlink()
    (source / "sample.go").write_text(foreign.go_caller)
    for command in (["go", "build", "-o", "sample", "."], ["gofmt", "-l", "sample.go"]):
        done = await asyncio.to_thread(subprocess.run, command, cwd=source, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    async with serving(folder, foreign.node_provider) as url:
        (answer,) = await printed(source / "sample", url, folder=source, lines=1)
        assert answer == {"greeting": "Hello, Ada!", "id": "1", "type": "response"}
