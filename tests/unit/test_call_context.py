"""The context of a call: who calls, how long there is, and its trace."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from meetings import TOPIC as INFO
from meetings import URI_2, Tap, buyer, meeting, shop

from treaty_agent import AgentEvent, Call, CallContext, OperationError, Proceed, Session, current_call
from treaty_agent.sessions.call_context import context_parameter
from treaty_agent.sessions.interfaces import Capacity
from treaty_agent.sessions.operations import Functions, OfferedFunctions, capability_of
from treaty_agent.testing import PeerDouble, Simulation, run
from treaty_consensus.errors import Malformed, TreatyError
from treaty_io.identity import ClaimedPeer, ProvedPeer

if TYPE_CHECKING:
    from treaty_agent.sessions import call_context as only_for_types

ROOT = Path(__file__).parents[2]
GREETING = ROOT / "examples" / "greeting"
APPOINTMENT = ROOT / "examples" / "appointment"
PAYMENT = ROOT / "tests" / "support" / "payment"
TOPIC = "social/greeting"
SHOP = "ws://shop.example"


async def named_freely(productId: str, whatever: CallContext) -> None: ...  # noqa: N803


async def by_a_type_checkers_name(ctx: only_for_types.CallContext) -> None: ...


async def optional(ctx: CallContext | None = None) -> None: ...


@wraps(named_freely)
async def as_in_stubs(**arguments: Any) -> None: ...


async def without(context: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "name"),
    [(named_freely, "whatever"), (by_a_type_checkers_name, "ctx"), (optional, "ctx"), (as_in_stubs, "whatever"), (without, "")],
)
def test_the_context_is_recognised_by_its_annotation(function: Any, name: str) -> None:
    assert context_parameter(function) == name


async def two(one: CallContext, other: CallContext) -> None: ...


async def unnamed(context: CallContext, /) -> None: ...


@pytest.mark.parametrize("function", [two, unnamed])
def test_an_impossible_context_is_refused_at_registration(function: Any) -> None:
    functions = Functions()
    with pytest.raises(Malformed) as refusal:
        functions.add(function)
    assert (refusal.value.code, functions.names) == ("agent.function", ())


def test_the_context_is_no_part_of_an_offered_capability() -> None:
    async def read(productId: str, context: CallContext) -> str:  # noqa: N803
        return productId

    described: Any = capability_of(read)
    assert (list(described.arguments["properties"]), described.arguments["required"]) == (["productId"], ["productId"])
    offers = OfferedFunctions()
    offers.add(read)
    assert offers.functions.context_parameter("read") == "context"


def test_a_made_context_calls_a_function_in_a_test() -> None:
    async def whose(context: CallContext) -> str:
        return str(context.peer)

    call_context = CallContext(peer=ProvedPeer("did:wba:buyer.example"))
    assert asyncio.run(whose(call_context)) == "did:wba:buyer.example"
    assert (call_context.time_left, call_context.parameters, len(call_context.trace.trace_id)) == (math.inf, {}, 32)
    assert current_call() is None


def test_the_time_that_is_left_ends_at_zero() -> None:
    now = 10.0
    context = CallContext(deadline=12.5, clock=lambda: now)
    assert context.time_left == 2.5
    now = 13.0
    assert context.time_left == 0.0


# Over a session


class Meeting:
    """A host whose functions note their contexts in `seen`, and a guest."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.seen = simulation, list[CallContext]()
        self.host, self.guest = simulation.agent("host.example"), simulation.agent("guest.example")
        self.uri = simulation.uri("greeting")

    def session(self) -> AbstractAsyncContextManager[Session]:
        return self.guest.connect("wss://host.example", topic=TOPIC)

    def note(self, context: CallContext) -> None:
        assert current_call() is context
        self.seen.append(context)


def meet(provide: Callable[[Meeting], Callable[..., Any]], visit: Callable[[Meeting, Session], Awaitable[None]]) -> None:
    """Let the host provide a function, and the guest visit it, in virtual time."""

    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            met = Meeting(simulation)
            met.host.provides(met.uri)(provide(met))
            async with simulation.serving(met.host), met.session() as session:
                await visit(met, session)

    run(main())


def noting(met: Meeting) -> Callable[..., Any]:
    async def greet(name: str, context: CallContext) -> str:
        met.note(context)
        return f"Hello, {name}!"

    return greet


def noting_in_a_thread(met: Meeting) -> Callable[..., Any]:
    def greet(name: str, context: CallContext) -> str:
        met.note(context)
        return f"Hello, {name}!"

    return greet


@pytest.mark.parametrize("provide", [noting, noting_in_a_thread])
def test_a_function_knows_the_call_that_it_works_for(provide: Any) -> None:
    async def visit(met: Meeting, session: Session) -> None:
        assert await session.call("greet", name="Ada") == "Hello, Ada!"
        (context,) = met.seen
        assert context.peer == ClaimedPeer("did:wba:guest.example")
        assert (context.operation, context.protocol, context.role) == ("greet", met.uri, "host")
        assert (context.session, context.parameters) == (session.id, {})
        assert 5.0 < context.time_left <= 10.0, "the time of the operation, less what a busy machine took"
        assert context.trace.parent_id, "the caller's span"

    meet(provide, visit)


