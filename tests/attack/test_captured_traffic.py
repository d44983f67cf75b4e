"""What somebody can do who records traffic between agents: read it, or put a header of it on a request of their own."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from meetings import LAPTOP, TOPIC, Party, Tap, buyer, shop
from secure_peers import resolve

from treaty_agent.authentication.request_signing import RequestSigner
from treaty_agent.sessions.operation_errors import OperationError
from treaty_agent.sessions.session import Session
from treaty_agent.transport import memory
from treaty_agent.transport.connection import Connection
from treaty_agent.transport.http import MEDIA_TYPE, SESSIONS, encode_messages
from treaty_agent.transport.secure import SecureConnection
from treaty_client.policy import Policy
from treaty_consensus.errors import TreatyError
from treaty_io.identity import Identity

SECRETS = ["getProductInfo", "P12345", "no-such-product", str(LAPTOP["productName"]), "codeGeneration", '"status"']
BASE64 = re.compile(rb"[A-Za-z0-9+/]{8,}")


def hiding_places(secret: str) -> list[bytes]:
    """The ways in which a text may stand in captured bytes."""
    forms = [secret.encode(), json.dumps(secret)[1:-1].encode(), secret.encode("utf-16-le"), secret.encode().hex().encode()]
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + secret.encode())
        forms += [encoded[4:-4], encoded[4:-4].translate(bytes.maketrans(b"+/", b"-_"))]
    return [form for form in forms if len(form) > 5]


def captured(tap: Tap) -> bytes:
    """Everything that went over the wire after the Hellos, and whatever of it is base64 decoded as well."""
    hellos, rest = 0, []
    for _, message in tap.seen:
        data = message.encode() if isinstance(message, str) else message
        if b'Hello"' in data:
            hellos += 1
        else:
            rest.append(data)
    assert hellos == 2
    raw = b"\n".join(rest)
    words = BASE64.findall(raw.translate(bytes.maketrans(b"-_", b"+/")))
    return b"\n".join([raw, *(base64.b64decode(word[: len(word) // 4 * 4]) for word in words)])


def found(tap: Tap) -> set[str]:
    """The secrets that can be read in what was captured."""
    haystack = captured(tap)
    return {secret for secret in SECRETS if any(form in haystack for form in hiding_places(secret))}


@asynccontextmanager
async def meeting(near: Party, far: Party, *, encrypted: bool, at: str = "memory:shop") -> AsyncIterator[tuple[Session, Tap]]:
    """A session of two agents, recorded on the wire, below the encryption."""
    if not far.protocols.fetched:
        await far.agent.prepare()
    ends = memory.pair()
    tap = Tap(ends[0], at)
    here: Connection = tap
    there: Connection = ends[1]
    if encrypted:
        here = SecureConnection.source(tap, _identity(near), resolve=resolve)
        there = SecureConnection.destination(ends[1], _identity(far), resolve=resolve)
    task = asyncio.create_task(far.agent.accept(there))
    try:
        async with near.agent.connect_over(here, topic=TOPIC) as session:
            yield session, tap
    finally:
        await here.close()
        await task


def _identity(party: Party) -> Identity:
    return party.agent.context.identity


async def talk(session: Session) -> Any:
    with pytest.raises(OperationError):
        await session.call("getProductInfo", productId="no-such-product")
    return await session.call("getProductInfo", productId="P12345")


@pytest.mark.threat(104)
async def test_captured_traffic_holds_no_plaintext(tmp_path: Path) -> None:
    near, far = buyer(tmp_path), shop(tmp_path)
    async with meeting(near, far, encrypted=True) as (session, tap):
        assert await talk(session) == LAPTOP
        assert session.peer.did == far.agent.did
    assert found(tap) == set()
    assert all(isinstance(message, str) for _, message in tap.seen)
    kinds = [(way, json.loads(message)["type"]) for way, message in tap.seen]
    assert kinds[:2] == [(">", "sourceHello"), ("<", "destinationHello")]
    assert sorted(kinds[2:4]) == [("<", "finished"), (">", "finished")]
    assert {kind for _, kind in kinds[4:-1]} == {"message"}
    assert kinds[-1] == (">", "close")


async def test_the_same_search_finds_everything_in_a_plain_session(tmp_path: Path) -> None:
    async with meeting(buyer(tmp_path), shop(tmp_path), encrypted=False) as (session, tap):
        assert await talk(session) == LAPTOP
    assert found(tap) == set(SECRETS)


async def test_early_data_of_a_remembered_agreement_is_encrypted_too(tmp_path: Path) -> None:
    near, far = buyer(tmp_path), shop(tmp_path)
    for expected in ("codeGeneration in the first", "none in the second"):
        async with meeting(near, far, encrypted=True) as (session, tap):
            assert await talk(session) == LAPTOP
        assert found(tap) == set(), expected
    hello = json.loads(tap.seen[0][1])
    assert "usedProtocolHash" in hello["metaProtocol"]
    assert len(tap.seen) == 4 + 4 + 1, "both Hellos, both finished, two calls with their answers, and the close"


async def test_a_session_with_changed_traffic_ends(tmp_path: Path) -> None:
    near, far = buyer(tmp_path), shop(tmp_path)
    async with meeting(near, far, encrypted=True) as (session, tap):
        assert await talk(session) == LAPTOP
        send = tap.inner.send

        def change(message: str | bytes) -> None:
            assert isinstance(message, str)
            record = json.loads(message)
            sealed = record["encryptedData"]
            sealed["tag"] = ("A" if sealed["tag"][0] != "A" else "B") + sealed["tag"][1:]
            send(json.dumps(record))

        tap.inner.send = change  # type: ignore[method-assign]
        with pytest.raises(TreatyError):
            await session.call("getProductInfo", productId="P12345")


async def posted(port: int, headers: dict[str, str]) -> httpx.Response:
    """The answer to a request of the recorder's own, with captured headers, that would open a session."""
    async with httpx.AsyncClient() as recorder:
        url = f"http://127.0.0.1:{port}{SESSIONS}?key={'k' * 43}"
        return await recorder.post(url, content=encode_messages(["{}"]), headers={**headers, "Content-Type": MEDIA_TYPE})


