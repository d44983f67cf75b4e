"""The HTTP binding request by request, in virtual time: what is held, repeated, refused and forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treaty_agent.testing.virtual_time import run
from treaty_agent.transport import application, http, http_server
from treaty_agent.transport.application import Application, StaticDocument
from treaty_agent.transport.connection import Backoff, Connection, ConnectionFailed, ConnectionLost, next_message
from treaty_agent.transport.http import MAX_BODY, MAX_INBOX, MAX_MESSAGES, MEDIA_TYPE, SESSIONS, HttpConnection
from treaty_agent.transport.http import decode_messages as decoded
from treaty_agent.transport.http import encode_messages as encoded
from treaty_agent.transport.http_server import EXPIRY, LINGER, MAX_AT_ONCE
from treaty_anp.frame import MAX_FRAME
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unauthorized, Unavailable
from treaty_io.admission.rounds import SHARE
from treaty_io.network.exchange import BoundedClient

KEY = "k" * 43
BASE = "http://shop.example"


class Case:
    """An agent over HTTP and somebody who asks. `accepted`: the agent's ends; `over`: lets `accept` return."""

    def __init__(self, **options: Any) -> None:
        self.accepted: list[Connection] = []
        self.first, self.over = asyncio.Event(), asyncio.Event()
        self.application = Application(self.accept, **{"max_connections": 4, **options})
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.application), base_url=BASE)

    async def accept(self, connection: Connection) -> None:
        self.accepted.append(connection)
        self.first.set()
        await self.over.wait()

    async def post(self, url: str, *messages: str | bytes, **headers: str) -> httpx.Response:
        return await self.client.post(url, content=encoded(messages), headers={"Content-Type": MEDIA_TYPE, **headers})

    async def opened(self, key: str = KEY) -> tuple[str, Connection]:
        """An open session whose Hellos were exchanged: its URL and the agent's end."""
        opening = asyncio.create_task(self.post(f"{SESSIONS}?key={key}", "hello"))
        await asyncio.sleep(0.1)
        far = self.accepted[-1]
        assert await next_message(far) == "hello"
        far.send("hello to you")
        reply = await opening
        assert (reply.status_code, decoded(reply.content)) == (201, ["hello to you"])
        assert (reply.headers["Anp-Sequence"], reply.headers["Anp-Acknowledge"]) == ("0", "1")
        return reply.headers["Location"], far


def at(url: str, sequence: int, acknowledge: int) -> str:
    return f"{url}?sequence={sequence}&acknowledge={acknowledge}"


def now() -> float:
    return asyncio.get_running_loop().time()


