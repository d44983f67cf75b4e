"""Middleware around calls in and out: its order, its refusals, and what a wrong one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from treaty_agent import (
    Agent,
    Call,
    Middleware,
    OperationError,
    OutcomeUnknown,
    PeerUnavailable,
    Proceed,
    Session,
    TraceContext,
    current_call,
)
from treaty_agent.testing import PeerDouble, Simulation, run
from treaty_consensus.errors import Malformed, Refused
from treaty_consensus.handler import OperationKind

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT / "examples" / "greeting", ROOT / "examples" / "appointment"]
SLOTS = tuple({"start": f"2026-11-23T{hour:02}:00", "minutes": 30} for hour in range(9, 17))


class Meeting:
    """A host with doubles of both protocols, and a guest. `made`: the items that the function of the stream began to make."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.host, self.guest = simulation.agent("host.example"), simulation.agent("guest.example")
        self.greeting, self.appointment = simulation.uri("greeting"), simulation.uri("appointment")
        self.double = PeerDouble(self.host, self.greeting, {"greet": "Hello!"})
        self.others = PeerDouble(self.host, self.appointment, {"book": "B1", "cancel": None})
        self.made: list[str] = []
        self.ended: list[str] = []

        @self.host.provides(self.appointment)
        async def find(day: str) -> AsyncIterator[dict[str, Any]]:
            try:
                for slot in SLOTS:
                    self.made.append(str(slot["start"]))
                    yield slot
            finally:
                self.ended.append("function")

    def session(self, uri: str = "") -> Any:
        return self.guest.connect("wss://host.example", protocols=[uri or self.greeting])


