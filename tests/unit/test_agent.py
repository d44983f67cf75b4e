"""Two agents over a connection in memory: what they agree on, what they say, and how every misfortune ends."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import meta_peers
import pytest
from connections import StallingConnection
from meetings import (
    LAPTOP,
    MAX_AGE,
    PROTOCOLS,
    TOPIC,
    URI_1,
    URI_2,
    Party,
    Published,
    Tap,
    buyer,
    meeting,
    party,
    product_info,
    shop,
)
from msgspec import structs

from treaty_agent.sessions import wire
from treaty_agent.sessions.operation_errors import OperationError, OutcomeUnknown
from treaty_agent.testing.virtual_time import run
from treaty_agent.transport import memory
from treaty_agent.transport.connection import next_message
from treaty_client.protocols.project import load_project
from treaty_consensus.errors import Malformed, NotFound, Refused, TreatyError, Unavailable
from treaty_consensus.handler import read_wheel
from treaty_handler import Call, Close, Effect, End, Event, Failure, Opened, Persist, Received, Return, Send, SetTimer, Timer
from treaty_sandbox.interface import RunningHandler

HASH_1, HASH_2 = product_info(URI_1).hash, product_info(URI_2).hash
LONG_WAY = [">hello", "<hello", ">meta", "<meta", ">application", "<application"]


def agreements(someone: Party) -> list[dict[str, Any]]:
    """What somebody remembers."""
    someone.agent.context.afterwards.settle()
    path = someone.home / "agreements.json"
    return json.loads(path.read_bytes())["agreements"] if path.exists() else []


async def buy(seller: Party, customer: Party, product: str = "P12345", *, at: str = "", **how: Any) -> tuple[Any, Tap, bool]:
    """One session with one call: its value, what went over the wire, and whether it was resumed."""
    async with meeting(seller, at=at) as tap, customer.agent.connect_over(tap, **(how or {"topic": TOPIC})) as session:
        value = await session.call("getProductInfo", productId=product)
        return value, tap, session.resumed


async def fails(seller: Party, customer: Party, **how: Any) -> TreatyError:
    """A session that cannot be had, or whose first call finds it over."""
    with pytest.raises(TreatyError) as failure:
        await buy(seller, customer, **how)
    return failure.value


# Agreement


def test_000_63_strangers_agree_by_topic_and_speak(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            assert (session.peer.did, session.protocol, session.resumed) == (seller.agent.did, URI_2, False)
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            assert [event.name for event in session.timeline] == customer.names()
        assert customer.names() == ["hello", "verified", "sandbox", "running", "first reply", "end"]
        assert seller.names() == ["hello", "verified", "sandbox", "running", "end"]
        assert customer.protocols.fetched == [URI_2]

    run(main())


def test_000_32_code_generation_shares_flights(tmp_path: Path) -> None:
    _, tap, _ = run(buy(shop(tmp_path), buyer(tmp_path)))
    assert tap.kinds() == LONG_WAY


@pytest.mark.parametrize("offered", [[URI_1, URI_2], [URI_2, URI_1], ["https://elsewhere.example/p/1", URI_1]])
def test_000_64_the_first_offered_known_protocol_is_spoken(tmp_path: Path, offered: list[str]) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        async with meeting(seller) as wire, customer.agent.connect_over(wire, protocols=offered) as session:
            assert session.protocol == next(uri for uri in offered if uri in (URI_1, URI_2))

    run(main())


def test_000_56_both_sides_remember_the_agreement_and_its_hash(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path), buyer(tmp_path)
    run(buy(seller, customer))
    (theirs,), (ours,) = agreements(seller), agreements(customer)
    assert (ours["hash"], ours["uri"], ours["did"]) == (HASH_2, URI_2, seller.agent.did)
    assert (theirs["hash"], theirs["uri"], theirs["did"]) == (HASH_2, URI_2, customer.agent.did)


def test_without_a_common_protocol_nothing_is_remembered(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path, URI_1), buyer(tmp_path)
    error = run(fails(seller, customer, protocols=[URI_2]))
    assert isinstance(error, Refused)
    assert error.code == "session.no-common-protocol"
    assert "language model" in error.message
    assert customer.protocols.fetched == []
    assert seller.runtime.opened == customer.runtime.opened == []
    assert agreements(seller) == agreements(customer) == []


def test_an_empty_offer_is_refused_before_sending(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path), buyer(tmp_path)
    assert run(fails(seller, customer, topic="commerce/nothing")).code == "agent.no-candidates"
    assert run(fails(seller, customer, topic=TOPIC, protocols=[URI_1])).code == "agent.call"
    assert customer.events == []


def test_a_peer_that_is_not_the_one_asked_for_is_refused(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path), buyer(tmp_path)
    error = run(fails(seller, customer, topic=TOPIC, did="did:wba:somebody.example"))
    assert error.code == "hello.destination"
    assert seller.runtime.opened == customer.runtime.opened == []


# 0-RTT


def test_000_60_a_resumed_session_speaks_without_fetching(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        await buy(seller, customer)
        customer.protocols.fetched.clear()
        customer.protocols.asked = 0
        value, tap, resumed = await buy(seller, customer)
        assert (value, resumed) == (LAPTOP, True)
        assert tap.kinds() == [">hello", ">application", "<hello", "<application"]
        assert (customer.protocols.fetched, customer.protocols.asked) == ([], 0)

    run(main())


def test_000_56_each_protocol_of_a_peer_is_resumed_by_its_uri(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        for expected in (False, True):
            for uri in (URI_1, URI_2):
                _, _, resumed = await buy(seller, customer, protocols=[uri])
                assert resumed is expected
            assert (await buy(seller, customer, topic=TOPIC))[2] is expected
        assert len(agreements(customer)) == 3

    run(main())


def test_000_56_the_agreement_survives_the_process(tmp_path: Path) -> None:
    async def main() -> None:
        seller, first = shop(tmp_path), buyer(tmp_path)
        await buy(seller, first)
        await first.agent.context.afterwards.aclose()
        second = buyer(tmp_path)
        second.protocols.store = first.protocols.store
        assert (await buy(seller, second))[2]

    run(main())


def test_000_61_a_stale_destination_gets_the_call_once(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        await buy(seller, customer)
        opened = len(seller.runtime.opened)
        for service in seller.agent.context.served.services.values():
            assert isinstance(service.protocol, Published)
            service.protocol = dataclasses.replace(service.protocol, seconds_old=MAX_AGE + 1)
        value, tap, resumed = await buy(seller, customer)
        assert (value, resumed) == (LAPTOP, False)
        assert tap.kinds() == [">hello", ">application", "<hello", "<meta", ">meta", ">application", "<application"]
        assert seller.protocols.fetched[-1] == URI_2
        assert len(seller.runtime.opened) == opened + 1
        assert (await buy(seller, customer))[2]  # fresh again

    run(main())


@pytest.mark.parametrize("age", [MAX_AGE, MAX_AGE + 1])
def test_a_proof_that_ages_before_the_hello_is_renewed(tmp_path: Path, age: int) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        await buy(seller, customer)
        fetched = len(seller.protocols.fetched)
        async with meeting(seller) as wire:
            await asyncio.sleep(1)  # the other side has looked at its protocols
            for service in seller.agent.context.served.services.values():
                assert isinstance(service.protocol, Published)
                service.protocol = dataclasses.replace(service.protocol, seconds_old=age)
            wire.send(structs.replace(meta_peers.source_hello(to=""), used_protocol_hash=HASH_2).format())
            assert f'"usedProtocolHash":"{HASH_2}"' in str(await next_message(wire))
            await asyncio.sleep(1)
        # A young one is at hand: nothing is asked for it.
        assert len(seller.protocols.fetched) == fetched + (age > MAX_AGE)

    run(main())


def test_000_61_a_changed_protocol_gets_the_call_anew(tmp_path: Path) -> None:
    async def main() -> None:
        customer = buyer(tmp_path)
        await buy(shop(tmp_path), customer)
        older = shop(tmp_path, URI_1)
        value, _, resumed = await buy(older, customer)
        assert (value, resumed) == (LAPTOP, False)
        assert agreements(customer)[0]["hash"] == HASH_1
        assert (await buy(older, customer))[2]

    run(main())


def test_a_source_whose_verification_is_stale_takes_the_long_way(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        await buy(seller, customer)
        customer.protocols.seconds_old = MAX_AGE + 1
        _, tap, resumed = await buy(seller, customer)
        assert not resumed
        assert "usedProtocolHash" not in str(tap.seen[0][1])
        assert tap.kinds() == LONG_WAY

    run(main())


@pytest.mark.threat(98)
def test_a_call_that_is_not_idempotent_awaits_confirmation(tmp_path: Path) -> None:
    project = load_project(PROTOCOLS / "1.1")
    assert project.handler is not None
    manifest = json.loads(json.dumps(project.handler.manifest))
    manifest["operations"]["getProductInfo"]["idempotent"] = False
    changed = dataclasses.replace(project, handler=dataclasses.replace(project.handler, manifest=manifest))
    published = dataclasses.replace(product_info(URI_2), package=read_wheel(*changed.build_wheel(URI_2)))

    async def main() -> None:
        seller, customer = shop(tmp_path, URI_2), buyer(tmp_path)
        for someone in (seller, customer):
            someone.protocols.published = {URI_2: published}
        await buy(seller, customer)
        value, tap, resumed = await buy(seller, customer)
        assert (value, resumed) == (LAPTOP, True)
        assert tap.kinds() == [">hello", "<hello", ">application", "<application"]

    run(main())


def test_a_remembered_agreement_that_led_nowhere_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        customer = buyer(tmp_path)
        await buy(shop(tmp_path, URI_2), customer, protocols=[URI_2])
        assert len(agreements(customer)) == 1
        error = await fails(shop(tmp_path, URI_1), customer, protocols=[URI_2])
        assert error.code == "session.no-common-protocol"
        assert agreements(customer) == []

    run(main())


def test_another_agent_at_a_remembered_address_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        customer = buyer(tmp_path)
        await buy(shop(tmp_path), customer, at="here")
        impostor = shop(tmp_path, name="impostor")
        assert (await fails(impostor, customer, at="here")).code == "hello.destination"
        assert impostor.runtime.opened == []
        assert (await buy(impostor, customer, at="here"))[0] == LAPTOP  # forgotten, so a stranger again

    run(main())


def test_another_named_peer_is_a_stranger_at_the_address(tmp_path: Path) -> None:
    async def main() -> None:
        customer = buyer(tmp_path)
        await buy(shop(tmp_path), customer, at="here")
        another = shop(tmp_path, name="another")
        async with (
            meeting(another, at="here") as tap,
            customer.agent.connect_over(tap, topic=TOPIC, did=another.agent.did) as session,
        ):
            assert (session.peer.did, session.resumed) == (another.agent.did, False)
        assert tap.kinds()[:2] == [">hello", "<hello"]
        assert HASH_2 not in str(tap.seen[0][1])

    run(main())


def test_000_47_a_peer_with_earlier_code_may_speak_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        seller = shop(tmp_path)
        handler = scripted(seller)
        seller.runtime.delay = 10
        async with meeting(seller) as wire:
            wire.send(_source_hello())
            wire.send(b'\x00{"action":"codeGeneration","status":"generated"}')
            for number in range(200):
                wire.send(b"\x40" + str(number).encode())
            await next_message(wire)
            await next_message(wire)
            await asyncio.sleep(1)
        received = [event.data for event in handler.seen if isinstance(event, Received)]
        assert received == [str(number).encode() for number in range(200)]

    run(main())


# Code that cannot be had


def test_000_35_a_failed_verification_runs_nothing(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path), buyer(tmp_path)
    customer.protocols.failure = Refused("wheel.digest", "These are not the bytes that were published.")
    assert run(fails(seller, customer)) is customer.protocols.failure
    assert customer.runtime.opened == []
    assert agreements(customer) == agreements(seller) == []
    assert all(handler.closed for handler in seller.runtime.opened)


def test_000_35_a_destination_whose_code_fails_tells_the_source(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        await seller.agent.prepare()

        async def broken(*_: Any, **__: Any) -> RunningHandler:
            raise Unavailable("sandbox.unavailable", "The sandbox did not start: secret detail.")

        seller.runtime.open = broken  # type: ignore[method-assign]
        error = await fails(seller, customer)
        assert error.code == "session.peer-code"
        assert "secret" not in str(error)
        assert all(handler.closed for handler in customer.runtime.opened)

    run(main())


def test_000_34_code_that_does_not_come_ends_both_sides(tmp_path: Path) -> None:
    async def main() -> float:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        customer.protocols.delay = 1e6
        started = asyncio.get_running_loop().time()
        error = await fails(seller, customer)
        assert "session.code-timeout" in error.code + error.message  # whichever side's clock was read first
        assert seller.names()[-1] == customer.names()[-1] == "end"
        return asyncio.get_running_loop().time() - started

    assert 15 <= run(main()) < 20


def test_a_role_nobody_serves_is_found_before_the_door_opens(tmp_path: Path) -> None:
    seller = party("shop", tmp_path)

    async def listen() -> None:
        async with seller.agent.listen("127.0.0.1", 0):
            pass

    assert _error(listen).code == "agent.settings"

    @seller.agent.provides(URI_1)
    async def somethingElse() -> None: ...  # noqa: N802

    assert _error(seller.agent.prepare).code == "agent.function"
    with pytest.raises(Malformed) as refusal:
        seller.agent.provides(URI_1)(somethingElse)
    assert refusal.value.code == "agent.function"


def test_a_role_that_the_protocol_does_not_have_is_refused(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path), buyer(tmp_path)
    assert run(fails(seller, customer, topic=TOPIC, role="courier")).code == "session.role"
    assert customer.runtime.opened == []


def test_an_unfetchable_only_protocol_keeps_the_door_shut(tmp_path: Path) -> None:
    seller = shop(tmp_path, URI_2)
    del seller.protocols.published[URI_2]
    assert isinstance(_error(seller.agent.prepare), NotFound)


def _error(act: Callable[[], Any]) -> TreatyError:
    with pytest.raises(TreatyError) as failure:
        run(act())
    return failure.value


# Operations


def test_a_protocol_error_reaches_the_caller_unchanged(tmp_path: Path) -> None:
    with pytest.raises(OperationError) as failure:
        run(buy(shop(tmp_path), buyer(tmp_path), "P99999"))
    assert (failure.value.status, failure.value.message, failure.value.code) == (404, "产品未找到", "operation.404")


def test_calls_may_be_under_way_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            calls = [session.call("getProductInfo", productId=f"P{number % 2 and 12345}") for number in range(50)]
            values = await asyncio.gather(*calls, return_exceptions=True)
        assert values[1::2] == [LAPTOP] * 25
        assert all(isinstance(value, OperationError) and value.status == 404 for value in values[::2])

    run(main())


def test_a_call_that_does_not_fit_the_protocol_fails_alone(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            for operation, arguments, code in (
                ("getProductInfo", {}, "operation.arguments"),
                ("getProductInfo", {"productId": 7}, "operation.arguments"),
                ("buyEverything", {}, "session.operation"),
            ):
                with pytest.raises(TreatyError) as failure:
                    await session.call(operation, **arguments)
                assert failure.value.code == code
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP

    run(main())


class Scripted:
    """A handler of either side that does as the test says: `script` maps an event's type to effects, or to an exception."""

    kept = None

    def __init__(self, script: dict[type[Event], Any]) -> None:
        self.script = script
        self.seen: list[Event] = []
        self.closed = False

    async def handle(self, event: Event) -> Sequence[Effect]:
        self.seen.append(event)
        action = self.script.get(type(event), [])
        if isinstance(action, Exception):
            raise action
        if action == "hang":
            await asyncio.sleep(1e9)
        return list(action(event) if callable(action) else action)

    async def close(self) -> None:
        self.closed = True