def simulated(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def wrapper() -> None:
        async def main() -> None:
            await test()

        run(main())

    wrapper.__name__ = test.__name__
    return wrapper


@simulated
async def test_a_session_is_opened_by_its_hello_and_once_by_a_key() -> None:
    case = Case()
    url, far = await case.opened()
    assert url.startswith(f"{SESSIONS}/")
    again = await case.post(f"{SESSIONS}?key={KEY}", "hello")
    assert (again.status_code, again.headers["Location"]) == (201, url)
    assert decoded(again.content) == ["hello to you"]
    assert len(case.accepted) == 1
    waiting = asyncio.create_task(next_message(far))
    await asyncio.sleep(1)
    assert not waiting.done()  # the Hello did not arrive twice
    other, _ = await case.opened("other" * 5)
    assert other != url


@simulated
async def test_a_repeated_request_gets_the_same_answer_once() -> None:
    case = Case()
    url, far = await case.opened()
    for _ in range(2):
        sent = asyncio.create_task(case.post(at(url, 1, 1), b"\x40one", b"\x40two"))
        await asyncio.sleep(0)
        if _ == 0:
            assert [await next_message(far), await next_message(far)] == [b"\x40one", b"\x40two"]
            far.send(b"\x40answer")
        reply = await sent
        assert (reply.headers["Anp-Sequence"], reply.headers["Anp-Acknowledge"]) == ("1", "3")
        assert decoded(reply.content) == [b"\x40answer"]
    reply = await case.post(at(url, 2, 1), b"\x40two", b"\x40three")  # half of it is new
    assert reply.headers["Anp-Acknowledge"] == "4"
    assert await next_message(far) == b"\x40three"


@pytest.mark.parametrize(("sequence", "acknowledge"), [(3, 1), (1, 2)])
def test_numbers_that_nobody_can_have_are_refused(sequence: int, acknowledge: int) -> None:
    async def main() -> None:
        case = Case()
        url, far = await case.opened()
        reply = await case.post(at(url, sequence, acknowledge), b"\x40x")
        assert (reply.status_code, reply.json()["code"]) == (409, "connection.session")
        receiving = asyncio.create_task(next_message(far))
        await case.post(at(url, 1, 1), b"\x40one")
        assert await receiving == b"\x40one"

    run(main())


@simulated
async def test_an_answer_is_held_until_there_is_one_at_most_20_seconds() -> None:
    case = Case()
    url, far = await case.opened()
    begun = now()
    reply = await case.post(at(url, 1, 1))
    assert (reply.status_code, decoded(reply.content)) == (200, [])
    assert now() - begun == pytest.approx(20, abs=0.5)
    task = asyncio.create_task(case.post(at(url, 1, 1)))
    await asyncio.sleep(5)
    assert not task.done()
    far.send(b"\x40news")
    assert decoded((await task).content) == [b"\x40news"]


@simulated
async def test_one_answer_is_held_a_session() -> None:
    case = Case()
    url, far = await case.opened()
    first = asyncio.create_task(case.post(at(url, 1, 1)))
    await asyncio.sleep(1)
    begun = now()
    assert decoded((await case.post(at(url, 1, 1), b"\x40one")).content) == []  # at once: another is held
    second = asyncio.create_task(case.post(at(url, 2, 1)))
    assert decoded((await first).content) == []  # its place is taken
    assert now() - begun < 1
    far.send(b"\x40news")
    assert decoded((await second).content) == [b"\x40news"]


@simulated
async def test_an_agent_that_does_not_read_makes_the_source_wait() -> None:
    case = Case()
    url, far = await case.opened()
    task = asyncio.create_task(case.post(at(url, 1, 1)))
    await asyncio.sleep(0.1)
    messages = [b"\x40%d" % number for number in range(MAX_INBOX + 3)]
    begun = now()
    reply = await case.post(at(url, 1, 1), *messages)
    assert reply.headers["Anp-Acknowledge"] == str(1 + MAX_INBOX)
    assert now() - begun == pytest.approx(20, abs=0.5)
    await task
    sending = asyncio.create_task(case.post(at(url, 1, 1), *messages))
    assert [await next_message(far) for _ in messages] == messages
    assert (await sending).headers["Anp-Acknowledge"] == str(1 + len(messages))


@simulated
async def test_a_sender_is_replaced_by_its_repetition() -> None:
    case = Case()
    url, far = await case.opened()
    messages = [b"\x40%d" % number for number in range(MAX_INBOX + 1)]
    task = asyncio.create_task(case.post(at(url, 1, 1)))
    lost = asyncio.create_task(case.post(at(url, 1, 1), *messages))
    await asyncio.sleep(1)
    assert not lost.done()
    again = asyncio.create_task(case.post(at(url, 1, 1), *messages))
    await asyncio.sleep(1)
    assert lost.done()
    assert not again.done()
    assert [await next_message(far) for _ in messages] == messages
    await asyncio.gather(task, lost, again)
    receiving = asyncio.create_task(next_message(far))
    await asyncio.sleep(1)
    assert not receiving.done()


@simulated
async def test_what_a_session_that_is_over_did_not_read_is_forgotten() -> None:
    case = Case()
    url, far = await case.opened()
    await case.post(at(url, 1, 1), *[bytes(100)] * MAX_INBOX)
    case.over.set()
    await asyncio.sleep(0.1)
    assert (await case.post(at(url, 1, 1))).status_code == 410  # it lingers
    with pytest.raises(ConnectionLost):
        await next_message(far)


@simulated
async def test_the_end_comes_after_everything_else_with_its_reason() -> None:
    case = Case()
    url, far = await case.opened()
    far.send(b"\x40last")
    await far.close("session.idle")
    assert decoded((await case.post(at(url, 1, 1))).content) == [b"\x40last"]
    for _ in range(2):
        reply = await case.post(at(url, 1, 2))
        assert (reply.status_code, reply.json()["reason"]) == (410, "session.idle")
    with pytest.raises(ConnectionLost):
        far.send(b"\x40late")
    case.over.set()
    await asyncio.sleep(LINGER + 1)
    assert (await case.post(at(url, 1, 2))).status_code == 404
    assert len(case.application.sessions) == 0


@simulated
async def test_messages_before_the_sources_end_arrive() -> None:
    case = Case()
    url, far = await case.opened()
    task = asyncio.create_task(case.post(at(url, 1, 1)))
    await asyncio.sleep(0.1)
    begun = now()
    await case.post(at(url, 1, 1), b"\x40last")
    assert (await case.client.delete(f"{url}?reason=session.failed")).status_code == 204
    assert (await task).status_code == 410
    assert now() - begun < 1
    assert await next_message(far) == b"\x40last"
    with pytest.raises(ConnectionLost) as lost:
        await next_message(far)
    assert lost.value.reason == "session.failed"
    assert (await case.client.delete(url)).status_code == 404


@simulated
async def test_who_asks_nothing_for_a_minute_is_gone() -> None:
    case = Case()
    url, far = await case.opened()
    receiving = asyncio.create_task(next_message(far))
    for _ in range(10):  # asking is what keeps it alive
        await case.post(at(url, 1, 1))
    assert not receiving.done()
    begun = now()
    with pytest.raises(ConnectionLost):
        await receiving
    assert now() - begun == pytest.approx(EXPIRY, abs=1)
    case.over.set()
    assert (await case.post(at(url, 1, 1))).status_code == 404


@simulated
async def test_one_session_too_many_is_told_to_come_later() -> None:
    case = Case(max_connections=1)
    url, _ = await case.opened()
    reply = await case.post(f"{SESSIONS}?key={'z' * 43}", "hello")
    assert (reply.status_code, reply.json()["code"], reply.headers["Retry-After"]) == (503, "connection.busy", "1")
    assert (await case.post(f"{SESSIONS}?key={KEY}", "hello")).headers["Location"] == url
    assert len(case.accepted) == 1


@simulated
async def test_a_session_has_only_so_many_requests_at_once() -> None:
    case = Case()
    url, _ = await case.opened()
    full = [b"\x40x"] * (MAX_INBOX + 1)
    tasks = [
        asyncio.create_task(case.post(at(url, 1, 1))),
        *(asyncio.create_task(_trickle(case, at(url, 1, 1), full)) for _ in range(2)),
    ]
    await asyncio.sleep(0.1)
    assert len(tasks) == MAX_AT_ONCE
    assert (await case.post(at(url, 1, 1))).json()["code"] == "connection.busy"
    for task in tasks:
        await task
    assert (await case.post(at(url, 1, 1))).status_code == 200


@simulated
async def test_requests_of_a_reopened_session_are_bounded() -> None:
    case = Case()
    opening = f"{SESSIONS}?key={KEY}"
    first = asyncio.create_task(case.post(opening, "hello"))
    await asyncio.sleep(0.1)
    more = [asyncio.create_task(_trickle(case, opening, [b"hello"])) for _ in range(MAX_AT_ONCE)]
    await asyncio.sleep(0.1)
    assert (await case.post(opening, "hello")).json()["code"] == "connection.busy"
    assert [reply.status_code for reply in await asyncio.gather(first, *more)] == [201] * (1 + MAX_AT_ONCE)


@pytest.mark.threat(93)
def test_answers_count_until_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "MAX_READING", 4 * 300_000)

    async def main() -> None:
        case = Case()
        url, far = await case.opened()
        other, _ = await case.opened("z" * 43)
        far.send(bytes(200_000))
        event = asyncio.Event()

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(_: object) -> None:
            await event.wait()  # the peer does not read

        path, _, query = at(url, 1, 1).partition("?")
        scope = {"type": "http", "method": "POST", "scheme": "http", "path": path, "query_string": query.encode()}
        scope |= {"headers": [(b"content-type", MEDIA_TYPE.encode())], "client": ("127.0.0.1", 1)}
        unread = [asyncio.create_task(case.application(dict(scope), receive, send)) for _ in range(2)]
        await asyncio.sleep(1)
        assert (await case.post(at(url, 1, 1))).json()["code"] == "connection.busy"
        event.set()
        await asyncio.gather(*unread)
        assert decoded((await case.post(at(url, 1, 1))).content) == [bytes(200_000)]
        assert (await case.post(at(other, 1, 1))).status_code == 200
        assert case.application.reading == 0

    run(main())