def meet(visit: Callable[[Meeting], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Simulation(FOLDERS) as simulation:
            met = Meeting(simulation)
            async with simulation.serving(met.host):
                await visit(met)

    run(main())


def noting(names: list[str], name: str) -> Middleware:
    async def note(call: Call, proceed: Proceed) -> Any:
        names.append(f"{name} {call.direction} {call.operation} {dict(call.arguments)}")
        try:
            value = await proceed()
        except BaseException as error:
            names.append(f"{name} raised {type(error).__name__}")
            raise
        names.append(f"{name} got {value}")
        return value

    return note


def test_the_first_one_is_the_outermost_in_both_directions() -> None:
    async def visit(met: Meeting) -> None:
        notes: list[str] = []
        for agent, name in ((met.guest, "guest"), (met.host, "host")):
            agent.middleware(noting(notes, f"{name} 1"))
            agent.middleware(noting(notes, f"{name} 2"))
        async with met.session() as session:
            assert await session.call("greet", name="Ada") == "Hello!"
        assert notes == [
            "guest 1 out greet {'name': 'Ada'}",
            "guest 2 out greet {'name': 'Ada'}",
            "host 1 in greet {'name': 'Ada'}",
            "host 2 in greet {'name': 'Ada'}",
            "host 2 got Hello!",
            "host 1 got Hello!",
            "guest 2 got Hello!",
            "guest 1 got Hello!",
        ]

    meet(visit)


def test_a_protocols_middleware_sees_its_early_calls() -> None:
    async def visit(met: Meeting) -> None:
        notes: list[str] = []
        met.host.middleware(noting(notes, "host"), protocol=met.greeting)
        met.guest.middleware(protocol=met.greeting)(noting(notes, "guest"))
        for _ in range(2):  # the second session speaks at once
            async with met.session(met.appointment) as session:
                await session.call("cancel", booking="B1")
            assert notes == []
        for _ in range(2):
            async with met.session() as session:
                await session.call("greet", name="Ada")
            assert len(notes) == 4
            notes.clear()

    meet(visit)


def test_a_refusal_reaches_the_caller_and_not_the_function() -> None:
    async def visit(met: Meeting) -> None:
        @met.host.middleware
        async def closed(call: Call, proceed: Proceed) -> Any:
            # The stream's manifest lists no 403.
            raise OperationError(400 if call.kind is OperationKind.STREAM else 403, f"Not for {call.context.peer}.")

        async with met.session() as session:
            with pytest.raises(OperationError) as refusal:
                await session.call("greet", name="Ada")
        assert (refusal.value.status, refusal.value.message) == (403, "Not for did:wba:guest.example.")
        assert met.double.calls == []
        async with met.session(met.appointment) as session:
            with pytest.raises(OperationError) as refusal:
                async for _ in session.stream("find", day="2026-11-23"):
                    pass
        assert (refusal.value.status, met.made) == (400, [])

    meet(visit)


def test_an_outgoing_call_that_is_refused_is_not_sent() -> None:
    async def visit(met: Meeting) -> None:
        @met.guest.middleware
        async def spent(call: Call, proceed: Proceed) -> Any:
            raise OperationError(429, "The budget of today is spent.")

        async with met.session() as session:
            with pytest.raises(OperationError) as refusal:
                await session.call("greet", name="Ada")
            with pytest.raises(OperationError):
                await session.call("greet", name="Ada")
        assert (refusal.value.status, met.double.calls) == (429, [])

    meet(visit)


def test_one_that_does_not_proceed_answers_itself() -> None:
    async def visit(met: Meeting) -> None:
        @met.host.middleware
        async def cached(call: Call, proceed: Proceed) -> Any:
            return "Hello from before!"

        async with met.session() as session:
            assert await session.call("greet", name="Ada") == "Hello from before!"
        assert met.double.calls == []
        async with met.session(met.appointment) as session:
            assert [slot async for slot in session.stream("find", day="2026-11-23")] == []
        assert met.made == []

    meet(visit)


@pytest.mark.parametrize("answer", [None, 7, object()])
def test_an_answer_of_another_form_is_not_sent(answer: object) -> None:
    async def visit(met: Meeting) -> None:
        @met.host.middleware
        async def wrong(call: Call, proceed: Proceed) -> Any:
            return answer

        async with met.session() as session:
            with pytest.raises(OperationError) as failed:
                await session.call("greet", name="Ada")
            assert failed.value.status == 500

    meet(visit)


def twice(agent: Agent) -> None:
    @agent.middleware
    async def again(call: Call, proceed: Proceed) -> Any:
        with suppress(OperationError):
            await proceed()
        return await proceed()


def test_one_that_proceeds_twice_fails_and_the_function_ran_once() -> None:
    async def visit(met: Meeting) -> None:
        twice(met.host)
        async with met.session() as session:
            with pytest.raises(OperationError) as failed:
                await session.call("greet", name="Ada")
        assert (failed.value.status, len(met.double.calls)) == (500, 1)

    meet(visit)


def test_proceeding_twice_sends_an_outgoing_call_once() -> None:
    async def visit(met: Meeting) -> None:
        twice(met.guest)
        async with met.session() as session:
            with pytest.raises(Refused) as failed:
                await session.call("greet", name="Ada")
        assert (failed.value.code, len(met.double.calls)) == ("agent.function", 1)

    meet(visit)


@pytest.mark.parametrize("direction", ["in", "out"])
def test_one_that_raises_fails_the_call_alone(direction: str) -> None:
    async def visit(met: Meeting) -> None:
        @(met.host if direction == "in" else met.guest).middleware
        async def broken(call: Call, proceed: Proceed) -> Any:
            if call.arguments["name"] == "Ada":
                raise KeyError("secret")
            return await proceed()

        async with met.session() as session:
            with pytest.raises(OperationError if direction == "in" else KeyError) as failed:
                await session.call("greet", name="Ada")
            assert "secret" not in str(failed.value) or direction == "out"
            assert await session.call("greet", name="Bob") == "Hello!"

    meet(visit)


@pytest.mark.parametrize("direction", ["in", "out"])
def test_one_that_hangs_has_the_time_of_the_call(direction: str) -> None:
    async def visit(met: Meeting) -> None:
        @(met.host if direction == "in" else met.guest).middleware
        async def hanging(call: Call, proceed: Proceed) -> Any:
            await asyncio.sleep(3600)

        async with met.session() as session:
            with pytest.raises(OutcomeUnknown if direction == "in" else PeerUnavailable) as failed:
                await session.call("greet", name="Ada")
            assert failed.value.code == ("session.outcome-unknown" if direction == "in" else "session.late")
            assert met.double.calls == []

    meet(visit)


def test_the_arguments_cannot_be_replaced() -> None:
    async def visit(met: Meeting) -> None:
        @met.host.middleware
        async def changing(call: Call, proceed: Proceed) -> Any:
            with pytest.raises(TypeError):
                call.arguments["name"] = "Eve"  # type: ignore[index]
            return await proceed()

        async with met.session() as session:
            await session.call("greet", name="Ada")
        assert met.double.calls[0].arguments == {"name": "Ada"}

    meet(visit)


# Streams


async def first(session: Session, count: int) -> list[Any]:
    found: list[Any] = []
    async with session.stream("find", day="2026-11-23") as slots:
        async for slot in slots:
            found.append(slot)
            if len(found) == count:
                break
    return found


def test_it_is_around_a_stream_from_its_beginning_to_its_end() -> None:
    async def visit(met: Meeting) -> None:
        notes: list[str] = []
        met.host.middleware(noting(notes, "host"))
        met.guest.middleware(noting(notes, "guest"))
        async with met.session(met.appointment) as session:
            assert await first(session, 100) == list(SLOTS)
        assert notes == [
            "guest out find {'day': '2026-11-23'}",
            "host in find {'day': '2026-11-23'}",
            "host got None",
            "guest got None",
        ]

    meet(visit)


def test_it_sees_that_the_taker_of_a_stream_leaves() -> None:
    async def visit(met: Meeting) -> None:
        notes: list[str] = []
        met.host.middleware(noting(notes, "host"))
        met.guest.middleware(noting(notes, "guest"))
        async with met.session(met.appointment) as session:
            assert await first(session, 1) == [SLOTS[0]]
            await asyncio.sleep(1)
            assert sorted(notes[2:]) == ["guest raised CancelledError", "host raised CancelledError"]
            assert met.ended == ["function"]

    meet(visit)


def test_it_sees_the_failure_of_a_stream() -> None:
    async def visit(met: Meeting) -> None:
        notes: list[str] = []
        met.guest.middleware(noting(notes, "guest"))

        @met.host.middleware
        async def cut(call: Call, proceed: Proceed) -> Any:
            async with asyncio.timeout(5):
                await proceed()

        async with met.session(met.appointment) as session:
            with pytest.raises(OperationError) as failed:
                async for _ in session.stream("find", day="2026-11-23"):
                    await asyncio.sleep(3)
        assert (failed.value.status, met.ended) == (504, ["function"])
        assert notes[-1] == "guest raised PeerOperationError"

    meet(visit)


def test_it_makes_no_items_ahead_of_the_taker() -> None:
    async def visit(met: Meeting) -> None:
        counts = []
        for is_registered in (False, True):
            if is_registered:
                met.host.middleware(noting([], "host"))
                met.guest.middleware(noting([], "guest"))
            met.made.clear()
            async with met.session(met.appointment) as session, session.stream("find", day="2026-11-23") as slots:
                await anext(slots)
                await asyncio.sleep(1)
                counts.append(len(met.made))
        assert counts[0] == counts[1]

    meet(visit)


VARIABLE: ContextVar[str] = ContextVar("variable", default="")


def test_a_function_sees_its_middlewares_variables() -> None:
    trace = TraceContext.new()

    async def visit(met: Meeting) -> None:
        seen: list[object] = []

        @met.host.middleware
        async def bridge(call: Call, proceed: Proceed) -> Any:
            VARIABLE.set("set")
            return await proceed(trace=trace)

        met.host.context.served.services[met.appointment].functions.remove("find")

        @met.host.provides(met.appointment)
        async def find(day: str) -> AsyncIterator[dict[str, Any]]:
            seen.append((VARIABLE.get(), getattr(current_call(), "trace", None)))
            yield SLOTS[0]

        async with met.session(met.appointment) as session:
            assert await first(session, 100) == [SLOTS[0]]
        async with met.session() as session:
            await session.call("greet", name="Ada")
        assert seen == [("set", trace)]
        assert met.double.contexts[0].trace == trace

    meet(visit)


def test_a_middlewares_trace_crosses_the_wire() -> None:
    trace = TraceContext.new()

    async def visit(met: Meeting) -> None:
        kinds: list[OperationKind] = []

        @met.guest.middleware
        async def bridge(call: Call, proceed: Proceed) -> Any:
            kinds.append(call.kind)
            return await proceed(trace=trace)

        async with met.session() as session:
            await session.call("greet", name="Ada")
        (context,) = met.double.contexts
        assert (context.trace.trace_id, context.trace.parent_id) == (trace.trace_id, trace.span_id)
        assert kinds == [OperationKind.REQUEST]

    meet(visit)


# Registration


def plain(call: Call, proceed: Proceed) -> Any: ...


@pytest.mark.parametrize("function", [plain, 7, None.__class__])
def test_only_a_coroutine_function_is_middleware(function: Any) -> None:
    async def visit(met: Meeting) -> None:
        with pytest.raises(Malformed) as refusal:
            met.host.middleware(function)
        assert refusal.value.code == "agent.function"
        async with met.session() as session:
            assert await session.call("greet", name="Ada") == "Hello!"

    meet(visit)


def test_a_protocol_that_is_no_uri_is_refused() -> None:
    async def visit(met: Meeting) -> None:
        with pytest.raises(Malformed):
            met.host.middleware(noting([], "host"), protocol="greeting")

    meet(visit)