def scripted(someone: Party, **script: Any) -> Scripted:
    """Put a scripted handler in the place of somebody's."""
    names: dict[str, type[Event]] = {kind.__name__: kind for kind in (Opened, Received, Call, Timer, Close)}
    handler = Scripted({names[name]: action for name, action in script.items()})
    someone.runtime.wrap = lambda _: handler
    return handler


CALL = {"productId": "P12345"}


def provide(seller: Party, function: Callable[..., Any]) -> None:
    """Put another function in the place of the shop's."""
    for service in seller.agent.context.served.services.values():
        service.functions.remove("getProductInfo")
        service.functions.add(function, name="getProductInfo")


def _raises(_: str = "", **__: Any) -> Any:
    raise RuntimeError("the database password is hunter2")


def _not_found(productId: str = "", productName: str = "") -> Any:  # noqa: N803
    raise OperationError(404, "There is no such product.")


def _unlisted(productId: str = "", productName: str = "") -> Any:  # noqa: N803
    raise OperationError(418, "I am a teapot.")


def _nonsense(productId: str = "", productName: str = "") -> Any:  # noqa: N803
    return {"productId": object()}


async def _sells(productId: str = "", productName: str = "") -> Any:  # noqa: N803
    return LAPTOP


async def _hangs(productId: str = "", productName: str = "") -> Any:  # noqa: N803
    await asyncio.sleep(1e9)