@pytest.mark.threat(93)
def test_bodies_of_a_network_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "MAX_READING", 4 * 100)

    async def main() -> None:
        case = Case()
        url, far = await case.opened()
        slow = asyncio.create_task(_trickle(case, at(url, 1, 1), [bytes(80)]))
        await asyncio.sleep(1)
        opening = f"{SESSIONS}?key={'z' * 43}"
        assert (await case.post(opening, "x" * 101)).json()["code"] == "connection.busy"
        elsewhere = httpx.ASGITransport(case.application, client=("198.51.100.1", 1))
        async with httpx.AsyncClient(transport=elsewhere, base_url="http://shop.example") as other:
            reply = await other.post(opening, content=b"x" * 90, headers={"Content-Type": MEDIA_TYPE})
        assert reply.json()["code"] == "connection.too-large", "it was read: its first message says that it has gigabytes"
        assert (await slow).status_code == 200
        assert await next_message(far) == bytes(80)
        assert (await case.post(at(url, 2, 1), bytes(80))).headers["Anp-Acknowledge"] == "3"
        assert case.application.reading == 0

    run(main())


async def _trickle(case: Case, url: str, messages: list[bytes]) -> httpx.Response:
    """A request whose body takes its time."""

    async def body() -> AsyncIterator[bytes]:
        data = encoded(messages)
        yield data[:5]
        await asyncio.sleep(10)
        yield data[5:]

    return await case.client.post(url, content=body(), headers={"Content-Type": MEDIA_TYPE})


