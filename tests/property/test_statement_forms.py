"""`statement.parse` and `parse_draft` accept the canonical encodings and no other, whichever of the two readers decides.

The oracle parses with `canonical.loads`, which encodes a second time with the standard library, and converts afterwards.
"""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from signers import domain_signer, key_signer, signed

from treaty_consensus import canonical, kinds, statement
from treaty_consensus.errors import TreatyError

ALICE, BOB = key_signer("alice"), domain_signer("bob.example")
HASH, OTHER = "ab" * 32, "0123456789012345" * 4
NOTE = "registry.example\n12\n" + "A" * 43 + "=\n\n— registry.example " + "B" * 92 + "\n"
BODIES: list[kinds.Body] = [
    kinds.Ballot("commerce/product-info", 7, ((HASH,), (OTHER, kinds.NONE)), NOTE),
    kinds.Vouch("did:wba:bob.example", 0),
    kinds.Vouch("did:wba:bob.example", 1, withdrawn=True),
    kinds.Report("commerce/product-info", "cd" * 32, HASH, "failed", canonical.MAX_INTEGER, NOTE),
    kinds.Publish(
        "https://registry.example/protocols/example.com/product-info/1.0",
        "a",
        kinds.Blob(HASH, 1),
        kinds.Blob(OTHER, 2),
        "standard",
    ),
    kinds.Status(
        "https://registry.example/protocols/example.com/product-info/1.0",
        "revoked",
        successor="https://registry.example/protocols/example.com/product-info/1.1",
    ),
]


def payload(body: kinds.Body, **members: Any) -> dict[str, Any]:
    return {
        "type": statement.TYPE_OF[type(body)],
        "log": "registry.example",
        "by": [ALICE.key_id],
        "issued": 1_790_000_000,
        "body": msgspec.to_builtins(body),
    } | members


def accepted(data: bytes) -> bool:
    try:
        statement.parse_draft(data)
    except TreatyError:
        return False
    return True


def is_canonical_statement(data: bytes) -> bool:
    try:
        value = canonical.loads(data, limit=statement.MAX_PAYLOAD)
        body = msgspec.convert(value["body"], statement.KINDS[value["type"]])
        body.check()
        again = json.dumps(msgspec.to_builtins(body), sort_keys=True) == json.dumps(value["body"], sort_keys=True)
        msgspec.convert(value["issued"], kinds.Count)
        return again and value["by"] == [ALICE.key_id] and isinstance(value["log"], str) and len(value) == 5
    except (TreatyError, msgspec.ValidationError, KeyError, TypeError):
        return False


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_each_kind_is_read_with_its_values(body: kinds.Body) -> None:
    statements_of_kinds = (
        signed(kinds.Report(*msgspec.structs.astuple(body)), ALICE, BOB)
        if isinstance(body, kinds.Report)
        else ALICE.statement(body)
    )
    read = statement.parse(statements_of_kinds.leaf)
    assert read == statements_of_kinds
    assert read.body == body
    assert read.leaf == statements_of_kinds.leaf


def test_every_character_is_written_as_it_is() -> None:
    numbers = [*range(0xD800), *range(0xE000, 0x11000), 0x1F600, 0x10FFFF]
    for start in range(0, len(numbers), 512):
        text = "".join(map(chr, numbers[start : start + 512]))
        assert accepted(canonical.dumps(payload(BODIES[1], log=text)))


def test_a_character_has_no_second_spelling() -> None:
    escaped = []
    for number in [*range(0x300), *range(0x2000, 0x2100), *range(0xD7F0, 0xD800), *range(0xFFF0, 0x10000), 0x1F600]:
        character = chr(number)
        data = canonical.dumps(payload(BODIES[1], log=character))
        raw = json.dumps(character, ensure_ascii=False).encode()
        spellings = {json.dumps(character).encode(), b'"\\u%04X"' % number, b'"\\u%04x"' % number} - {raw}
        spellings |= {b'"\\/"'} if character == "/" else set()
        escaped += [spelling for spelling in spellings if accepted(data.replace(b'"log":' + raw, b'"log":' + spelling))]
    assert escaped == []


@pytest.mark.parametrize(
    "spelling",
    [
        "1790000000.0",
        "179e7",
        "1.79e9",
        "-0",
        "01",
        "+1",
        "1E0",
        "9007199254740992",
        "18446744073709551616",
        "1" * 400,
        "true",
        '"1"',
        "null",
        "NaN",
    ],
)
def test_other_spellings_of_a_number_are_refused(spelling: str) -> None:
    data = canonical.dumps(payload(BODIES[0]))
    assert accepted(data)
    for name, number in (("issued", "1790000000"), ("seq", "7")):
        assert not accepted(data.replace(f'"{name}":{number}'.encode(), f'"{name}":{spelling}'.encode()))


@pytest.mark.parametrize(
    ("body", "member"), [(BODIES[1], {"withdrawn": False}), (BODIES[5], {"wheel": None}), (BODIES[4], {"aliases": []})]
)
def test_a_default_that_is_written_out_is_refused(body: kinds.Body, member: dict[str, Any]) -> None:
    assert accepted(canonical.dumps(payload(body)))
    assert not accepted(canonical.dumps(payload(body) | {"body": msgspec.to_builtins(body) | member}))


def test_a_changed_byte_is_read_as_the_oracle_reads_it() -> None:
    chance = random.Random(1)
    pieces = [
        b" ",
        b"\n",
        b",",
        b"{}",
        b"[",
        b"]",
        b'"',
        b"\\",
        b"0",
        b"9",
        b"-",
        b".0",
        b"e0",
        b"\\u0061",
        b"\xed\xa0\x80",
        b"\xc3\xa9",
        b"\x7f",
        b"null,",
    ]
    originals = [canonical.dumps(payload(body)) for body in BODIES]
    outcomes = []
    for _ in range(6_000):
        data = chance.choice(originals)
        start = chance.randrange(len(data))
        end = min(len(data), start + chance.choice([0, 0, 1, 1, 2, 8]))
        piece = chance.choice([*pieces, data[start:end] * 2, bytes([chance.randrange(256)])])
        changed = data[:start] + piece + data[end:]
        outcomes.append((changed, accepted(changed), is_canonical_statement(changed)))
    assert [changed for changed, ours, oracle in outcomes if ours and not oracle] == []
    # The oracle does not check `by`, addresses of aliases and such, so it may accept a little more, and both outcomes occur.
    assert 50 < sum(ours for _, ours, _ in outcomes) < 5_000


def test_nesting_beyond_the_parser_is_refused() -> None:
    data = canonical.dumps(payload(BODIES[0]))
    for depth in (40, 5_000, 20_000):
        assert not accepted(data.replace(b'"seq":7', b'"seq":' + b"[" * depth + b"]" * depth))
        assert not accepted(data[:-1] + b',"z":' + b"[" * depth + b"]" * depth + b"}")


@pytest.mark.parametrize(
    "change",
    [
        (b'"sig":', b'"sig" :'),
        (b'{"keyid"', b'{ "keyid"'),
        (b'"payloadType"', b'"payload\\u0054ype"'),
        (b"+json", b"\\u002bjson"),
    ],
)
def test_an_envelope_has_one_spelling(change: tuple[bytes, bytes]) -> None:
    leaf = ALICE.statement(BODIES[0]).leaf
    assert change[0] in leaf
    with pytest.raises(TreatyError):
        statement.parse(leaf.replace(*change, 1))
