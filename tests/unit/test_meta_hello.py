"""Hellos: what must be there, what may be, and every spelling that is refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from treaty_client.anp.hello_profile import hello
from treaty_client.anp.hello_profile.hello import Hello, choose, common_version, parse
from treaty_consensus.errors import Refused, TreatyError

HASH = hashlib.sha256(b"# Agreed\n").hexdigest()
URI = "https://registry.example/protocols/example.com/product-info/1.0"
SOURCE: dict[str, Any] = {
    "version": "1.0",
    "type": "sourceHello",
    "messageId": "0123456789abcdef",
    "sessionId": "fedcba9876543210",
    "sourceDid": "did:wba:buyer.example",
    "destinationDid": "did:wba:shop.example",
    "random": "r" * 32,
    "metaProtocol": {"version": "1.0", "supportedCapabilities": ["reportCosignature"], "candidateProtocols": [URI]},
}
DESTINATION: dict[str, Any] = {
    **SOURCE,
    "type": "destinationHello",
    "metaProtocol": {"version": "1.0", "supportedCapabilities": [], "selectedProtocol": URI, "usedProtocolHash": HASH},
}


def read(value: dict[str, Any], **changes: Any) -> Hello:
    return parse(json.dumps({**value, **changes}), value["type"])


def meta(value: dict[str, Any] = SOURCE, **changes: Any) -> Hello:
    return read(value, metaProtocol={**value["metaProtocol"], **changes})


def refused(value: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(TreatyError) as refusal:
        read(value, **changes)
    return refusal.value.code


def meta_refused(value: dict[str, Any] = SOURCE, **changes: Any) -> str:
    with pytest.raises(TreatyError) as refusal:
        meta(value, **changes)
    return refusal.value.code


@pytest.mark.parametrize("value", [SOURCE, DESTINATION])
def test_000_52_version_and_capabilities_are_exchanged_and_survive_a_round_trip(value: dict[str, Any]) -> None:
    parsed = read(value)
    assert (parsed.meta_version, list(parsed.capabilities)) == ("1.0", value["metaProtocol"]["supportedCapabilities"])
    assert parse(parsed.format(), value["type"]) == parsed


@pytest.mark.parametrize("value", [SOURCE, DESTINATION])
@pytest.mark.parametrize("field", ["version", "type", "messageId", "sessionId", "sourceDid", "destinationDid", "metaProtocol"])
def test_000_52_each_mandatory_field_is_mandatory(value: dict[str, Any], field: str) -> None:
    without = {name: item for name, item in value.items() if name != field}
    with pytest.raises(TreatyError) as refusal:
        parse(json.dumps(without), value["type"])
    assert refusal.value.code == "hello.field"
    assert refused(value, **{field: None}) == "hello.field"


@pytest.mark.parametrize("field", ["version", "supportedCapabilities"])
def test_000_54_version_and_capabilities_of_the_meta_protocol_are_mandatory(field: str) -> None:
    kept = {name: item for name, item in SOURCE["metaProtocol"].items() if name != field}
    assert refused(SOURCE, metaProtocol=kept) == "hello.field"


def test_000_54_the_five_named_capabilities_are_optional_and_unknown_ones_are_read() -> None:
    named = [
        "naturalLanguageProtocol",
        "verificationProtocol",
        "naturalLanguageNegotiation",
        "testCasesNegotiation",
        "fixErrorNegotiation",
    ]
    assert meta(supportedCapabilities=[]).capabilities == ()
    assert meta(supportedCapabilities=[*named, "something.new"]).capabilities == (*named, "something.new")


def test_000_55_the_version_is_1_0() -> None:
    own = Hello(
        type="sourceHello",
        message_id="0123456789abcdef",
        session_id="fedcba9876543210",
        source_did="did:wba:buyer.example",
        destination_did="",
    )
    written = json.loads(own.format())
    assert (written["version"], written["metaProtocol"]["version"]) == ("1.0", "1.0")
    answer, _ = choose(replace(own, type="destinationHello", source_did="did:wba:shop.example"), read(SOURCE), {})
    assert (answer.meta_version, json.loads(answer.format())["version"]) == ("1.0", "1.0")
    assert refused(SOURCE, version="2.0") == "hello.version"


def test_000_06_a_wider_header_needs_a_hello_of_another_version_which_is_refused_here() -> None:
    assert refused(SOURCE, version="1.1") == "hello.version"


@pytest.mark.parametrize(("theirs", "common"), [("1.0", "1.0"), ("1.1", "1.0"), ("2.0", "1.0"), ("10.0", "1.0")])
def test_000_53_the_highest_common_version_is_used(theirs: str, common: str) -> None:
    assert common_version(theirs) == common


@pytest.mark.parametrize("theirs", ["0.9", "0.0"])
def test_000_53_without_a_common_version_there_is_no_session(theirs: str) -> None:
    with pytest.raises(Refused) as refusal:
        common_version(theirs)
    assert refusal.value.code == "hello.version"


@pytest.mark.parametrize("version", ["1", "1.0.0", "01.0", "1.00", "v1.0", "", "1.0 ", "١.٠", "99999.0", 1])
def test_a_version_has_one_spelling(version: object) -> None:
    assert meta_refused(version=version) == "hello.field"


def test_000_58_the_hash_is_64_hexadecimal_digits_of_sha256() -> None:
    assert meta(usedProtocolHash=HASH).used_protocol_hash == HASH
    for wrong in (HASH[:-1], HASH + "0", HASH.upper(), "g" * 64, "", "sha1:" + HASH, "sha256:sha256:" + HASH):
        assert meta_refused(usedProtocolHash=wrong) == "canonical.digest"
    assert meta_refused(usedProtocolHash=7) == "hello.field"


def test_000_59_the_source_may_offer_the_hash_under_either_name() -> None:
    assert meta(protocolHash=HASH).used_protocol_hash == HASH
    assert meta(protocolHash=f"sha256:{HASH}", usedProtocolHash=HASH).used_protocol_hash == HASH
    assert meta(protocolHash=None, usedProtocolHash=None).used_protocol_hash is None
    assert meta_refused(protocolHash="0" * 64, usedProtocolHash=HASH) == "hello.hash"


def test_000_59_only_the_present_name_is_emitted() -> None:
    emitted = json.loads(meta(protocolHash=f"sha256:{HASH}").format())["metaProtocol"]
    assert emitted["usedProtocolHash"] == HASH
    assert "protocolHash" not in emitted


def test_000_61_an_absent_hash_is_left_out() -> None:
    assert "usedProtocolHash" not in json.loads(read(SOURCE).format())["metaProtocol"]


def test_000_63_candidates_are_an_array_of_uris_in_order() -> None:
    others = ["https://other.example/a", "urn:x:y"]
    assert meta(candidateProtocols=[*others, URI]).candidate_protocols == (*others, URI)
    assert meta(candidateProtocols=None).candidate_protocols == ()
    for wrong in ("https://one.example/", [7], [""], ["a b"], [None], ["x" * 513], [URI] * 17):
        assert meta_refused(candidateProtocols=wrong) == "hello.field"


def test_each_side_reads_only_its_own_fields() -> None:
    assert meta(DESTINATION, candidateProtocols=[URI]).candidate_protocols == ()
    assert meta(SOURCE, selectedProtocol=URI).selected_protocol is None


def test_a_source_may_not_know_whom_it_calls_but_a_destination_does() -> None:
    assert read(SOURCE, destinationDid="").destination_did == ""
    assert refused(DESTINATION, destinationDid="") == "did.syntax"


def test_the_other_type_is_refused() -> None:
    with pytest.raises(TreatyError) as refusal:
        parse(json.dumps(SOURCE), "destinationHello")
    assert refusal.value.code == "hello.type"


@pytest.mark.parametrize("field", ["messageId", "sessionId", "random"])
@pytest.mark.parametrize("value", ["short", "x" * 129, "sixteen chars ok", "ünïcödé-sixteen-", 16])
def test_ids_and_randoms_are_plain_and_long_enough(field: str, value: object) -> None:
    assert refused(SOURCE, **{field: value}) == "hello.field"


def test_fields_of_other_profiles_are_ignored() -> None:
    extra = {"cipherSuites": ["TLS_AES_128_GCM_SHA256"], "proof": {"type": "x"}, "timestamp": "2024-05-27T12:00:00.123Z"}
    assert read(SOURCE, **extra) == read(SOURCE)


def test_only_a_key_of_the_sender_itself_is_taken_for_reports() -> None:
    assert read(SOURCE, verificationMethod={"id": "did:wba:buyer.example#key-1"}).key_id == "did:wba:buyer.example#key-1"
    for other in ("did:wba:other.example#key-1", "keys-1", "did:all:1abc#keys-1"):
        assert read(SOURCE, verificationMethod={"id": other, "publicKeyHex": "04"}).key_id is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "canonical.json"),
        ("[]", "hello.field"),
        ("null", "hello.field"),
        ('{"version": "1.0", "version": "1.0"}', "canonical.json"),
        ('{"version": 1.5}', "canonical.json"),
        ("[" * 5000, "canonical.json"),
        ('"' + "x" * hello.MAX_HELLO + '"', "canonical.too-large"),
        ('{"version": "\udc80"}', "canonical.json"),
    ],
)
def test_000_08_a_hello_is_strict_json_and_capped(text: str, code: str) -> None:
    with pytest.raises(TreatyError) as refusal:
        parse(text, "sourceHello")
    assert refusal.value.code == code
