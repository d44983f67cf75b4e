"""What a candidate document says of itself: title, topic, and the protocol that it changes."""

from __future__ import annotations

import pytest
from rejections import rejection

from treaty_anp.hello_profile.documents import Base, DocumentDescription, check_pinned, parse_candidate
from treaty_consensus import protocol
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Refused, TreatyError

URI = "https://agent-network-protocol.com/protocols/product-info-0-1-1"
DIGEST = hex_digest(b"# Product information\n")
WHOLE = "# Product information\n\nSome words.\n\n- Topic: commerce/product-info\n\n## Flow\n\n- Topic: not/this\n"
CHANGES = f"# Product information with stock\n\n- Base: {URI}\n- Base-SHA-256: {DIGEST}\n\n## Changes\n\n- 100001: out of stock\n"
SOURCES_EXAMPLE = f"""# 需求
获取商品信息

# 流程描述
该流程基于已有协议(URI: {URI})实现。

# 修改内容
- 在响应消息中增加自定义错误码
  - 100001:商品缺货中
"""


def refused(text: str) -> str:
    with pytest.raises(TreatyError) as refusal:
        parse_candidate(text)
    return refusal.value.code


def test_000_19_and_21_a_whole_document_has_a_title_and_a_topic() -> None:
    assert parse_candidate(WHOLE) == DocumentDescription("Product information", "commerce/product-info", None)


def test_000_21_a_document_of_changes_pins_its_base() -> None:
    assert parse_candidate(CHANGES).base == Base(URI, DIGEST)


def test_000_21_a_base_without_a_digest_is_refused() -> None:
    assert refused(f"# T\n- Base: {URI}\n") == "document.header"


def test_000_21_the_sources_own_sentence_need_not_pin_its_base() -> None:
    base = parse_candidate(SOURCES_EXAMPLE).base
    assert base == Base(URI, "") and not base.is_pinned
    with pytest.raises(Refused):
        check_pinned(base)
    check_pinned(parse_candidate(CHANGES).base)


@pytest.mark.parametrize(
    "sentence",
    [
        f"该流程基于已有协议(URI: {URI}, SHA-256: {DIGEST})实现。",
        f"该流程基于已有协议（URI：{URI}，SHA-256：{DIGEST}）实现。",
        f"This flow is based on an existing protocol (URI: {URI}, SHA-256: {DIGEST}).",
    ],
)
def test_000_21_the_sources_own_form_may_pin_it_too(sentence: str) -> None:
    assert parse_candidate(f"# 需求\n\n# 流程描述\n{sentence}\n").base == Base(URI, DIGEST)


def test_a_link_in_the_text_is_no_base() -> None:
    for text in (
        f"# T\nSee the RFC (URI: {URI}).\n",
        f"# T\n```\nbased on it (URI: {URI})\n```\n",
        f"# T\nIt is based on {URI}.\n",
    ):
        assert parse_candidate(text).base is None


def test_the_header_goes_before_the_sentence() -> None:
    other = "https://other.example/protocols/x"
    text = CHANGES + f"\nThe other one is based on this (URI: {other}).\n"
    assert parse_candidate(text).base == Base(URI, DIGEST)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# One\n# Two\n", "One"),
        ("## Not this\n# This ##\n", "This"),
        ("# C#\n", "C#"),
        ("#Not a heading\n", ""),
        ("```\n# code\n```\n# Heading\n", "Heading"),
        ("~~~ # x\n# code\n```\n# code\n~~~~\n# Heading\n", "Heading"),
        ("````\n```\n# code\n````\n# Heading\n", "Heading"),
        ("```\n# never closed\n", ""),
        ("    # code\n   # Heading\n", "Heading"),
        ("# \n", ""),
        ("# #\n", ""),
        ("#\tTab\t\r\n- Topic: a/b", "Tab"),
        ("Only words.", ""),
    ],
)
def test_the_title_is_the_first_heading_of_level_1(text: str, title: str) -> None:
    assert parse_candidate(text).title == title


def test_a_header_line_has_one_spelling() -> None:
    for line in ("- topic: a/b", "Topic: a/b", "+ Topic: a/b", " - Topic: a/b", "- Topic : a/b"):
        assert parse_candidate(f"# T\n{line}\n").topic == ""
    for line in ("- Topic: a/b", "* Topic:\ta/b  ", "-   Topic:a/b"):
        assert parse_candidate(f"# T\n{line}\n").topic == "a/b"
    assert parse_candidate("- Topic: a/b\n# T\n").topic == ""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("# T\n- Topic: a/b\n- Topic: a/b\n", "document.header: twice"),
        ("# T\n- Topic: A B\n", "document.header: not a topic"),
        (f"# T\n- Base-SHA-256: {DIGEST}\n", "document.header: Base|https: URI"),
        (f"# T\n- Base: http://plain.example/x\n- Base-SHA-256: {DIGEST}\n", "document.header: Base|https: URI"),
        (f"# T\n- Base: https://{'x' * 512}\n- Base-SHA-256: {DIGEST}\n", "document.header: Base|https: URI"),
        (f"# T\n- Base: {URI}\n- Base-SHA-256: {DIGEST.upper()}\n", "document.header: Base|https: URI"),
        (f"# T\n- Base: {URI}\n- Base-SHA-256: {DIGEST[1:]}\n", "document.header: Base|https: URI"),
        (f"# T\n- Base: {URI}\n- Base-SHA-256:\n", "document.header: which bytes"),
        (f"# T\nbased on (URI: {URI}, SHA-256: {DIGEST[1:]})\n", "document.header: Base|https: URI"),
        ("", "document.text"),
        ("\ufeff# T\n", "document.text"),
        ("# T\0\n", "document.text"),
        ("# \ud800\n", "document.text"),
        ("x" * (protocol.MAX_DOCUMENT + 1), "document.text: at most"),
    ],
)
def test_what_is_no_candidate_is_refused_by_name(text: str, code: str) -> None:
    with pytest.raises(TreatyError) as refusal:
        parse_candidate(text)
    assert rejection(refusal.value, code) == code


@pytest.mark.parametrize("unit", ["基于(URI:https://", "# " + " " * 400, "- Topik:" + " " * 400, "基于( ", "```", "based on "])
def test_no_text_takes_long(unit: str) -> None:
    text = "# T\n" + unit * (200_000 // len(unit.encode())) + "x"
    assert parse_candidate(text).base is None  # the suite's time limit would notice a quadratic pattern
