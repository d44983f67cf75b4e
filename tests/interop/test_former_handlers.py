"""Handlers of former interfaces run unchanged, in sessions between sandboxes and over their own vectors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from data_sharing import SHARING, published

from treaty_agent import Agent, AgentConfig, Identity, LocalProtocols, OperationError, Policy, Session
from treaty_client.authoring.check import check_package
from treaty_client.protocols.local import LocalProtocol
from treaty_consensus.canonical import hex_digest
from treaty_consensus.handler import read_wheel
from treaty_handler import Invoke, Opened, Received, Renegotiated, Result, Send, decode_json
from treaty_sandbox import SandboxPool

BUILT = Path(__file__).parents[1] / "vectors" / "handlers"
INTERFACES = {"greeting": 2, "haggling": 1, "old-stream": 2}


def former(name: str) -> LocalProtocol:
    """A protocol with the handler of an earlier build."""
    [wheel] = BUILT.glob(f"treaty_handler_{name.replace('-', '_')}-*.whl")
    package, document = read_wheel(wheel.name, wheel.read_bytes()), (BUILT / f"{name}.md").read_bytes()
    return LocalProtocol(package.manifest.protocol_uri, hex_digest(document), "test/former", package, document)


@asynccontextmanager
async def speaking(tmp_path: Path, name: str, *functions: Any) -> AsyncIterator[Session]:
    """A session between two agents, of which one provides the functions."""
    protocol = former(name)
    source = LocalProtocols(()).with_protocol(protocol)
    async with AsyncExitStack() as stack:
        serving, asking = [
            await stack.enter_async_context(Agent(Identity.create(), source, AgentConfig(Policy(), home=tmp_path / part)))
            for part in ("serving", "asking")
        ]
        for function in functions:
            serving.provides(protocol.uri)(function)
        port = await stack.enter_async_context(serving.listen("127.0.0.1", 0))
        yield await stack.enter_async_context(asking.connect(f"ws://127.0.0.1:{port}", protocols=[protocol.uri]))


@pytest.mark.parametrize(("name", "interface"), INTERFACES.items())
async def test_an_older_handler_has_its_interface_and_vectors(name: str, interface: int) -> None:
    package = former(name).package
    assert package.manifest.interface == interface
    assert not any(role.is_shared for role in package.manifest.roles.values())
    report = await check_package(package)
    assert not report.mismatches
    assert report.coverage is not None and not report.coverage.unreached
    assert report.vectors


async def test_a_former_handler_without_code_is_spoken(tmp_path: Path) -> None:
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    async with speaking(tmp_path, "greeting", greet) as session:
        assert await session.call("greet", name="Ada") == "Hello, Ada!"


async def test_a_former_handler_in_a_sandbox_is_spoken(tmp_path: Path) -> None:
    async def quote(item: str) -> dict[str, int]:
        if item != "lamp":
            raise OperationError(404, "Only lamps.")
        return {"ask": 900, "floor": 700}

    async with speaking(tmp_path, "haggling", quote) as session:
        assert 700 <= await session.call("buy", item="lamp", offer=500, limit=1000) <= 900
        with pytest.raises(OperationError) as caught:
            await session.call("buy", item="boat", offer=500, limit=1000)
        assert caught.value.status == 404


async def test_a_former_handler_of_a_stream_is_spoken(tmp_path: Path) -> None:
    async def findItems(text: str) -> AsyncIterator[str]:  # noqa: N802
        for number in range(40):
            yield f"{text} {number}"

    async with speaking(tmp_path, "old-stream", findItems) as session, session.stream("findItems", text="tree") as items:
        assert [item async for item in items] == [f"tree {number}" for number in range(40)]
        # The credit of such a handler is its own: leaving early stops the function at the other side.
        async with session.stream("findItems", text="bush") as more:
            assert await anext(aiter(more)) == "bush 0"


@pytest.mark.parametrize(("interface", "value"), [(3, ({"chunkSize": 4096}, 0)), (4, ({"chunkSize": 2048}, 1))])
async def test_an_older_handler_ignores_changed_parameters(interface: int, value: Any) -> None:
    async with SandboxPool(size=0, levels=("none",)) as pool:
        worker = await pool.load(published(SHARING, interface).package, local="did:example:shop", peers=["did:example:peer"])
        session = await worker.open("provider")
        await session.handle(Opened(parameters={"chunkSize": 4096}))
        assert await session.handle(Renegotiated(parameters={"chunkSize": 2048})) == []
        effects = await session.handle(Received(peer="did:example:peer", data=b'{"query": "SELECT"}'))
        (invoke,) = [effect for effect in effects if isinstance(effect, Invoke)]
        (answer,) = await session.handle(Result(call=invoke.call, value=[]))
        assert isinstance(answer, Send)
        answer_value: Any = decode_json(answer.data)
        assert (answer_value["terms"], answer_value["changes"]) == value
