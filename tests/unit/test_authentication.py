"""Signed requests: what proves a sender, and everything that does not."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from rejections import rejection
from signed_requests import AUDIENCE, NOW, URL, Listener

from treaty_agent.authentication import didwba, message_signature
from treaty_agent.authentication.message_signature import Parameters, Request
from treaty_agent.authentication.nonces import FUTURE, LIFETIME
from treaty_agent.authentication.request_signing import RequestSigner
from treaty_agent.transport import listener as listener_module
from treaty_agent.transport.connection import Connection, ConnectionFailed, ConnectionLost, next_message
from treaty_agent.transport.reconnect import connect
from treaty_consensus.errors import Malformed, Refused, Unauthorized, Unavailable
from treaty_io.identity import Identity
from treaty_io.network.hosts import Network

ALICE = Identity.create("alice.example:shop")
BOUND = Identity.create("bound.example", bind=True)
KEYED = Identity.create()
SENDERS = [ALICE, BOUND, KEYED]
EVERYTHING = ("@method", "@target-uri", "@authority", "content-digest")
KEY = f'keyid="{ALICE.key_id}"'


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    """Has been up since before `NOW`, and knows the senders."""
    listener = Listener(tmp_path, now=NOW - 2 * LIFETIME, legacy=True)
    listener.now = NOW
    for identity in (ALICE, BOUND):
        listener.knows(identity)
    yield listener
    listener.nonces.close()


def signed(
    identity: Identity = ALICE, method: str = "POST", url: str = URL, body: bytes = b"{}", at: float = NOW
) -> dict[str, str]:
    return RequestSigner(identity, clock=lambda: at).headers(method, url, body)


def by_hand(parameters: str, *, covered: Sequence[str] = EVERYTHING) -> dict[str, str]:
    """A signature by ALICE with parameters, or covered components, that the signer would not use."""
    digest = f"sha-256=:{base64.b64encode(hashlib.sha256(b'{}').digest()).decode()}:"
    values = {"@method": "POST", "@target-uri": URL, "@authority": "shop.example", "content-digest": digest}
    names = " ".join(f'"{name}"' for name in covered)
    inputs = f"({names});{parameters}"
    base = "\n".join([*(f'"{name}": {values[name]}' for name in covered), f'"@signature-params": {inputs}'])
    signature = base64.b64encode(ALICE.sign(base.encode())).decode()
    return {"Content-Digest": digest, "Signature-Input": f"sig1={inputs}", "Signature": f"sig1=:{signature}:"}


async def refusal(listener: Listener, headers: dict[str, str], **request: object) -> Unauthorized:
    """The error with which a request is refused."""
    with pytest.raises(Unauthorized) as refused:
        await listener.verify(headers, **request)  # type: ignore[arg-type]
    return refused.value


async def code(listener: Listener, headers: dict[str, str], **request: object) -> str:
    """The code with which a request is refused."""
    return (await refusal(listener, headers, **request)).code


@pytest.mark.parametrize("identity", SENDERS, ids=["did:wba", "bound", "did:key"])
@pytest.mark.parametrize("legacy", [False, True])
async def test_a_signed_request_proves_its_sender(listener: Listener, identity: Identity, legacy: bool) -> None:
    for method, body in (("POST", b"{}"), ("GET", b""), ("DELETE", b"")):
        headers = RequestSigner(identity, legacy=legacy, clock=lambda: NOW).headers(method, URL, body)
        assert await listener.verify(headers, method=method, body=body) == identity.did


def test_the_bytes_on_the_wire() -> None:
    parameters = Parameters(ALICE.key_id, "n0nce", 1, 301)
    headers = message_signature.sign(Request("POST", "https://Shop.example:443", {}, b"hi"), parameters, lambda message: message)
    digest = f"sha-256=:{base64.b64encode(hashlib.sha256(b'hi').digest()).decode()}:"
    inputs = (
        '("@method" "@target-uri" "@authority" "content-digest");created=1;expires=301;nonce="n0nce";'
        'keyid="did:wba:alice.example:shop#key-1"'
    )
    base = (
        f'"@method": POST\n"@target-uri": https://shop.example/\n"@authority": shop.example\n"content-digest": {digest}\n'
        f'"@signature-params": {inputs}'
    )
    signature = f"sig1=:{base64.b64encode(base.encode()).decode()}:"
    assert headers == {"Content-Digest": digest, "Signature-Input": f"sig1={inputs}", "Signature": signature}


def test_the_older_form_on_the_wire() -> None:
    header = didwba.sign(ALICE.key_id, "n0nce", NOW, "shop.example", lambda digest: digest * 2)
    members = {"aud": "shop.example", "did": ALICE.did, "nonce": "n0nce", "timestamp": "2026-09-21T14:13:20Z"}
    digest = hashlib.sha256(json.dumps(members, separators=(",", ":")).encode()).digest()
    signature = base64.urlsafe_b64encode(digest * 2).decode().rstrip("=")
    assert header == (
        f'DIDWba v="1.1", did="{ALICE.did}", nonce="n0nce", timestamp="2026-09-21T14:13:20Z", '
        f'verification_method="key-1", signature="{signature}"'
    )


@pytest.mark.parametrize(
    "url", ["", "/path", "shop.example", "ftp://shop.example/", "wss://shop.example/", "https://u:p@shop.example/", f"{URL}#part"]
)
def test_only_absolute_web_urls_are_signed_for(url: str) -> None:
    for legacy in (False, True):
        with pytest.raises(Malformed):
            RequestSigner(ALICE, legacy=legacy).headers("GET", url)


async def test_a_request_without_proof(listener: Listener) -> None:
    for headers in ({}, {"Authorization": "Bearer x"}):
        assert await code(listener, headers) == "authentication.missing"


@pytest.mark.threat(102)
@pytest.mark.parametrize("required", [True, False])
async def test_the_older_form_is_refused_unless_asked_for(tmp_path: Path, required: bool) -> None:
    listener = Listener(tmp_path, required=required)
    listener.knows(ALICE)
    header = RequestSigner(ALICE, legacy=True, clock=lambda: NOW).headers("POST", URL)["Authorization"]
    for spelling in (header, header.replace("DIDWba", "didwba"), header.replace("DIDWba", "DIDWBA"), "DIDWba "):
        with pytest.raises(Unauthorized) as refusal:
            await listener.verify({"Authorization": spelling})
        assert refusal.value.code == "authentication.missing"
        assert "RFC 9421" in refusal.value.fix and "accept_didwba" in refusal.value.fix
    assert listener.fetched == [], "nobody was asked for a document"
    if not required:
        assert await listener.verify({}) == ""
        assert await code(listener, {"Signature": "x"}) == "authentication.signature"
    listener.nonces.close()


async def test_another_request_than_was_signed(listener: Listener) -> None:
    headers = signed()
    assert await code(listener, headers, method="PUT") == "authentication.signature"
    for url in (URL + "&x=1", URL.replace("%20", "+"), "/anp/v1/sessions", "/other", f"{AUDIENCE}//anp/v1/sessions?topic=a%20b"):
        assert await code(listener, headers, url=url) == "authentication.signature"
    assert await code(listener, headers, body=b"{ }") == "authentication.signature"
    assert await code(listener, headers, body=b"") == "authentication.signature"
    without = {name: value for name, value in headers.items() if name != "Content-Digest"}
    assert await code(listener, without) == "authentication.signature"
    assert await listener.verify(headers) == ALICE.did


async def test_the_audience_is_the_listeners_own_url(listener: Listener) -> None:
    elsewhere = signed(url=URL.replace("shop", "other"))
    assert (
        await code(listener, {**elsewhere, "Host": "other.example"}, url=URL.replace("shop", "other"))
        == "authentication.signature"
    )
    inner = "http://10.0.0.7:8080/anp/v1/sessions?topic=a%20b"
    assert await listener.verify({**signed(), "Host": "10.0.0.7:8080"}, url=inner) == ALICE.did
    listener.verifier.audiences = (AUDIENCE, "http://127.0.0.1:8123", "https://proxy.example/agents/a/")
    for base in ("http://127.0.0.1:8123", "https://proxy.example/agents/a"):
        assert await listener.verify(signed(url=f"{base}/x?y"), url="/x?y") == ALICE.did
    listener.verifier.audiences = ()
    assert await code(listener, signed()) == "authentication.url"


async def test_a_signature_that_does_not_cover_the_request(listener: Listener) -> None:
    for left_out in EVERYTHING:
        covered = [name for name in EVERYTHING if name != left_out]
        headers = by_hand(f'created={NOW};nonce="n";{KEY}', covered=covered)
        assert await code(listener, headers) == "authentication.signature"
    headers = by_hand(f'created={NOW};nonce="n";{KEY}', covered=EVERYTHING[::-1])
    assert await listener.verify(headers) == ALICE.did


@pytest.mark.parametrize(
    ("created", "expires", "expected"),
    [
        (NOW - LIFETIME, None, None),
        (NOW - LIFETIME - 1, None, "authentication.time: expired"),
        (NOW - LIFETIME - 1, NOW + 60, "authentication.time: expired"),
        (NOW - 1, NOW - 1, "authentication.time: expired"),
        (NOW, NOW, None),
        (NOW + FUTURE, NOW + 600, None),
        (NOW + FUTURE + 1, NOW + 600, "authentication.time: future"),
    ],
)
async def test_the_times_of_a_signature(listener: Listener, created: int, expires: int | None, expected: str | None) -> None:
    headers = by_hand(f'created={created};nonce="n";{KEY}' + ("" if expires is None else f";expires={expires}"))
    if expected is None:
        assert await listener.verify(headers) == ALICE.did
    else:
        assert rejection(await refusal(listener, headers), expected) == expected


async def test_the_time_of_the_older_form(listener: Listener) -> None:
    for at, expected in ((NOW - LIFETIME - 1, "expired"), (NOW + FUTURE + 1, "future")):
        headers = RequestSigner(ALICE, legacy=True, clock=lambda at=at: at).headers("GET", URL)  # type: ignore[misc]
        error = await refusal(listener, headers)
        assert error.code == "authentication.time" and expected in error.message


async def test_a_request_is_accepted_once_in_whichever_order(listener: Listener) -> None:
    first, second = signed(), signed()
    for headers in (second, first):
        assert await listener.verify(headers) == ALICE.did
    for headers in (first, second):
        assert await code(listener, headers) == "authentication.replayed"


async def test_somebody_elses_key_id(listener: Listener) -> None:
    mallory = listener.knows(Identity.create("mallory.example"))
    headers = signed(mallory)
    for key_id in (ALICE.key_id, BOUND.key_id, KEYED.key_id):
        swapped = {**headers, "Signature-Input": headers["Signature-Input"].replace(mallory.key_id, key_id)}
        assert await code(listener, swapped) == "authentication.signature"
    nobody = {**headers, "Signature-Input": headers["Signature-Input"].replace(mallory.key_id, "did:wba:nobody.example#key-1")}
    with pytest.raises(Unavailable) as absent:  # its document may be there again in a moment
        await listener.verify(nobody)
    assert absent.value.code == "egress.unreachable"
    unlisted = {**headers, "Signature-Input": headers["Signature-Input"].replace("#key-1", "#key-9")}
    assert await code(listener, unlisted) == "authentication.identity"
    assert await listener.verify(headers) == mallory.did


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Signature-Input", ""),
        ("Signature-Input", "sig1"),
        ("Signature-Input", 'sig1=("@method");keyid="x"'),
        ("Signature-Input", "x" * 4000),
        ("Signature", ""),
        ("Signature", "sig1=:!:"),
        ("Signature", "sig2=:AAAA:"),
        ("Signature", "sig1=:AAAA:"),
        ("Signature", "sig1=?1"),
        ("Content-Digest", "sha-256=:AAAA:"),
        ("Content-Digest", "md5=:AAAA:"),
        ("Content-Digest", ""),
    ],
)
async def test_headers_that_do_not_read(listener: Listener, name: str, value: str) -> None:
    assert (await code(listener, {**signed(), name: value})).startswith("authentication.")


async def test_two_signatures_are_one_too_many(listener: Listener) -> None:
    headers, other = signed(), signed()
    both = {
        "Content-Digest": headers["Content-Digest"],
        "Signature-Input": f"{headers['Signature-Input']}, {other['Signature-Input'].replace('sig1', 'sig2')}",
        "Signature": f"{headers['Signature']}, {other['Signature'].replace('sig1', 'sig2')}",
    }
    assert await code(listener, both) == "authentication.signature"


@pytest.mark.parametrize(
    "parameters",
    [
        f'nonce="n";{KEY}',
        f"created={NOW};{KEY}",
        f'created={NOW};nonce="";{KEY}',
        f'created={NOW};nonce="{"n" * 129}";{KEY}',
        f'created={NOW};nonce="n"',
        f'created="{NOW}";nonce="n";{KEY}',
        f'created={NOW};nonce="n";{KEY};alg="hmac-sha256"',
        f'created={NOW};nonce="n";{KEY};other=1',
        f'created={NOW};nonce="n";{KEY};expires=soon',
    ],
)
async def test_a_signature_states_its_time_and_signer(listener: Listener, parameters: str) -> None:
    assert await code(listener, by_hand(parameters)) == "authentication.signature"
    assert await listener.verify(by_hand(f'created={NOW};nonce="n";{KEY};alg="ed25519";tag="x"')) == ALICE.did


def older(**changes: str) -> str:
    header = didwba.sign(ALICE.key_id, "n0nce", NOW, "shop.example", ALICE.sign)
    for name, value in changes.items():
        before = next(part for part in header.split(", ") if part.removeprefix("DIDWba ").startswith(f'{name}="'))
        header = header.replace(before, before[: before.index('="') + 2] + value + '"')
    return header


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (older(nonce="other"), "signature: does not verify"),
        (older(did=BOUND.did), "signature: does not verify"),
        (older(verification_method="key-2"), "identity: does not list"),
        (older(v="1.0"), "signature: does not verify"),
        (older(v="2.0"), "signature: cannot be read|at most"),
        (older(timestamp="2026-09-21 14:13:20"), "signature: cannot be read|at most"),
        (older(timestamp="2026-13-21T14:13:20Z"), "signature: cannot be read|at most"),
        (older(signature="AAAA"), "signature: cannot be read|at most"),
        (older(nonce=""), "signature: cannot be read|at most"),
        (older(nonce="x" * 129), "signature: cannot be read|at most"),
        (older(did="x"), "identity"),
        (older() + ', nonce="n0nce"', "signature: cannot be read|at most"),
        (older() + ', more="x"', "signature: cannot be read|at most"),
        (older().replace(', nonce="n0nce"', ""), "signature: cannot be read|at most"),
        (older() + ", ", "signature: cannot be read|at most"),
        (older() + " " * 3000, "signature: cannot be read|at most"),
        ("DIDWba ", "signature: cannot be read|at most"),
    ],
)
async def test_an_older_header_that_does_not_hold(listener: Listener, header: str, expected: str) -> None:
    error = await refusal(listener, {"Authorization": header})
    assert rejection(error, f"authentication.{expected}") == f"authentication.{expected}"
    assert await listener.verify({"Authorization": older()}) == ALICE.did


async def test_the_first_version_of_the_older_form_says_service(listener: Listener) -> None:
    credential = didwba.Credential("1.0", ALICE.did, "n", "2026-09-21T14:13:20Z", "key-1")
    members = {"did": ALICE.did, "nonce": "n", "service": "shop.example", "timestamp": "2026-09-21T14:13:20Z"}
    digest = hashlib.sha256(json.dumps(members, separators=(",", ":")).encode()).digest()
    assert credential.digest("shop.example") == digest
    signature = base64.urlsafe_b64encode(ALICE.sign(digest)).decode().rstrip("=")
    header = f'DIDWba v="1.0", did="{ALICE.did}", nonce="n", timestamp="2026-09-21T14:13:20Z", verification_method="key-1", '
    assert await listener.verify({"Authorization": f'{header}signature="{signature}"'}) == ALICE.did


async def test_a_rotated_key_counts_for_a_minute_at_most(listener: Listener) -> None:
    assert await listener.verify(signed()) == ALICE.did
    rotated = listener.knows(ALICE.rotated())
    listener.now += 10
    assert await listener.verify(signed(rotated, at=listener.now)) == ALICE.did
    assert await code(listener, signed(ALICE, at=listener.now)) == "authentication.identity"


async def test_an_old_document_is_valid_for_a_minute(listener: Listener) -> None:
    assert await listener.verify(signed()) == ALICE.did
    listener.knows(ALICE.rotated())
    listener.now += 59
    assert await listener.verify(signed(at=listener.now)) == ALICE.did
    listener.now += 2
    assert await code(listener, signed(at=listener.now)) == "authentication.identity"


async def test_a_deactivated_did_sends_nothing_more(listener: Listener) -> None:
    listener.documents[ALICE.did] = ALICE.did_document(deactivated=True)
    assert await code(listener, signed()) == "authentication.identity"
    listener.documents[BOUND.did] = {**BOUND.did_document(), "deactivated": True}
    assert await code(listener, signed(BOUND)) == "authentication.identity"


async def test_strangers_do_not_make_us_ask_a_host_at_will(listener: Listener) -> None:
    headers = signed()
    for number in range(5):
        unlisted = {**headers, "Signature-Input": headers["Signature-Input"].replace("#key-1", f"#key-{number + 2}")}
        assert await code(listener, unlisted) == "authentication.identity"
    assert listener.fetched == [ALICE.did]


async def test_a_host_that_does_not_answer_is_not_the_senders_fault(listener: Listener) -> None:
    listener.unreachable = True
    headers = signed()
    with pytest.raises(Unavailable, match="could not be reached"):
        await listener.verify(headers)


async def test_the_challenge_names_what_is_to_be_covered(listener: Listener) -> None:
    assert listener.verifier.challenge() == {
        "WWW-Authenticate": 'DIDWba realm="shop.example"',
        "Accept-Signature": 'sig1=("@method" "@target-uri" "@authority" "content-digest");created;expires;nonce;keyid',
    }


async def test_every_request_of_a_session_proves_its_source(tmp_path: Path) -> None:
    mine = Listener(tmp_path, now=time.time() - 2 * LIFETIME)
    mine.knows(ALICE)
    peers: list[str] = []

    async def answer(connection: Connection) -> None:
        peers.append(connection.peer)
        with suppress(ConnectionLost):
            while True:
                connection.send(f"{await next_message(connection)!r}, {connection.peer}")

    async def verify(method: str, target: str, headers: Mapping[str, str], body: bytes) -> str:
        mine.now = time.time()
        return await mine.verifier.verify(method, target, headers, body)

    async with listener_module.listen(answer, "127.0.0.1", 0, max_connections=4, authenticate=verify) as port:
        mine.verifier.audiences = (f"http://127.0.0.1:{port}",)
        connection = await connect(f"http://127.0.0.1:{port}", Network(), sign=RequestSigner(ALICE).headers)
        for message in ("hello", b"\x40 more"):
            connection.send(message)
            assert await next_message(connection) == f"{message!r}, {ALICE.did}"
        await connection.close()
        unsigned = await connect(f"http://127.0.0.1:{port}", Network())
        with pytest.raises(Refused, match=r"authentication\.missing"):
            unsigned.send("hello")
            await next_message(unsigned)
        await unsigned.close()
        mine.unreachable = True
        away = await connect(f"http://127.0.0.1:{port}", Network(), sign=RequestSigner(BOUND).headers)
        with pytest.raises(ConnectionFailed, match=r"egress\.unreachable") as failed:
            away.send("hello")
            await next_message(away)
        assert (failed.value.retryable, failed.value.peer_code) == (True, "egress.unreachable")
        await away.close()
    assert peers == [ALICE.did]
    mine.nonces.close()