def test_memory_of_all_sessions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_HELD", 3_000)

    async def main() -> None:
        case = Case()
        (greedy, first), (frugal, second) = await case.opened("greedy" * 5), await case.opened("frugal" * 5)
        for _ in range(7):  # beside the Hello; the agent does not read, the source does not acknowledge
            first.send(b"\x40" + bytes(199))
        assert (await case.post(at(greedy, 1, 0), bytes(700), bytes(700))).status_code == 200
        second.send(b"\x40" + bytes(99))
        woken = asyncio.Event()
        first.watch(woken.set)
        assert first.backlog == len("hello to you") + 7 * 200
        second.send(b"\x40" + bytes(199))
        assert woken.is_set()
        assert first.backlog == 0
        with pytest.raises(ConnectionLost):
            first.send(b"\x40")
        with pytest.raises(ConnectionLost):
            first.receive()
        assert (await case.post(at(greedy, 1, 0))).status_code == 404
        reply = await case.post(at(frugal, 1, 1))
        assert [len(message) for message in decoded(reply.content)] == [100, 200]
        await case.post(at(frugal, 1, 3), b"\x40received")
        assert await next_message(second) == b"\x40received"
        sessions = case.application.sessions
        assert (sessions.held, sessions.holding) == (0, set())

    run(main())


@pytest.mark.parametrize("ending", ["deleted", "expired", "over"])
def test_a_session_that_is_over_holds_nothing(ending: str) -> None:
    async def main() -> None:
        case = Case()
        url, far = await case.opened()
        far.send(b"\x40" + bytes(99))
        await case.post(at(url, 1, 1), b"\x40" + bytes(99))
        sessions = case.application.sessions
        assert sessions.held == 200
        if ending == "deleted":
            await case.client.delete(f"{url}?reason=")
            assert await next_message(far) == b"\x40" + bytes(99)  # what was sent still arrives
        elif ending == "expired":
            await asyncio.sleep(2 * EXPIRY)
        case.over.set()
        await asyncio.sleep(1)
        assert sessions.held == (100 if ending == "over" else 0)  # the last word can still be asked for
        await asyncio.sleep(LINGER)
        assert (sessions.held, sessions.holding, len(sessions)) == (0, set(), 0)

    run(main())


@simulated
async def test_a_session_belongs_to_the_did_that_opened_it() -> None:
    async def authenticate(method: str, uri: str, headers: Mapping[str, str], body: bytes) -> str:
        seen.append((method, uri, body))
        match headers.get("signature"):
            case None:
                return ""
            case "bad":
                raise Refused("authentication.signature", "No.")
            case "later":
                raise Unavailable("system.file", "Later.")
            case "wrong":
                raise Unauthorized("authentication.signature", "No.")
            case did:
                return did

    seen: list[tuple[str, str, bytes]] = []
    case = Case(authenticate=authenticate, challenge=lambda: {"WWW-Authenticate": "DIDWba"})
    opening = asyncio.create_task(case.post(f"{SESSIONS}?key={KEY}", "hello", Signature="did:wba:a.example"))
    await asyncio.sleep(0.1)
    assert case.accepted[0].peer == "did:wba:a.example"
    case.accepted[0].send("hello to you")
    url = (await opening).headers["Location"]
    assert seen == [("POST", f"{BASE}{SESSIONS}?key={KEY}", encoded(["hello"]))]
    for signature, status in (("did:wba:b.example", 403), ("bad", 401), ("wrong", 401), ("later", 503)):
        reply = await case.post(at(url, 1, 1), b"\x40theirs", Signature=signature)
        assert reply.status_code == status
        assert (reply.headers.get("WWW-Authenticate") == "DIDWba") is (status == 401)
        assert (await case.client.delete(url, headers={"Signature": signature})).status_code == status
        assert (await case.post(f"{SESSIONS}?key={KEY}", "hello", Signature=signature)).status_code == status
    assert (await case.post(at(url, 1, 1), b"\x40mine", Signature="did:wba:a.example")).headers["Anp-Acknowledge"] == "2"
    await next_message(case.accepted[0])
    assert await next_message(case.accepted[0]) == b"\x40mine"


