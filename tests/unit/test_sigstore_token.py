"""Self-issued identity tokens: the format, both ways."""

from __future__ import annotations

import base64
import json
import time
import warnings
from typing import Any

import jwt
import pytest
from joserfc import jws
from joserfc.jwk import OKPKey
from rejections import rejection
from signers import NOW, ORIGIN, domain_signer, key_signer
from sigstore.oidc import IdentityToken as StockIdentityToken

from treaty_consensus import canonical, sigstore_token
from treaty_consensus.errors import Malformed, TooLarge, TreatyError, Unauthorized

ALICE = domain_signer("alice.example")
JTI = "0123456789abcdef"
HEADER = {"alg": "EdDSA", "kid": ALICE.key_id, "typ": "JWT"}
CLAIMS = {"aud": ["sigstore", ORIGIN], "exp": NOW + 300, "iat": NOW, "iss": ALICE.did, "jti": JTI, "sub": ALICE.did}
BOUND = {"cnf": {"spki-sha256": "ab" * 32}}


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(header: object = HEADER, claims: object = CLAIMS) -> str:
    message = f"{encode(canonical.dumps(header))}.{encode(canonical.dumps(claims))}"
    return f"{message}.{encode(ALICE.sign(message.encode()))}"


def made(**changes: Any) -> str:
    arguments: dict[str, Any] = {"origin": ORIGIN, "issued": NOW, "jti": JTI, "bound_key": None} | changes
    message = sigstore_token.signing_input(ALICE.key_id, **arguments)
    return sigstore_token.seal(message, ALICE.sign(message))


def test_what_is_made_is_what_is_read() -> None:
    assert made() == token()
    assert made(bound_key="ab" * 32) == token(claims=CLAIMS | BOUND)
    read = sigstore_token.parse(made(bound_key="ab" * 32))
    assert (read.key_id, read.did.text, read.origin, read.jti) == (ALICE.key_id, ALICE.did, ORIGIN, JTI)
    assert (read.issued, read.expires, read.bound_key) == (NOW, NOW + 300, "ab" * 32)
    sigstore_token.verify(read, {ALICE.key_id: ALICE.public_key})


def test_other_libraries_verify_it() -> None:
    claims = jwt.decode(
        made(),
        ALICE.private_key.public_key(),
        algorithms=["EdDSA"],
        audience=ORIGIN,
        options={"verify_exp": False, "verify_iat": False},
    )
    assert claims == CLAIMS
    key = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": encode(ALICE.public_key)})
    with warnings.catch_warnings():  # RFC 9864 renames EdDSA to Ed25519; the stock Sigstore clients know the old name alone
        warnings.simplefilter("ignore")
        assert jws.deserialize_compact(made(), key, algorithms=["EdDSA"]).headers() == HEADER


def test_the_stock_client_takes_the_identity_from_it() -> None:
    stock = StockIdentityToken(made(issued=int(time.time())))
    assert (stock.identity, stock.issuer) == (ALICE.did, ALICE.did)


