"""The key set of an issuer: rotation with an overlap, no more fetches than needed, and no key of a confused name."""

from __future__ import annotations

import json

import pytest
from workflow_issuer import jwk

from treaty_consensus.errors import Malformed, Unauthorized, Unavailable
from treaty_registry.admission.workflow_tokens import MAX_AGE, REFETCH_AGE, IssuerKeys


class Issuer:
    """A key set, and a clock."""

    def __init__(self, *keys: dict[str, object]) -> None:
        self.keys, self.asked, self.now, self.is_down = list(keys), 0, 0.0, False

    async def fetch(self, url: str) -> bytes:
        assert url == "https://issuer.example/.well-known/jwks"
        self.asked += 1
        if self.is_down:
            raise Unavailable("egress.unreachable", "It is down.")
        return json.dumps({"keys": self.keys}).encode()

    @property
    def known(self) -> IssuerKeys:
        return IssuerKeys("https://issuer.example", self.fetch, lambda: self.now)


async def test_an_issuer_rotates_with_an_overlap() -> None:
    issuer = Issuer(jwk("first"))
    known = issuer.known
    assert (await known.find("first")).n == jwk("first")["n"]
    issuer.keys.append(jwk("second"))
    with pytest.raises(Unauthorized):
        await known.find("second")
    assert issuer.asked == 1
    issuer.now = REFETCH_AGE + 1
    assert (await known.find("second")).n == jwk("second")["n"]
    assert (await known.find("first")).n == jwk("first")["n"]
    # The old key goes: it is accepted for `MAX_AGE` more at most.
    issuer.keys.pop(0)
    issuer.now += MAX_AGE + 1
    with pytest.raises(Unauthorized):
        await known.find("first")
    assert issuer.asked == 3


async def test_names_that_strangers_choose_cause_no_fetches() -> None:
    issuer = Issuer(jwk("first"))
    known = issuer.known
    await known.find("first")
    for number in range(100):
        with pytest.raises(Unauthorized):
            await known.find(f"evil {number}")
    assert issuer.asked == 1


async def test_an_issuer_that_is_down_says_nothing_about_a_token() -> None:
    issuer = Issuer(jwk("first"))
    known = issuer.known
    await known.find("first")
    issuer.is_down, issuer.now = True, MAX_AGE + 1
    with pytest.raises(Unavailable):
        await known.find("first")
    issuer.is_down = False
    assert (await known.find("first")).kid == "first"


async def test_keys_that_sign_no_tokens_are_passed_over() -> None:
    confused = [jwk("first"), jwk("second", kid="first")]
    others: list[dict[str, object]] = [
        {**jwk("enc"), "use": "enc"},
        {**jwk("ps"), "alg": "PS256"},
        {"kty": "EC", "kid": "ec"},
        jwk("good"),
    ]
    known = Issuer(*confused, *others).known
    assert (await known.find("good")).kid == "good"
    for kid in ("first", "enc", "ps", "ec"):
        with pytest.raises(Unauthorized):
            await known.find(kid)
    # A small key could be factored.
    with pytest.raises(Malformed):
        await Issuer({**jwk("small"), "n": "AQAB"}).known.find("small")