@simulated
async def test_a_request_outside_the_binding_opens_nothing() -> None:
    case = Case()
    opening = f"{SESSIONS}?key={KEY}"
    url, far = await case.opened("other" * 5)
    big = b"\x00\x20\x00\x01" + bytes(10)
    refusals = [
        (await case.post(SESSIONS, "hello"), 400),
        (await case.post(f"{SESSIONS}?key=short", "hello"), 400),
        (await case.post(f"{opening}&key={KEY}", "hello"), 400),
        (await case.post(f"{SESSIONS}?key={'k' * 600}", "hello"), 413),
        (await case.post(opening), 400),
        (await case.post(opening, "hello", Origin="https://evil.example"), 403),
        (await case.post(opening, "hello", **{"Content-Type": "text/plain"}), 400),
        (await case.client.post(opening, content=big, headers={"Content-Type": MEDIA_TYPE}), 413),
        (await case.client.post(opening, content=bytes(MAX_BODY + 4), headers={"Content-Type": MEDIA_TYPE}), 413),
        (await case.client.post(opening, content=b"\x00\x00\x00\x05x", headers={"Content-Type": MEDIA_TYPE}), 400),
        (await case.client.post(opening, content=b"\x80\x00\x00\x01\xff", headers={"Content-Type": MEDIA_TYPE}), 400),
        (await case.client.get(opening), 405),
        (await case.client.put(url), 405),
        (await case.post(f"{SESSIONS}/unknown?sequence=0&acknowledge=0"), 404),
        (await case.post(f"{url}?sequence=1"), 400),
        (await case.post(f"{url}?sequence=-1&acknowledge=0"), 400),
        (await case.client.delete(f"{url}?reason=%0d%0a"), 400),
    ]
    assert [reply.status_code for reply, _ in refusals] == [status for _, status in refusals]
    assert len(case.accepted) == 1
    far.send(b"\x40still here")
    assert decoded((await case.post(at(url, 1, 1))).content) == [b"\x40still here"]


@simulated
async def test_documents_are_served_and_nothing_else() -> None:
    documents = {"/.well-known/agent-descriptions": StaticDocument("application/json", b"{}")}
    case = Case(documents=documents)
    reply = await case.client.get("/.well-known/agent-descriptions")
    assert (reply.status_code, reply.content, reply.headers["Content-Type"]) == (200, b"{}", "application/json")
    head = await case.client.head("/.well-known/agent-descriptions")
    assert (head.content, head.headers["Content-Length"]) == (b"", "2")
    assert (await case.client.post("/.well-known/agent-descriptions")).status_code == 405
    assert (await case.client.get("/")).status_code == 404
    documents["/new"] = StaticDocument("text/plain", b"new")
    assert (await case.client.get("/new")).content == b"new"


@simulated
async def test_below_another_path_a_session_is_found_there() -> None:
    case = Case()
    transport = httpx.ASGITransport(case.application, root_path="/agents/a")
    client = BoundedClient(transport=transport, base_url=BASE)
    connection = HttpConnection(f"{BASE}/agents/a", client, None, Backoff(), http.RESUME)
    connection.send("hello")
    await asyncio.sleep(0.1)
    case.accepted[0].send("hello to you")
    assert await next_message(connection) == "hello to you"
    connection.send(b"\x40more")
    assert [await next_message(case.accepted[0]), await next_message(case.accepted[0])] == ["hello", b"\x40more"]
    await connection.close()


@simulated
async def test_when_the_agent_goes_away_every_source_is_told() -> None:
    case = Case()
    url, far = await case.opened()
    task = asyncio.create_task(case.post(at(url, 1, 1)))
    await asyncio.sleep(0.1)
    begun = now()
    closing = asyncio.create_task(case.application.aclose())
    assert (await task).status_code == 410
    assert now() - begun < 1
    with pytest.raises(ConnectionLost):
        await next_message(far)
    assert not closing.done()
    case.over.set()
    await closing
    assert (await case.post(f"{SESSIONS}?key={'z' * 43}", "hello")).status_code == 503


class Flaky(httpx.AsyncBaseTransport):
    """A network that loses requests, or their answers, by plan: 0 neither, 1 the request, 2 the answer, 3 a proxy's 502."""

    def __init__(self, inner: httpx.AsyncBaseTransport, plan: list[int]) -> None:
        self.inner, self.plan, self.requests = inner, plan, 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        fate = self.plan.pop(0) if self.plan else 0
        if fate == 1:
            raise httpx.ConnectError("lost")
        if fate == 3:
            return httpx.Response(502, stream=httpx.ByteStream(b""))
        response = await self.inner.handle_async_request(request)
        if fate == 2:
            raise httpx.ReadError("lost")
        return response


