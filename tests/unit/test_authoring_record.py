"""A live session over sockets becomes a vector for each role, and the handler repeats it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from meetings import LAPTOP, identity
from sandboxed import sandboxed_package
from signers import ORIGIN
from simulated_registry import ALICE, NAME
from working_agents import CUSTOMER, NEW, SELLER, agents_registry

from treaty_agent import Agent, AgentConfig, Policy
from treaty_agent.sessions.operation_errors import OperationError
from treaty_agent.testing.inline_runtime import InlineRuntime
from treaty_client.authoring.check import check_project
from treaty_client.authoring.document import write_document
from treaty_client.authoring.recorded import add_recordings
from treaty_client.protocols.project import load_project
from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused
from treaty_consensus.handler import read_wheel
from treaty_handler import Call, Opened, PeerJoined, PeerLost, Received, Result, encode_json
from treaty_sandbox import SandboxPool, parse_vector, run_vectors
from treaty_sandbox.recorder import MAX_RECORDINGS, RecordingRuntime
from treaty_sandbox.runtime import SandboxRuntime

PROJECT = Path(__file__).parents[2] / "protocols" / "product-info" / "1.1"


def listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def recorded(home: Path, folder: Path) -> list[Path]:
    """Let two agents speak product-info over a WebSocket, and return their recordings."""
    registry = agents_registry()

    def agent(domain: str) -> Agent:
        config = AgentConfig(Policy(publishers=[ALICE.did], report=False), recordings=folder, home=home / domain)
        return Agent(identity(domain), str(NAME), config, network=registry.network())

    async with agent(SELLER) as seller, agent(CUSTOMER) as customer:

        @seller.provides(NEW)
        async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
            if productId != LAPTOP["productId"]:
                raise OperationError(404, "There is no such product.")
            return LAPTOP

        async with seller.listen("127.0.0.1", 0) as port, customer.connect(f"ws://127.0.0.1:{port}", protocols=[NEW]) as session:
            assert await session.call("getProductInfo", productId=LAPTOP["productId"]) == LAPTOP
            with pytest.raises(OperationError):
                await session.call("getProductInfo", productId="P0")
    return listed(folder)


def empty_project(folder: Path) -> Path:
    """A copy of product-info 1.1 without vectors."""
    folder.mkdir()
    for name in ("protocol.toml", "document.md", "manifest.json"):
        (folder / name).write_bytes((PROJECT / name).read_bytes())
    return folder


@pytest.mark.threat(171)
async def test_a_live_session_becomes_a_vector_for_each_role(tmp_path: Path) -> None:
    files = await recorded(tmp_path, tmp_path / "recordings")
    assert [path.name for path in files] == ["product-info-1.1-provider-1.json", "product-info-1.1-requester-1.json"]
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        text = path.read_text()
        assert SELLER not in text
        assert CUSTOMER not in text
        assert ORIGIN not in text
    project = empty_project(tmp_path / "project")
    assert not (await check_project(project)).passed
    added = await add_recordings(project, files)
    assert {path.name for path in added.files} == {path.name for path in files}
    reached = {str(cell) for cell in added.after.reached}
    assert reached == {f"{role} getProductInfo {outcome}" for role in ("provider", "requester") for outcome in ("success", "404")}
    assert added.before.reached == {}
    write_document(project)
    check = await check_project(project)
    assert check.passed
    assert [vector.name for vector in check.vectors] == [path.name for path in files]


async def test_an_unrepeatable_recording_is_not_written(tmp_path: Path) -> None:
    files = await recorded(tmp_path, tmp_path / "recordings")
    vector = json.loads(files[1].read_text())
    vector["seed"] = "f" * 32
    files[1].write_text(json.dumps(vector))
    project = empty_project(tmp_path / "project")
    with pytest.raises(Refused) as caught:
        await add_recordings(project, files)
    assert caught.value.code == "vector.differs"
    assert not (project / "vectors").exists()


async def test_a_vector_of_the_project_is_not_replaced(tmp_path: Path) -> None:
    project = empty_project(tmp_path / "project")
    source = PROJECT / "vectors" / "provider-hit.json"
    await add_recordings(project, [source])
    before = (project / "vectors" / source.name).read_bytes()
    with pytest.raises(Conflict) as caught:
        await add_recordings(project, [source])
    assert caught.value.code == "system.exists"
    assert (project / "vectors" / source.name).read_bytes() == before


async def test_files_that_are_no_recordings_are_refused(tmp_path: Path) -> None:
    project = empty_project(tmp_path / "project")
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    with pytest.raises(Malformed):
        await add_recordings(project, [bad])
    with pytest.raises(NotFound) as caught:
        await add_recordings(project, [tmp_path / "none.json"])
    assert caught.value.code == "project.file"
    vector = json.loads((PROJECT / "vectors" / "provider-hit.json").read_text())
    bad.write_text(json.dumps({**vector, "role": "stranger"}))
    with pytest.raises(Refused) as refused:
        await add_recordings(project, [bad])
    assert refused.value.code == "vector.form"
    assert not (project / "vectors").exists()


async def test_a_full_folder_ends_recording_and_not_the_session(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    for role in ("provider", "requester"):
        for number in range(1, MAX_RECORDINGS + 1):
            (folder / f"product-info-1.1-{role}-{number}.json").write_text("")
    # Any new file, also one that is gone again, changes the time of its folder: a stranger's session costs no writing here.
    before = folder.stat().st_mtime_ns
    assert len(await recorded(tmp_path, folder)) == 2 * MAX_RECORDINGS
    assert folder.stat().st_mtime_ns == before


async def test_a_handler_with_code_is_recorded_with_its_seed(tmp_path: Path) -> None:
    package = sandboxed_package("1.1")
    runtime = RecordingRuntime(SandboxRuntime(tmp_path / "home"), tmp_path / "recordings")
    local, peer = "did:wba:buyer.example", "did:wba:buyer.example:shop"
    handler = await runtime.open(package, "requester", local=local, peer=peer)
    await handler.handle(Opened())
    for call in ("a", "b"):
        await handler.handle(Call(call=call, operation="getProductInfo", arguments={"productId": "P1"}))
    await handler.handle(PeerLost(peer=peer))
    await handler.close()
    await runtime.close()
    (path,) = listed(tmp_path / "recordings")
    data = path.read_bytes()
    assert b"buyer.example" not in data
    assert json.loads(data)["seed"] != "0" * 32
    async with SandboxPool(size=0) as pool:
        assert await run_vectors(pool, package, [parse_vector(path.name, data)]) == []


async def test_a_recording_of_a_shared_session_names_no_member(tmp_path: Path) -> None:
    project = load_project(PROJECT.parents[2] / "examples" / "assembly")
    package = read_wheel(*project.build_wheel("https://registry.example/protocols/example.com/assembly/1.0"))
    runtime = RecordingRuntime(InlineRuntime(), tmp_path)
    handler = await runtime.open(package, "room", local="did:wba:room.example", peer="")
    await handler.handle(Opened())
    members = ["did:wba:ada.example", "did:wba:ada.example:phone", "did:wba:bob.example"]
    for member in members:
        await handler.handle(PeerJoined(peer=member, role="member"))
    message = {"type": "say", "id": "1", "text": "I am did:wba:bob.example."}
    await handler.handle(Received(peer=members[1], data=encode_json(message)))
    await handler.handle(Result(call="1", value="Hello."))
    await handler.handle(PeerLost(peer=members[0]))
    await handler.close()
    [path] = listed(tmp_path)
    data = path.read_bytes()
    assert b"ada.example" not in data
    assert b"bob.example" not in data
    vector = parse_vector(path.name, data)
    joined = [step.event.peer for step in vector.steps if isinstance(step.event, PeerJoined)]
    assert joined == ["did:example:peer", "did:example:peer2", "did:example:peer3"]
    async with SandboxPool(size=0) as pool:
        assert await run_vectors(pool, package, [vector]) == []