async def _cancels_itself(productId: str = "", productName: str = "") -> Any:  # noqa: N803
    raise TimeoutError


@pytest.mark.parametrize(
    ("function", "status"),
    [
        (_raises, 500),
        (_not_found, 404),
        (_unlisted, 500),
        (_nonsense, 500),
        (_cancels_itself, 504),
    ],
)
def test_every_function_answers_and_leaks_no_secret(tmp_path: Path, function: Callable[..., Any], status: int) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        provide(seller, function)
        async with meeting(seller) as tap, customer.agent.connect_over(tap, topic=TOPIC) as session:
            with pytest.raises(OperationError) as failure:
                await session.call("getProductInfo", CALL)
            assert failure.value.status == status
            provide(seller, _sells)
            assert await session.call("getProductInfo", CALL) == LAPTOP
        assert "hunter2" not in str(tap.seen)

    run(main())


def test_functions_may_be_coroutines_or_not(tmp_path: Path) -> None:
    async def asynchronous(productId: str = "", productName: str = "") -> Any:  # noqa: N803
        return LAPTOP

    def synchronous(productId: str = "", productName: str = "") -> Any:  # noqa: N803
        return LAPTOP

    for function in (asynchronous, synchronous):
        seller = shop(tmp_path)
        provide(seller, function)
        assert run(buy(seller, buyer(tmp_path)))[0] == LAPTOP