@asynccontextmanager
async def through(
    case: Case, plan: list[int], sign: http.Sign | None = None, attempts: int | None = None
) -> AsyncIterator[tuple[HttpConnection, Flaky]]:
    flaky = Flaky(httpx.ASGITransport(case.application), plan)
    opening = Backoff(attempts=attempts or len(plan) + 2, within=3600, chance=lambda: 0.5)
    connection = HttpConnection(BASE, BoundedClient(transport=flaky), sign, opening, opening)
    try:
        yield connection, flaky
    finally:
        await connection.close()
        case.over.set()


# Up to three times what an end reads ahead: nobody receives before everything is sent.
@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.booleans(), max_size=3 * MAX_INBOX))
def test_nothing_is_lost_doubled_or_disordered_on_a_bad_network(plan: list[int], story: list[bool]) -> None:
    async def main() -> None:
        case = Case()
        async with through(case, list(plan)) as (near, _):
            near.send("hello")
            await case.first.wait()
            far = case.accepted[0]
            assert await next_message(far) == "hello"
            far.send("hello to you")
            assert await next_message(near) == "hello to you"
            for number, forth in enumerate(story):
                (near if forth else far).send(b"%d" % number)
                if number % 3 == 2:
                    await asyncio.sleep(0.3)
            assert [await next_message(far) for forth in story if forth] == [b"%d" % n for n, forth in enumerate(story) if forth]
            assert [await next_message(near) for forth in story if not forth] == [
                b"%d" % n for n, forth in enumerate(story) if not forth
            ]
            assert len(case.accepted) == 1

    run(main())


@simulated
async def test_a_long_absent_network_ends_the_session() -> None:
    case = Case()
    async with through(case, []) as (near, flaky):
        near.send("hello")
        await asyncio.sleep(0.1)
        case.accepted[0].send("hello to you")
        await next_message(near)
        flaky.plan = [1] * 1000
        begun = now()
        with pytest.raises(ConnectionLost):
            await next_message(near)
        assert now() - begun < 60
        with pytest.raises(ConnectionLost):
            near.send(b"\x40more")


@pytest.mark.parametrize("plan", [[1, 1, 1], [3, 3, 3]])
def test_opening_is_retried_until_connection_failed(plan: list[int]) -> None:
    async def main() -> None:
        case = Case()
        async with through(case, [*plan], attempts=3) as (near, flaky):
            near.send("hello")
            for _ in range(2):
                with pytest.raises(ConnectionFailed) as failure:
                    await next_message(near)
                assert (failure.value.code, flaky.requests) == ("connection.failed", 3)
            with pytest.raises(ConnectionLost):
                near.send("hello")
            assert near.backlog == 0
        assert case.accepted == []

    run(main())


@simulated
async def test_a_refusal_is_told_with_its_code_and_not_tried_again() -> None:
    async def authenticate(method: str, uri: str, headers: Mapping[str, str], body: bytes) -> str:
        raise Unauthorized("authentication.missing", "This request is not signed.")

    case = Case(authenticate=authenticate)
    async with through(case, []) as (near, flaky):
        near.send("hello")
        with pytest.raises(TreatyError, match=r"authentication\.missing") as failure:
            await next_message(near)
        assert (failure.value.code, flaky.requests) == ("connection.refused", 1)


@simulated
async def test_a_silent_refusal_has_its_reason_at_once() -> None:
    case = Case()
    opening = asyncio.create_task(case.post(f"{SESSIONS}?key={KEY}", "hello"))
    await asyncio.sleep(0.1)
    await case.accepted[0].close("hello.destination")
    reply = await opening
    assert (reply.status_code, reply.json()["reason"]) == (410, "hello.destination")
    async with through(case, []) as (near, _):
        near.send("hello")
        await asyncio.sleep(0.1)
        await case.accepted[1].close("hello.destination")
        with pytest.raises(ConnectionLost) as lost:
            await next_message(near)
        assert lost.value.reason == "hello.destination"
        with pytest.raises(ConnectionLost) as lost:
            near.send("hello?")
        assert lost.value.reason == "hello.destination"


@simulated
async def test_every_attempt_is_signed_anew_over_what_is_sent() -> None:
    signed: list[tuple[str, str, bytes]] = []

    def sign(method: str, url: str, body: bytes) -> dict[str, str]:
        signed.append((method, url, body))
        return {"Signature": f"nonce-{len(signed)}"}

    verified: list[tuple[str, str, str, bytes]] = []

    async def authenticate(method: str, uri: str, headers: Mapping[str, str], body: bytes) -> str:
        verified.append((headers["signature"], method, uri, body))
        return "did:wba:a.example"

    case = Case(authenticate=authenticate)
    async with through(case, [2, 1], sign) as (near, _):
        near.send("hello")
        await asyncio.sleep(0.1)
        case.accepted[0].send("hello to you")
        assert await next_message(near) == "hello to you"
    assert verified == [(f"nonce-{number}", *signed[number - 1]) for number in (1, *range(3, len(signed) + 1))]


