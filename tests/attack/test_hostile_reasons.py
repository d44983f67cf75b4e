"""A peer that ends sessions with hostile reasons, or that says for ever that the call may be repeated. Real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from treaty_agent import Agent, Identity, LocalProtocols, PeerUnavailable
from treaty_agent.sessions.roles import SessionRequest
from treaty_agent.transport import listener
from treaty_agent.transport.connection import Connection, next_message
from treaty_consensus.errors import Origin, Refused, TreatyError, Unauthorized, Unavailable
from treaty_io.errors import MAX_PEER_CODE, SKEW

GREETING = Path(__file__).parents[2] / "examples" / "greeting"
CLOCK = "authentication.time"
REASONS = ["hello.version\x1b[2J", "<img src=x>", "\u202egnp.exe", "a.b\r\nERROR forged", "x" * 120, "%s%n {} ${jndi}"]


@asynccontextmanager
async def guest(home: Path) -> AsyncIterator[tuple[Agent, str]]:
    protocols = LocalProtocols([GREETING])
    async with Agent(Identity.create(), protocols, home=home) as agent:
        yield agent, protocols.uri("greeting")


@asynccontextmanager
async def closing(reason: str, code: int = 1008, port: int = 0) -> AsyncIterator[tuple[str, list[float]]]:
    """A WebSocket server that ends each session after the first message. The list has the times of its connections."""
    opened = list[float]()

    async def end(socket: ServerConnection) -> None:
        opened.append(time.monotonic())
        await socket.recv()
        await socket.close(code, reason)

    async with serve(end, "127.0.0.1", port) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", opened


@asynccontextmanager
async def answering(status: str, problem: object, **headers: str) -> AsyncIterator[str]:
    """An HTTP server that gives each request one answer."""
    body = json.dumps(problem).encode()
    lines = {"Content-Type": "application/problem+json", "Content-Length": str(len(body)), "Connection": "close", **headers}
    head = f"HTTP/1.1 {status}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = next(
            int(line.split(b":")[1]) for line in (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n") if b"ength" in line
        )
        await reader.readexactly(length)
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def refused(home: Path, url: str) -> TreatyError:
    """The error of `Agent.connect`."""
    async with guest(home) as (agent, uri):
        with pytest.raises(TreatyError) as failure:
            async with agent.connect(url, protocols=[uri]):
                pass
    return failure.value


@pytest.mark.threat(191)
@pytest.mark.parametrize("reason", REASONS)
async def test_a_hostile_reason_is_bounded_and_printable(tmp_path: Path, reason: str) -> None:
    async with closing(reason) as (url, opened):
        error = await refused(tmp_path, url)
    assert (error.code, error.family, error.retryable) == ("session.peer-refused", "Refused", False)
    assert error.origin is Origin.PEER
    assert 0 < len(error.peer_code) <= MAX_PEER_CODE
    assert error.peer_code.isprintable()
    assert str(error).isprintable()
    assert len(opened) == 1


async def test_a_known_reason_is_data(tmp_path: Path) -> None:
    for code, family in (("hello.destination", "Refused"), ("session.no-worker", "Unavailable")):
        async with closing(code) as (url, _):
            error = await refused(tmp_path, url)
        assert (error.family, error.peer_code, error.retryable) == (family, code, family == "Unavailable")


@pytest.mark.threat(191)
@pytest.mark.parametrize("reason", ["x" * 1024 * 1024, "\x1b[2J", "<b>", 7, None, ["a.b"], {"a": "b"}])
async def test_a_hostile_reason_over_http_is_none(tmp_path: Path, reason: object) -> None:
    problem = {"type": "about:blank", "status": 410, "reason": reason, "code": reason}
    for status in ("410 Gone", "403 Forbidden"):
        async with answering(status, problem) as url:
            error = await refused(tmp_path, url)
        assert len(str(error)) < 400
        assert str(error).isprintable()
        assert len(error.peer_code) <= MAX_PEER_CODE
        assert error.peer_code in ("", "<b>")


@pytest.mark.threat(193)
async def test_a_peer_that_asks_for_repetitions_gets_a_bounded_number(tmp_path: Path) -> None:
    async with closing("session.no-worker") as (url, opened), guest(tmp_path) as (agent, uri):
        peer = agent.peer(url, protocols=[uri])
        with pytest.raises(PeerUnavailable) as failure:
            await peer.call("greet", name="Ada", within=3)
    assert failure.value.peer_code == "session.no-worker"
    assert 1 < len(opened) <= 16


async def test_a_peer_that_refuses_for_good_is_asked_once(tmp_path: Path) -> None:
    async with closing("status.revoked") as (url, opened), guest(tmp_path) as (agent, uri):
        with pytest.raises(Refused) as failure:
            await agent.peer(url, protocols=[uri]).call("greet", name="Ada")
    assert failure.value.peer_code == "status.revoked"
    assert len(opened) == 1


async def test_a_known_peer_that_refuses_for_good_is_asked_once(tmp_path: Path) -> None:
    """With a remembered agreement the session exists before the peer has said anything, and the call is early data."""
    async with guest(tmp_path / "guest") as (agent, uri), guest(tmp_path / "host") as (host, _):

        @host.provides(uri)
        async def greet(name: str) -> str:
            return name

        async with host.listen("127.0.0.1", 0) as port, agent.connect(f"ws://127.0.0.1:{port}", protocols=[uri]) as session:
            assert await session.call("greet", name="Ada") == "Ada"
        async with closing("status.revoked", port=port) as (url, opened):
            with pytest.raises(Refused) as failure:
                await agent.peer(url, protocols=[uri]).call("greet", name="Ada")
    assert (failure.value.code, failure.value.peer_code, len(opened)) == ("session.peer-refused", "status.revoked", 1)


async def test_a_changed_peer_is_detected_by_its_reason(tmp_path: Path) -> None:
    async with guest(tmp_path / "guest") as (agent, uri), guest(tmp_path / "host") as (host, _):

        @host.provides(uri)
        async def greet(name: str) -> str:
            return name

        async with host.listen("127.0.0.1", 0) as port, agent.connect(f"ws://127.0.0.1:{port}", protocols=[uri]) as session:
            assert await session.call("greet", name="Ada") == "Ada"
        agent.context.memory.agreements.forget(f"ws://127.0.0.1:{port}", SessionRequest(protocols=(uri,)).key)
        async with closing("hello.destination", port=port) as (url, _):
            with pytest.raises(Refused) as failure:
                async with agent.connect(url, protocols=[uri]):
                    pass
    assert failure.value.code == "peer.changed"


@pytest.mark.parametrize("code", [1001, 1011, 1013, 4000])
async def test_another_end_has_no_reason_and_may_pass(tmp_path: Path, code: int) -> None:
    async with closing("status.revoked", code) as (url, _):
        error = await refused(tmp_path, url)
    assert isinstance(error, Unavailable)
    assert error.peer_code == ""


@pytest.mark.parametrize(("seconds", "word"), [(300, "behind"), (-300, "ahead of")])
async def test_a_clock_that_is_off_is_measured(tmp_path: Path, seconds: int, word: str) -> None:
    async with answering("401 Unauthorized", {"code": CLOCK}, Date=formatdate(time.time() + seconds, usegmt=True)) as url:
        error = await refused(tmp_path, url)
    assert (error.code, error.peer_code) == ("connection.refused", CLOCK)
    assert error.clock_difference is not None
    assert abs(error.clock_difference + seconds) < SKEW
    assert word in error.message
    assert "clock" in error.fix


@pytest.mark.parametrize("date", ["", "yesterday", "\x01", "Thu, 99 Foo 9999999 00:00:00 GMT", "x" * 5000])
async def test_a_date_that_is_none_is_not_measured(tmp_path: Path, date: str) -> None:
    async with answering("401 Unauthorized", {"code": CLOCK}, Date=date) as url:
        error = await refused(tmp_path, url)
    assert error.clock_difference is None
    assert "clock" in error.fix or error.family == "Unavailable"


async def test_a_refused_signature_comes_with_the_time() -> None:
    async def accept(connection: Connection) -> None: ...

    async def authenticate(*arguments: object) -> str:
        raise Unauthorized(CLOCK, "Too old.")

    listening = listener.listen(accept, "127.0.0.1", 0, max_connections=2, authenticate=authenticate)
    async with listening as port, httpx.AsyncClient() as client:
        headers = {"Content-Type": "application/vnd.treaty.messages.v1"}
        reply = await client.post(f"http://127.0.0.1:{port}/anp/v1/sessions?key={'k' * 43}", content=b"", headers=headers)
    problem = reply.json()
    assert (reply.status_code, problem["code"], problem["family"], problem["retryable"]) == (401, CLOCK, "Unauthorized", False)
    assert "date" in reply.headers


async def test_an_agent_logs_no_line_for_a_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def echo(connection: Connection) -> None:
        connection.send(await next_message(connection))

    async with listener.listen(echo, "127.0.0.1", 0, max_connections=2) as port, connect(f"ws://127.0.0.1:{port}") as socket:
        await socket.send("x")
        await socket.recv()
    assert [record for record in caplog.records if "uvicorn" in record.name] == []
