"""What no HTTP client sends: the registry's answers to bytes on a socket, each of which changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TypeAlias

import pytest
from http_api import serving, unchanged
from ports import free_port
from registries import ballot
from signers import Signer

from treaty_registry.registry import Registry
from treaty_registry.serving.bodies import MAX_BODY, MAX_HELD

Send: TypeAlias = Callable[..., Coroutine[None, None, bytes]]

HOST = b"Host: registry.example\r\n"
CLOSE = b"Connection: close\r\n\r\n"
RECORD = b"/protocols/alice.example/product-info/1.0"
JSON = b"Content-Type: application/json\r\n"


@pytest.fixture
async def send(registry: Registry) -> AsyncIterator[Send]:
    """Sends bytes to a served registry, and reads until it closes the connection. `end`: close our half after them."""
    port = free_port()

    async def send(request: bytes, *, end: bool = False) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        await writer.drain()
        if end:
            writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        return answer

    async with serving(registry, port):
        yield send


def statuses(answer: bytes) -> list[int]:
    """The statuses of the answers on a connection."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def get(path: bytes, headers: bytes = HOST) -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + headers + CLOSE


NO_HEADS = [
    b"GET /log HTTP/1.1\r\n" + CLOSE,
    get(b"/log", b"Host: a.example\r\nHost: a.example\r\n"),
    get(b"/log", b"Host: a.example\r\nX: y\r\nHost: b.example\r\n"),
    *(
        get(b"/log", b"Host: " + host + b"\r\n")
        for host in (b"", b"a b", b"a/b", b"a,b", b"a@b", b"[::1", b"a:b", b"a:1:2", b"\xff")
    ),
    *(get(path) for path in (b"/a\x00b", b"/a\xffb", b"/a b", b"log", b"*", b"")),
    *(get(b"/log", HOST + line + b"\r\n") for line in (b"X: a\r\n b", b"X: a\rb", b"X: a\x00b", b"X : a", b": a")),
    *(b"GET /log HTTP/" + version + b"\r\n" + HOST + CLOSE for version in (b"1.2", b"2.0", b"x")),
    b"GET  /log HTTP/1.1\r\n" + HOST + CLOSE,
    b"\x00\r\n\r\n",
]
CONTROL = [
    *(b"/protocols/a.example/b/1" + end for end in (b"%00", b".0%00.md", b".0%00.bundle", b"%0a", b"%7f", b"%1f.0?x", b"%c3%a9")),
    *(b"/protocols?" + query for query in (b"q=%00", b"q=a%00b", b"topic=%00", b"cursor=0-3-1%00", b"limit=1%00", b"%00=1")),
    *(b"/resolve?uri=" + uri for uri in (b"%00", b"urn:%00", b"%7F", b"%0d%0a")),
    *(b"/identities/did:web:a%00", b"/standing/did:web:a%00", b"/standing/did:web:a?cursor=1-1%00", b"/topics/a%00.bundle"),
    *(b"/vouches?did=did:web:a%00", b"/ballots?did=did:web:a&topic=a%00", b"/topics?after=a%00", b"/topics/a%00"),
    *(b"/hashes/%00", b"/statements/%00", b"/proofs/%00", b"/blobs/sha256/%00", b"/tile/%00", b"/tile/0/000%00"),
    *(b"/speakers?topic=a%00", b"/speakers?hash=%00", b"/%ff%00", b"/%00", b"/schema%00", b"/log?%00", b"/checkpoint?x=%01"),
]


@pytest.mark.threat(88)
async def test_a_head_that_is_none_is_refused(send: Send, registry: Registry) -> None:
    async with unchanged(registry):
        for request in NO_HEADS:
            assert statuses(await send(request)) == [400], request


@pytest.mark.threat(88)
async def test_an_answer_that_is_ready_is_not_sent_to_a_wrong_head(send: Send) -> None:
    cached, many = b"/checkpoint", b"".join(b"X-%d: a\r\n" % number for number in range(4_000))
    assert statuses(await send(get(cached))) == statuses(await send(get(cached))) == [200]
    heads = [(HOST + HOST, 400), (b"", 400), (b"Host: a b\r\n", 400), (HOST + many, 431), (HOST + b"If-None-Match: *\r\n", 304)]
    assert [statuses(await send(get(cached, head))) for head, _ in heads] == [[status] for _, status in heads]


@pytest.mark.threat(88)
async def test_no_control_character_reaches_anything(send: Send, registry: Registry) -> None:
    async with unchanged(registry):
        for target in CONTROL:
            answer = await send(get(target))
            assert statuses(answer) == [400] and b'"code":"http.request"' in answer, target


async def test_older_and_other_spellings_of_a_request_are_answered(send: Send, alice: Signer, registry: Registry) -> None:
    for request in (
        b"GET /log HTTP/1.0\r\n\r\n",
        b"GET /log HTTP/1.0\r\nHost: a.example\r\n\r\n",
        b"GET http://other.example/log HTTP/1.1\r\n" + HOST + CLOSE,
        get(b"/log", b"host: REGISTRY.example:443\r\n"),
        get(b"/log", b"Host: [::1]:8443\r\n"),
        get(b"/log", b"Host: 127.0.0.1\r\n"),
        get(b"//log"),
        get(b"/%6cog"),
    ):
        assert (await send(request)).partition(b" ")[2].startswith(b"200"), request


