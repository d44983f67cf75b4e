"""Two agents as they are used: WebSockets, the sandbox, and a fetcher that verifies what a simulated registry serves."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from meetings import LAPTOP, TOPIC, identity
from signers import key_signer
from simulated_registry import ALICE, SimulatedRegistry, flipped
from working_agents import CUSTOMER, NEW, OLD, SELLER, agent, agents_registry, open_shop, publish

from treaty_agent.sessions.flow_context import FlowSettings
from treaty_agent.sessions.interfaces import AgentEvent
from treaty_agent.sessions.operation_errors import OperationError
from treaty_anp.flow_profile.capabilities import ProtocolOffer
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_consensus import kinds
from treaty_consensus.errors import Refused, TreatyError


@pytest.fixture
def registry() -> SimulatedRegistry:
    """Both versions are published, both agents known."""
    return agents_registry()


async def test_000_31_strangers_download_speak_and_resume(tmp_path: Path, registry: SimulatedRegistry) -> None:
    events: list[AgentEvent] = []
    async with open_shop(registry, tmp_path) as url, agent(registry, tmp_path, CUSTOMER, on_event=events.append) as customer:
        async with customer.connect(url, topic=TOPIC) as session:
            assert (session.protocol, session.resumed) == (NEW, False)
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            with pytest.raises(OperationError) as failure:
                await session.call("getProductInfo", productId="P99999")
            assert (failure.value.status, failure.value.message) == (404, "产品未找到")
        registry.requests.clear()
        async with customer.connect(url, topic=TOPIC) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            assert session.resumed
        assert registry.requests == []  # the second time only the Hellos remained
    assert [event.name for event in events if not event.operation][:6] == [
        "hello",
        "verified",
        "sandbox",
        "running",
        "first reply",
        "end",
    ]
    assert {event.peer for event in events} <= {"", f"did:wba:{SELLER}"}


async def test_a_resumed_session_after_a_restart_asks_nobody(tmp_path: Path, registry: SimulatedRegistry) -> None:
    async with open_shop(registry, tmp_path) as url:
        for resumed in (False, True):
            registry.requests.clear()
            async with agent(registry, tmp_path, CUSTOMER) as customer, customer.connect(url, topic=TOPIC) as session:
                assert await session.call("getProductInfo", productId="P12345") == LAPTOP
                assert session.resumed is resumed
            assert bool(registry.requests) is not resumed


async def test_a_newly_published_version_follows_the_stored_ones(tmp_path: Path) -> None:
    registry = agents_registry(published=False)
    publish(registry, OLD)
    async with agent(registry, tmp_path, CUSTOMER) as customer:
        async with open_shop(registry, tmp_path, OLD) as url, customer.connect(url, topic=TOPIC) as session:
            assert session.protocol == OLD
        publish(registry, NEW)
        # The shop speaks the new version alone, and the customer knows the old one alone.
        async with open_shop(registry, tmp_path, NEW) as url, customer.connect(url, topic=TOPIC) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            assert session.protocol == NEW


async def test_a_newly_withdrawn_version_gives_way_to_another(tmp_path: Path) -> None:
    registry = agents_registry()
    async with open_shop(registry, tmp_path, OLD, NEW) as url, agent(registry, tmp_path, CUSTOMER) as customer:
        candidates = await customer.context.ports.protocols.candidates(TOPIC)
        assert set(candidates.uris) == {OLD, NEW}
        registry.add(kinds.Status(candidates.uris[0], "yanked"), ALICE)
        async with customer.connect(url, topic=TOPIC) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            assert session.protocol == candidates.uris[1]


async def test_no_common_version_fails_after_one_more_attempt(tmp_path: Path, registry: SimulatedRegistry) -> None:
    events: list[AgentEvent] = []
    async with (
        open_shop(registry, tmp_path) as url,
        agent(registry, tmp_path, CUSTOMER, on_event=events.append) as customer,
    ):
        with pytest.raises(Refused) as refusal:
            async with customer.connect(url, topic="demo/echo"):
                raise AssertionError("a session without a protocol")
        assert refusal.value.code == "session.no-common-protocol"
    assert [event.name for event in events].count("hello") == 2


async def test_a_tampered_wheel_is_refused_at_step_7(tmp_path: Path, registry: SimulatedRegistry) -> None:
    async with open_shop(registry, tmp_path) as url, agent(registry, tmp_path, CUSTOMER) as customer:
        registry.tamper = lambda path, body: flipped(body, 2000) if path.startswith("/blobs/") else body
        with pytest.raises(VerificationFailed) as refusal:
            async with customer.connect(url, topic=TOPIC):
                raise AssertionError("a session with a tampered handler")
        assert refusal.value.step == 7
        customer.context.afterwards.settle()
        assert not (tmp_path / CUSTOMER / "agreements.json").exists()
        registry.tamper = lambda path, body: body
        async with customer.connect(url, topic=TOPIC) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP


async def test_a_publisher_whom_the_policy_does_not_name_is_not_run(tmp_path: Path, registry: SimulatedRegistry) -> None:
    nobody = key_signer("nobody").did
    async with (
        open_shop(registry, tmp_path) as url,
        agent(registry, tmp_path, CUSTOMER, publishers=[nobody]) as customer,
    ):
        with pytest.raises(VerificationFailed) as refusal:
            async with customer.connect(url, topic=TOPIC):
                raise AssertionError("a session with an unknown publisher's handler")
        assert refusal.value.step == 6


async def test_both_sides_report_to_the_log(tmp_path: Path, registry: SimulatedRegistry) -> None:
    size = registry.size
    async with (
        open_shop(registry, tmp_path, report=True) as url,
        agent(registry, tmp_path, CUSTOMER, report=True) as customer,
    ):
        for _ in range(2):  # the second one says nothing new
            async with customer.connect(url, topic=TOPIC) as session:
                await session.call("getProductInfo", productId="P12345")
    assert registry.size == size + 1
    _, report = registry.statements()[-1]
    assert isinstance(report.body, kinds.Report)
    assert report.body.document == registry.document_of(NEW).sha256
    assert [did.text for did in report.authors] == [f"did:wba:{CUSTOMER}", f"did:wba:{SELLER}"]


async def test_both_sides_report_a_session_of_the_flow_profile(tmp_path: Path, registry: SimulatedRegistry) -> None:
    keys = {someone.did: {someone.key_id: someone.public_key} for someone in map(identity, (SELLER, CUSTOMER))}

    async def documents(did: str) -> dict[str, bytes]:
        return keys[did]

    size, flow = registry.size, FlowSettings(resolvers={"wba": documents})
    id = "anp:protocol:product-info:1.1"
    async with (
        agent(registry, tmp_path, SELLER, report=True, flow=flow) as seller,
        agent(registry, tmp_path, CUSTOMER, report=True, flow=flow) as customer,
    ):

        @seller.provides(NEW)
        async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
            return LAPTOP

        for someone in (seller, customer):
            someone.flow.registry.add(ProtocolOffer(id, ("getProductInfo",), uri=NEW))
        async with seller.listen("127.0.0.1", 0) as port:
            sessions = []
            for _ in range(2):  # the second one says nothing new
                async with customer.connect(f"ws://127.0.0.1:{port}", protocols=[id], did=seller.did) as session:
                    assert await session.call("getProductInfo", productId="P12345") == LAPTOP
                sessions.append(session)
            await customer.aclose()
    names = [[event.name for event in session.timeline][-2:] for session in sessions]
    assert names == [["reported", "end"], ["nothing to report", "end"]]
    assert registry.size == size + 1
    _, report = registry.statements()[-1]
    assert isinstance(report.body, kinds.Report)
    assert report.body.document == registry.document_of(NEW).sha256
    assert [did.text for did in report.authors] == [f"did:wba:{CUSTOMER}", f"did:wba:{SELLER}"]


async def test_a_shop_that_stops_is_noticed(tmp_path: Path, registry: SimulatedRegistry) -> None:
    async with agent(registry, tmp_path, CUSTOMER) as customer, AsyncExitStack() as stack:
        async with open_shop(registry, tmp_path) as url:
            session = await stack.enter_async_context(customer.connect(url, topic=TOPIC))
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        with pytest.raises(TreatyError):
            await session.call("getProductInfo", productId="P12345")
        with pytest.raises(TreatyError) as nobody:
            await stack.enter_async_context(customer.connect(url, topic=TOPIC))
        assert nobody.value.code == "connection.failed"


async def test_several_customers_at_once(tmp_path: Path, registry: SimulatedRegistry) -> None:
    async def visit(number: int, url: str) -> Any:
        async with agent(registry, tmp_path / str(number), CUSTOMER) as customer, customer.connect(url, topic=TOPIC) as session:
            return await session.call("getProductInfo", productId="P12345")

    async with open_shop(registry, tmp_path, OLD) as url:
        assert await asyncio.gather(*(visit(number, url) for number in range(4))) == [LAPTOP] * 4
