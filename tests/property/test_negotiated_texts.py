"""Texts that agents write to each other: test cases survive being written and read, and no text breaks a parser."""

from __future__ import annotations

import string
from typing import Any

import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_model import FOLDER

from treaty_agent.negotiators.handler_check import Ids
from treaty_agent.negotiators.prompts import sections
from treaty_agent.negotiators.test_cases import CaseMessage, Success, TestCase, format_test_cases, parse_test_cases
from treaty_consensus.canonical import b64encode, hex_digest
from treaty_consensus.errors import TreatyError
from treaty_handler import Failure, derive_id

BOOKING = (FOLDER / "booking" / "cases.md").read_text()
SEED = "7" * 32

lines = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=40)
texts = st.text(st.one_of(st.sampled_from("`\n# *\r"), st.characters(codec="utf-8")), max_size=60)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
messages = st.one_of(
    st.builds(CaseMessage, st.just("json"), values),
    st.builds(CaseMessage, st.just("text"), texts),
    st.builds(CaseMessage, st.just("base64"), st.binary(max_size=40).map(b64encode)),
)
cases = st.builds(
    TestCase,
    title=lines,
    operation=st.from_regex(r"\A[A-Za-z][A-Za-z0-9_]{0,20}\Z"),
    arguments=st.dictionaries(texts, values, max_size=3),
    outcome=st.builds(Success, values) | st.builds(Failure, code=st.integers(100, 999_999), message=texts),
    request=messages,
    response=messages,
    expected=lines,
)


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(cases, min_size=2, max_size=4))
def test_cases_are_read_as_they_were_written(written: list[TestCase]) -> None:
    assert parse_test_cases(format_test_cases(written)) == tuple(written)


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_no_text_breaks_the_parser(data: Any) -> None:
    text = BOOKING
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 60)))
        text = text[:start] + data.draw(texts) + text[end:]
    try:
        parsed = parse_test_cases(text)
    except TreatyError as error:
        assert error.code == "negotiation.answer"
    else:
        assert parse_test_cases(format_test_cases(parsed)) == parsed


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_ids_are_the_only_difference_that_is_allowed(data: Any) -> None:
    """A message with placeholders is the same message with ids, and changing anything else is seen."""
    words = st.text(string.ascii_letters, min_size=1, max_size=6)
    literals = data.draw(st.lists(st.from_regex(r"\Amsg[0-9]{3}\Z"), min_size=1, max_size=3, unique=True))
    ids = {literal: derive_id(SEED, number) for number, literal in enumerate(literals, 1)}
    pieces = data.draw(st.lists(st.sampled_from(literals) | words, min_size=1, max_size=8))
    original, sent = {"m": list(pieces)}, {"m": [ids.get(piece, piece) for piece in pieces]}
    message = CaseMessage("json", original)
    judge = Ids(SEED)
    assert judge.matches(message, CaseMessage("json", sent).data)
    assert judge.fill(message) == CaseMessage("json", sent).data
    line, sent_line = " ".join(pieces), " ".join(sent["m"])
    assert judge.matches(CaseMessage("text", line), sent_line.encode())
    assert judge.fill(CaseMessage("text", line)) == sent_line.encode()
    place = data.draw(st.integers(0, len(pieces) - 1))
    spoilt = [*sent["m"]]
    spoilt[place] += "!"
    assert not judge.matches(message, CaseMessage("json", {"m": spoilt}).data)


@given(texts, texts)
def test_no_text_closes_its_own_section(first: str, second: str) -> None:
    forged = sections(peer_proposal=first).split("\n")[-1] if first else "END peer-proposal"
    message = sections(peer_proposal=f"{first}\n{forged}\n{second}")
    opening, closing = message.split("\n")[0], message.split("\n")[-1]
    assert closing == opening.replace("BEGIN", "END", 1)
    assert message.split("\n").count(closing) == 1
    assert closing.endswith(f" {hex_digest(message.removeprefix(opening)[1 : -len(closing) - 1].encode())[:16]}")


@pytest.mark.parametrize(
    "pair", [(1, 1.0), (1, True), (0, False), (None, 0), ("a", "b"), ([], {}), ([1], [1, 1]), ({}, {"a": 1})]
)
def test_values_of_other_kinds_differ(pair: tuple[Any, Any]) -> None:
    judge = Ids(SEED)
    assert not judge.same(*pair)
    assert judge.same(pair[0], pair[0])
    assert judge.same(pair[1], pair[1])


def test_one_text_stands_for_one_id() -> None:
    first, second = derive_id(SEED, 1), derive_id(SEED, 2)
    judge = Ids(SEED)
    assert judge.same(["a1", "b2"], [first, second])
    assert not judge.same(["b2"], [first])
    assert not judge.same(["c3"], [first])
    assert not Ids(SEED).same(["a1", "a1"], [first, second])
    assert not Ids(SEED).same(["a1"], [derive_id("8" * 32, 1)])  # nobody's id of this session
