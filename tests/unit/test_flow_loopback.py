"""The flow profile as it is used: ids that a publisher claims in a registry, all ten checks, the sandbox, and a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fetching import fetcher
from meetings import LAPTOP, PROTOCOLS
from simulated_registry import ALICE, BOB, SimulatedRegistry, flipped, match_of, uri_of, with_echo

from treaty_agent.sessions.flow_context import DidKeys, FlowDependencies, PolicyNames
from treaty_agent.sessions.flow_manager import MetaProtocolManager
from treaty_agent.sessions.handler_hosts import HandlerHosts, HostRequest
from treaty_agent.sessions.interfaces import SpokenProtocol
from treaty_agent.sessions.operations import Functions, choose_role
from treaty_agent.transport import listener, websocket
from treaty_anp.flow_profile.capabilities import FlowRequest, ProtocolOffer
from treaty_client.protocols.attestation import Binding
from treaty_client.protocols.project import load_project
from treaty_consensus import canonical, kinds
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import Role
from treaty_io.identity import Identity
from treaty_io.network.hosts import Network
from treaty_sandbox.runtime import SandboxRuntime

ID = "anp:protocol:product-info:1.1"
URI = uri_of("1.1", name="product-info")
GOAL = FlowRequest("buying", required=("query",))


def claimed() -> SimulatedRegistry:
    """A registry in which ALICE's product-info 1.1 claims the id, as `treaty publish` would have it."""
    registry, project = with_echo(), load_project(PROTOCOLS / "1.1")
    document, card = registry.put(project.document), registry.put(project.card.encode())
    body = kinds.Publish(URI, project.topic, document, card, project.origin, aliases=(ID,))
    registry.aliases[ID] = [match_of(registry.add(body, ALICE), verified=False)]
    filename, wheel = project.build_wheel(URI)
    assert project.handler is not None
    entry_point = project.handler.entry_point
    bundle = registry.attest(Binding(canonical.hex_digest(wheel), URI, document.sha256, entry_point), filename, ALICE)
    registry.add(kinds.Handler(URI, document.sha256, filename, registry.put(wheel), entry_point, registry.put(bundle)), ALICE)
    return registry


@asynccontextmanager
async def agent(registry: SimulatedRegistry, home: Path, **options: Any) -> AsyncIterator[tuple[MetaProtocolManager, str]]:
    """An agent with a did:key and everything real but the registry; and its DID."""
    identity, functions, runtime = Identity.create(), Functions(), SandboxRuntime(home)

    async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
        return LAPTOP

    functions.add(getProductInfo)

    def served(protocol: SpokenProtocol, request: HostRequest) -> tuple[Role, Functions]:
        return choose_role(protocol.package.manifest, is_initiator=request.is_initiator, name=request.role), functions

    async with fetcher(registry, home, **options) as source:
        hosts = HandlerHosts(identity.did, home, runtime, served)
        manager = MetaProtocolManager(identity, DidKeys(), FlowDependencies(PolicyNames(source), hosts), home=home)
        manager.registry.add(ProtocolOffer(ID, ("query",)))
        try:
            yield manager, identity.did
        finally:
            await manager.aclose()
            await runtime.close()


async def test_an_agreed_id_becomes_a_running_verified_handler(tmp_path: Path) -> None:
    registry = claimed()
    async with (
        agent(registry, tmp_path / "shop") as (shop, did),
        agent(registry, tmp_path / "buyer") as (buyer, _),
        listener.listen(shop.accept, "127.0.0.1", 0, max_connections=4) as port,
    ):
        for _ in range(2):
            connection = await websocket.connect(f"ws://127.0.0.1:{port}/", Network())
            async with await buyer.negotiate(connection, GOAL, peer=did) as session:
                assert (session.peer.did, session.protocol, session.protocol_id) == (did, URI, ID)
                calls = (session.call("getProductInfo", productId="P12345") for _ in range(3))
                assert await asyncio.gather(*calls) == [LAPTOP] * 3
    assert (tmp_path / "buyer" / "treaty.lock").exists()
    assert (tmp_path / "buyer" / "flow-history.json").exists()


async def test_an_unadmitted_publisher_or_tampered_wheel_runs_nothing(tmp_path: Path) -> None:
    for name, options, spoil in (("a", {"publishers": (BOB,)}, False), ("b", {}, True)):
        registry = claimed()
        async with (
            agent(registry, tmp_path / name / "shop") as (shop, did),
            agent(registry, tmp_path / name / "buyer", **options) as (buyer, _),
            listener.listen(shop.accept, "127.0.0.1", 0, max_connections=4) as port,
        ):
            if spoil:
                registry.tamper = lambda path, body: flipped(body, 2000) if path.startswith("/blobs/") else body
            connection = await websocket.connect(f"ws://127.0.0.1:{port}/", Network())
            with pytest.raises(TreatyError):
                await buyer.negotiate(connection, GOAL, peer=did)
        assert not (tmp_path / name / "buyer" / "treaty.lock").exists()
        assert not (tmp_path / name / "buyer" / "flow-history.json").exists()
