"""The example of AIP, and AIP as any other protocol: its vectors and a session of two agents in the sandbox."""

from __future__ import annotations

import asyncio
import json
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from treaty_agent import Agent, AgentConfig, Identity, LocalProtocols, OperationError, Policy
from treaty_client.protocols.project import load_project
from treaty_consensus.handler import read_wheel
from treaty_sandbox import SandboxPool, run_vectors
from treaty_sandbox.vectors import parse_vector

ROOT = Path(__file__).parents[2]
AIP = ROOT / "protocols" / "aip"


def example(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the example as its README says."""
    command = [sys.executable, "protocols/aip/example", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.deep
def test_agents_and_tools_exchange_media_byte_for_byte() -> None:
    done = example("--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert sorted(report["nodes"]) == ["average", "draw", "editor", "gateway", "painter", "singer"]
    assert all(each["intact"] for each in report["exchanged"])
    kinds = Counter((each["from"], each["to"], each["mode"]) for each in report["exchanged"])
    assert kinds == {
        ("editor", "painter", "text"): 2,
        ("draw", "painter", "image"): 2,
        ("painter", "editor", "image"): 2,
        ("editor", "singer", "text"): 2,
        ("singer", "editor", "audio"): 2,
        ("singer", "editor", "text"): 2,
    }
    texts = {each["text"] for each in report["exchanged"] if each["mode"] == "text"}
    assert {"255,0,0", "0,0,255", "440", "440 Hz", "880", "880 Hz"} == texts
    digests = {mode: {each["sha256"] for each in report["exchanged"] if each["mode"] == mode} for mode in ("image", "audio")}
    assert [len(parts) for parts in digests.values()] == [2, 2]
    images = [each["bytes"] for each in report["exchanged"] if each["mode"] == "image"]
    (sound,) = {each["bytes"] for each in report["exchanged"] if each["mode"] == "audio"}
    assert float(report["average"]) in {(size + sound) / 2 for size in images}


@pytest.mark.deep
def test_the_example_tells_a_reader_what_was_exchanged() -> None:
    done = example()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("byte for byte") == 12
    assert [word for word in ("painter", "image", "audio", "440 Hz") if word not in done.stdout] == []
    assert example("--nonsense").returncode == 2


def test_the_example_detects_changed_and_lost_content() -> None:
    compared = runpy.run_path(str(AIP / "example" / "__main__.py"))["compared"]
    one, other = ({"from": "a", "to": "b", "mode": "text", "bytes": 1, "sha256": digest} for digest in "xy")
    assert compared([{"sent": one}, {"received": one}]) == [{**one, "intact": True}]
    for events in (
        [{"sent": one}, {"received": other}],
        [{"sent": one}],
        [{"received": one}],
        [{"sent": one}] * 2 + [{"received": one}],
    ):
        assert not any(each["intact"] for each in compared(events))


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


@pytest.mark.threat(233)
@pytest.mark.parametrize("encryption", ["off", "required"])
async def test_003_75_a_proved_did_is_enough_for_two_agents(tmp_path: Path, encryption: Any) -> None:
    protocols, policy = LocalProtocols([AIP / "0.0.1"]), Policy(encryption=encryption)
    uri = protocols.uri("aip")
    messages: asyncio.Queue[Any] = asyncio.Queue()
    answered: asyncio.Queue[Any] = asyncio.Queue()

    async def inquiry(message: dict[str, Any]) -> None:
        messages.put_nowait(message)

    async def feedback(message: dict[str, Any]) -> None:
        answered.put_nowait(message)

    async def process_request(request: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"text": f"{request['arguments']['x']}!"}]}

    async with (
        Agent(Identity.create(), protocols, AgentConfig(policy, home=tmp_path / "server")) as server,
        Agent(own := Identity.create(), protocols, AgentConfig(policy, home=tmp_path / "client")) as client,
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
                got = await messages.get()
                assert (got["session_status"], got["content"]) == ("START_QUEST", [{"image": "iVBORw=="}])
            # A DID as the sender is for its proof. The plain Hello only claims one.
            request = {"sender_id": own.did, "receiver_id": "b", "arguments": {"x": "2"}}
            if encryption == "required":
                assert (await session.call("call_tool", request=request))["content"] == [{"text": "2!"}]
            else:
                with pytest.raises(OperationError) as refused:
                    await session.call("call_tool", request=request)
                assert refused.value.status == 403
            with pytest.raises(OperationError) as foreign:
                await session.call("call_tool", request=request | {"sender_id": server.did})
            assert foreign.value.status == 403
