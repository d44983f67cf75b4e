"""Hellos: what must be there, what may be, and every spelling that is refused."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from msgspec import structs

from treaty_anp.hello_profile import hello
from treaty_anp.hello_profile.hello import Hello, choose, common_version, parse
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
def test_000_52_version_and_capabilities_round_trip(value: dict[str, Any]) -> None:
    parsed = read(value)
    assert (parsed.meta_version, list(parsed.capabilities)) == ("1.0", value["metaProtocol"]["supportedCapabilities"])
    assert parse(parsed.format(), value["type"]) == parsed


@pytest.mark.parametrize("value", [SOURCE, DESTINATION])
@pytest.mark.parametrize("field", ["version", "type", "metaProtocol"])
def test_000_52_each_mandatory_field_is_mandatory_and_named(value: dict[str, Any], field: str) -> None:
    without = {name: item for name, item in value.items() if name != field}
    with pytest.raises(TreatyError, match=f"`{field}`") as refusal:
        parse(json.dumps(without), value["type"])
    assert refusal.value.code == "hello.form"
    assert refused(value, **{field: None}) == "hello.form"


@pytest.mark.parametrize("value", [SOURCE, DESTINATION])
@pytest.mark.parametrize("field", ["messageId", "sessionId", "sourceDid", "destinationDid", "random"])
def test_000_52_the_sources_optional_fields_are_optional(value: dict[str, Any], field: str) -> None:
    without = parse(json.dumps({name: item for name, item in value.items() if name != field}), value["type"])
    assert without == read(value, **{field: None}) != read(value)


def test_a_field_of_another_form_is_named_without_a_pattern() -> None:
    with pytest.raises(TreatyError) as refusal:
        read(SOURCE, messageId="two words")
    assert refusal.value.message == "Not a Hello: Expected `str` of another form - at `$.messageId`."


@pytest.mark.parametrize("field", ["version", "supportedCapabilities"])
def test_000_54_version_and_capabilities_are_mandatory(field: str) -> None:
    members = {name: item for name, item in SOURCE["metaProtocol"].items() if name != field}
    assert refused(SOURCE, metaProtocol=members) == "hello.form"


def test_000_54_named_capabilities_are_optional() -> None:
    named = [
        "naturalLanguageProtocol",
        "verificationProtocol",
        "naturalLanguageNegotiation",
        "testCasesNegotiation",
        "fixErrorNegotiation",
    ]
    assert meta(supportedCapabilities=[]).capabilities == ()
    assert meta(supportedCapabilities=[*named, "something.new"]).capabilities == (*named, "something.new")
    assert meta(supportedCapabilities=[7, "two words", *named, None]).capabilities == tuple(named)


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
    answer, _ = choose(structs.replace(own, type="destinationHello", source_did="did:wba:shop.example"), read(SOURCE), {})
    assert (answer.meta_version, json.loads(answer.format())["version"]) == ("1.0", "1.0")
    assert refused(SOURCE, version="2.0") == "hello.version"


def test_000_06_a_wider_header_needs_another_version() -> None:
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
    assert meta_refused(version=version) == "hello.form"


def test_000_58_the_hash_is_64_hexadecimal_digits_of_sha256() -> None:
    assert meta(usedProtocolHash=HASH).used_protocol_hash == HASH


@pytest.mark.parametrize(
    "wrong",
    [HASH[:-1], HASH + "0", HASH.upper(), "g" * 64, "", "1234567890abcdef...", "sha1:" + HASH, "sha256:sha256:" + HASH, 7],
)
@pytest.mark.parametrize(
    ("value", "name", "field"),
    [
        (SOURCE, "usedProtocolHash", "used_protocol_hash"),
        (SOURCE, "protocolHash", "used_protocol_hash"),
        (DESTINATION, "usedProtocolHash", "used_protocol_hash"),
        (DESTINATION, "selectedProtocolHash", "selected_protocol_hash"),
    ],
)
def test_000_61_a_hash_that_cannot_be_used_is_left_out(value: dict[str, Any], name: str, field: str, wrong: object) -> None:
    value_of = {**value, "metaProtocol": {**value["metaProtocol"], "usedProtocolHash": None}}
    assert getattr(meta(value_of, **{name: wrong}), field) is None


def test_000_59_the_source_may_offer_the_hash_under_either_name() -> None:
    assert meta(protocolHash=HASH).used_protocol_hash == HASH
    assert meta(protocolHash=f"sha256:{HASH}", usedProtocolHash=HASH).used_protocol_hash == HASH
    assert meta(protocolHash=None, usedProtocolHash=None).used_protocol_hash is None
    assert meta(protocolHash="1234567890abcdef...", usedProtocolHash=HASH).used_protocol_hash == HASH
    assert meta(protocolHash="0" * 64, usedProtocolHash=HASH).used_protocol_hash is None  # neither is meant for sure


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
    for wrong in (7, "", "a b", None, "x" * 513, ["a"]):
        assert meta(candidateProtocols=[wrong, URI]).candidate_protocols == (URI,)
    many = [f"https://one.example/{number}" for number in range(100)]
    assert meta(candidateProtocols=many).candidate_protocols == tuple(many[:16])
    assert meta_refused(candidateProtocols="https://one.example/") == "hello.form"


def test_each_side_reads_only_its_own_fields() -> None:
    assert meta(DESTINATION, candidateProtocols=[URI]).candidate_protocols == ()
    assert meta(SOURCE, selectedProtocol=URI).selected_protocol is None


def test_a_side_may_not_know_whom_it_speaks_with() -> None:
    assert read(SOURCE, destinationDid="").destination_did == ""
    assert read(DESTINATION, destinationDid="").destination_did == ""
    assert refused(DESTINATION, destinationDid="shop") == "did.syntax"


def test_the_other_type_is_refused() -> None:
    with pytest.raises(TreatyError) as refusal:
        parse(json.dumps(SOURCE), "destinationHello")
    assert refusal.value.code == "hello.form"


@pytest.mark.parametrize("field", ["messageId", "sessionId", "random"])
@pytest.mark.parametrize("value", ["", "x" * 129, "sixteen chars ok", "ünïcödé-sixteen-", 16])
def test_ids_and_randoms_are_plain_and_not_long(field: str, value: object) -> None:
    assert refused(SOURCE, **{field: value}) == "hello.form"


def test_a_random_is_long_enough() -> None:
    assert refused(SOURCE, random="short") == "hello.form"
    assert read(SOURCE, messageId="1", sessionId="0b7a1d6e-0e0c-4f0e-9c35-6f1b3a4f5d21").message_id == "1"


def test_fields_of_other_profiles_are_ignored() -> None:
    extra = {"cipherSuites": ["TLS_AES_128_GCM_SHA256"], "proof": {"type": "x"}, "timestamp": "2024-05-27T12:00:00.123Z"}
    assert read(SOURCE, **extra) == read(SOURCE)


def test_only_a_key_of_the_sender_itself_is_taken_for_reports() -> None:
    assert read(SOURCE, verificationMethod={"id": "did:wba:buyer.example#key-1"}).key_id == "did:wba:buyer.example#key-1"
    for other in ("did:wba:other.example#key-1", "keys-1", "did:all:1abc#keys-1", 7, None):
        assert read(SOURCE, verificationMethod={"id": other, "publicKeyHex": "04"}).key_id is None
    assert read(SOURCE, verificationMethod=["did:wba:buyer.example#key-1"]).key_id is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "canonical.json"),
        ("[]", "hello.form"),
        ("null", "hello.form"),
        ('{"version": "1.0", "version": "1.0"}', "canonical.json"),
        ('{"version": NaN}', "canonical.json"),
        ("[" * 5000, "canonical.json"),
        ('{"a": ' + "[" * 40 + "]" * 40 + "}", "canonical.json"),
        ('"' + "x" * hello.MAX_HELLO + '"', "canonical.too-large"),
        ('{"version": "\udc80"}', "canonical.json"),
        ('{"version": "\\ud800"}', "canonical.json"),
    ],
)
def test_000_08_ambiguous_or_oversized_json_is_refused(text: str, code: str) -> None:
    with pytest.raises(TreatyError) as refusal:
        parse(text, "sourceHello")
    assert refusal.value.code == code


NUMBERS = ["0.5", "-0.0", "1e400", "-1E+2", "1e-400", "9" * 400, "123456789012345678", "0.1e1"]


@pytest.mark.parametrize("number", NUMBERS)
def test_000_08_numbers_of_every_form_are_read(number: str) -> None:
    text = json.dumps(SOURCE)[:-1] + f', "temperature": {number}, "list": [{number}]}}'
    assert parse(text, "sourceHello") == read(SOURCE)


def test_000_08_members_have_any_order_blanks_and_escapes() -> None:
    turned = json.dumps(dict(reversed(SOURCE.items())), indent="\t")
    assert parse(f"\r\n {turned} \n", "sourceHello") == read(SOURCE)
    assert parse(turned.replace("did:wba:", "did\\u003awba\\u003A").encode(), "sourceHello") == read(SOURCE)


# Roles, which are fields of ours


def test_roles_are_read_in_their_own_hello_only() -> None:
    source, destination = meta(candidateRoles={URI: "payer"}), meta(DESTINATION, role="payee", peerRole="payer")
    assert (dict(source.candidate_roles), source.role, source.peer_role) == ({URI: "payer"}, "", "")
    assert (dict(destination.candidate_roles), destination.role, destination.peer_role) == ({}, "payee", "payer")
    for hello_ in (source, destination):
        assert parse(hello_.format(), hello_.type) == hello_
    assert meta(role="payee", peerRole="payer", candidateRoles=None) == meta()
    assert meta(DESTINATION, candidateRoles={URI: "payer"}, role=None) == meta(DESTINATION)


@pytest.mark.parametrize(
    ("roles", "offered", "expected"),
    [
        ({}, None, URI),
        ({URI: "payer"}, None, URI),
        ({URI: "payer"}, HASH, URI),
        ({URI: "auditor", f"{URI}1": "guest"}, None, f"{URI}1"),
        ({URI: "auditor"}, HASH, f"{URI}1"),
        ({f"{URI}2": "auditor"}, None, URI),
        ({URI: "auditor", f"{URI}1": "host"}, None, "session.role"),
        ({URI: "auditor", f"{URI}1": "host"}, HASH, "session.role"),
    ],
)
def test_the_first_candidate_whose_roles_fit_is_chosen(roles: dict[str, str], offered: str | None, expected: str) -> None:
    provides = {
        URI: hello.Provided(HASH, True, "payee", ("payer",)),
        f"{URI}1": hello.Provided("ab" * 32, True, "host", ("guest",)),
    }
    candidates = [f"{URI}2", URI, f"{URI}1"]
    message = meta(candidateProtocols=candidates, candidateRoles=roles, usedProtocolHash=offered)
    own = structs.replace(read(DESTINATION), used_protocol_hash=None, selected_protocol=None)
    if expected == "session.role":
        with pytest.raises(Refused) as refusal:
            choose(own, structs.replace(message, destination_did=own.source_did), provides)
        assert refusal.value.code == expected
        return
    answer, agreement = choose(own, structs.replace(message, destination_did=own.source_did), provides)
    assert agreement is not None
    assert (agreement.uri, agreement.peer_role) == (expected, roles.get(expected, ""))
    assert (answer.role, answer.peer_role) == (provides[expected].role, roles.get(expected, ""))