def test_the_caller_may_give_it_less_time() -> None:
    async def visit(met: Meeting, session: Session) -> None:
        await session.call("greet", name="Ada", within=2.0)
        assert 1.9 < met.seen[0].time_left <= 2.0

    meet(noting, visit)


def test_a_function_does_not_begin_for_an_absent_caller() -> None:
    def slow(met: Meeting) -> Callable[..., Any]:
        async def greet(name: str, context: CallContext) -> str:
            met.note(context)
            await asyncio.sleep(3)
            return name

        return greet

    async def visit(met: Meeting, session: Session) -> None:
        times = [2.0] * Capacity().functions + [1.0] * 4
        calls = [session.call("greet", name="Ada", within=seconds) for seconds in times]
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(10)
        assert len(met.seen) == Capacity().functions, "the others waited for a free place until they were given up"

    meet(slow, visit)


def test_a_call_that_a_function_makes_continues_the_trace() -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            met, last = (
                Meeting(simulation),
                PeerDouble(simulation.agent("last.example"), simulation.uri("greeting"), {"greet": "Hi"}),
            )

            @met.host.provides(met.uri)
            async def greet(name: str, context: CallContext) -> str:
                met.note(context)
                async with met.host.peer("wss://last.example", topic=TOPIC) as peer:
                    return str(await peer.call("greet", name=name))

            out: list[Call] = []

            @met.host.middleware
            async def note(call: Call, proceed: Proceed) -> Any:
                if call.direction == "out":
                    out.append(call)
                return await proceed()

            async with simulation.serving(met.host, last.agent), met.session() as session:
                assert await session.call("greet", name="Ada") == "Hi"
            (first,), (second,), (third,) = met.seen, out, last.contexts
            assert first.trace.trace_id == second.context.trace.trace_id == third.trace.trace_id
            assert second.context.trace.parent_id == first.trace.span_id
            assert third.trace.parent_id == second.context.trace.span_id

    run(main())


def test_two_calls_of_nothing_are_two_traces() -> None:
    async def visit(met: Meeting, session: Session) -> None:
        await session.call("greet", name="Ada")
        await session.call("greet", name="Bob")
        assert len({context.trace.trace_id for context in met.seen}) == 2

    meet(noting, visit)


def test_a_context_named_like_an_argument_is_not_served() -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            host = simulation.agent("host.example")

            @host.provides(simulation.uri("greeting"))
            async def greet(*, name: CallContext) -> str:
                return name.peer.did

            with pytest.raises(Malformed) as refusal:
                await host.prepare()
            assert refusal.value.code == "agent.function"

    run(main())


def test_an_argument_of_the_contexts_name_does_not_replace_it() -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            protocol = await simulation.registry.protocols.fetch(simulation.uri("greeting"))
            operation = protocol.package.manifest.operations["greet"]
            functions = Functions()

            async def greet(name: CallContext) -> str:
                return name.peer.did

            functions.add(greet)
            assert await functions.call(CallContext(peer=ProvedPeer("did:wba:a.example")), operation, {}) == "did:wba:a.example"
            with pytest.raises(TypeError):
                await functions.call(CallContext(), operation, {"name": "Ada"})

    run(main())


def test_a_stream_has_a_context_without_an_end() -> None:
    async def main() -> None:
        async with Simulation([APPOINTMENT]) as simulation:
            office, customer = simulation.agent("office.example"), simulation.agent("customer.example")
            seen: list[CallContext] = []

            @office.provides(simulation.uri("appointment"))
            async def find(day: str, who: CallContext) -> AsyncIterator[dict[str, Any]]:
                seen.extend(filter(None, [who, current_call()]))
                yield {"start": f"{day}T09:00", "minutes": 30}

            other = PeerDouble(office, simulation.uri("appointment"), {"book": "B1", "cancel": None})
            async with (
                simulation.serving(office),
                customer.connect("wss://office.example", topic="scheduling/appointment") as session,
            ):
                assert len([slot async for slot in session.stream("find", day="2026-11-23")]) == 1
            assert seen[0] is seen[1]
            assert (seen[0].peer.did, seen[0].time_left) == ("did:wba:customer.example", math.inf)
            assert other.calls == []

    run(main())


# On the wire


def contexts(tap: Tap) -> list[str]:
    """Each application message in a word: whether it has a context. Its header is an at sign."""
    frames = [(way, frame) for way, frame in tap.seen if isinstance(frame, bytes) and b"@" in frame]
    return [f"{way}{'traced' if b'callContext' in frame else 'plain'}" for way, frame in frames]


