"""Cutting text into search terms: two kinds of script, one form."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treaty_consensus.errors import Malformed
from treaty_registry.catalogue.search import MAX_QUERY, MAX_QUERY_TERMS, query, vector
from treaty_registry.catalogue.search import terms as terms_of

LEXEME = re.compile(r"'([^'\\]+)':(\d+[ABCD](?:,\d+[ABCD])*)")


def asked(text: str) -> str:
    return query(terms_of(text))


def terms(text: str) -> set[str]:
    return {match[1] for match in LEXEME.finditer(vector([("A", text)]))}


def test_words_are_terms_and_unspaced_scripts_are_pairs() -> None:
    assert vector([("A", "Chat 协商协议")]) == ("'chat':1A '协':2A,4A '协商':6A '协议':8A '商':3A '商协':7A '议':5A")
    assert terms("かな カタカナ 한국어") == {
        "か",
        "な",
        "かな",
        "カ",
        "タ",
        "ナ",
        "カタ",
        "タカ",
        "カナ",
        "한",
        "국",
        "어",
        "한국",
        "국어",
    }


def test_letter_case_width_and_punctuation_make_no_difference() -> None:
    assert terms("Product-Info_v1") == terms("ＰＲＯＤＵＣＴ info, V1!") == {"product", "info", "v1"}
    assert terms("Straße") == terms("STRASSE")
    assert terms("…「」 \t\n --") == set() and asked("…「」 \t\n --") == ""


@pytest.mark.parametrize(
    ("card", "asked_for"),
    [
        ("Café réservation à Montréal", "cafe reservation montreal"),
        ("cafe", "CAFÉ"),
        ("Ångström, Œuvre, İstanbul", "angstrom istanbul"),
        ("е\u0308лка Ёлка", "ёлка"),
        ("مَرْحَبًا بالعالم", "مرحبا"),
        ("بروتوكول الحجز", "الحجز"),
        ("שָׁלוֹם", "שלום"),
        ("हिन्दी में आरक्षण", "हिन्दी"),
        ("ภาษาไทย", "ไทย"),
        ("が行 カタカナ", "が行"),
        ("ｶﾞ", "ガ"),
        ("Weather 天气API", "天气 api"),
        ("预订API酒店", "预订 酒店"),
    ],
)
def test_words_are_found_without_their_marks_and_in_any_script(card: str, asked_for: str) -> None:
    assert terms_of(asked_for) and {term.text for term in terms_of(asked_for)} <= terms(card)


def test_what_makes_another_word_is_no_mark() -> None:
    assert terms("が") == {"が"} and terms("か") == {"か"}
    assert terms("हिन्दी") == {"हिन्दी"}


def test_fields_keep_their_weights() -> None:
    assert vector([("A", "shop"), ("C", "a shop")]) == "'a':2C 'shop':1A,3C"


def test_a_query_asks_for_all_of_it() -> None:
    assert asked("Product info") == "'product':* & 'info':*"
    assert asked("商品信息") == "'商品' & '品信' & '信息'"
    assert asked("价") == "'价'"
    assert asked("shop 商品 shop") == "'shop':* & '商品'"
    assert asked("") == ""


def test_a_word_of_any_length_is_one_term_of_64_characters() -> None:
    assert terms("x" * 120) == {"x" * 64}
    assert asked("x" * 120) == f"'{'x' * 64}':*"


def test_queries_are_capped() -> None:
    assert asked("a" * MAX_QUERY)
    with pytest.raises(Malformed, match="400 characters"):
        asked("a" * (MAX_QUERY + 1))
    asked(" ".join(f"w{n}" for n in range(MAX_QUERY_TERMS)))
    with pytest.raises(Malformed, match="32 words"):
        asked(" ".join(f"w{n}" for n in range(MAX_QUERY_TERMS + 1)))


@given(st.text(max_size=400))
def test_any_text_gives_terms_that_need_no_quoting(text: str) -> None:
    cut = vector([("B", text)])
    assert cut == " ".join(match[0] for match in LEXEME.finditer(cut))
    assert all(len(term) <= 64 for term in terms(text))


@given(st.text(max_size=30))
def test_every_text_is_found_by_itself(text: str) -> None:
    try:
        asked_for = terms_of(text)
    except Malformed:
        return
    assert {term.text for term in asked_for} <= terms(text)