# Peers and handlers that misbehave


def test_a_silent_destination_ends_the_wait(tmp_path: Path) -> None:
    async def main() -> float:
        near, far = memory.pair()
        started = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable) as failure:
            async with buyer(tmp_path).agent.connect_over(near, topic=TOPIC):
                raise AssertionError("nobody is there")
        assert failure.value.code == "session.reply-timeout"
        assert str(await next_message(far)).startswith("{")
        return asyncio.get_running_loop().time() - started

    assert 10 <= run(main()) < 15


def test_a_silent_source_is_sent_away(tmp_path: Path) -> None:
    async def main() -> None:
        seller = shop(tmp_path)
        async with meeting(seller) as wire:
            with pytest.raises(TreatyError) as lost:
                await next_message(wire)
            assert getattr(lost.value, "reason", "") == "session.reply-timeout"
        assert seller.runtime.opened == []

    run(main())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "canonical.json"),
        ("{}", "hello.form"),
        (b"\x40data", "hello.form"),
        (b"", "frame.form"),
        (b"{}", "hello.form"),
        (b"{\xff", "canonical.json"),
    ],
)
def test_what_is_no_hello_is_answered_by_its_code(tmp_path: Path, data: str | bytes, reason: str) -> None:
    async def main() -> None:
        seller = shop(tmp_path)
        async with meeting(seller) as wire:
            wire.send(data)
            answer = await next_message(wire)
            assert isinstance(answer, bytes)
            rejection = json.loads(answer[1:])
            assert (answer[0], rejection["action"], rejection["status"]) == (0, "protocolNegotiation", "rejected")
            assert rejection["modificationSummary"].startswith(f"{reason}: ")
            with pytest.raises(TreatyError) as lost:
                await next_message(wire)
            assert getattr(lost.value, "reason", "") == reason
        assert seller.runtime.opened == []

    run(main())


