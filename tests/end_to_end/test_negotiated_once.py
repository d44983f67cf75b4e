"""A protocol that nobody has published is negotiated once, with a language model; everybody after that needs none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

import pytest
from meetings import identity
from model_negotiators import opened
from sandboxes import descendants, gone
from scripted_model import (
    Fault,
    Reply,
    Script,
    ScriptedModel,
    code,
    error,
    instead,
    oversized,
    prose,
    refusal,
    scripted_model,
    torn,
)
from simulated_registry import NAME, SimulatedRegistry
from simulated_sigstore import Authority, serving
from working_agents import CUSTOMER, SELLER, agents_registry

from treaty_agent import Agent, AgentConfig, Policy
from treaty_agent.negotiators.negotiator import Requirement
from treaty_agent.sessions.interfaces import SessionTimeouts
from treaty_agent.sessions.operation_errors import OperationError
from treaty_agent.sessions.session import Session
from treaty_consensus import kinds
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import NotFound, TreatyError

TIMEOUTS = SessionTimeouts(hello=60, code=300, reply=300, handler=60)
TRUSTED = [f"did:wba:{CUSTOMER}"]


class Product(TypedDict):
    """A product of the shop."""

    productId: str
    productName: str
    productDescription: str
    price: float
    currency: str


class Trip(TypedDict):
    """A train on a day. Money is in cents."""

    trip: str
    departs: str
    price: int


class Booking(TypedDict):
    """Seats that were booked."""

    booking: str
    total: int


class Refund(TypedDict):
    """What is paid back."""

    refund: int


LAPTOP: Product = {
    "productId": "P1",
    "productName": "Laptop",
    "productDescription": "It computes.",
    "price": 999.5,
    "currency": "EUR",
}
TRIPS: list[Trip] = [{"trip": "EC-171", "departs": "06:46", "price": 3990}]


async def getProductInfo(productId: str = "", productName: str = "") -> Product:  # noqa: N802, N803
    """A product by its id or name."""
    if productId != LAPTOP["productId"]:
        raise OperationError(404, "There is none")
    return LAPTOP


async def searchTrips(origin: str, destination: str, date: str) -> list[Trip]:  # noqa: N802
    """Trains from one station to another."""
    return TRIPS if origin == "BER" else []


async def bookTrip(trip: str, seats: int) -> Booking:  # noqa: N802
    """Book seats on a train."""
    return {"booking": "B1", "total": 3990 * seats}


async def cancelBooking(booking: str) -> Refund:  # noqa: N802
    """Give a booking back."""
    raise OperationError(409, "It was given back before")


async def addEvents(amount: int) -> int:  # noqa: N802
    """Count events."""
    if amount > 100:
        raise OperationError(429, "Too many")
    return 1_000 + amount


async def readTotal() -> int:  # noqa: N802
    """The total."""
    return 1_000


async def ask_for_products(session: Session) -> None:
    """One that there is and one that there is not."""
    assert await session.call("getProductInfo", productId="P1") == LAPTOP
    await fails(session, 404, "getProductInfo", productName="Chair")


async def ask_for_trains(session: Session) -> None:
    """Each operation once."""
    assert await session.call("searchTrips", origin="BER", destination="PRG", date="2027-05-01") == TRIPS
    assert await session.call("bookTrip", trip="EC-171", seats=2) == {"booking": "B1", "total": 7980}
    await fails(session, 409, "cancelBooking", booking="B1")


async def count_events(session: Session) -> None:
    """Numbered requests, one of which is refused."""
    assert await session.call("addEvents", amount=7) == 1_007
    await fails(session, 429, "addEvents", amount=101)
    assert await session.call("readTotal") == 1_000


async def fails(session: Session, status: int, operation: str, **arguments: Any) -> None:
    with pytest.raises(OperationError) as failure:
        await session.call(operation, **arguments)
    assert failure.value.status == status


@dataclass(frozen=True)
class Business:
    """What the two sides of one of the model's protocols are about."""

    topic: str
    functions: tuple[Callable[..., Any], ...]
    talk: Callable[[Session], Awaitable[None]]


PRODUCTS = Business("commerce/product-info", (getProductInfo,), ask_for_products)
TRAINS = Business("travel/train-tickets", (searchTrips, bookTrip, cancelBooking), ask_for_trains)
EVENTS = Business("metering/event-counter", (addEvents, readTotal), count_events)


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    before = descendants()
    with scripted_model() as server:
        yield server
    assert gone(descendants() - before)


@pytest.fixture
def registry() -> Iterator[SimulatedRegistry]:
    """One where nothing of all this is published, with its Sigstore services."""
    registry = agents_registry(published=False)
    registry.now = int(time.time())
    with serving(cast(Authority, registry)) as registry.services:
        yield registry


