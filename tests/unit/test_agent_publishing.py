"""What two agents negotiated is published and reported, and the next two need no negotiator: on sockets, in the sandbox,
through a registry that keeps all its rules."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from meetings import LAPTOP, TOPIC, identity
from model_negotiators import opened, script
from scripted_model import code, scripted_model
from scripted_negotiators import CHANGED, DOCUMENT, TEST_CASES, WANTED, Script, ScriptedNegotiators
from signers import domain_signer
from simulated_registry import SimulatedRegistry, uri_of
from simulated_sigstore import Authority, serving
from working_agents import CUSTOMER, SELLER, agent, agents_registry

from treaty_agent.agent import Agent
from treaty_agent.negotiators.negotiator import Proposal, Requirement
from treaty_agent.sessions.interfaces import AgentEvent, SessionTimeouts
from treaty_agent.sessions.operation_errors import OperationError
from treaty_agent.sessions.session import Session
from treaty_consensus import kinds

URI = uri_of("1.0", name="product-info", signer=domain_signer(CUSTOMER))


@pytest.fixture
def registry() -> Iterator[SimulatedRegistry]:
    """Nothing is published about products; the shop and the buyer are known."""
    registry = agents_registry(published=False)
    registry.now = int(time.time())
    with serving(cast(Authority, registry)) as registry.services:
        yield registry


def sell(seller: Agent, uri: str = "") -> None:
    async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
        return LAPTOP

    (seller.provides(uri) if uri else seller.offers)(getProductInfo)


async def negotiate(registry: SimulatedRegistry, home: Path, document: str = DOCUMENT, **policy: Any) -> list[str]:
    """One negotiated session with one call; the buyer's events."""
    events: list[AgentEvent] = []
    here, there = (ScriptedNegotiators(Script(drafts=[Proposal(document)], tests=TEST_CASES)) for _ in range(2))
    async with agent(registry, home, SELLER, negotiators=there, report=policy.get("report", False)) as seller:
        sell(seller)
        async with (
            seller.listen("127.0.0.1", 0) as port,
            agent(registry, home, CUSTOMER, negotiators=here, on_event=events.append, **policy) as customer,
            customer.connect(f"ws://127.0.0.1:{port}", requirement=WANTED) as session,
        ):
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
    return [event.name for event in events if not event.operation]


@pytest.mark.deep
async def test_strangers_speak_a_published_agreement(tmp_path: Path, registry: SimulatedRegistry) -> None:
    events = await negotiate(registry, tmp_path, publish=True, report=True)
    assert set(events[-3:]) == {"reported", "published", "end"}
    assert events.index("reported") < events.index("end"), "the other side signs in the session"
    published = [statement.body for _, statement in registry.statements() if isinstance(statement.body, kinds.Publish)][-1]
    assert (published.uri, published.topic, published.origin) == (URI, TOPIC, "negotiated")
    (report,) = (statement for _, statement in registry.statements() if isinstance(statement.body, kinds.Report))
    assert isinstance(report.body, kinds.Report)
    assert (report.body.document, report.body.topic) == (published.document.sha256, TOPIC)
    assert [did.text for did in report.authors] == [f"did:wba:{CUSTOMER}", f"did:wba:{SELLER}"]

    publisher = identity(CUSTOMER).did
    async with (
        agent(registry, tmp_path, "third.example", publishers=[publisher]) as third,
        agent(registry, tmp_path, "fourth.example", publishers=[publisher]) as fourth,
    ):
        sell(third, URI)
        async with (
            third.listen("127.0.0.1", 0) as port,
            fourth.connect(f"ws://127.0.0.1:{port}", topic=TOPIC) as session,
        ):
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            assert (session.protocol, session.document) == (URI, "")


