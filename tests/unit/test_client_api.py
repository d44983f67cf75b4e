"""The registry's HTTP API from the client's side: families of refusals, caps, and answers that are none."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import httpx
import pytest
from simulated_registry import ALICE, BASE_URL, TOPIC, SimulatedNetwork, blob_of, uri_of, with_echo

from treaty_client.registries.api import MAX_BATCH, RegistryClient
from treaty_consensus import kinds
from treaty_consensus.errors import Conflict, Gone, Malformed, NotFound, Refused, TooLarge, TreatyError, Unauthorized, Unavailable
from treaty_consensus.log.tiles import Bundle
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io.errors import RegistryUnavailable
from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network

ECHO = parse_protocol_uri(uri_of())


def client_of(answer: Callable[[httpx.Request], httpx.Response]) -> RegistryClient:
    http = BoundedClient(transport=httpx.MockTransport(answer))
    return RegistryClient(BASE_URL, Network(), client=http)


def always(status: int, body: bytes = b"", **headers: str) -> RegistryClient:
    return client_of(lambda request: httpx.Response(status, headers=headers, stream=httpx.ByteStream(body)))


@pytest.mark.parametrize(
    "status, family",
    [
        (400, Malformed),
        (401, Unauthorized),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (413, TooLarge),
        (422, Refused),
        (429, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
        (418, Refused),
        (302, Refused),
    ],
)
async def test_a_problem_becomes_the_error_of_its_family(status: int, family: type[TreatyError]) -> None:
    problem = {"type": "urn:treaty:problem:a.b", "code": "a.b", "detail": "It is so.", "fix": "Do that.", "more": 1}
    with pytest.raises(TreatyError) as error:
        await always(status, json.dumps(problem).encode()).checkpoint()
    assert error.value.family == family.__name__
    assert isinstance(error.value, RegistryUnavailable) == (family is Unavailable)
    assert (error.value.code, error.value.message, error.value.fix) == ("a.b", "It is so.", "Do that.")


@pytest.mark.parametrize(
    ("status", "seconds", "is_named"), [(401, 300, True), (422, -300, True), (401, 5, False), (404, 300, False)]
)
async def test_a_refusal_names_a_clock_that_is_far_off(status: int, seconds: int, is_named: bool) -> None:
    problem = json.dumps({"code": "token.invalid", "detail": "No.", "fix": "Do that."}).encode()
    with pytest.raises(TreatyError) as error:
        await always(status, problem, Date=formatdate(time.time() + seconds, usegmt=True)).checkpoint()
    assert error.value.code == "token.invalid"
    assert ("clock" in error.value.message) == ("clock" in error.value.fix) == is_named
    difference = error.value.clock_difference
    assert (difference is not None and abs(difference + seconds) < 10) == is_named


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"code":1}', b"\xff" * 100_000])
async def test_a_refusal_that_is_no_problem_is_one_all_the_same(body: bytes) -> None:
    with pytest.raises(Unavailable) as error:
        await always(502, body).checkpoint()
    assert error.value.code == "registry.broken"


async def test_what_a_registry_says_is_one_line_on_the_terminal() -> None:
    problem = {"code": "a.b\n", "detail": "\x1b[2Jline\nline" + "x" * 9999}
    with pytest.raises(Refused) as error:
        await always(422, json.dumps(problem).encode()).checkpoint()
    assert error.value.code == "a.b "
    assert error.value.message.startswith(" [2Jline line")
    assert len(error.value.message) == 500


async def test_nobody_there_is_unavailable() -> None:
    async with RegistryClient(BASE_URL, SimulatedNetwork(with_echo(), down=True)) as client:
        with pytest.raises(Unavailable) as error:
            await client.checkpoint()
    assert error.value.code == "registry.unreachable"


@pytest.mark.threat(9)
async def test_an_answer_over_its_cap_is_cut_off() -> None:
    with pytest.raises(TooLarge):
        await always(200, b"x" * 10_000_000).checkpoint()
    with pytest.raises(TooLarge):
        await always(200, b"four").blob(kinds.Blob("0" * 64, 3))
    assert await always(200, b"fou").blob(kinds.Blob("0" * 64, 3)) == b"fou"


async def test_an_encoded_answer_is_refused() -> None:
    with pytest.raises(Malformed):
        await always(200, b"", **{"Content-Encoding": "gzip"}).checkpoint()


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"protocols":[{}]}', b'{"protocols":[],"next":1}', b'{"protocols":1}', b"\xff"]
)
async def test_an_answer_of_another_form_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        await always(200, body).search("x")


async def test_what_is_asked_for_is_what_is_sent() -> None:
    requests: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(f"{request.method} {request.url.raw_path.decode()}")
        return httpx.Response(200, stream=httpx.ByteStream(b'{"protocols":[],"next":null,"matches":[],"seq":0,"epoch":2}'))

    client = client_of(answer)
    await client.search("天气 a&b", topic=TOPIC, cursor="c/d")
    await client.resolve("anp:protocol:x:1")
    assert (await client.next_ballot(TOPIC, ALICE.did)).epoch == 2
    await client.record(ECHO)
    await client.bundle(ECHO, since=7)
    await client.topic_bundle(TOPIC)
    await client.identity("did:wba:a.example%3A8443:x")
    await client.tile(Bundle(1234, 5))
    assert requests == [
        "GET /protocols?q=%E5%A4%A9%E6%B0%94+a%26b&topic=demo%2Fecho&limit=20&cursor=c%2Fd",
        "GET /resolve?uri=anp%3Aprotocol%3Ax%3A1",
        "GET /ballots?topic=demo%2Fecho&did=did%3Awba%3Aalice.example",
        "GET /protocols/alice.example/echo/1.0.json",
        "GET /protocols/alice.example/echo/1.0.bundle?since=7",
        "GET /topics/demo/echo.bundle",
        "GET /identities/did:wba:a.example%253A8443:x",
        "GET /tile/entries/x001/234.p/5",
    ]


async def test_a_blob_is_uploaded_with_the_statement_that_names_it() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(201, stream=httpx.ByteStream(b""))

    statement = ALICE.statement(kinds.Grant("alice.example", "did:wba:bob.example"))
    await client_of(answer).put_blob(b"data", statement)
    assert seen[0].url.path == f"/blobs/sha256/{blob_of(b'data').sha256}"
    assert seen[0].content == b"data"
    assert seen[0].headers["Treaty-Statement"]


async def test_a_batch_tells_what_became_of_each() -> None:
    lines = [
        {"status": 201, "id": "0" * 64, "receipt": "a receipt"},
        {"status": 409, "problem": {"code": "statement.previous", "detail": "No."}},
    ]
    body = b"\n".join(json.dumps(line).encode() for line in lines)
    statements = [ALICE.statement(kinds.Grant("alice.example", f"did:wba:{name}.example")) for name in "ab"]
    first, second = await always(200, body).submit_batch(statements)
    assert first == b"a receipt"
    assert isinstance(second, Conflict) and second.code == "statement.previous"
    with pytest.raises(Malformed):
        await always(200, body).submit_batch(statements[:1])
    with pytest.raises(TooLarge):
        await always(200, body).submit_batch(statements * MAX_BATCH)


async def test_a_real_round_trip(tmp_path: Path) -> None:
    registry = with_echo()
    async with RegistryClient(BASE_URL + "/", registry.network()) as client:
        assert await client.checkpoint() == registry.checkpoint()
        assert await client.bundle(ECHO) == registry.bundle(uri_of())
        with pytest.raises(NotFound):
            await client.record(ECHO)
