"""The failures of business functions: each caller gets the right status and no foreign text, and each operator a line that says
what went wrong."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from treaty_agent import AgentEvent, OperationError, OutcomeUnknown, PeerOperationError, PeerUnavailable
from treaty_agent.testing import Simulation, run
from treaty_consensus.errors import Malformed, Origin, Refused, TreatyError
from treaty_io.errors import RegistryUnavailable

GREETING = Path(__file__).parents[2] / "examples" / "greeting"
TRACE = re.compile(r"Its log has trace ([0-9a-f]{32})\.")
SECRET = "the password is swordfish"

Function = Callable[[str], Awaitable[Any]]


def protocol(folder: Path, *errors: int, **operation: Any) -> Path:
    """A copy of the greeting with more error codes, whose result may be anything."""
    copy = folder / "greeting"
    shutil.copytree(GREETING, copy, ignore=shutil.ignore_patterns("vectors"))
    manifest = json.loads((copy / "manifest.json").read_text())
    greet = manifest["operations"]["greet"]
    greet["errors"] |= {str(code): "Listed." for code in errors}
    greet |= {"result": {"type": ["string", "array"]}} | operation
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


async def failing(folder: Path, function: Function, *errors: int, **operation: Any) -> tuple[TreatyError, list[AgentEvent]]:
    """The error of one call of an agent with this function, and the events of its provider."""
    events = list[AgentEvent]()
    async with Simulation([protocol(folder, *errors, **operation)]) as simulation:
        host = simulation.agent("host.example", on_event=events.append)

        async def greet(name: str) -> Any:
            return await function(name)

        host.provides(simulation.uri("greeting"))(greet)
        guest = simulation.agent("guest.example")
        async with simulation.serving(host), guest.connect("wss://host.example", topic="social/greeting") as session:
            with pytest.raises(TreatyError) as failure:
                await session.call("greet", name="Ada")
            # The session goes on: another call gets an answer, too.
            with pytest.raises(TreatyError) as again:
                await session.call("greet", name="Bob")
            assert again.value.code == failure.value.code
    return failure.value, [event for event in events if event.name.startswith("operation.")]


def raising(error: BaseException) -> Function:
    async def function(name: str) -> Any:
        raise error

    return function


def returning(value: Any) -> Function:
    async def function(name: str) -> Any:
        return value

    return function


class OddError(Exception):
    pass


@pytest.mark.parametrize(
    ("function", "errors", "status", "code", "sentence"),
    [
        (raising(KeyError(SECRET)), (), 500, "operation.uncaught", "business logic failed"),
        (raising(OddError(SECRET)), (), 500, "operation.uncaught", "business logic failed"),
        (raising(Refused("some.code", SECRET)), (), 500, "operation.uncaught", "business logic failed"),
        (raising(OperationError(418, SECRET)), (), 500, "operation.wrong-result", "business logic failed"),
        (returning({"a": SECRET}), (), 500, "operation.wrong-result", "business logic failed"),
        (returning(object()), (), 500, "operation.wrong-result", "business logic failed"),
        (returning([0] * 20_001), (), 500, "operation.too-large", "The answer is too large."),
        (returning([SECRET * 200_000]), (), 500, "operation.too-large", "The answer is too large."),
        (raising(PeerUnavailable("session.peer-lost", SECRET)), (), 503, "operation.unavailable", "not available"),
        (raising(RegistryUnavailable("registry.unreachable", SECRET)), (), 503, "operation.unavailable", "not available"),
        (raising(OutcomeUnknown("pay", SECRET, None)), (), 503, "operation.unavailable", "not available"),
        (raising(PeerOperationError(404, SECRET, None)), (404,), 500, "operation.upstream", "Another agent"),
        (raising(PeerOperationError(404, SECRET, None)), (404, 502), 502, "operation.upstream", "Another agent"),
    ],
)
def test_a_failure_has_a_status_and_an_operators_code(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    function: Function,
    errors: tuple[int, ...],
    status: int,
    code: str,
    sentence: str,
) -> None:
    error, events = run(failing(tmp_path, function, *errors))
    assert isinstance(error, OperationError)
    assert (error.status, error.code) == (status, f"operation.{status}")
    assert sentence in error.message
    assert SECRET not in str(error)
    results = TRACE.search(error.message)
    assert results is not None
    lines = [record.getMessage() for record in caplog.records if results[1] in record.getMessage()]
    assert len(lines) == 1
    assert all(part in lines[0] for part in (code, "greet", "did:wba:guest.example"))
    event = events[0]
    assert (event.name, event.status, event.operation, event.trace_id) == (code, code, "greet", results[1])
    assert (event.role, event.peer) == ("responder", "did:wba:guest.example")


@pytest.mark.parametrize("status", [403, 500, 503])
def test_an_own_error_arrives_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int) -> None:
    error, events = run(failing(tmp_path, raising(OperationError(status, "I say so."))))
    assert isinstance(error, PeerOperationError)
    assert (error.status, error.message, events) == (status, "I say so.", [])
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_time_out_is_504(tmp_path: Path) -> None:
    error, events = run(failing(tmp_path, raising(TimeoutError(SECRET))))
    assert isinstance(error, OperationError)
    assert (error.status, events) == (504, [])
    assert SECRET not in error.message


async def chain(folder: Path, middle: Callable[[Any], Awaitable[str]], shop_says: BaseException, *errors: int) -> TreatyError:
    """The error that a guest gets from a host whose function asks a shop, which fails."""
    async with Simulation([protocol(folder, *errors)]) as simulation:
        uri = simulation.uri("greeting")
        shop, host, guest = (simulation.agent(f"{name}.example") for name in ("shop", "host", "guest"))

        @shop.provides(uri)
        async def greet(name: str) -> str:
            raise shop_says

        async def ask(name: str) -> str:
            async with host.connect("wss://shop.example", topic="social/greeting") as upstream:
                return await middle(upstream.call("greet", name=name))

        ask.__name__ = "greet"
        host.provides(uri)(ask)
        async with simulation.serving(shop, host), guest.connect("wss://host.example", topic="social/greeting") as session:
            with pytest.raises(TreatyError) as failure:
                await session.call("greet", name="Ada")
    return failure.value


async def plain(call: Awaitable[str]) -> str:
    return await call


async def deliberate(call: Awaitable[str]) -> str:
    try:
        return await call
    except OperationError as error:
        raise OperationError(error.status, "Passed on.") from error


@pytest.mark.threat(192)
@pytest.mark.parametrize(("errors", "status"), [((), 500), ((502,), 502)])
def test_an_upstreams_error_does_not_leak_as_ones_own(tmp_path: Path, errors: tuple[int, ...], status: int) -> None:
    error = run(chain(tmp_path, plain, OperationError(403, SECRET), *errors))
    assert isinstance(error, OperationError)
    assert error.status == status
    assert SECRET not in str(error)


def test_an_upstreams_error_is_passed_on_deliberately(tmp_path: Path) -> None:
    error = run(chain(tmp_path, deliberate, OperationError(403, SECRET)))
    assert (error.code, error.message) == ("operation.403", "Passed on.")


def test_an_upstream_that_cannot_be_reached_is_503(tmp_path: Path) -> None:
    async def main() -> None:
        async with Simulation([protocol(tmp_path)]) as simulation:
            host, guest = simulation.agent("host.example"), simulation.agent("guest.example")
            simulation.agent("shop.example")

            @host.provides(simulation.uri("greeting"))
            async def greet(name: str) -> str:
                async with host.connect("wss://shop.example", topic="social/greeting", timeout=2) as upstream:
                    return str(await upstream.call("greet", name=name))

            async with simulation.serving(host), guest.connect("wss://host.example", topic="social/greeting") as session:
                with pytest.raises(OperationError) as failure:
                    await session.call("greet", name="Ada")
            assert failure.value.status == 503

    run(main())


def test_a_cancelled_function_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()
        events = list[AgentEvent]()
        async with Simulation([protocol(tmp_path)]) as simulation:
            host, guest = simulation.agent("host.example", on_event=events.append), simulation.agent("guest.example")

            @host.provides(simulation.uri("greeting"))
            async def greet(name: str) -> str:
                begun.set()
                try:
                    await asyncio.sleep(3600)
                finally:
                    ended.set()
                return ""

            async with simulation.serving(host):
                async with guest.connect("wss://host.example", topic="social/greeting") as session:
                    call = asyncio.ensure_future(session.call("greet", name="Ada"))
                    await begun.wait()
                with pytest.raises(TreatyError):
                    await call
                await ended.wait()
        assert [event for event in events if event.name.startswith("operation.")] == []

    run(main())
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("status", "is_idempotent", "retryable", "origin"),
    [
        (403, True, False, Origin.CALLER),
        (429, False, True, Origin.CALLER),
        (500, True, False, Origin.PEER),
        (503, True, True, Origin.PEER),
        (503, False, False, Origin.PEER),
        (504, False, False, Origin.PEER),
    ],
)
def test_an_answer_says_whether_the_call_may_be_repeated(
    tmp_path: Path, status: int, is_idempotent: bool, retryable: bool, origin: Origin
) -> None:
    function = raising(OperationError(status, "No."))
    error, _ = run(failing(tmp_path, function, 429, idempotent=is_idempotent))
    assert (error.code, error.retryable, error.origin, error.family) == (f"operation.{status}", retryable, origin, "TreatyError")


@pytest.mark.parametrize(
    ("arguments", "message", "fix"),
    [
        ({"nam": "Ada"}, "greet has no argument nam, and lacks name.", "Its arguments: name."),
        ({}, "greet lacks name.", "Its arguments: name."),
        ({"name": "Ada", "x\x1b[2J": 1}, "greet has no argument x\\x1b[2J.", "Its arguments: name."),
        ({"name": "A", **{f"a{n}": 1 for n in range(50)}}, "a10, a11, ….", "Its arguments: name."),
        ({"name": ""}, "The arguments of greet break the schema at $.name", ""),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, arguments: dict[str, Any], message: str, fix: str) -> None:
    async def main() -> None:
        calls = list[str]()
        async with Simulation([protocol(tmp_path)]) as simulation:
            host, guest = simulation.agent("host.example"), simulation.agent("guest.example")

            @host.provides(simulation.uri("greeting"))
            async def greet(name: str) -> str:
                calls.append(name)
                return name

            async with simulation.serving(host), guest.connect("wss://host.example", topic="social/greeting") as session:
                with pytest.raises(Malformed) as failure:
                    await session.call("greet", arguments)
                error = failure.value
                assert message in error.message
                assert (error.code, error.fix, error.retryable) == ("operation.arguments", fix, False)
                assert error.origin is Origin.CALLER
                assert calls == []
                assert await session.call("greet", name="Ada") == "Ada"

    run(main())
