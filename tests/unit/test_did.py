"""DIDs: parsing, namespaces, principals, and the keys that a document lists."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from publicsuffixlist import PublicSuffixList
from signers import domain_signer, key_signer

from treaty_consensus.did import (
    authentication_keys,
    decode_multikey,
    did_key,
    encode_multikey,
    parse_did,
    parse_key_id,
    public_key_of,
)
from treaty_consensus.errors import Malformed, Refused

# W3C did:key test vector (did-method-key, Ed25519).
VECTOR = "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"
VECTOR_KEY = bytes.fromhex("3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29")


def test_did_key_vector() -> None:
    assert public_key_of(parse_did(VECTOR)) == VECTOR_KEY
    assert did_key(VECTOR_KEY) == VECTOR


@pytest.mark.parametrize(
    ("text", "url", "namespace"),
    [
        ("did:wba:example.com", "https://example.com/.well-known/did.json", "example.com"),
        ("did:web:example.com", "https://example.com/.well-known/did.json", "example.com"),
        ("did:wba:example.com:users:alice", "https://example.com/users/alice/did.json", "example.com:users:alice"),
        ("did:wba:xn--bcher-kva.example", "https://xn--bcher-kva.example/.well-known/did.json", "xn--bcher-kva.example"),
    ],
)
def test_document_url_and_namespace(text: str, url: str, namespace: str) -> None:
    did = parse_did(text)
    assert (did.document_url, did.namespace) == (url, namespace)


def test_a_port_is_resolved_but_owns_no_namespace() -> None:
    did = parse_did("did:wba:example.com%3A8443:a")
    assert did.document_url == "https://example.com:8443/a/did.json"
    with pytest.raises(Refused) as refusal:
        _ = did.namespace
    assert refusal.value.code == "did.method"


def test_a_did_key_owns_itself_and_has_no_document() -> None:
    did = parse_did(VECTOR)
    assert did.namespace == VECTOR
    with pytest.raises(Refused):
        _ = did.document_url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "did:",
        "did:wba:",
        "DID:wba:example.com",
        "did:wba:Example.com",
        "did:wba:bücher.example",
        "did:wba:example.com.",
        "did:wba:-a.com",
        "did:wba:example..com",
        "did:wba:example.com%3a80",
        "did:wba:example.com%3A",
        "did:wba:example.com%3A080",
        "did:wba:example.com%3A65536",
        "did:wba:example.com:",
        "did:wba:example.com:..",
        "did:wba:example.com:a/b",
        "did:wba:example.com:a%2Fb",
        "did:wba:example.com#key-1",
        "did:wba:example.com\n",
        "did:ion:abc",
        "did:key:z6Mk",
        VECTOR[:-1],
        VECTOR + "1",
        VECTOR.replace("W", "0"),
        "did:key:z" + "1" * 47,
        "did:wba:" + "a." * 140 + "com",
    ],
)
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(Malformed) as refusal:
        parse_did(text)
    assert refusal.value.code.startswith("did.")


NUMBERS = "127.0.0.1 127.1 2130706433 0x7f.1 0x7f000001 0177.0.0.1 0x 0 1.2.3.4.5 example.0 example.0x1f"


@pytest.mark.threat(66)
@pytest.mark.parametrize("host", NUMBERS.split())
def test_an_ip_address_in_whichever_spelling_is_no_host_of_a_did(host: str) -> None:
    for method in ("wba", "web"):
        for rest in ("", "%3A8443", ":users:alice"):
            with pytest.raises(Malformed) as refusal:
                parse_did(f"did:{method}:{host}{rest}")
            assert refusal.value.code == "did.syntax"


@pytest.mark.parametrize("host", ["1.example", "0x7f.example", "127.0.0.1.example", "localhost", "4chan", "0x-1", "0xg", "1-1"])
def test_a_host_name_may_have_digits(host: str) -> None:
    assert parse_did(f"did:wba:{host}").host == host


@pytest.mark.parametrize("text", [VECTOR, VECTOR + "#key-1", "did:wba:example.com#", "did:wba:example.com#a#b", "#key-1"])
def test_key_ids_name_a_did_and_a_fragment(text: str) -> None:
    with pytest.raises(Malformed):
        parse_key_id(text)


def test_principals_are_registrable_domains_of_the_icann_section() -> None:
    suffixes = PublicSuffixList(only_icann=True)

    def principal(text: str) -> str | None:
        return parse_did(text).principal(suffixes.privatesuffix)

    assert principal("did:wba:a.b.example.co.uk:x") == "example.co.uk"
    assert principal("did:wba:alice.github.io") == principal("did:wba:bob.github.io") == "github.io"
    assert principal(VECTOR) is principal("did:wba:localhost") is None


def _document(**changes: Any) -> dict[str, Any]:
    signer = domain_signer("example.com")
    method = {"id": signer.key_id, "type": "Multikey", "controller": signer.did}
    method["publicKeyMultibase"] = encode_multikey(signer.public_key)
    document = {"id": signer.did, "verificationMethod": [method], "authentication": [signer.key_id]}
    return document | changes


def test_keys_listed_for_authentication_are_read() -> None:
    signer = domain_signer("example.com")
    did = parse_did(signer.did)
    expected = {signer.key_id: signer.public_key}
    x = base64.urlsafe_b64encode(signer.public_key).rstrip(b"=").decode()
    as_jwk = {"id": "#key-1", "type": "JsonWebKey2020", "publicKeyJwk": {"kty": "OKP", "crv": "Ed25519", "x": x}}
    assert authentication_keys(_document(), did) == expected
    assert authentication_keys(_document(authentication=["#key-1"]), did) == expected
    assert authentication_keys(_document(verificationMethod=[as_jwk]), did) == expected
    assert authentication_keys(_document(verificationMethod=[], authentication=[as_jwk]), did) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "did:wba:other.example"},
        {"authentication": []},
        {"authentication": "did:wba:example.com#key-1"},
        {"authentication": ["did:wba:example.com#key-2"]},
        {"verificationMethod": None},
        {"verificationMethod": [{"id": "#key-1", "type": "Multikey", "publicKeyMultibase": "z6Mk"}]},
        {"verificationMethod": [{"id": "#key-1", "type": "X", "publicKeyJwk": {"kty": "OKP", "crv": "Ed25519", "x": "A" * 44}}]},
        {"verificationMethod": [{"id": "#key-1", "type": "X", "publicKeyJwk": {"kty": "EC", "crv": "P-256", "x": "A" * 43}}]},
    ],
)
def test_a_document_without_an_own_ed25519_key_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Malformed) as refusal:
        authentication_keys(_document(**changes), parse_did("did:wba:example.com"))
    assert refusal.value.code == "did.document"


def test_a_key_of_another_did_does_not_speak_for_this_one() -> None:
    foreign = {"id": "did:wba:evil.example#k", "type": "Multikey"}
    foreign["publicKeyMultibase"] = encode_multikey(key_signer("evil").public_key)
    document = _document()
    document["verificationMethod"].append(foreign)
    document["authentication"].append(foreign["id"])
    keys = authentication_keys(document, parse_did("did:wba:example.com"))
    assert list(keys) == ["did:wba:example.com#key-1"]


def test_multikey_round_trips_and_has_one_spelling() -> None:
    for seed in range(64):
        key = key_signer(str(seed)).public_key
        text = encode_multikey(key)
        assert decode_multikey(text) == key
        with pytest.raises(Malformed):
            decode_multikey("z1" + text[1:])