@asynccontextmanager
async def agent(
    registry: SimulatedRegistry,
    home: Path,
    domain: str,
    model: ScriptedModel | None = None,
    patience: float = 10.0,
    **policy: Any,
) -> AsyncIterator[Agent]:
    """An agent, with a language model or without."""
    network, config = registry.network(), AgentConfig(Policy(**{"report_delay": 0, **policy}), TIMEOUTS, home=home / domain)
    if model is None:
        async with Agent(identity(domain), str(NAME), config, network=network) as one_agent:
            yield one_agent
        return
    async with (
        opened(model, patience=patience, fix_rounds=1) as negotiators,
        Agent(identity(domain), str(NAME), config, network=network, negotiators=negotiators) as one_agent,
    ):
        yield one_agent


@asynccontextmanager
async def serving_agent(agent: Agent, business: Business, *uris: str) -> AsyncIterator[str]:
    """Its address; it offers its functions, or provides them by these protocols."""
    for function in business.functions:
        for uri in uris:
            agent.provides(uri)(function)
        if not uris:
            agent.offers(function)
    async with agent.listen("127.0.0.1", 0) as port:
        yield f"ws://127.0.0.1:{port}"


async def meet(agent: Agent, url: str, business: Business, **wish: Any) -> bool:
    """A conversation; whether it began with what was agreed on before."""
    async with agent.connect(url, **wish) as session:
        await business.talk(session)
        return session.resumed


def script_of(model: ScriptedModel, business: Business) -> Script:
    return next(script for script in model.scripts if script.topic == business.topic)


@pytest.mark.sample(1)
@pytest.mark.parametrize("business", [PRODUCTS, TRAINS, EVENTS], ids=lambda business: business.topic)
async def test_the_next_pair_needs_no_model(
    tmp_path: Path, registry: SimulatedRegistry, model: ScriptedModel, business: Business
) -> None:
    plan = script_of(model, business)
    requirement = Requirement(plan.requirement, topic=plan.topic)
    model.misbehave("handler", code(lambda source: f"import httpx\n{source}"))  # for one side, which has to mend it
    async with (
        agent(registry, tmp_path, SELLER, model, report=True) as seller,
        serving_agent(seller, business) as url,
        agent(registry, tmp_path, CUSTOMER, model, report=True, publish=True) as customer,
    ):
        assert not await meet(customer, url, business, requirement=requirement)
        requests = sorted(model.seen)
        assert requests == sorted(["draft", *["consider"] * 2, *["handler"] * 2, "repair", "tests", "consider_tests"])
        assert await meet(customer, url, business, requirement=requirement)  # by hash, on both sides
    bodies = [statement.body for _, statement in registry.statements()]
    (published,) = [body for body in bodies if isinstance(body, kinds.Publish) and body.topic == plan.topic]
    (handler,) = [body for body in bodies if isinstance(body, kinds.Handler) and body.uri == published.uri]
    name = plan.topic.split("/")[1]
    assert published.uri.endswith(f"/protocols/buyer.example/{name}/1.0")
    assert published.document.sha256 == handler.document == hex_digest(plan.document.encode())
    reports = [(body.topic, body.document, body.outcome) for body in bodies if isinstance(body, kinds.Report)]
    assert reports[0] == (plan.topic, published.document.sha256, "agreed")
    async with (
        agent(registry, tmp_path, "second-shop.example", publishers=TRUSTED) as seller,
        serving_agent(seller, business, published.uri) as url,
        agent(registry, tmp_path, "second-buyer.example", publishers=TRUSTED) as customer,
    ):
        assert not await meet(customer, url, business, topic=plan.topic)
        assert await meet(customer, url, business, topic=plan.topic)
    assert sorted(model.seen) == requests