def test_a_did_key_signs_too() -> None:
    bob = key_signer("bob")
    message = sigstore_token.signing_input(bob.key_id, origin=ORIGIN, issued=NOW, jti=JTI, bound_key=None)
    read = sigstore_token.parse(sigstore_token.seal(message, bob.sign(message)))
    sigstore_token.verify(read, {bob.key_id: bob.public_key})
    assert read.did.text == bob.did


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ({"alg": "none"}, "token.invalid: header of"),
        ({"alg": "HS256"}, "token.invalid: header of"),
        ({"alg": "ES256"}, "token.invalid: header of"),
        ({"alg": "Ed25519"}, "token.invalid: header of"),
        ({"typ": "at+jwt"}, "token.invalid: header of"),
        ({"jwk": {"kty": "OKP", "crv": "Ed25519", "x": encode(ALICE.public_key)}}, "token.invalid: header of"),
        ({"jku": "https://evil.example/keys"}, "token.invalid: header of"),
        ({"x5u": "https://evil.example/cert"}, "token.invalid: header of"),
        ({"x5c": ["AA=="]}, "token.invalid: header of"),
        ({"crit": ["b64"], "b64": False}, "token.invalid: header of"),
        ({"kid": 7}, "token.invalid: header of"),
        ({"kid": ALICE.did}, "did.syntax"),
        ({"kid": "did:wba:bob.example#key-1"}, "token.invalid: `sub` and"),
    ],
)
def test_headers_that_are_refused(header: dict[str, object], code: str) -> None:
    with pytest.raises(Malformed) as refused:
        sigstore_token.parse(token(header=HEADER | header))
    assert rejection(refused.value, code) == code


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ({"sub": "did:wba:bob.example"}, "token.invalid: `sub` and"),
        ({"iss": f"https://{ORIGIN}/sigstore"}, "token.invalid: `sub` and"),
        ({"aud": "sigstore"}, "token.invalid: claims of"),
        ({"aud": ["sigstore"]}, "token.invalid: claims of"),
        ({"aud": [ORIGIN, "sigstore"]}, "token.invalid: `aud`"),
        ({"aud": ["sigstore", ORIGIN, "other.example"]}, "token.invalid: claims of"),
        ({"exp": NOW + 301}, "token.invalid: lives for"),
        ({"exp": NOW}, "token.invalid: lives for"),
        ({"iat": NOW + 301}, "token.invalid: lives for"),
        ({"iat": -1}, "token.invalid: claims of"),
        ({"exp": str(NOW + 300)}, "token.invalid: claims of"),
        ({"jti": "short"}, "token.invalid: `jti`"),
        ({"jti": "x" * 65}, "token.invalid: `jti`"),
        ({"jti": "0123456789abcde/"}, "token.invalid: `jti`"),
        ({"cnf": None}, "token.invalid: claims of"),
        ({"cnf": {}}, "token.invalid: claims of"),
        ({"cnf": {"jkt": "ab" * 32}}, "token.invalid: claims of"),
        ({"cnf": {"spki-sha256": "AB" * 32}}, "canonical.text"),
        ({"nonce": "x"}, "token.invalid: claims of"),
        ({"email": "alice@example.com"}, "token.invalid: claims of"),
    ],
)
def test_claims_that_are_refused(claims: dict[str, object], code: str) -> None:
    with pytest.raises(Malformed) as refused:
        sigstore_token.parse(token(claims=CLAIMS | claims))
    assert rejection(refused.value, code) == code


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_every_claim_is_needed(name: str) -> None:
    with pytest.raises(Malformed):
        sigstore_token.parse(token(claims={key: value for key, value in CLAIMS.items() if key != name}))


def test_a_name_that_occurs_twice_is_refused() -> None:
    twice = json.dumps(CLAIMS)[:-1] + ', "sub": "did:wba:bob.example"}'
    with pytest.raises(Malformed):
        sigstore_token.parse(f"{encode(canonical.dumps(HEADER))}.{encode(twice.encode())}.{encode(bytes(64))}")


def test_segments_have_one_spelling() -> None:
    header, claims, signature = made().split(".")
    loose = signature[:-1] + chr(ord(signature[-1]) + 1)  # 64 bytes leave four bits of the last character unused
    assert base64.urlsafe_b64decode(loose + "==") == base64.urlsafe_b64decode(signature + "==")
    for text in (
        f"{header}.{claims}.{loose}",
        f"{header}.{claims}.{signature}==",
        f"{header}.{claims}",
        f"{header}.{claims}.{signature}.",
        f"{header}.{claims}.{signature} ",
        f"{header}.{claims}.{signature[:-4]}+/é=",
        "",
    ):
        with pytest.raises(Malformed) as refused:
            sigstore_token.parse(text)
        assert refused.value.code == "token.invalid"


def test_the_cap_comes_first() -> None:
    with pytest.raises(TooLarge):
        sigstore_token.parse("a" * (sigstore_token.MAX_TOKEN + 1))


def test_nothing_is_made_that_would_be_refused() -> None:
    for changes in ({"jti": "short"}, {"bound_key": "AB" * 32}, {"issued": -1}):
        with pytest.raises(TreatyError):
            made(**changes)


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({}, "token.invalid: does not list|not a key"),
        ({f"{ALICE.did}#key-2": ALICE.public_key}, "token.invalid: does not list|not a key"),
        ({ALICE.key_id: domain_signer("bob.example").public_key}, "token.invalid: signature does not verify"),
    ],
)
def test_only_the_named_key_counts(keys: dict[str, bytes], code: str) -> None:
    with pytest.raises(Unauthorized) as refused:
        sigstore_token.verify(sigstore_token.parse(made()), keys)
    assert rejection(refused.value, code) == code


def test_every_flipped_byte_is_noticed() -> None:
    original = made(bound_key="ab" * 32)
    for position in range(len(original)):
        other = "A" if original[position] != "A" else "B"
        flipped = original[:position] + other + original[position + 1 :]
        with pytest.raises(TreatyError):
            sigstore_token.verify(sigstore_token.parse(flipped), {ALICE.key_id: ALICE.public_key})