def test_early_data_have_contexts_for_a_known_reader(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path, URI_2), buyer(tmp_path)
        for is_resumed in (False, True):
            async with meeting(seller, at=SHOP) as tap, customer.agent.connect_over(tap, topic=INFO) as session:
                await session.call("getProductInfo", productId="P12345")
                assert session.resumed == is_resumed
            assert contexts(tap) == [">traced", "<plain"]
        customer.agent.context.afterwards.settle()
        (agreement,) = json.loads((customer.home / "agreements.json").read_bytes())["agreements"]
        assert agreement["is_reader"] is True

    run(main())


def test_a_peer_that_does_not_list_contexts_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path, URI_2), buyer(tmp_path)
        seen: list[CallContext] = []

        @seller.agent.middleware
        async def note(call: Call, proceed: Proceed) -> Any:
            seen.append(call.context)
            return await proceed()

        for _ in range(2):
            async with (
                meeting(seller, at=SHOP) as tap,
                customer.agent.connect_over(Older(tap), topic=INFO) as session,
            ):
                await session.call("getProductInfo", productId="P12345")
            assert contexts(tap) == [">plain", "<plain"]
        assert [context.trace.parent_id for context in seen] == ["", ""]

    run(main())


class Older(Tap):
    """The way to a shop of an earlier version, whose Hello does not list contexts."""

    def receive(self) -> str | bytes | None:
        message = super().receive()
        return message.replace('"callContext"', '"other"') if isinstance(message, str) else message


def test_a_function_calls_back_while_its_agent_drains() -> None:
    async def main() -> None:
        async with Simulation([PAYMENT]) as simulation:
            uri, called, may_ask = simulation.uri("payment"), asyncio.Event(), asyncio.Event()
            host, guest = simulation.agent("host.example"), simulation.agent("guest.example")

            @host.provides(uri, role="payee")
            async def pay(amount: int) -> str:
                called.set()
                await may_ask.wait()
                (session,) = host.sessions()
                return f"approved: {await session.call('approve', amount=amount)}"

            @host.provides(uri, role="payee")
            async def count() -> int:
                return 7

            async def approve(amount: int) -> bool:
                return amount <= 100

            async def numbers() -> AsyncIterator[int]:
                yield 0

            connected = guest.connect("wss://host.example", protocols=[uri], role="payer", serving=[approve, numbers])
            async with simulation.serving(host), connected as session:
                paying = asyncio.create_task(session.call("pay", amount=1))
                await called.wait()
                (served,) = host.sessions()
                draining = asyncio.create_task(host.drain())
                await asyncio.sleep(1)
                with pytest.raises(TreatyError) as refused:
                    await served.call("approve", amount=2)  # of the application, and not of the function
                assert refused.value.code == "session.draining"
                may_ask.set()
                assert await paying == "approved: True"
                await draining
                assert session.error is not None
                assert session.error.code == "session.draining"

    run(main())


# In logs and events


def test_both_sides_log_one_trace_of_a_call(caplog: pytest.LogCaptureFixture) -> None:
    def failing(met: Meeting) -> Callable[..., Any]:
        async def greet(name: str, context: CallContext) -> str:
            met.note(context)
            raise KeyError(name)

        return greet

    async def visit(met: Meeting, session: Session) -> None:
        with pytest.raises(OperationError) as failed:
            await session.call("greet", name="Ada")
        assert failed.value.trace_id == met.seen[0].trace.trace_id
        trace = f"trace={failed.value.trace_id}"
        lines = [record.getMessage() for record in caplog.records if trace in record.getMessage()]
        assert [line.partition(": ")[0] for line in lines] == [
            "call in greet from did:wba:guest.example",
            "operation.uncaught",
            "call out greet to did:wba:host.example",
        ]

    with caplog.at_level(logging.DEBUG, "treaty_agent"):
        meet(failing, visit)


def test_each_call_is_an_event_of_both_agents() -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            events: list[AgentEvent] = []
            host = PeerDouble(
                simulation.agent("host.example", on_event=events.append),
                simulation.uri("greeting"),
                {"greet": OperationError(403, "Not you.")},
            )
            guest = simulation.agent("guest.example", on_event=events.append)
            async with simulation.serving(host.agent), guest.connect("wss://host.example", topic=TOPIC) as session:
                with pytest.raises(OperationError):
                    await session.call("greet", name="Ada")
                host.answers["greet"], host.delay = "Hello!", 5.0
                await session.call("greet", name="Ada")
                call = asyncio.create_task(session.call("greet", name="Ada"))
                await asyncio.sleep(1)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            calls = [event for event in events if event.operation]
            assert [(event.name, event.role, event.status) for event in calls[:4]] == [
                ("call in", "responder", "operation.403"),
                ("call out", "initiator", "operation.403"),
                ("call in", "responder", "ok"),
                ("call out", "initiator", "ok"),
            ]
            assert (calls[4].name, calls[4].status) == ("call out", "cancelled")
            assert all(len(event.trace_id) == 32 for event in calls)
            assert calls[0].trace_id == calls[1].trace_id != calls[2].trace_id == calls[3].trace_id
            assert 4.9 < calls[2].seconds < 5.1

    run(main())