@pytest.mark.threat(88)
async def test_bodies_that_are_not_what_their_heads_say(send: Send, registry: Registry, alice: Signer) -> None:
    leaf = alice.statement(ballot(registry, 0)).leaf
    post = b"POST /statements HTTP/1.1\r\n" + HOST + JSON
    chunked = post + b"Transfer-Encoding: chunked\r\n"
    size = b"%x\r\n" % len(leaf)
    put = b"PUT /blobs/sha256/" + b"0" * 64 + b" HTTP/1.1\r\n" + HOST + b"Treaty-Statement: AAAA\r\n"
    wrong = [
        *(chunked + CLOSE + begin + leaf + b"\r\n0\r\n\r\n" for begin in (b"zz\r\n", b"-1\r\n", b"ffffffffffffffff0\r\n")),
        chunked + CLOSE + size + leaf + b"x\r\n0\r\n\r\n",
        chunked + b"Content-Encoding: gzip\r\n" + CLOSE + size + b"\x1f\x8b" + leaf[2:] + b"\r\n0\r\n\r\n",
        post + b"Content-Length: %d\r\n" % (len(leaf) - 1) + CLOSE + leaf[:-1],
        post + b"Content-Length: +%d\r\n" % len(leaf) + CLOSE + leaf,
        post + b"Content-Length: %d, %d\r\n" % (len(leaf), len(leaf) + 1) + CLOSE + leaf,
        post + b"Content-Length: %d\r\nContent-Length: 1\r\n" % len(leaf) + CLOSE + leaf,
        post + b"Transfer-Encoding: gzip\r\n" + CLOSE + leaf,
        put + b"Content-Length: 3\r\n" + CLOSE + b"abc",
    ]
    ended = [
        chunked + CLOSE,
        chunked + CLOSE + size + leaf,
        chunked + CLOSE + size + leaf[:-1],
        post + b"Content-Length: %d\r\n" % (len(leaf) + 1) + CLOSE + leaf,
    ]
    async with unchanged(registry):
        for request in wrong:
            assert statuses(await send(request)) == [400], request
        for request in ended:  # a server may take the end for a farewell
            assert statuses(await send(request, end=True)) in ([400], []), request


async def test_methods_are_said_truly(send: Send, registry: Registry) -> None:
    async with unchanged(registry):
        for path, methods in (
            (b"/log", b"GET, HEAD, OPTIONS"),
            (b"/checkpoint", b"GET, HEAD, OPTIONS"),
            (RECORD, b"GET, HEAD, OPTIONS"),
            (b"/topics/a/b", b"GET, HEAD, OPTIONS"),
            (b"/blobs/sha256/" + b"0" * 64, b"GET, HEAD, OPTIONS, PUT"),
            (b"/identities/did:web:a", b"GET, HEAD, OPTIONS, POST"),
            (b"/statements", b"OPTIONS, POST"),
            (b"/sigstore/api/v1/timestamp", b"OPTIONS, POST"),
            (b"/schema", b"GET, HEAD, OPTIONS"),
        ):
            answer = await send(b"OPTIONS " + path + b" HTTP/1.1\r\n" + HOST + CLOSE)
            assert statuses(answer) == [204] and b"allow: " + methods + b"\r\n" in answer, (path, answer)
            for method in (b"DELETE", b"TRACE", b"PATCH", b"FOO"):
                answer = await send(method + b" " + path + b" HTTP/1.1\r\n" + HOST + CLOSE)
                assert statuses(answer) == [405] and b"allow: " + methods + b"\r\n" in answer, (method, path, answer)
        assert statuses(await send(b"OPTIONS * HTTP/1.1\r\n" + HOST + CLOSE)) == [204]
        assert statuses(await send(b"OPTIONS /nothing HTTP/1.1\r\n" + HOST + CLOSE)) == [404]
        answer = await send(b"CONNECT inner.example:443 HTTP/1.1\r\n" + HOST + CLOSE)
        assert statuses(answer) == [405] and b"allow: GET, HEAD, OPTIONS, POST, PUT\r\n" in answer


async def test_a_fault_on_a_connection_spoils_no_answer_before_it(send: Send, registry: Registry) -> None:
    keep = b"GET /checkpoint HTTP/1.1\r\n" + HOST + b"\r\n"
    for broken in (
        b"GARBAGE\r\n\r\n",
        b"GET /a\x00 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /log HTTP/1.1\r\n" + HOST + b"X : y\r\n\r\n",
    ):
        assert statuses(await send(keep * 3 + broken + keep)) == [200, 200, 200, 400]
    refused = b"GET /%00 HTTP/1.1\r\n" + HOST + b"\r\n"
    assert statuses(await send(keep + refused + keep + get(b"/log"))) == [200, 400, 200, 200]
    many = b"".join(b"X-%d: a\r\n" % number for number in range(2_000))
    assert statuses(await send(get(b"/log", HOST + many))) == [431]


@pytest.mark.threat(72)
async def test_bodies_that_are_under_way_hold_bounded_memory(send: Send, registry: Registry) -> None:
    chunked = b"POST /statements HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n" + CLOSE + b"1\r\n{\r\n"
    async with unchanged(registry):
        sends = [asyncio.create_task(send(chunked)) for _ in range(MAX_HELD // 4 // MAX_BODY)]
        refused = b""
        while not refused:
            request_task = asyncio.create_task(send(chunked))
            done, _ = await asyncio.wait([request_task], timeout=1)
            if done:
                refused = request_task.result()
            sends.append(request_task)
        assert statuses(refused) == [503] and b"registry.busy" in refused
        assert statuses(await send(get(b"/checkpoint"))) == [200]
        for task in sends:
            task.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
