"""A signed request that somebody else got hold of is good for nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from signed_requests import AUDIENCE, NOW, URL, Listener

from treaty_agent.authentication.nonces import FUTURE, LIFETIME
from treaty_agent.authentication.request_signing import RequestSigner
from treaty_consensus.errors import Unauthorized
from treaty_io.identity import Identity

ALICE = Identity.create("alice.example")
BOTH_FORMS = pytest.mark.parametrize("legacy", [False, True])


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    listener = Listener(tmp_path, now=NOW - 2 * LIFETIME, legacy=True)
    listener.now = NOW
    listener.knows(ALICE)
    yield listener
    listener.nonces.close()


def sign(*, legacy: bool = False, url: str = URL, at: float = NOW) -> dict[str, str]:
    return RequestSigner(ALICE, legacy=legacy, clock=lambda: at).headers("POST", url, b"{}")


async def refused(listener: Listener, headers: dict[str, str], **request: str) -> str:
    with pytest.raises(Unauthorized) as refusal:
        await listener.verify(headers, **request)  # type: ignore[arg-type]
    return refusal.value.code


@pytest.mark.threat(100)
@BOTH_FORMS
async def test_a_request_is_not_accepted_again_after_a_restart(listener: Listener, legacy: bool) -> None:
    headers = sign(legacy=legacy)
    assert await listener.verify(headers) == ALICE.did
    assert await refused(listener, headers) == "authentication.replayed"
    for _ in range(2):
        listener.restart()
        assert await refused(listener, headers) == "authentication.replayed"
    assert await listener.verify(sign(legacy=legacy)) == ALICE.did


@pytest.mark.threat(100)
@BOTH_FORMS
async def test_a_machine_that_lost_power_accepts_nothing_from_before(listener: Listener, legacy: bool) -> None:
    headers = sign(legacy=legacy, at=NOW + FUTURE)
    assert await listener.verify(headers) == ALICE.did
    listener.boot = "99999999-2222-3333-4444-555555555555"
    listener.restart()
    assert await refused(listener, headers) == "authentication.time"
    listener.now += FUTURE + 1
    assert await listener.verify(sign(legacy=legacy, at=listener.now)) == ALICE.did


@BOTH_FORMS
async def test_it_expires_before_it_is_forgotten(listener: Listener, legacy: bool) -> None:
    headers = sign(legacy=legacy, at=NOW + FUTURE)
    assert await listener.verify(headers) == ALICE.did
    for later in range(0, LIFETIME + FUTURE + 10, 20):
        listener.now = NOW + later
        listener.restart()
        assert await refused(listener, headers) in ("authentication.replayed", "authentication.time")


@pytest.mark.threat(100)
@BOTH_FORMS
async def test_it_is_for_one_host(listener: Listener, legacy: bool) -> None:
    elsewhere = sign(legacy=legacy, url=URL.replace("shop.example", "other.example"))
    stolen = {**elsewhere, "Host": "other.example", "X-Forwarded-Host": "other.example"}
    assert await refused(listener, stolen) == "authentication.signature"
    assert await refused(listener, stolen, url=URL.replace("shop.example", "other.example")) == "authentication.signature"


async def test_it_is_for_one_request(listener: Listener) -> None:
    headers = sign()
    for request in ({"method": "DELETE"}, {"url": f"{AUDIENCE}/other"}, {"url": f"{URL}&admin=1"}):
        assert await refused(listener, headers, **request) == "authentication.signature"
    assert await listener.verify(headers) == ALICE.did


@pytest.mark.threat(100)
@BOTH_FORMS
async def test_it_is_not_accepted_under_another_name_of_its_key(listener: Listener, legacy: bool) -> None:
    document = json.loads(json.dumps(listener.documents[ALICE.did]))
    again = {**document["verificationMethod"][0], "id": f"{ALICE.did}#again"}
    document["verificationMethod"].append(again)
    document["authentication"].append(again["id"])
    listener.documents[ALICE.did] = document
    headers = sign(legacy=legacy)
    assert await listener.verify(headers) == ALICE.did
    renamed = {name: value.replace("key-1", "again") for name, value in headers.items()}
    assert renamed != headers
    assert await refused(listener, renamed) == ("authentication.replayed" if legacy else "authentication.signature")
