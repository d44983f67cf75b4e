"""Every core parser: what it accepts re-encodes to the same bytes, and what it refuses it refuses with a Treaty error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from signers import domain_signer, key_signer, signed
from witnesses import WITNESSES

from treaty_consensus import canonical, did, kinds, protocol, statement
from treaty_consensus.errors import TreatyError
from treaty_consensus.stamped import Stamped, read_page, stamp

ALICE, BOB = key_signer("alice"), domain_signer("bob.example")
LEAF = signed(kinds.Report("a/b", "cd" * 32, "ab" * 32, "agreed", 0, "note"), ALICE, BOB).leaf
FILE = stamp(LEAF, WITNESSES[0], 1_790_000_000).format()
KEYS = {ALICE.key_id: ALICE.public_key, BOB.key_id: BOB.public_key}

integers = st.integers(-canonical.MAX_INTEGER, canonical.MAX_INTEGER)
scalars = st.none() | st.booleans() | integers | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


@given(values)
def test_canonical_json_round_trips(value: object) -> None:
    data = canonical.dumps(value)
    assert canonical.loads(data, limit=len(data)) == value


@given(values | st.dictionaries(st.text('ab\x00\x1f\x7f"\\/\ud7ff\ue000\uffff\U00010000', max_size=3), scalars))
def test_canonical_json_is_what_the_reference_writes(value: object) -> None:
    assert canonical.dumps(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


@given(st.binary(max_size=200))
def test_whatever_canonical_json_accepts_is_its_own_spelling(data: bytes) -> None:
    with contextlib.suppress(TreatyError):
        assert canonical.dumps(canonical.loads(data, limit=200)) == data


@given(st.text(max_size=100))
def test_whatever_base64_accepts_is_its_own_spelling(text: str) -> None:
    with contextlib.suppress(TreatyError):
        assert canonical.b64encode(canonical.b64decode(text, limit=100)) == text


@given(st.text("0123456789+-_ ٣", max_size=8))
def test_whatever_a_decimal_accepts_is_its_own_spelling(text: str) -> None:
    with contextlib.suppress(TreatyError):
        assert str(canonical.parse_decimal(text, limit=10**6)) == text


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_no_statement(data: bytes) -> None:
    with pytest.raises(TreatyError):
        statement.parse(data)


@given(st.integers(0, len(LEAF) - 1), st.integers(1, 255))
def test_a_changed_byte_of_a_leaf_is_detected(position: int, change: int) -> None:
    changed = bytearray(LEAF)
    changed[position] ^= change
    with pytest.raises(TreatyError):
        statement.verify(statement.parse(bytes(changed)), KEYS)


@given(st.integers(0, len(LEAF) - 1))
def test_a_truncated_leaf_is_refused(length: int) -> None:
    with pytest.raises(TreatyError):
        statement.parse(LEAF[:length])


@given(st.integers(0, len(FILE) - 1), st.integers(1, 255))
def test_a_changed_byte_of_a_stamped_statement_is_detected(position: int, change: int) -> None:
    changed = bytearray(FILE)
    changed[position] ^= change
    # In the name or the id of the key it is the line of another witness, which nobody verifies.
    with contextlib.suppress(TreatyError):
        stamp = Stamped.parse(bytes(changed))
        statement.verify(stamp.statement, KEYS)
        assert stamp.times([WITNESSES[0].verifier]) == {}


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_no_stamped_statement(data: bytes) -> None:
    for parse in (Stamped.parse, read_page):
        with pytest.raises(TreatyError):
            parse(data)


did_like = st.from_regex(r"\Adid:(key|wba|web|x):[a-zA-Z0-9.%:_#/-]{0,60}\Z")
uri_like = st.from_regex(r"\Ahttps://[a-z0-9.:-]{1,20}/protocols/[a-zA-Z0-9.:%-]{1,30}/[a-zA-Z0-9-]{1,10}/[0-9a-z.!+-]{1,10}\Z")


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (lambda t: did.parse_did(t).text, st.text(max_size=60) | did_like),
        (lambda t: str(protocol.parse_protocol_uri(t)), st.text(max_size=60) | uri_like),
        (protocol.parse_version, st.text(max_size=20) | st.from_regex(r"\A[0-9]{1,2}(\.[0-9]{1,2})?(rc|a|\.dev)?[0-9]?\Z")),
        (protocol.parse_namespace, st.text(max_size=40) | st.from_regex(r"\A[a-z0-9.:%-]{1,40}\Z")),
    ],
)
def test_names_have_one_spelling(parse: Callable[[str], str], text: st.SearchStrategy[str]) -> None:
    @given(text)
    def check(candidate: str) -> None:
        with contextlib.suppress(TreatyError):
            assert parse(candidate) == candidate

    check()


@given(st.binary(max_size=300))
def test_cards_have_one_spelling(data: bytes) -> None:
    with contextlib.suppress(TreatyError):
        assert protocol.parse_card(data).encode() == data


@given(st.binary(min_size=32, max_size=32))
def test_multikeys_round_trip(key: bytes) -> None:
    assert did.public_key_of(did.parse_did(did.did_key(key))) == key


@given(st.dictionaries(st.sampled_from(["id", "verificationMethod", "authentication"]), values))
def test_arbitrary_did_documents_give_no_key(document: dict[str, object]) -> None:
    with pytest.raises(TreatyError):
        did.authentication_keys(document, did.parse_did("did:wba:example.com"))