@pytest.mark.threat(102)
@pytest.mark.parametrize("policy, opens", [(Policy(), False), (Policy(accept_didwba=True), True)])
async def test_a_captured_didwba_header_serves_only_where_allowed(tmp_path: Path, policy: Policy, opens: bool) -> None:
    visitor = Identity.create()
    seller = shop(tmp_path, policy=policy)
    async with seller.agent, seller.agent.listen("127.0.0.1", 0) as port:
        captured = RequestSigner(visitor, legacy=True).headers("GET", f"http://127.0.0.1:{port}/other")
        answer = await posted(port, captured)
    if opens:
        assert answer.status_code == 201
        return
    assert answer.status_code == 401 and "Location" not in answer.headers
    assert answer.json()["code"] == "authentication.missing"
    assert "RFC 9421" in answer.json()["fix"]
    assert seller.events == [], "no session began"


async def test_a_captured_signature_opens_no_session(tmp_path: Path) -> None:
    visitor = Identity.create()
    seller = shop(tmp_path, policy=Policy(accept_didwba=True))
    async with seller.agent, seller.agent.listen("127.0.0.1", 0) as port:
        captured = RequestSigner(visitor).headers("GET", f"http://127.0.0.1:{port}/other")
        answer = await posted(port, captured)
    assert (answer.status_code, answer.json()["code"]) == (401, "authentication.signature")
    assert seller.events == []


@pytest.mark.parametrize("policy, older", [(Policy(), False), (Policy(send_didwba=True), True)])
async def test_an_agent_sends_the_header_only_where_it_was_asked_for(tmp_path: Path, policy: Policy, older: bool) -> None:
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with buyer(tmp_path, policy=policy).agent as customer:
        with pytest.raises(TreatyError):
            async with customer.connect(f"http://127.0.0.1:{port}", topic=TOPIC):
                raise AssertionError
    server.close()
    assert {b"Authorization: DIDWba " in head for head in heads} == {older}
    assert {b"Signature-Input: " in head for head in heads} == {not older}