@pytest.mark.deep
async def test_a_models_draft_reaches_strangers_without_models(tmp_path: Path, registry: SimulatedRegistry) -> None:
    patient, trips = SessionTimeouts(code=120, reply=120), [{"trip": "EC-173", "departs": "07:00", "price": 2790}]

    def railway(agent: Agent, uri: str = "") -> None:
        async def searchTrips(origin: str, destination: str, date: str) -> list[dict[str, Any]]:  # noqa: N802
            return trips

        async def bookTrip(trip: str, seats: int) -> dict[str, Any]:  # noqa: N802
            raise OperationError(409, "The seats are gone.")

        async def cancelBooking(booking: str) -> dict[str, Any]:  # noqa: N802
            return {"refund": 0}

        for function in (searchTrips, bookTrip, cancelBooking):
            (agent.provides(uri) if uri else agent.offers)(function)

    async def travels(session: Session) -> None:
        assert await session.call("searchTrips", origin="BER", destination="PRG", date="2027-05-01") == trips
        with pytest.raises(OperationError) as failure:
            await session.call("bookTrip", trip="EC-173", seats=2)
        assert failure.value.status == 409

    events: list[AgentEvent] = []
    with scripted_model() as server:
        plan = script(server)
        server.misbehave("handler", code(lambda source: source.replace('int(arguments["seats"])', "1")))
        requirement = Requirement(plan.requirement, topic=plan.topic)
        async with (
            opened(server) as here,
            opened(server) as there,
            agent(registry, tmp_path, SELLER, negotiators=there, report=True, timeouts=patient) as seller,
            agent(
                registry,
                tmp_path,
                CUSTOMER,
                negotiators=here,
                publish=True,
                report=True,
                timeouts=patient,
                on_event=events.append,
            ) as customer,
        ):
            railway(seller)
            async with (
                seller.listen("127.0.0.1", 0) as port,
                customer.connect(f"ws://127.0.0.1:{port}", requirement=requirement) as session,
            ):
                await travels(session)
                assert session.document == plan.document
        assert server.seen.count("repair") == 1
        total = len(server.seen)
        names = [event.name for event in events if not event.operation]
        expected = [
            "hello",
            "negotiating",
            "written",
            "sandbox",
            "testing",
            "running",
            "first reply",
            "reported",
        ]
        assert names[:-2] == expected
        assert set(names[-2:]) == {"end", "published"}, "publishing does not hold up the end"
        uri = next(
            statement.body.uri for _, statement in reversed(registry.statements()) if isinstance(statement.body, kinds.Publish)
        )
        publisher = identity(CUSTOMER).did
        async with (
            agent(registry, tmp_path, "third.example", publishers=[publisher]) as third,
            agent(registry, tmp_path, "fourth.example", publishers=[publisher]) as fourth,
        ):
            railway(third, uri)
            async with (
                third.listen("127.0.0.1", 0) as port,
                fourth.connect(f"ws://127.0.0.1:{port}", topic=plan.topic) as session,
            ):
                await travels(session)
                assert session.protocol == uri
        assert len(server.seen) == total


async def test_nothing_is_published_against_the_policies(tmp_path: Path, registry: SimulatedRegistry) -> None:
    size = registry.size
    assert "published" not in await negotiate(registry, tmp_path)
    assert registry.size == size


@pytest.mark.deep
async def test_another_document_is_published_as_the_next_version(tmp_path: Path, registry: SimulatedRegistry) -> None:
    assert "published" in await negotiate(registry, tmp_path / "1", publish=True)
    size = registry.size
    assert "published" not in await negotiate(registry, tmp_path / "1", publish=True)  # it is known to be
    assert "published" in await negotiate(registry, tmp_path / "2", publish=True)  # the same again, from another home
    assert registry.size == size
    assert "published" in await negotiate(registry, tmp_path / "3", CHANGED, publish=True)
    uris = [statement.body.uri for _, statement in registry.statements() if isinstance(statement.body, kinds.Publish)]
    assert uris[-2:] == [URI, URI.replace("1.0", "1.1")]


async def test_a_registry_that_does_not_answer_spoils_nothing(tmp_path: Path, registry: SimulatedRegistry) -> None:
    answer = registry.answer
    registry.answer = lambda request: answer(request) if request.method == "GET" else (503, b"")  # type: ignore[method-assign]
    events = await negotiate(registry, tmp_path, publish=True)
    assert {"publishing failed", "end"} <= set(events)