async def published_here(agent: Agent) -> None:
    """Wait until an agent serves a negotiated protocol by its URI."""
    async with asyncio.timeout(20):
        while not agent.metrics().protocols:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_the_same_seller_serves_everybody_without_a_model(
    tmp_path: Path, registry: SimulatedRegistry, model: ScriptedModel
) -> None:
    plan = script_of(model, TRAINS)
    requirement = Requirement(plan.requirement, topic=plan.topic)
    async with (
        agent(registry, tmp_path, SELLER, model) as seller,
        serving_agent(seller, TRAINS) as url,
        agent(registry, tmp_path, CUSTOMER, model, publish=True) as customer,
    ):
        assert seller.metrics().protocols == 0
        assert not await meet(customer, url, TRAINS, requirement=requirement)
        await published_here(seller)
        requests, spend = len(model.seen), seller.metrics().model
        assert spend is not None
        assert (spend.calls, spend.strangers) == (3, 3)
        (served,) = seller.context.served.published
        assert served.published.startswith(f"https://{NAME.origin}/protocols/buyer.example/")
        async with agent(registry, tmp_path, "third.example", publishers=TRUSTED) as third:
            assert not await meet(third, url, TRAINS, topic=plan.topic)
            assert await meet(third, url, TRAINS, topic=plan.topic)
        async with agent(registry, tmp_path, "fourth.example", model, publishers=TRUSTED) as fourth:
            assert not await meet(fourth, url, TRAINS, requirement=requirement)
        assert len(model.seen) == requests
        # This one writes code of its own, since it does not trust the publisher; the seller needs no model for it.
        async with agent(registry, tmp_path, "fifth.example", model) as fifth:
            assert not await meet(fifth, url, TRAINS, requirement=requirement)
        assert sorted(model.seen[requests:]) == ["consider", "draft", "handler", "tests"]
        spend = seller.metrics().model
        assert spend is not None
        assert spend.calls == 3
    async with (
        agent(registry, tmp_path, SELLER) as again,
        serving_agent(again, TRAINS) as url,
        agent(registry, tmp_path, "sixth.example", publishers=TRUSTED) as sixth,
    ):
        assert not await meet(sixth, url, TRAINS, topic=plan.topic)


def network(source: str) -> str:
    """It cannot resist."""
    return source.replace("SECONDS = 20\n", 'import socket\nsocket.create_connection(("127.0.0.1", 9))\nSECONDS = 20\n')


def fails_its_tests(source: str) -> str:
    """Another word than the document's."""
    return source.replace('f"OK {self', 'f"Okay {self')


def never_returns(source: str) -> str:
    """A loop when it is loaded."""
    return source.replace("SECONDS = 20\n", "while True:\n    pass\n")


BUSY = instead(Reply(503, error("busy")))
SILENCE = instead(Reply(silent=True))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("names", "fault", "codes"),
    [
        (["draft"], prose, {"model.answer"}),
        (["draft"], SILENCE, {"model.unavailable"}),
        (["consider"], torn, {"negotiation.rejected"}),
        (["consider"], refusal, {"negotiation.rejected"}),
        (["handler"], prose, {"model.answer", "session.peer-code"}),
        (["handler"], oversized, {"model.answer", "session.peer-code"}),
        (["handler"], BUSY, {"model.unavailable", "session.peer-code"}),
        (["handler", "repair"], code(network), {"negotiation.handler", "session.peer-code"}),
        (["handler", "repair"], code(fails_its_tests), {"negotiation.handler", "session.peer-code"}),
        (["handler", "repair"], code(never_returns), {"negotiation.handler", "session.peer-code"}),
        (["tests"], prose, {"model.answer"}),
        (["consider_tests"], prose, {"negotiation.tests"}),
    ],
)
async def test_a_model_that_cannot_do_it_leaves_nothing(
    tmp_path: Path, registry: SimulatedRegistry, model: ScriptedModel, names: list[str], fault: Fault, codes: set[str]
) -> None:
    plan = script_of(model, TRAINS)
    for name in names:
        model.misbehave(name, *[fault] * 8)
    before = list(registry.leaves)
    async with (
        agent(registry, tmp_path, SELLER, model, 2.0) as seller,
        serving_agent(seller, TRAINS) as url,
        agent(registry, tmp_path, CUSTOMER, model, 2.0, publish=True) as customer,
    ):
        with pytest.raises(TreatyError) as caught:
            await meet(customer, url, TRAINS, requirement=Requirement(plan.requirement, topic=plan.topic))
    assert caught.value.code in codes
    assert registry.leaves == before
    for domain in (SELLER, CUSTOMER):
        assert not list((tmp_path / domain).glob("negotiated/*"))
        assert not (tmp_path / domain / "agreements.json").exists()


async def test_without_a_model_it_says_so(tmp_path: Path, registry: SimulatedRegistry, model: ScriptedModel) -> None:
    plan = script_of(model, TRAINS)
    requirement = Requirement(plan.requirement, topic=plan.topic)
    async with agent(registry, tmp_path, CUSTOMER) as customer:
        with pytest.raises(TreatyError) as caught:
            await meet(customer, "ws://127.0.0.1:1", TRAINS, requirement=requirement)
        assert caught.value.code == "agent.settings"
        assert "neither a language model" in caught.value.message
        with pytest.raises(NotFound):
            await meet(customer, "ws://127.0.0.1:1", TRAINS, topic=plan.topic)
    assert model.seen == []
