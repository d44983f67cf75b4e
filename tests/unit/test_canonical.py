"""Canonical JSON, digests, base64: one value, one spelling."""

from __future__ import annotations

import pytest
from rejections import rejection

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, TooLarge


def test_rfc8785_orders_names_by_utf16_and_escapes_minimally() -> None:
    value = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\x80": 6, "\u00f6": 7}
    expected = '{"\\r":2,"1":4,"\x80":6,"\u00f6":7,"\u20ac":1,"\U0001f600":5,"\ufb33":3}'
    assert canonical.dumps(value) == expected.encode()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"b":1,"a":2}', "canonical.json: canonical form"),
        (b'{"a": 1}', "canonical.json: canonical form"),
        (b'{"a":1}\n', "canonical.json: canonical form"),
        (b'"\\u00e9"', "canonical.json: canonical form"),
        (b'{"a":1,"a":1}', "canonical.json: not valid JSON"),
        (b"1.0", "canonical.json: not valid JSON"),
        (b"1e3", "canonical.json: not valid JSON"),
        (b"NaN", "canonical.json: not valid JSON"),
        (b"-Infinity", "canonical.json: not valid JSON"),
        (b"\xff", "canonical.json: not valid JSON"),
        (b"", "canonical.json: not valid JSON"),
        (b"\xef\xbb\xbf1", "canonical.json: not valid JSON"),
        (b"9007199254740992", "canonical.json: 2.53"),
        (b"-9007199254740992", "canonical.json: 2.53"),
        (b"9" * 5000, "canonical.json: not valid JSON"),
        (b'"\\ud800"', "canonical.json: surrogate"),
        (b"-0", "canonical.json: canonical form"),
        (b"[" * 40 + b"]" * 40, "canonical.json: nested deeper"),
    ],
)
def test_loads_refuses_second_spellings(data: bytes, code: str) -> None:
    with pytest.raises(Malformed) as refusal:
        canonical.loads(data, limit=10_000)
    assert rejection(refusal.value, code) == code


def test_loads_refuses_before_parsing_what_is_too_large() -> None:
    with pytest.raises(TooLarge) as refusal:
        canonical.loads(b"x" * 11, limit=10)
    assert refusal.value.code == "canonical.too-large"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("1.0", 1),
        ("-3E+2", -300),
        ("1e400", float("inf")),
        ("9007199254740991", canonical.MAX_INTEGER),
        ("9007199254740992", 2.0**53),
        ("-" + "9" * 100_000, float("-inf")),
    ],
)
def test_numbers_of_every_form_are_read_where_they_are_asked_for(text: str, value: float) -> None:
    value_read = canonical.parse_json(text.encode(), limit=1_000_000, floats=True)
    assert (value_read, type(value_read)) == (value, type(value))
    assert canonical.parse_json(f'{{"a":[{text}]}}'.encode(), limit=1_000_000, floats=True) == {"a": [value]}


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "01", ".5", "+1", "0x1", "1e"])
def test_what_is_no_number_of_json_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        canonical.parse_json(text.encode(), limit=100, floats=True)


def test_integers_up_to_the_limit_round_trip() -> None:
    for value in (0, -1, canonical.MAX_INTEGER, -canonical.MAX_INTEGER):
        assert canonical.loads(canonical.dumps(value), limit=100) == value


@pytest.mark.parametrize("value", [1.5, b"x", {1: 2}, {"a": {1, 2}}, 2**53, "\ud800"])
def test_dumps_refuses_what_not_every_language_reads_alike(value: object) -> None:
    with pytest.raises(Malformed):
        canonical.dumps(value)


@pytest.mark.parametrize("text", ["AA", "AA=", "AA==\n", "AB==", "A A=", "AA==AA==", "-_==", "é", "AAAA="])
def test_base64_has_one_spelling(text: str) -> None:
    with pytest.raises(Malformed):
        canonical.b64decode(text, limit=100)


def test_base64_is_capped_before_it_is_decoded() -> None:
    assert canonical.b64decode(canonical.b64encode(b"x" * 64), limit=64) == b"x" * 64
    with pytest.raises(TooLarge):
        canonical.b64decode(canonical.b64encode(b"x" * 67), limit=64)


@pytest.mark.parametrize("text", ["", "00", "+1", "-1", "1_000", " 1", "1 ", "٣", "101", "1000", "0x1"])
def test_decimals_have_one_spelling(text: str) -> None:
    with pytest.raises(Malformed):
        canonical.parse_decimal(text, limit=100)


def test_decimals_read() -> None:
    assert [canonical.parse_decimal(text, limit=100) for text in ("0", "7", "100")] == [0, 7, 100]


@pytest.mark.parametrize("text", ["", "A" * 64, "a" * 63, "a" * 65, "g" * 64, "a" * 64 + "\n"])
def test_digests_have_one_spelling(text: str) -> None:
    with pytest.raises(Malformed):
        canonical.parse_digest(text)
