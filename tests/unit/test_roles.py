"""Roles: both sides say theirs in the Hello, and two that do not fit are refused before any code is loaded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from treaty_agent import Agent, CallContext, NotFound, OperationError, Policy, Refused, Session
from treaty_agent.discovery.client import candidates
from treaty_agent.sessions.interfaces import AgentEvent
from treaty_agent.sessions.operations import choose_role
from treaty_agent.testing import Simulation, run
from treaty_anp.discovery.parsing import AgentDescription, parse
from treaty_anp.flow_profile.capabilities import ProtocolOffer
from treaty_client.protocols.project import load_project
from treaty_consensus.errors import Malformed
from treaty_consensus.handler import Manifest, read_wheel

PAYMENT = Path(__file__).parents[1] / "support" / "payment"
ID = "anp:protocol:payment:1.0"
SHOP = "wss://shop.example"
OTHER = "https://registry.example/protocols/example.com/other/1.0"


def manifest() -> Manifest:
    return read_wheel(*load_project(PAYMENT).build_wheel("https://registry.example/protocols/example.com/payment/1.0")).manifest


async def approve(amount: int) -> bool:
    return amount <= 100


async def numbers() -> AsyncIterator[int]:
    for number in range(3):
        yield number


def payee(simulation: Simulation, **options: Any) -> Agent:
    """An agent that is paid, and asks the payer of each session to approve."""
    agent, uri = simulation.agent("shop.example", **options), simulation.uri("payment")

    @agent.provides(uri, role="payee")
    async def pay(amount: int, context: CallContext) -> str:
        (session,) = (one for one in agent.sessions(uri) if one.id == context.session)
        if not await session.call("approve", amount=amount):
            raise OperationError(402, "Not approved.")
        return f"paid {amount}"

    @agent.provides(uri, role="payee")
    async def count() -> int:
        return 7

    return agent


def simulated(body: Callable[[Simulation, str], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with Simulation([PAYMENT]) as simulation:
            await body(simulation, simulation.uri("payment"))

    run(main())


# Which roles fit


def test_roles_fit_by_name_or_by_served_operations() -> None:
    roles = manifest().roles
    fits = {(one.name, other.name) for one in roles.values() for other in roles.values() if one.fits(other)}
    assert fits == {
        *(("payer", "payee"), ("payee", "payer"), ("auditor", "payee"), ("payee", "auditor")),
        *(("bell", "hearer"), ("hearer", "bell"), ("equal", "equal")),
    }


def test_an_open_role_follows_the_peers() -> None:
    for is_initiator, peer, expected in [(False, "payer", "payee"), (True, "bell", "hearer"), (False, "equal", "equal")]:
        role = choose_role(manifest(), is_initiator=is_initiator, name="", peer_role=peer)
        assert role.name == expected
    for peer in ("", "nobody", "payee"):  # open, unknown, and one that two roles fit
        with pytest.raises(Refused) as refused:
            choose_role(manifest(), is_initiator=True, name="", peer_role=peer)
        assert refused.value.code == "session.role"


def test_a_calling_responder_meets_a_serving_initiator() -> None:
    both = manifest()
    pushed = replace(both, roles={name: both.roles[name] for name in ("bell", "hearer")})
    assert choose_role(pushed, is_initiator=True, name="", peer_role="bell").name == "hearer"
    assert choose_role(pushed, is_initiator=True, name="").name == "bell"
    assert choose_role(pushed, is_initiator=False, name="", peer_role="bell").name == "hearer"
    with pytest.raises(Refused) as refused:
        choose_role(pushed, is_initiator=True, name="", peer_role="nobody")
    assert refused.value.code == "session.role"


# The Hellos


def test_a_payer_and_a_payee_call_each_other() -> None:
    async def body(simulation: Simulation, uri: str) -> None:
        shop, buyer = payee(simulation), simulation.agent("buyer.example")
        async with simulation.serving(shop):
            async with buyer.connect(SHOP, protocols=[uri], role="payer", serving=[approve, numbers]) as session:
                assert await session.call("pay", amount=5) == "paid 5"
                assert (session.role, [one.role for one in shop.sessions()]) == ("payer", ["payee"])
                with pytest.raises(OperationError) as refused:
                    await session.call("pay", amount=500)
                assert refused.value.status == 402
            async with buyer.connect(SHOP, protocols=[uri], role="auditor", serving=[approve, numbers]) as session:
                assert await session.call("count") == 7

    simulated(body)


@pytest.mark.parametrize("role", ["payee", "bell", "hearer", "nobody"])
@pytest.mark.parametrize("discover", [False, True])
def test_an_unfitting_role_is_refused_before_any_code(role: str, discover: bool) -> None:
    events: list[AgentEvent] = []

    async def body(simulation: Simulation, uri: str) -> None:
        shop, buyer = payee(simulation, on_event=events.append), simulation.agent("buyer.example", on_event=events.append)
        async with simulation.serving(shop):
            with pytest.raises(Refused) as refused:
                async with buyer.connect(
                    "shop.example" if discover else SHOP, protocols=[uri], role=role, serving=[approve, numbers]
                ):
                    pass
            assert refused.value.code == "session.role"
            assert "payee" in refused.value.message
            assert role in refused.value.message
            assert shop.sessions() == []
        assert [event.name for event in events if event.name in ("verified", "sandbox", "running")] == []

    simulated(body)


def test_two_equal_roles_of_a_protocol_between_equals_fit() -> None:
    async def body(simulation: Simulation, uri: str) -> None:
        one, other = simulation.agent("shop.example"), simulation.agent("buyer.example")
        one.provides(uri, role="equal")(approve)
        async with simulation.serving(one), other.connect(SHOP, protocols=[uri], role="equal", serving=[approve]) as session:
            assert await session.call("approve", amount=1)
            (back,) = one.sessions(uri)
            assert not await back.call("approve", amount=101)

    simulated(body)


def test_an_initiator_without_role_takes_the_fitting_one() -> None:
    async def body(simulation: Simulation, uri: str) -> None:
        bell, hearer, rings = simulation.agent("shop.example"), simulation.agent("buyer.example"), list[str]()

        @bell.on_session(uri, role="bell")
        async def ring(session: Session) -> None:
            await session.call("rang", bell="tower")

        async def rang(bell: str) -> None:
            rings.append(bell)

        async with simulation.serving(bell), hearer.connect(SHOP, protocols=[uri], serving=[rang]) as session:
            assert session.role == "hearer"
            while not bell.sessions():  # noqa: ASYNC110  # the hearer may have opened its session before the bell has
                await asyncio.sleep(0.01)
            outcomes = await bell.broadcast(uri, "rang", bell="door")
            assert [outcome.error for outcome in outcomes] == [None]
            # The close of the session comes after all events.
        assert sorted(rings) == ["door", "tower"]

    simulated(body)


def test_another_candidate_with_a_fitting_role_is_chosen(tmp_path: Path) -> None:
    async def main() -> None:
        greeting = Path(__file__).parents[2] / "examples" / "greeting"
        async with Simulation([PAYMENT, greeting]) as simulation:
            shop, buyer = payee(simulation), simulation.agent("buyer.example")

            async def greet(name: str) -> str:
                return f"Hello, {name}!"

            shop.provides(simulation.uri("greeting"))(greet)
            offered = [simulation.uri("payment"), simulation.uri("greeting")]
            async with simulation.serving(shop), buyer.connect(SHOP, protocols=offered, role="guest") as session:
                assert session.protocol == simulation.uri("greeting")

    run(main())


@pytest.mark.parametrize("role", ["payer", "equal", "nobody"])
def test_the_flow_profile_carries_the_role_of_the_initiator(role: str) -> None:
    async def body(simulation: Simulation, uri: str) -> None:
        shop, buyer = payee(simulation), simulation.agent("buyer.example")
        for agent in (shop, buyer):
            agent.flow.registry.add(ProtocolOffer(ID, uri=uri))

        def connect() -> Any:
            return buyer.connect(SHOP, protocols=[ID], did=shop.did, role=role, serving=[approve, numbers])

        async with simulation.serving(shop):
            for _ in range(2):  # the second time by the remembered agreement
                if role == "payer":
                    async with connect() as session:
                        assert (session.profile, await session.call("pay", amount=1)) == ("flow", "paid 1")
                    continue
                with pytest.raises(Refused) as refused:
                    async with connect():
                        pass
                assert refused.value.code == "session.role"
                assert shop.sessions() == []

    simulated(body)


@pytest.mark.parametrize("encryption", ["off", "required"])
def test_a_refused_role_has_the_same_code_with_encryption(encryption: Literal["off", "required"]) -> None:
    async def body(simulation: Simulation, uri: str) -> None:
        policy = Policy(encryption=encryption)
        shop, buyer = simulation.agent("shop.example", policy), simulation.agent("buyer.example", policy)
        shop.provides(uri, role="equal")(approve)
        async with simulation.serving(shop):
            with pytest.raises(Refused) as refused:
                async with buyer.connect(SHOP, protocols=[uri], role="payer", serving=[approve, numbers]):
                    pass
            assert (refused.value.code, "role=" in refused.value.fix, shop.sessions()) == ("session.role", True, [])

    simulated(body)


def test_functions_of_one_session_are_compared_with_the_manifest() -> None:
    async def body(simulation: Simulation, uri: str) -> None:
        shop, buyer = payee(simulation), simulation.agent("buyer.example")
        called: list[float] = []

        async def approve(sum: float) -> bool:
            called.append(sum)
            return True

        async with simulation.serving(shop):
            with pytest.raises(Malformed) as refused:
                async with buyer.connect(SHOP, protocols=[uri], role="payer", serving=[approve, numbers]) as session:
                    await session.call("pay", amount=1)
            assert (refused.value.code, "approve" in refused.value.message, called) == ("agent.function", True, [])

    simulated(body)


# What is remembered


def test_the_role_is_part_of_what_is_remembered() -> None:
    async def body(simulation: Simulation, uri: str) -> None:
        shop, buyer = payee(simulation), simulation.agent("buyer.example")
        serving: list[Callable[..., Any]] = [approve, numbers]
        async with simulation.serving(shop):
            seen = []
            for role in ("payer", "payer", "", "auditor", "auditor", "payer"):
                async with buyer.connect(SHOP, protocols=[uri], role=role, serving=serving) as session:
                    await session.call("pay", amount=1) if session.role == "payer" else await session.call("count")
                    seen.append((session.role, session.resumed))
        assert seen == [
            *(("payer", False), ("payer", True), ("payer", True)),
            *(("auditor", False), ("auditor", True), ("payer", False)),
        ]

    simulated(body)


def test_a_remembered_role_that_no_longer_fits_is_forgotten() -> None:
    async def body(simulation: Simulation, uri: str) -> None:
        shop, buyer = payee(simulation), simulation.agent("buyer.example")
        async with (
            simulation.serving(shop),
            buyer.connect(SHOP, protocols=[uri], role="payer", serving=[approve, numbers]) as session,
        ):
            assert await session.call("pay", amount=1) == "paid 1"
        await shop.aclose()
        changed = simulation.agent("shop.example")
        changed.provides(uri, role="equal")(approve)
        async with simulation.serving(changed):
            with pytest.raises(Refused) as refused:
                async with buyer.connect(SHOP, protocols=[uri], role="payer", serving=[approve, numbers]) as session:
                    await session.call("pay", amount=1)
            assert refused.value.code == "session.role"
            async with buyer.connect(SHOP, protocols=[uri], role="equal", serving=[approve]) as session:
                assert await session.call("approve", amount=1)

    simulated(body)


# Functions of one session


def test_the_functions_of_a_session_belong_to_it_alone() -> None:
    async def body(simulation: Simulation, uri: str) -> None:
        shop, buyer = payee(simulation), simulation.agent("buyer.example")

        async def generous() -> None: ...

        async with simulation.serving(shop):
            async with buyer.connect(SHOP, protocols=[uri], role="payer", serving=[approve, numbers]) as session:
                assert await session.call("pay", amount=1) == "paid 1"
            too_few: list[list[Callable[..., Any]]] = [[], [approve], [generous]]
            for serving in too_few:
                with pytest.raises(NotFound) as missing:
                    async with buyer.connect(SHOP, protocols=[uri], role="payer", serving=serving) as session:
                        await session.call("pay", amount=1)
                assert missing.value.code == "agent.function"
            assert buyer.context.served.services == {}

    simulated(body)


def test_a_peer_handle_serves_in_each_of_its_sessions() -> None:
    async def body(simulation: Simulation, uri: str) -> None:
        shop, buyer = payee(simulation), simulation.agent("buyer.example")

        amounts: list[int] = []

        def approve(amount: int) -> bool:  # in a thread
            amounts.append(amount)
            return True

        @shop.on_session(uri)
        async def ask(session: Session) -> None:
            await session.call("approve", amount=len(amounts))

        peer = buyer.peer(SHOP, protocols=[uri], role="auditor", serving=[approve, numbers])
        async with simulation.serving(shop), peer:
            for _ in range(3):
                assert await peer.call("count") == 7
                (session,) = shop.sessions()
                await session.call("approve", amount=10)
                await simulation.links["shop.example"].cut()
        assert amounts.count(10) == 3

    simulated(body)


# Discovery


def test_discovery_lists_the_role_without_callbacks() -> None:
    async def body(simulation: Simulation, uri: str) -> None:
        shop, planner = payee(simulation), simulation.agent("planner.example")

        async def unused() -> None: ...

        planner.provides(uri, role="bell")(unused)
        with pytest.raises(Refused) as refused:
            await planner.prepare()
        assert (refused.value.code, "serving" in refused.value.fix) == ("session.role", True)
        await shop.prepare()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(shop.asgi([SHOP]))) as client:
            for path in ("/ad.json", "/.well-known/agent-card.json"):
                url = f"https://shop.example{path}"
                description = parse((await client.get(url)).content, url)
                assert isinstance(description, AgentDescription)
                assert [(protocol.uri, protocol.role) for protocol in description.protocols] == [(uri, "payee")]
                # Two equal roles rarely speak with each other.
                assert candidates(description, [uri, OTHER], role="payee") == (OTHER, uri)
                assert candidates(description, [uri, OTHER], role="payer") == (uri, OTHER)

    simulated(body)


def test_a_role_in_a_description_is_a_role_or_nothing() -> None:
    for name, expected in [("payee", "payee"), ("Payee", ""), ("a" * 33, ""), ("a\nb", ""), (7, ""), (None, "")]:
        interface = {"type": "StructuredInterface", "protocol": "https://registry.example/p", "role": name}
        value = json.dumps({"type": "AgentDescription", "interfaces": [interface]}).encode()
        description = parse(value, "https://shop.example/ad.json")
        assert isinstance(description, AgentDescription)
        assert [protocol.role for protocol in description.protocols] == [expected]