@simulated
async def test_messages_before_the_opening_keep_their_order() -> None:
    case = Case()
    async with through(case, []) as (near, flaky):
        at_once: list[str | bytes] = ["hello", *(b"\x40%d" % number for number in range(MAX_INBOX))]
        for message in at_once:
            near.send(message)
        await asyncio.sleep(0.1)
        near.send(b"\x40later")
        await asyncio.sleep(1)
        far = case.accepted[0]
        assert (flaky.requests, near.backlog) == (1, sum(map(len, [*at_once, b"\x40later"])))  # the answer is held
        begun = now()
        far.send("hello to you")
        assert await next_message(near) == "hello to you"
        assert now() - begun < 1  # it waits for no room
        assert near.backlog == sum(map(len, [*at_once[MAX_INBOX:], b"\x40later"]))
        assert [await next_message(far) for _ in range(MAX_INBOX + 2)] == [*at_once, b"\x40later"]


@simulated
async def test_messages_before_a_close_precede_it() -> None:
    case = Case()
    async with through(case, [1]) as (near, _):
        near.send("hello")
        near.send(b"\x40last")
        closing = asyncio.create_task(near.close("session.idle"))
        with pytest.raises(ConnectionLost):
            await asyncio.sleep(0)
            near.send(b"\x40late")
        await case.first.wait()
        far = case.accepted[0]
        far.send("hello to you")
        assert [await next_message(far), await next_message(far)] == ["hello", b"\x40last"]
        with pytest.raises(ConnectionLost) as lost:
            await next_message(far)
        assert lost.value.reason == "session.idle"
        await closing


@simulated
async def test_an_idle_session_is_closed_at_once_with_its_reason() -> None:
    case = Case()
    async with through(case, []) as (near, _):
        near.send("hello")
        await asyncio.sleep(0.1)
        far = case.accepted[0]
        far.send("hello to you")
        assert [await next_message(far), await next_message(near)] == ["hello", "hello to you"]
        await asyncio.sleep(1)
        begun = now()
        await near.close("session.idle")
        assert now() - begun < 0.1
        with pytest.raises(ConnectionLost) as lost:
            await next_message(far)
        assert lost.value.reason == "session.idle"


@pytest.mark.threat(114)
@simulated
async def test_messages_of_a_network_are_handled_in_turns() -> None:
    case = Case()
    sessions = [await case.opened(letter * 43) for letter in "abc"]
    for url, _ in sessions:
        await case.post(at(url, 1, 1), *[b"\x40"] * MAX_INBOX)
    fars = [far for _, far in sessions]
    await asyncio.sleep(1)
    woken = asyncio.Event()
    for far in fars:
        far.watch(woken.set)
    assert [far.receive() for far in fars for _ in range(MAX_INBOX)].count(b"\x40") == SHARE
    await woken.wait()
    assert sum(far.receive() == b"\x40" for far in fars for _ in range(MAX_INBOX)) <= SHARE
    await case.client.delete(f"{sessions[2][0]}?reason=")  # its turn holds nobody up
    for url, far in sessions[:2]:
        await case.post(at(url, 1 + MAX_INBOX, 1), b"\x40last")
        while await next_message(far) != b"\x40last":
            pass


@simulated
async def test_a_close_waits_a_bounded_time() -> None:
    case = Case()
    async with through(case, [1] * 1000) as (near, _):
        near.send("hello")
        await asyncio.sleep(1)
        begun = now()
        await near.close()
        assert now() - begun == pytest.approx(http.CLOSE_TIMEOUT, abs=0.1)
        with pytest.raises(ConnectionLost):
            near.receive()
        assert len(asyncio.all_tasks()) == 1  # this one


