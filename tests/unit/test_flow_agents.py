"""Two agents that negotiate by the flow profile and speak: over memory in virtual time, and over WebSockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from connections import NotingConnection, StallingConnection
from flow_peers import (
    BUYER,
    INFO_1,
    INFO_2,
    SHOP,
    FlowAgent,
    agent,
    meeting,
)
from meetings import LAPTOP, URI_1, URI_2

from treaty_agent import CallContext, TraceContext
from treaty_agent.sessions import wire
from treaty_agent.sessions.flow_context import system_clock
from treaty_agent.sessions.interfaces import Located
from treaty_agent.sessions.operation_errors import OperationError, OutcomeUnknown
from treaty_agent.sessions.operations import Functions
from treaty_agent.sessions.session import Session
from treaty_agent.testing.virtual_time import run
from treaty_agent.transport import listener, memory, websocket
from treaty_agent.transport.connection import next_message
from treaty_anp.flow_profile.adaptation import Thresholds
from treaty_anp.flow_profile.capabilities import FlowRequest, ProtocolOffer
from treaty_anp.flow_profile.parameters import Range
from treaty_anp.flow_profile.payloads import ContextInfo
from treaty_anp.flow_profile.states import FlowLimits, FlowTimeouts
from treaty_consensus.errors import Malformed, NotFound, Refused, TreatyError, Unavailable
from treaty_handler import Call, Effect, Event, Opened, Persist, Send, Value
from treaty_io.identity import ProvedPeer
from treaty_io.network.hosts import Network
from treaty_sandbox.interface import RunningHandler

GOAL = FlowRequest("buying", requirements={"timeConstraint": "normal"})


def words(tap: NotingConnection) -> list[str]:
    """What went over a connection: direction and action, or type."""
    values = [(way, json.loads(text)) for way, text in tap.seen]
    return [f"{way}{value['action'] if value['type'] == 'meta-protocol' else value['type']}" for way, value in values]


def only(function: Callable[..., Any]) -> Functions:
    """The functions of an agent that has one."""
    functions = Functions()
    functions.add(function)
    return functions


def both(home: Path, *offers: ProtocolOffer, **options: Any) -> tuple[FlowAgent, FlowAgent]:
    return agent("shop", home, *offers, **options), agent("buyer", home, *offers, **options)


async def buy(shop: FlowAgent, buyer: FlowAgent, goal: FlowRequest = GOAL) -> NotingConnection:
    """One negotiation, one call."""
    async with meeting(shop) as tap:
        async with await buyer.manager.negotiate(tap, goal, peer=SHOP.did) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        return tap


async def fails(shop: FlowAgent, buyer: FlowAgent, goal: FlowRequest = GOAL, peer: str = SHOP.did) -> TreatyError:
    async with meeting(shop) as tap:
        with pytest.raises(TreatyError) as failure:
            await buyer.manager.negotiate(tap, goal, peer=peer)
    assert shop.runtime.opened == buyer.runtime.opened == []
    return failure.value


def test_001_07_strangers_negotiate_fetch_and_speak(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        async with meeting(shop) as tap:
            session = await buyer.manager.negotiate(tap, GOAL, peer=SHOP.did)
            assert (session.peer.did, session.protocol, session.protocol_id) == (SHOP.did, URI_2, INFO_2)
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            with pytest.raises(OperationError) as failure:
                await session.call("getProductInfo", productId="P99999")
            assert failure.value.status == 404
            await session.close()
            with pytest.raises(Unavailable):
                await session.call("getProductInfo", productId="P12345")
        phrases = words(tap)
        assert phrases[:4] == [">initialize", "<capabilities-exchange", ">capabilities-exchange", ">protocol-evaluation"]
        assert phrases[10:] == [">product-info", "<product-info"] * 2
        first = json.loads(tap.seen[10][1])
        assert first["sessionId"] == session.id
        assert set(first["payload"]) == {"data"}
        ready = ["hello", "verified", "sandbox", "running"]
        assert (shop.events, buyer.events) == ([*ready, "end"], [*ready, "first reply", "end"])
        assert (shop.names.fetched, buyer.names.fetched) == ([URI_2], [URI_2])
        assert all(handler.closed for handler in (*shop.runtime.opened, *buyer.runtime.opened))

    run(main())


def test_a_calls_trace_crosses_the_byte_form(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        seen: list[CallContext] = []

        async def getProductInfo(productId: str, context: CallContext) -> Value:  # noqa: N802, N803
            seen.append(context)
            return LAPTOP

        shop.functions = only(getProductInfo)
        async with meeting(shop) as tap, await buyer.manager.negotiate(tap, GOAL, peer=SHOP.did) as session:
            await session.call("getProductInfo", {"productId": "P12345"}, within=2.0)
            (context,) = seen
            sent = json.loads(tap.seen[10][1])["callContext"]
            trace = TraceContext.parse(sent["traceparent"])
            assert trace is not None
            assert (context.trace.trace_id, context.trace.parent_id) == (trace.trace_id, trace.span_id)
            assert 1990 < sent["timeout"] <= 2000
            assert context.time_left <= 2.0
            assert context.peer == ProvedPeer(BUYER.did)
            assert (context.session, context.protocol, context.parameters) == (session.id, URI_2, session.parameters)

    run(main())


async def test_001_07_two_agents_speak_over_a_websocket(tmp_path: Path) -> None:
    shop, buyer = both(tmp_path, clock=system_clock)
    async with listener.listen(shop.manager.accept, "127.0.0.1", 0, max_connections=4) as port:
        for _ in range(2):
            connection = await websocket.connect(f"ws://127.0.0.1:{port}/", Network())
            async with await buyer.manager.negotiate(connection, GOAL, peer=SHOP.did) as session:
                values = await asyncio.gather(*(session.call("getProductInfo", productId="P12345") for _ in range(5)))
                assert values == [LAPTOP] * 5
    assert [name for name in buyer.events if name in ("running", "end")] == ["running", "end"] * 2


def test_001_27_28_29_30_31_and_32_a_first_message_dispatches(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        near, far = memory.pair()

        async def accept() -> None:
            first = await next_message(far)
            assert isinstance(first, str)
            await shop.manager.accept(far, first=first)

        task = asyncio.create_task(accept())
        async with await buyer.manager.negotiate(near, GOAL, peer=SHOP.did) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        await task

    run(main())


def test_001_29_each_connection_has_an_independent_session(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        async with meeting(shop) as one, meeting(shop) as two:
            first = await buyer.manager.negotiate(one, GOAL, peer=SHOP.did)
            second = await buyer.manager.negotiate(two, GOAL, peer=SHOP.did)
            assert first.id != second.id
            await first.close()
            assert await second.call("getProductInfo", productId="P12345") == LAPTOP
            await second.close()

    run(main())


# Optimisations


def test_001_19_the_second_negotiation_takes_one_round_trip(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        assert len(words(await buy(shop, buyer))) == 12
        again = agent("buyer", tmp_path)  # another process, the same home
        tap = await buy(shop, again)
        assert words(tap) == [
            *(">initialize", ">protocol-proposal", ">parameter-negotiation", ">protocol-confirmation"),
            *("<protocol-response", "<parameter-response", "<confirmation-acknowledgment", ">product-info", "<product-info"),
        ]

    run(main())


def test_001_19_a_refused_protocol_is_proposed_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        offer = ProtocolOffer(INFO_2, ("query",), parameters={"maxMessageSize": Range(1000, 50_000)})
        shop, buyer = both(tmp_path, offer)
        await buy(shop, buyer)
        stricter = agent("buyer", tmp_path, ProtocolOffer(INFO_2, ("query",), parameters={"maxMessageSize": Range(1000, 20_000)}))
        tap = await buy(shop, stricter)
        assert words(tap)[1] == "<capabilities-exchange"

    run(main())


def test_001_19_a_shortcut_that_fails_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        await buy(shop, buyer)
        shop.manager.registry.remove(INFO_2)
        tap = await buy(shop, buyer)
        assert words(tap).count(">initialize") == 2
        assert buyer.manager.history.recall(SHOP.did, GOAL.purpose, [INFO_2]) is None
        recalled = buyer.manager.history.recall(SHOP.did, GOAL.purpose, [INFO_1])
        assert recalled is not None
        assert recalled.agreed.uri == URI_1

    run(main())


def test_001_20_the_usual_protocol_is_proposed_to_strangers(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        for _ in range(2):
            await buy(shop, buyer)
        tap = await buy(shop, buyer, FlowRequest("comparing prices"))
        assert words(tap)[:4] == [">initialize", ">protocol-proposal", ">parameter-negotiation", "<protocol-response"]
        assert ">protocol-confirmation" in words(tap)

    run(main())


def test_001_21_a_simplified_negotiation_is_the_callers_choice(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        tap = await buy(shop, buyer, FlowRequest("buying", protocols=(INFO_1,), simplified=True))
        assert words(tap)[:4] == [">initialize", ">protocol-proposal", ">parameter-negotiation", "<protocol-response"]
        assert len(words(tap)) == 9

    run(main())


def test_001_22_a_batch_gives_a_session_for_each_protocol(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        async with meeting(shop) as tap:
            sessions = await buyer.manager.negotiate_batch(tap, GOAL, 2, peer=SHOP.did)
            assert {session.protocol for session in sessions} == {URI_1, URI_2}
            calls = [session.call("getProductInfo", productId="P12345") for session in sessions]
            assert await asyncio.gather(*calls) == [LAPTOP] * 2
            await sessions[0].close()
            assert await sessions[1].call("getProductInfo", productId="P12345") == LAPTOP
            await sessions[1].close()
            with pytest.raises(Malformed):
                await buyer.manager.negotiate_batch(tap, GOAL, 9, peer=SHOP.did)

    run(main())


def test_a_handler_started_for_a_change_ends_with_its_session(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        async with meeting(shop) as tap:
            sessions = await buyer.manager.negotiate_batch(tap, GOAL, 2, peer=SHOP.did)
            changed, other = sorted(sessions, key=lambda session: session.protocol != URI_2)
            buyer.runtime.delay = 5.0
            changing = asyncio.create_task(changed.renegotiate(protocol=INFO_1))
            await asyncio.sleep(2)
            await changed.close()
            with pytest.raises(TreatyError):
                await changing
            await asyncio.sleep(10)
            assert sorted(handler.closed for handler in buyer.runtime.opened) == [False, True, True]
            assert [session.id for session in buyer.manager.sessions] == [other.id]
            assert await other.call("getProductInfo", productId="P12345") == LAPTOP
            await other.close()

    run(main())


def test_001_24_protocols_are_evaluated_at_the_same_time(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        under_way, most = 0, 0
        locate = buyer.names.locate

        async def counted(id: str, digest: str = "") -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(1)
            under_way -= 1
            return await locate(id, digest)

        buyer.names.locate = counted  # type: ignore[method-assign]
        await buy(shop, buyer)
        assert most == 2

    run(main())


def test_001_25_a_negotiation_blocks_no_other_work(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        async with meeting(shop) as one, meeting(shop) as two:
            session = await buyer.manager.negotiate(one, GOAL, peer=SHOP.did)
            buyer.names.delay = shop.names.delay = 5.0
            negotiating = asyncio.create_task(buyer.manager.negotiate(two, FlowRequest("another"), peer=SHOP.did))
            changing = asyncio.create_task(session.renegotiate(protocol=INFO_1))
            for _ in range(5):
                await asyncio.sleep(0.5)
                assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            assert not negotiating.done()
            assert not changing.done()
            await changing
            assert session.protocol == URI_1
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            await (await negotiating).close()
            await session.close()

    run(main())


def test_001_26_details_are_exchanged_only_of_what_both_speak(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        shop.manager.registry.add(ProtocolOffer("anp:protocol:other:1.0", ("much",)))
        tap = await buy(shop, buyer, FlowRequest("buying", summary=True))
        exchanged = [json.loads(text)["payload"] for _, text in tap.seen if '"capabilities-exchange"' in str(text)]
        assert [len(payload["supportedProtocols"]) for payload in exchanged] == [3, 2, 2]
        assert all("capabilities" not in entry for entry in exchanged[0]["supportedProtocols"])

    run(main())


# Adaptation


class Slow:
    """A handler that takes its time for what it receives."""

    kept = None

    def __init__(self, inner: RunningHandler, seconds: Callable[[], float]) -> None:
        self.inner, self.seconds = inner, seconds

    async def handle(self, event: Event) -> Sequence[Effect]:
        await asyncio.sleep(self.seconds() if isinstance(event, Call) else 0)
        return await self.inner.handle(event)

    async def close(self) -> None:
        await self.inner.close()


def test_001_09_10_11_and_12_a_slow_session_is_adapted(tmp_path: Path) -> None:
    async def main() -> None:
        rules = {"chunkSize": Range(1000, 64_000), "maxMessageSize": Range(100_000, 500_000)}
        offers = ProtocolOffer(INFO_1, ("query",), 0.5), ProtocolOffer(INFO_2, ("query",), 0.9, parameters=rules)
        watch = Thresholds(latency=1.0, samples=3, window=3, patience=1, pause=5.0)
        shop, buyer = agent("shop", tmp_path, *offers), agent("buyer", tmp_path, *offers, thresholds=watch)
        slow = {"seconds": 4.0}
        buyer.runtime.wrap = lambda handler: Slow(handler, lambda: slow["seconds"])
        async with meeting(shop) as tap:
            session = await buyer.manager.negotiate(tap, GOAL, peer=SHOP.did)
            id, before = session.id, dict(session.parameters)
            seen = []
            for _ in range(7):
                assert await session.call("getProductInfo", productId="P12345") == LAPTOP
                await asyncio.sleep(0.1)
                seen.append((session.protocol, dict(session.parameters)))
            assert seen[0] == (URI_2, before)
            assert seen[3] == (URI_2, {"chunkSize": 32_000, "maxMessageSize": 250_000})
            slow["seconds"] = 0
            assert seen[6] == (URI_1, {})
            assert session.id == id
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            await session.close()
        names = [name for name in buyer.events if name in ("running", "changed", "end") or name.startswith("adapting")]
        assert names == ["running", "adapting: slow", "changed", "adapting: slow", "changed", "end"]

    run(main())


def test_001_09_a_responder_in_trouble_is_asked_again(tmp_path: Path) -> None:
    async def main() -> None:
        mine = ProtocolOffer(INFO_2, ("query",), parameters={"maxMessageSize": Range(10_000, 500_000)})
        shop, buyer = agent("shop", tmp_path, mine), agent("buyer", tmp_path, mine)
        async with meeting(shop) as tap:
            session = await buyer.manager.negotiate(tap, GOAL, peer=SHOP.did)
            assert session.parameters == {"maxMessageSize": 500_000}
            shop.manager.registry.remove(INFO_2)
            shop.manager.registry.add(ProtocolOffer(INFO_2, ("query",), parameters={"maxMessageSize": Range(10_000, 20_000)}))
            shop.manager.tell(ContextInfo("low"))
            await asyncio.sleep(1)
            assert session.parameters == {"maxMessageSize": 20_000}
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            await session.close()

    run(main())


class Keeping:
    """A handler that keeps a value when it is first opened, and notes what it finds."""

    kept = None
    found: list[dict[str, bytes]]

    def __init__(self, inner: RunningHandler, states: list[dict[str, bytes]]) -> None:
        self.inner, self.found = inner, states

    async def handle(self, event: Event) -> Sequence[Effect]:
        effects = await self.inner.handle(event)
        if isinstance(event, Opened):
            self.found.append(dict(event.stored))
            if not event.stored:
                return [*effects, Persist(key="basket", value=b"1 laptop")]
        return effects

    async def close(self) -> None:
        await self.inner.close()


def test_001_12_state_and_waiting_calls_move_to_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        states: dict[str, list[dict[str, bytes]]] = {"shop": [], "buyer": []}
        deaf = {"shop": True}

        class Deaf(Keeping):
            """Never answers what it receives, as long as it is so."""

            state = None

            async def handle(self, event: Event) -> Sequence[Effect]:
                effects = await super().handle(event)
                return [effect for effect in effects if not (deaf["shop"] and isinstance(effect, Send))]

        shop.runtime.wrap = lambda handler: Deaf(handler, states["shop"])
        buyer.runtime.wrap = lambda handler: Keeping(handler, states["buyer"])
        async with meeting(shop) as tap:
            session = await buyer.manager.negotiate(tap, GOAL, peer=SHOP.did)
            waiting = asyncio.create_task(session.call("getProductInfo", productId="P12345"))
            await asyncio.sleep(1)
            deaf["shop"] = False
            await session.renegotiate(protocol=INFO_1)
            assert await waiting == LAPTOP
            await session.close()
        assert states == {"shop": [{}, {"basket": b"1 laptop"}], "buyer": [{}, {"basket": b"1 laptop"}]}

    run(main())


def test_001_06_a_session_is_renewed_and_expires(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path, limits=FlowLimits(lifetime=60), timeouts=FlowTimeouts(renew=0))
        async with meeting(shop) as tap:
            session = await buyer.manager.negotiate(tap, GOAL, peer=SHOP.did)
            expiry = session.expires_at
            await asyncio.sleep(50)
            await session.renegotiate()
            assert session.expires_at > expiry + 45_000
            await asyncio.sleep(30)
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            await asyncio.sleep(60)
            with pytest.raises(Refused) as failure:
                await session.call("getProductInfo", productId="P12345")
            assert failure.value.code == "flow.expired"
            await session.close()

    run(main())


# Misfortunes


def test_001_13_nothing_in_common(tmp_path: Path) -> None:
    shop, buyer = agent("shop", tmp_path, ProtocolOffer("anp:protocol:other:1.0")), agent("buyer", tmp_path)
    assert run(fails(shop, buyer)).code == "session.no-common-protocol"


def test_001_15_other_versions(tmp_path: Path) -> None:
    shop, buyer = agent("shop", tmp_path, ProtocolOffer(INFO_1)), agent("buyer", tmp_path, ProtocolOffer(INFO_2))
    assert run(fails(shop, buyer)).code == "flow.version-conflict"


def test_001_13_an_id_that_means_nothing_here_is_no_match(tmp_path: Path) -> None:
    shop, buyer = both(tmp_path)
    buyer.names.known.clear()
    assert run(fails(shop, buyer)).code == "session.no-common-protocol"
    assert buyer.names.fetched == []


def test_001_16_two_documents_of_one_id_are_distinguished(tmp_path: Path) -> None:
    offers = (ProtocolOffer(INFO_2, ("query",)),)
    shop, buyer = both(tmp_path, *offers)
    shop.names.known[INFO_2] = shop.names.known[INFO_1]
    assert run(fails(shop, buyer)).code == "flow.parameters"


def test_001_16_the_owners_meaning_of_an_id_distinguishes_them(tmp_path: Path) -> None:
    shop, buyer = both(tmp_path, ProtocolOffer(INFO_2, ("query",)))

    async def pinned(id: str, digest: str = "") -> Located:
        return Located(URI_2, digest)

    buyer.names.locate = pinned  # type: ignore[method-assign]
    shop.names.known[INFO_2] = shop.names.known[INFO_1]
    assert run(fails(shop, buyer)).code == "flow.parameters"


def test_001_14_a_peer_that_says_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        _, buyer = both(tmp_path)
        near, far = memory.pair()
        with pytest.raises(Unavailable) as failure:
            await buyer.manager.negotiate(near, GOAL, peer=SHOP.did)
        assert failure.value.code == "session.reply-timeout"
        messages = [json.loads(await next_message(far)) for _ in range(2)]
        assert messages[1]["payload"]["errorCode"] == "NEGOTIATION_TIMEOUT"

    run(main())


def test_001_14_a_source_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        shop, _ = both(tmp_path)
        near, far = memory.pair()
        await shop.manager.accept(far)
        with pytest.raises(TreatyError) as failure:
            await next_message(near)
        assert getattr(failure.value, "reason", "") == "session.reply-timeout"

    run(main())


def test_001_17_a_peer_that_is_another_is_found_out(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        error = await fails(shop, buyer, peer="did:wba:bank.example")
        assert error.code in ("flow.verification", "flow.peer")
        near, _ = memory.pair()
        with pytest.raises(Malformed):
            await buyer.manager.negotiate(near, GOAL)
        with pytest.raises(Refused):
            await buyer.manager.negotiate(NotingConnection(near, peer=BUYER.did), GOAL, peer=SHOP.did)

    run(main())


def spoiled(
    tmp_path: Path, change: Callable[[str], str | bytes], at: int
) -> Coroutine[Any, Any, tuple[FlowAgent, NotingConnection, TreatyError]]:
    """A negotiation whose n-th message to the buyer is changed on its way, or to the shop for a negative n."""

    class Spoiler(NotingConnection):
        def send(self, message: str | bytes) -> None:
            sent = sum(way == ">" for way, _ in self.seen)
            super().send(change(str(message)) if sent == -at - 1 else message)

        def receive(self) -> str | bytes | None:
            got = sum(way == "<" for way, _ in self.seen)
            message = super().receive()
            return change(str(message)) if got == at and message is not None else message

    async def main() -> tuple[FlowAgent, NotingConnection, TreatyError]:
        shop, buyer = both(tmp_path)
        async with meeting(shop) as tap:
            spoiler = Spoiler(tap.inner)
            with pytest.raises(TreatyError) as failure:
                await buyer.manager.negotiate(spoiler, GOAL, peer=SHOP.did)
        assert shop.runtime.opened == []
        return shop, spoiler, failure.value

    return main()


@pytest.mark.parametrize("at", [0, 1, -2, -4])
def test_001_17_a_changed_message_is_reported_and_runs_nothing(tmp_path: Path, at: int) -> None:
    def change(text: str) -> str:
        return (
            text.replace("product-info:1.1", "product-info:1.0")
            .replace('"version":"1.1"', '"version":"1.0"')
            .replace("anp:protocol:product-info:1.0", "anp:protocol:product-infos:1.0", 1)
        )

    _, tap, error = run(spoiled(tmp_path, change, at))
    assert error.code == "flow.verification"
    error_codes = [json.loads(text)["payload"].get("errorCode") for _, text in tap.seen]
    assert "VERIFICATION_FAILED" in error_codes


@pytest.mark.parametrize("spoil", [lambda text: text.encode(), lambda text: "{", lambda text: text + " " * 70_000])
def test_what_is_no_message_ends_the_connection_and_nothing_runs(tmp_path: Path, spoil: Callable[[str], str | bytes]) -> None:
    for at in (0, -2):
        _, _, error = run(spoiled(tmp_path / str(at), spoil, at))
        assert (error.peer_code or error.code) in ("flow.message", "flow.too-large")


def test_001_17_a_recorded_negotiation_cannot_be_replayed(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        await buy(shop, buyer)
        recorded = [text for way, text in (await buy(shop, buyer)).seen if way == ">"]
        opened = len(shop.runtime.opened)
        async with meeting(shop) as tap:
            for text in recorded:
                tap.send(text)
            data = json.loads(await next_message(tap))
            assert (data["payload"]["errorCode"], data["recipient"]) == ("VERIFICATION_FAILED", BUYER.did)
            assert data["replyTo"] == json.loads(recorded[0])["messageId"]
            with pytest.raises(TreatyError) as failure:
                await next_message(tap)
            assert getattr(failure.value, "reason", "") == "flow.verification"
        assert len(shop.runtime.opened) == opened

    run(main())


def test_unrunnable_code_ends_the_negotiation_on_both_sides(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)

        async def broken(*args: Any, **options: Any) -> RunningHandler:
            raise Unavailable("sandbox.unavailable", "There is no sandbox here.")

        shop.runtime.open = broken  # type: ignore[method-assign]
        error = await fails_with_handlers(shop, buyer)
        assert (error.code, error.peer_code) == ("session.peer-refused", "sandbox.unavailable")

    run(main())


async def fails_with_handlers(shop: FlowAgent, buyer: FlowAgent) -> TreatyError:
    async with meeting(shop) as tap:
        with pytest.raises(TreatyError) as failure:
            await buyer.manager.negotiate(tap, GOAL, peer=SHOP.did)
    assert all(handler.closed for handler in buyer.runtime.opened)
    return failure.value


def test_a_negotiation_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)

        async def locate(id: str, digest: str = "") -> Located:
            try:
                await asyncio.sleep(20)
            finally:
                await asyncio.sleep(1)  # what it has to put away
            raise AssertionError("nobody waited for it")

        buyer.names.locate = locate  # type: ignore[method-assign]
        async with meeting(shop) as tap:
            task = asyncio.create_task(buyer.manager.negotiate(tap, GOAL, peer=SHOP.did))
            await asyncio.sleep(5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert buyer.runtime.opened == []
        await asyncio.sleep(2)  # on a busy machine the second above may end after its deadline; the 20 seconds would not
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_who_asks_for_more_and_reads_none_of_it_is_not_read_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "READ_ROOM", 4000)
    monkeypatch.setattr(wire, "CALL_ROOM", 1000)

    async def main() -> None:
        shop, buyer = both(tmp_path)
        near, far = memory.pair()
        slow = StallingConnection(far)
        task = asyncio.create_task(shop.manager.accept(slow))
        session = await buyer.manager.negotiate(near, GOAL, peer=SHOP.did)
        before = len(slow.seen)
        slow.shut()
        calls = []
        for _ in range(60):
            calls.append(asyncio.create_task(session.call("getProductInfo", productId="P12345")))
            await asyncio.sleep(0.01)
        assert len(slow.seen) - before < 20
        slow.open()
        assert await asyncio.gather(*calls) == [LAPTOP] * 60
        await session.close()
        await task

    run(main())


def test_the_peers_end_is_told_to_whoever_waits(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)

        async def getProductInfo(productId: str = "", productName: str = "") -> None:  # noqa: N802, N803
            await asyncio.sleep(1000)

        shop.functions = only(getProductInfo)
        async with meeting(shop) as tap:
            session = await buyer.manager.negotiate(tap, GOAL, peer=SHOP.did)
            call = asyncio.create_task(session.call("getProductInfo", productId="P12345"))
            await asyncio.sleep(1)
            await tap.close()
            with pytest.raises(Unavailable):
                await call
            assert isinstance(session, Session)
            assert session.is_over
        await buyer.manager.aclose()

    run(main())


def test_001_07_a_call_is_waited_for_as_long_as_was_agreed(tmp_path: Path) -> None:
    async def main() -> None:
        rules = {"responseTimeout": Range(1000, 2000)}
        shop, buyer = both(tmp_path, ProtocolOffer(INFO_2, ("query",), parameters=rules))

        async def getProductInfo(productId: str = "", productName: str = "") -> Any:  # noqa: N802, N803
            await asyncio.sleep(3)
            return LAPTOP

        shop.functions = only(getProductInfo)
        async with meeting(shop) as tap, await buyer.manager.negotiate(tap, GOAL, peer=SHOP.did) as session:
            began = asyncio.get_running_loop().time()
            with pytest.raises(OutcomeUnknown, match="within 2 seconds"):
                await session.call("getProductInfo", productId="P12345")
            assert asyncio.get_running_loop().time() - began == pytest.approx(2, abs=0.2)

    run(main())


def test_001_12_only_the_initiator_changes_registered_protocols(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = both(tmp_path)
        async with meeting(shop) as tap, await buyer.manager.negotiate(tap, GOAL, peer=SHOP.did) as session:
            with pytest.raises(NotFound):
                await session.renegotiate(protocol="anp:protocol:other:1.0")
            (theirs,) = shop.manager.sessions
            with pytest.raises(Refused) as failure:
                await theirs.renegotiate()
            assert failure.value.code == "session.profile"
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP

    run(main())