@pytest.mark.parametrize("data", [b"\xc0x", b"\x80x", b"\x00{}", b"", "{}", b'\x00{"action":"protocolNegotiation"}'])
def test_000_05_rule_breaking_frames_end_a_running_session(tmp_path: Path, data: str | bytes) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            received = len(seller.runtime.opened)
            wire.send(data)
            with pytest.raises(TreatyError):
                await session.call("getProductInfo", CALL)
            assert len(seller.runtime.opened) == received
        assert all(handler.closed for handler in seller.runtime.opened + customer.runtime.opened)

    run(main())


def test_a_peer_that_is_lost_in_the_middle_of_a_call_fails_it(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        provide(seller, _hangs)
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            calling = asyncio.create_task(session.call("getProductInfo", CALL))
            await asyncio.sleep(1)
            await wire.close()
            with pytest.raises(OutcomeUnknown) as failure:
                await calling
            assert failure.value.code == "session.outcome-unknown"
            with pytest.raises(Unavailable) as over:
                await session.call("getProductInfo", CALL)
            assert over.value.code == "session.closed"
        assert all(handler.closed for handler in seller.runtime.opened + customer.runtime.opened)

    run(main())


@pytest.mark.parametrize("event", ["Opened", "Call"])
@pytest.mark.parametrize(
    ("action", "code"),
    [
        ("hang", "sandbox.limit"),
        (Refused("handler.failed", "The handler sent to a stranger."), "handler.failed"),
        (Unavailable("sandbox.died", "The worker died."), "sandbox.died"),
        ([Send(peer="did:wba:shop.example", data=b"x", stream="other")], "session.profile"),
        ([End(status="failed")], "session.failed"),
        (ZeroDivisionError(), "session.internal"),
    ],
)
def test_a_misbehaving_handler_ends_its_session_alone(tmp_path: Path, event: str, action: Any, code: str) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        handler = scripted(customer, **{event: action})
        with pytest.raises(TreatyError) as failure:
            async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
                with pytest.raises(TreatyError) as first:
                    await session.call("getProductInfo", CALL)
                if event == "Call":  # the handler had it, and may have sent it
                    assert isinstance(first.value, OutcomeUnknown)
                    assert code in first.value.message
                else:
                    assert first.value.code == code
                handler.script[Call] = lambda event: [Return(call=event.call, value=LAPTOP)]
                await session.call("getProductInfo", CALL)
        assert failure.value.code == code
        assert handler.closed
        customer.runtime.wrap = lambda original: original
        assert (await buy(seller, customer))[0] == LAPTOP

    run(main())


def test_a_handler_without_an_answer_hangs_no_caller(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        scripted(customer)
        assert isinstance(await fails(seller, customer), OutcomeUnknown)

    run(main())


def test_a_peer_that_never_answers_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        provide(seller, _hangs)
        async with meeting(seller) as tap, customer.agent.connect_over(tap, topic=TOPIC) as session:
            with pytest.raises(OutcomeUnknown, match=r"No answer came within 15 seconds\. It is unknown"):
                await session.call("getProductInfo", CALL)
            provide(seller, _sells)
            assert await session.call("getProductInfo", CALL) == LAPTOP

    run(main())


@pytest.mark.parametrize(
    ("event", "status", "is_answer"),
    [(Received, 504, True), (Timer, 504, False), (Timer, 404, True), (Timer, 503, True), (Received, 503, True)],
)
def test_a_failure_without_a_message_of_the_peer_is_silence(
    tmp_path: Path, event: type[Event], status: int, is_answer: bool
) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        scripted(seller, Received=[Send(peer=customer.agent.did, data=b"{}")])
        handler, calls = scripted(customer), list[str]()

        def begin(call: Call) -> list[Effect]:
            calls.append(call.call)
            ask = Send(peer=seller.agent.did, data=b"{}")
            return [SetTimer(name="late", seconds=1)] if event is Timer else [ask]

        handler.script[Call] = begin
        handler.script[event] = lambda _: [Return(call=calls[0], error=Failure(code=status, message="No."))]
        error = await fails(seller, customer)
        assert isinstance(error, OperationError if is_answer else OutcomeUnknown)
        assert not is_answer or error.code == f"operation.{status}"

    run(main())


def test_a_handler_that_ends_the_session_closes_it_in_good_order(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        scripted(seller, Received=[End()])
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            with pytest.raises(OutcomeUnknown):
                await session.call("getProductInfo", CALL)
        assert seller.names()[-1] == "end"

    run(main())


def test_an_idle_session_ends(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            await session.call("getProductInfo", CALL)
            await asyncio.sleep(1000)
            with pytest.raises(TreatyError):
                await session.call("getProductInfo", CALL)
        assert all(handler.closed for handler in seller.runtime.opened + customer.runtime.opened)

    run(main())


@pytest.mark.threat(92)
def test_a_peer_that_never_reads_loses_its_connection(tmp_path: Path) -> None:
    async def main() -> None:
        seller = shop(tmp_path)
        flood = [Send(peer="did:wba:buyer.example", data=bytes(1024 * 1024))] * 100
        scripted(seller, Received=flood)
        async with meeting(seller) as wire:
            wire.send(_source_hello())
            for _ in range(2):
                await next_message(wire)  # its Hello and codeGeneration
            wire.send(b'\x00{"action":"codeGeneration","status":"generated"}')
            wire.send(b"\x40go")
            await asyncio.sleep(100)
            with pytest.raises(TreatyError):
                for _ in range(200):
                    await next_message(wire)
        assert seller.names()[-1] == "end"

    run(main())


@pytest.mark.parametrize("stalls", ["before the first call", "before the hello"])
def test_callers_behind_a_slow_peer_proceed_one_at_a_time(stalls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has little to say; all at once they would have more than a connection may hold back."""

    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        await buy(seller, customer)
        async with meeting(seller) as inner:
            slow = StallingConnection(inner)
            monkeypatch.setattr(wire, "CALL_ROOM", 200)
            monkeypatch.setattr(wire, "MAX_BACKLOG", 2000)
            if stalls == "before the hello":
                slow.shut()
            async with customer.agent.connect_over(slow, topic=TOPIC) as session:
                if stalls == "before the first call":
                    await session.call("getProductInfo", productId="P12345")
                    slow.shut()
                calls = [asyncio.create_task(session.call("getProductInfo", productId="P12345")) for _ in range(60)]
                await asyncio.sleep(0.1)
                slow.open()
                assert await asyncio.gather(*calls) == [LAPTOP] * 60

    run(main())


@pytest.mark.threat(92)
def test_a_peer_that_floods_is_slowed_down_by_its_own_connection(tmp_path: Path) -> None:
    async def main() -> None:
        seller = shop(tmp_path)

        async def slowly(event: Event) -> Sequence[Effect]:
            await asyncio.sleep(1)
            return []

        handler = scripted(seller)
        handler.handle = slowly  # type: ignore[method-assign]
        async with meeting(seller) as wire:
            wire.send(_source_hello())
            for _ in range(2):
                await next_message(wire)
            wire.send(b'\x00{"action":"codeGeneration","status":"generated"}')
            started = asyncio.get_running_loop().time()
            for _ in range(50):
                wire.send(b"\x40more")
            while wire.backlog:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            assert asyncio.get_running_loop().time() - started > 30

    run(main())


def test_hundreds_of_calls_at_once_do_not_block_each_other(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            values = await asyncio.gather(*(session.call("getProductInfo", CALL) for _ in range(200)))
        assert values == [LAPTOP] * 200

    run(main())


def test_a_cancelled_caller_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        provide(seller, _hangs)
        with pytest.raises(TimeoutError):
            async with (
                asyncio.timeout(5),
                meeting(seller) as wire,
                customer.agent.connect_over(wire, topic=TOPIC) as session,
            ):
                await session.call("getProductInfo", CALL)
        assert all(handler.closed for handler in seller.runtime.opened + customer.runtime.opened)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


def test_a_narrator_that_raises_spoils_nothing(tmp_path: Path) -> None:
    def broken(event: Any) -> None:
        raise RuntimeError("no paper left")

    seller, customer = shop(tmp_path), buyer(tmp_path)
    object.__setattr__(customer.agent.context, "on_event", broken)
    assert run(buy(seller, customer))[0] == LAPTOP


def test_an_unknown_break_of_a_connection_ends_the_session(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)

        def broken() -> str | bytes:
            raise RuntimeError("the cable is on fire")

        async with meeting(seller) as wire:
            wire.receive = broken  # type: ignore[method-assign]
            with pytest.raises(Unavailable) as failure:
                async with customer.agent.connect_over(wire, topic=TOPIC):
                    raise AssertionError("a session without a wire")
            assert failure.value.code == "session.internal"

    run(main())


# What a handler asks of its host


def test_timers_ring_once_can_be_replaced_and_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        first = [SetTimer(name=name, seconds=10) for name in ("rings", "replaced", "cancelled")]
        second = [SetTimer(name="replaced", seconds=100), SetTimer(name="cancelled", seconds=None)]
        handler = scripted(customer, Opened=first, Call=second)
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            calling = asyncio.create_task(session.call("getProductInfo", CALL))
            await asyncio.sleep(50)
            assert [event.name for event in handler.seen if isinstance(event, Timer)] == ["rings"]
            await asyncio.sleep(60)
            assert [event.name for event in handler.seen if isinstance(event, Timer)] == ["rings", "replaced"]
            calling.cancel()

    run(main())


def test_handler_state_returns_for_its_role_and_peer(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer, another = shop(tmp_path), buyer(tmp_path), shop(tmp_path, name="another")
        handler = scripted(customer, Opened=[Persist(key="a:b", value=b"1"), Persist(key="gone", value=b"2")])

        async def seen_with(other: Party) -> dict[str, bytes]:
            async with meeting(other) as wire, customer.agent.connect_over(wire, topic=TOPIC):
                await asyncio.sleep(1)
            return [event.stored for event in handler.seen if isinstance(event, Opened)][-1]

        assert await seen_with(seller) == {}
        handler.script[Opened] = [Persist(key="gone", value=None)]
        assert await seen_with(seller) == {"a:b": b"1", "gone": b"2"}
        assert await seen_with(another) == {}
        assert await seen_with(seller) == {"a:b": b"1"}

    run(main())


def test_nothing_is_kept_of_a_peer_that_does_not_name_itself(tmp_path: Path) -> None:
    async def main() -> None:
        seller = shop(tmp_path)
        handler = scripted(seller, Opened=[Persist(key="secret", value=b"of the first")])
        unnamed = structs.replace(meta_peers.source_hello((URI_2,), to=""), source_did="", session_id="").format()
        for _ in range(2):
            async with meeting(seller) as wire:
                wire.send(unnamed)
                await next_message(wire)
                wire.send(meta_peers.GENERATED)
                await asyncio.sleep(1)
        assert [event.stored for event in handler.seen if isinstance(event, Opened)] == [{}, {}]
        assert agreements(seller) == []

    run(main())


def test_audit_texts_go_to_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="treaty_agent.sessions.handler_host")
    seller, customer = shop(tmp_path), buyer(tmp_path)
    run(_one_odd_message(seller, customer))
    assert "provider with did:wba:buyer.example: Ignored what is no message" in caplog.text


async def _one_odd_message(seller: Party, customer: Party) -> None:
    async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
        wire.send(b"\x40 no message")
        await session.call("getProductInfo", CALL)


def test_a_handler_is_told_that_its_side_leaves(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        handler = scripted(customer, Close=[Send(peer=seller.agent.did, data=b"goodbye")])
        there = scripted(seller)
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC):
            pass
        assert isinstance(handler.seen[-1], Close)
        assert any(isinstance(event, Received) and event.data == b"goodbye" for event in there.seen)

    run(main())


def _source_hello() -> str:
    return meta_peers.source_hello((URI_2,)).format()


def test_000_62_each_version_has_its_uri_and_code() -> None:
    first, second = product_info(URI_1), product_info(URI_2)
    for protocol, uri in ((first, URI_1), (second, URI_2)):
        assert (protocol.package.manifest.protocol_uri, protocol.package.manifest.protocol_hash) == (uri, protocol.hash)
    assert first.hash != second.hash
    assert first.package.digest != second.package.digest
