"""The example of AIP, and AIP as any other protocol: its vectors and a session of two agents in the sandbox."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from treaty_client import Agent, Identity, LocalProtocols
from treaty_client.protocols.project import load_project
from treaty_client.sandbox import SandboxPool, run_vectors
from treaty_client.sandbox.vectors import parse_vector
from treaty_consensus.handler import read_wheel

ROOT = Path(__file__).parents[2]
AIP = ROOT / "protocols" / "aip"


def test_three_agents_two_tools_and_a_gateway_exchange_text_image_and_audio() -> None:
    done = subprocess.run([sys.executable, "-m", "example"], cwd=AIP, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = [line.removeprefix("editor: ") for line in done.stdout.splitlines() if line.startswith("editor: ")]
    assert told[0] == "nodes: average, draw, editor, painter, singer"
    kinds = ["nodes:", *["image:"] * 3, "audio:", "text:", "audio:", "text:", "average:", "done"]
    assert [line.split()[0] for line in told] == kinds
    assert "text: 440 Hz" in told
    assert all(line.endswith("PNG") for line in told if line.startswith("image:"))


async def test_the_vectors_hold_in_the_sandbox() -> None:
    project = load_project(AIP / "0.0.1")
    package = read_wheel(*project.build_wheel("https://registry.example/protocols/example.com/aip/0.0.1"))
    files = sorted((AIP / "0.0.1" / "vectors").glob("*.json"))
    pool = SandboxPool(size=1)
    try:
        vectors = [parse_vector(path.name, path.read_bytes()) for path in files]
        assert await run_vectors(pool, package, vectors) == []
    finally:
        await pool.close()
    assert len(files) >= 13


async def test_two_agents_speak_it_like_any_protocol(tmp_path: Path) -> None:
    protocols = LocalProtocols([AIP / "0.0.1"])
    uri = protocols.uri("aip")
    asked: asyncio.Queue[Any] = asyncio.Queue()
    answered: asyncio.Queue[Any] = asyncio.Queue()

    async def inquiry(message: dict[str, Any]) -> None:
        asked.put_nowait(message)

    async def feedback(message: dict[str, Any]) -> None:
        answered.put_nowait(message)

    async def process_request(request: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"text": f"{request['arguments']['x']}!"}]}

    async with (
        Agent(Identity.create(), protocols, home=tmp_path / "server") as server,
        Agent(Identity.create(), protocols, home=tmp_path / "client") as client,
    ):
        functions = [inquiry, feedback, process_request]
        for function in functions:
            server.provides(uri, role="peer")(function)
        async with (
            server.listen("127.0.0.1", 0) as port,
            client.connect(f"ws://127.0.0.1:{port}", protocols=[uri], role="peer", serving=functions) as session,
        ):
            ids = {"session_id": "s", "sender_id": "a", "receiver_id": "b"}
            answer = await session.call("call_tool", request={"receiver_id": "b", "arguments": {"x": "1"}})
            assert answer["content"] == [{"text": "1!"}]
            await session.call("create_client", session_id="s", receiver_id="b")
            await session.call("submit_inquiry", message={**ids, "content": [{"image": "iVBORw=="}]})
            async with asyncio.timeout(30):
                got = await asked.get()
                assert (got["session_status"], got["content"]) == ("START_QUEST", [{"image": "iVBORw=="}])
