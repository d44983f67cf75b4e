"""Handoff over HTTPS."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import trustme
from handoffs import Inbox, World

from treaty_agent import Identity
from treaty_consensus.errors import Refused, Unauthorized, Unavailable
from treaty_handoff import (
    Handling,
    Kind,
    Outcome,
    Permissions,
    SenderGrant,
    Status,
    respond,
)
from treaty_handoff.envelopes import asking_proof, envelope
from treaty_handoff.http import answers_to, listen, post
from treaty_handoff.messages import MAX_MESSAGE, encode

STATUS, TASK, ASK = Kind.STATUS_UPDATE, Kind.TASK_TRANSFER, Kind.REQUEST_INFORMATION


@pytest.fixture
async def server(here: World) -> AsyncIterator[tuple[World, Any, str, ssl.SSLContext, Identity]]:
    """An agent behind HTTPS, with a certificate of a test authority."""
    alice = Identity.create()
    permissions = Permissions({here.name("desk"): SenderGrant(alice.did, frozenset(Kind) - {Kind.APPROVAL_REQUEST})})
    support = await here.agent("support", permissions=permissions)
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with listen(support, "127.0.0.1", 0, tls=context) as port:
        yield here, support, f"https://127.0.0.1:{port}", trusting, alice


class HalfRequest:
    """A request whose body does not end."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, port: int) -> HalfRequest:
        """Send the head, and wait until the application asks for the body."""
        half = cls()
        half.reader, half.writer = await asyncio.open_connection("127.0.0.1", port)
        half.writer.write(b"POST /handoffs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
        assert await half.status() == 100
        await half.reader.readuntil(b"\r\n")
        return half

    async def status(self) -> int:
        """Read the status of the next answer."""
        async with asyncio.timeout(60):
            return int((await self.reader.readuntil(b"\r\n")).split()[1])

    def close(self) -> None:
        self.writer.close()


async def test_004_28_and_38_synchronous_delivery_over_https(server: Any) -> None:
    here, support, url, trusting, alice = server
    inbox = Inbox(support, ASK, TASK, outcome=Outcome(information={"level": "gold"}))
    request = here.message(ASK, "desk", "support")
    async with httpx.AsyncClient(verify=trusting) as client:
        (answer,) = await post(client, url, request, alice)
        assert answer["payload"]["data"]["information"] == {"level": "gold"}
        assert answer["payload"]["data"]["in_reply_to"] == request["metadata"]["message_id"]
        (update,) = await post(client, url, here.message(TASK, "desk", "support"), alice)
        assert update["payload"]["data"]["status"] == "COMPLETED"
    assert len(inbox.messages) == 2
    # The sender reads no queue, so no queue has the answers.
    assert await here.journals[support.name].waiting() == 0
    async with httpx.AsyncClient() as client:
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            await post(client, url, request, alice)


async def test_004_08_and_38_a_repetition_gets_the_first_answers(server: Any) -> None:
    here, support, url, trusting, alice = server

    async def fail(handling: Handling) -> None:
        effects.append(handling.message)
        raise RuntimeError("No.")

    support.handles(TASK)(fail)
    Inbox(support, ASK, outcome=Outcome(information={"level": "gold"}))
    effects: list[Any] = []
    async with httpx.AsyncClient(verify=trusting) as client:
        for kind, code in ((ASK, 200), (TASK, 422)):
            message = here.message(kind, "desk", "support", lifetime=timedelta(hours=30))
            first, again = [await client.post(f"{url}/handoffs", content=envelope(message, alice)) for _ in range(2)]
            assert first.status_code == again.status_code == code and first.json() == again.json() and first.json()["handoffs"]
            proof = {"handoff-proof": asking_proof(message["metadata"]["message_id"], alice)}
            path = f"{url}/handoffs/{message['metadata']['message_id'].upper()}"
            assert (await client.get(path, headers=proof)).json() == first.json()
            assert await answers_to(client, url, message, alice) == await post(client, url, message, alice)
            for headers in ({}, {"handoff-proof": asking_proof(message["metadata"]["message_id"], Identity.create())}):
                assert (await client.get(path, headers=headers)).status_code == 404
            assert (await client.get(path, headers={"handoff-proof": "x y"})).status_code == 401
            # After a day the code stays, and the answers are gone. So it is when the message has expired.
            for hours in (25, 31):
                here.shift = timedelta(hours=hours)
                gone = await client.post(f"{url}/handoffs", content=envelope(message, alice))
                assert (gone.status_code, gone.json()["handoffs"]) == (code, [])
            here.shift = timedelta()
    assert len(effects) == 1


async def test_004_26_and_38_work_that_goes_on_is_asked_for(server: Any) -> None:
    here, support, url, trusting, alice = server

    async def begin(handling: Handling) -> Outcome:
        await handling.report(Status.IN_PROGRESS, "Half.", 50)
        await handling.send(here.message(Kind.NOTIFICATION, "support", "desk"))
        return Outcome(Status.IN_PROGRESS)

    support.handles(TASK)(begin)
    message = here.message(TASK, "desk", "support")
    async with httpx.AsyncClient(verify=trusting) as client:
        first = await client.post(f"{url}/handoffs", content=envelope(message, alice))
        assert first.status_code == 202 and len(first.json()["handoffs"]) == 3
        data, times = {"status": "COMPLETED"}, {"now": here.clock(), "key": "end"}
        await support.send(respond(message, Kind.STATUS_UPDATE, data, sender=support.name, state="COMPLETED", **times))
        statuses = [answer["payload"]["data"].get("status") for answer in await answers_to(client, url, message, alice)]
        assert statuses == ["IN_PROGRESS", None, "IN_PROGRESS", "COMPLETED"]
        assert (await client.post(f"{url}/handoffs", content=envelope(message, alice))).status_code == 200
    assert await here.journals[support.name].waiting() == 0


async def test_004_38_an_answer_outside_its_exchange_is_refused(here: World) -> None:
    message, other = here.message(TASK, "desk", "support"), here.message(TASK, "desk", "support", task="task-2")
    alice, mallory = Identity.create(), Identity.create()
    members = Permissions({here.name("ben"): SenderGrant(alice.did, groups=frozenset({here.name("support")}))})

    def told(about: Any, name: str, *, to: str = "desk") -> Any:
        data = {"status": "COMPLETED"}
        answer = respond(about, STATUS, data, sender=here.name(name), state="X", now=here.clock(), key="k")
        answer["metadata"]["recipient_id"] = here.name(to)
        return answer

    async def ask(answer: Any, key: Identity | None = None, permissions: Permissions | None = None) -> Any:
        body = {"status": "COMPLETED", "handoffs": [json.loads(envelope(answer, key))]}
        transport = httpx.MockTransport(lambda request: httpx.Response(200, json=body))
        async with httpx.AsyncClient(transport=transport) as client:
            return await post(client, "https://x", message, permissions=permissions)

    for answer, key, permissions in ((told(message, "support"), None, None), (told(message, "ben"), alice, members)):
        assert await ask(answer, key, permissions) == [answer]
    for answer in (told(message, "ben"), told(other, "support"), told(message, "support", to="eve")):
        with pytest.raises(Unauthorized):
            await ask(answer)
    for forger in (mallory, None):
        with pytest.raises(Unauthorized):
            await ask(told(message, "ben"), forger, members)


async def test_004_38_refusals_have_the_status_codes_of_http(server: Any) -> None:
    here, support, url, trusting, alice = server
    inbox = Inbox(support, TASK, Kind.APPROVAL_REQUEST)
    message = here.message(TASK, "desk", "support", lifetime=timedelta(seconds=60))
    async with httpx.AsyncClient(verify=trusting) as client:
        bad = json.loads(envelope(message, alice))
        bad["handoff"]["metadata"]["priority"] = "SOON"
        for body, code, words in (
            (b"x", 400, "not JSON"),
            (b"{}", 400, "metadata"),
            (encode(message), 401, "not signed"),
            (json.dumps(bad["handoff"]).encode(), 400, "metadata.priority"),
            (b" " * (MAX_MESSAGE + 1), 413, "bytes"),
        ):
            answer = await client.post(f"{url}/handoffs", content=body)
            assert answer.status_code == code and words in answer.json()["issues"][0]
        assert (await client.get(f"{url}/handoffs")).status_code == 404
        assert (await client.get(f"{url}/handoffs/1")).status_code == 404
        with pytest.raises(Unauthorized):
            await post(client, url, message, Identity.create())
        with pytest.raises(Refused):
            await post(client, url, here.message(Kind.APPROVAL_REQUEST, "desk", "support"), alice)
        here.shift = timedelta(seconds=61)
        with pytest.raises(Refused, match="expired"):
            await post(client, url, message, alice)
        here.shift = timedelta()

        async def fail(handling: Handling) -> None:
            raise RuntimeError("No.")

        support.handles(TASK)(fail)
        (update,) = await post(client, url, here.message(TASK, "desk", "support"), alice)
        assert update["payload"]["data"]["status"] == "FAILED"
    assert inbox.messages == []


async def test_004_38_a_body_that_does_not_come_is_given_up(here: World) -> None:
    support = await here.agent("support")
    async with listen(support, "127.0.0.1", 0, body_seconds=0.3) as port, httpx.AsyncClient() as client:
        slow = await HalfRequest.open(port)
        slow.writer.write(b"x")
        assert await slow.status() == 503
        slow.close()
        assert (await client.post(f"http://127.0.0.1:{port}/handoffs", content=b"x")).status_code == 400


async def test_004_38_overlong_work_has_no_effect_and_may_return(here: World) -> None:
    support = await here.agent("support")
    waits = [True, False]

    @support.handles(TASK)
    async def work(handling: Handling) -> None:
        await handling.transaction.set_state("effect", (await handling.transaction.state("effect") or 0) + 1)
        if waits.pop(0):
            await asyncio.Event().wait()

    message = here.message(TASK, "desk", "support")
    async with listen(support, "127.0.0.1", 0, work_seconds=1) as port, httpx.AsyncClient() as client:
        with pytest.raises(Unavailable, match="503"):
            await post(client, f"http://127.0.0.1:{port}", message)
        (update,) = await post(client, f"http://127.0.0.1:{port}", message)
    assert update["payload"]["data"]["status"] == "COMPLETED" and waits == []
    async with here.journals[support.name].transaction() as transaction:
        assert await transaction.state("effect") == 1


@pytest.mark.threat(269)
async def test_004_38_open_requests_are_bounded_for_each_network(here: World) -> None:
    support = await here.agent("support")
    inbox = Inbox(support, TASK)
    async with listen(support, "127.0.0.1", 0, body_seconds=60) as port, httpx.AsyncClient() as client:
        url, message = f"http://127.0.0.1:{port}", here.message(TASK, "desk", "support")
        opened = await asyncio.gather(*(HalfRequest.open(port) for _ in range(32)))
        with pytest.raises(Unavailable, match="503"):
            await post(client, url, message)
        assert inbox.messages == []
        elsewhere = httpx.AsyncHTTPTransport(local_address="127.0.1.1")
        async with httpx.AsyncClient(transport=elsewhere) as other:
            (update,) = await post(other, url, message)
        assert update["payload"]["data"]["status"] == "COMPLETED" and inbox.messages == [message]
        opened[0].writer.write(b"123456789")
        assert await opened[0].status() == 400
        assert await post(client, url, message) == [update]
        for request in opened:
            request.close()


class Broken:
    """A resolver with a fault of its own."""

    async def resolve(self, did: Any, *, listing: str = "") -> Any:
        raise RuntimeError("internal: 10.0.0.7")


async def test_004_38_an_unforeseen_error_hides_its_text(here: World, caplog: pytest.LogCaptureFixture) -> None:
    alice = Identity.create()
    support = await here.agent("support", permissions=Permissions.of({here.name("desk"): alice.did}), resolver=Broken())
    inbox, message = Inbox(support, TASK), here.message(TASK, "desk", "support")
    async with listen(support, "127.0.0.1", 0) as port, httpx.AsyncClient() as client:
        for _ in range(2):
            answer = await client.post(f"http://127.0.0.1:{port}/handoffs", content=envelope(message, alice))
            assert answer.status_code == 503 and answer.json() == {"status": "FAILED", "handoffs": []}
    assert "internal: 10.0.0.7" in caplog.text and inbox.messages == []