@simulated
async def test_a_falling_backlog_wakes_its_owner() -> None:
    case = Case()
    url, far = await case.opened()
    wakes: list[int] = []
    far.watch(lambda: wakes.append(far.backlog))
    await case.post(at(url, 1, 1))  # which acknowledges the Hello
    assert (far.backlog, wakes) == (0, [0])
    for _ in range(3 * MAX_INBOX):  # it never waits
        far.send("ü" * 50)
    assert far.backlog == 3 * MAX_INBOX * 100
    assert len(decoded((await case.post(at(url, 1, 1))).content)) == 3 * MAX_INBOX
    assert far.backlog == 3 * MAX_INBOX * 100
    await case.post(at(url, 1, 3))
    assert (far.backlog, wakes) == ((3 * MAX_INBOX - 2) * 100, [0, (3 * MAX_INBOX - 2) * 100])
    async with through(case, []) as (near, _):
        near.watch(lambda: wakes.append(near.backlog))
        near.send("hello")
        await asyncio.sleep(0.1)
        case.accepted[1].send("hello to you")
        assert near.backlog == len("hello")
        await asyncio.sleep(0.1)
        assert (near.backlog, near.receive()) == (0, "hello to you")
        wakes.clear()
        for _ in range(3 * MAX_INBOX):
            near.send(bytes(100))
        await asyncio.sleep(http.HOLD + 1)  # the agent does not read
        assert near.backlog == (2 * MAX_INBOX + 1) * 100  # the inbox has the Hello, too
        assert wakes == [near.backlog]


@pytest.mark.threat(94)
@simulated
async def test_a_destination_that_never_reads_is_left() -> None:
    """It answers at once, always with new messages, to an agent that does not read."""
    seen: list[int] = []

    async def greedy(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.001)
        acknowledged = int(request.url.params.get("acknowledge", "0"))
        seen.append(acknowledged)
        headers = {"Content-Type": MEDIA_TYPE, "Anp-Sequence": str(acknowledged), "Anp-Acknowledge": "1"}
        if request.url.path == SESSIONS:
            return httpx.Response(201, headers={**headers, "Location": f"{SESSIONS}/x"}, stream=httpx.ByteStream(b""))
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(encoded([bytes(100)] * 4)))

    connection = HttpConnection(BASE, BoundedClient(transport=httpx.MockTransport(greedy)), None, Backoff(), http.RESUME)
    connection.send("hello")
    connection.send(b"\x40more")
    await asyncio.sleep(10)
    assert max(seen) <= MAX_INBOX + 4
    assert len(seen) < 10 / http.PAUSE + 10
    for _ in range(100):  # who reads gets all of it
        assert await next_message(connection) == bytes(100)
    await connection.close()


@pytest.mark.parametrize(("opening", "later"), [(2, 1), (1, 3), (1, 0)])
def test_a_destination_that_counts_wrong_loses_the_session(opening: int, later: int) -> None:
    async def miscounting(request: httpx.Request) -> httpx.Response:
        is_opening = request.url.path == SESSIONS
        headers = {"Content-Type": MEDIA_TYPE, "Anp-Sequence": "0", "Anp-Acknowledge": str(opening if is_opening else later)}
        if is_opening:
            headers["Location"] = f"{SESSIONS}/x"
        elif not await request.aread():
            await asyncio.Event().wait()  # until it is cancelled
        return httpx.Response(201 if is_opening else 200, headers=headers, stream=httpx.ByteStream(b""))

    async def main() -> None:
        client = BoundedClient(transport=httpx.MockTransport(miscounting))
        connection = HttpConnection(BASE, client, None, Backoff(), http.RESUME)
        connection.send("hello")
        await asyncio.sleep(1)
        if opening == 1:
            connection.send(b"\x40more")
        with pytest.raises(ConnectionFailed if opening > 1 else ConnectionLost):
            await next_message(connection)
        assert connection.backlog == 0
        await connection.close()
        assert len(asyncio.all_tasks()) == 1  # this one

    run(main())


@given(st.lists(st.text(max_size=40) | st.binary(max_size=40), max_size=20))
def test_messages_are_read_as_they_were_written(messages: list[str | bytes]) -> None:
    assert decoded(encoded(messages)) == messages


@given(st.binary(max_size=60))
def test_any_bytes_are_messages_or_a_refusal(body: bytes) -> None:
    try:
        messages = decoded(body)
    except (Malformed, TooLarge):
        return
    assert encoded(messages) == body


def test_the_example_of_the_specification() -> None:
    assert encoded(["{}", b"\x40\x01"]).hex() == "800000027b7d000000024001"


def test_the_caps_of_a_body() -> None:
    assert decoded(encoded([bytes(MAX_FRAME)])) == [bytes(MAX_FRAME)]
    for body in (encoded([bytes(MAX_FRAME + 1)]), encoded([b""] * (MAX_MESSAGES + 1)), bytes(MAX_BODY + 1)):
        with pytest.raises(TooLarge):
            decoded(body)
    assert http.fitting([b""] * 300) == [b""] * MAX_MESSAGES
    assert http.fitting([bytes(MAX_FRAME)] * 3) == [bytes(MAX_FRAME)]
    assert http.fitting(["ü" * 10]) == ["ü" * 10]
