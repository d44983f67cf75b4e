"""Make the terms of full-text search, in any language, in PostgreSQL's built-in text search types.

Cards and queries are split into terms here by the same rules (`retrieval`). PostgreSQL only stores and compares the terms.

- NFKC and case folding come first, so that full-width letters and letter case make no difference. The marks of Latin, Greek,
  Cyrillic, Arabic and Hebrew letters are dropped: `cafe` finds `café`.
- A run of letters and digits is one term. The vowel signs of Indian scripts belong to it.
- A run of ideographs, kana, Hangul, Thai, Lao, Burmese or Khmer has no spaces between words. It becomes each of its characters
  and each pair of neighbours: `协商协议` is 协 商 协 议 协商 商协 协议. In a query, a run of two or more becomes its pairs.

An indexed card is a tsvector: terms with positions, and the weight A (title and name), B (tags and topic) or C (summary). A
query has terms. A word of it also matches the words that begin with it, unless it has one or two letters and is one of several.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from treaty_consensus.errors import Malformed

from ..codes import SearchCode

# Each term is a look-up of its own. These caps bound the work for one request.
MAX_QUERY = 400
MAX_QUERY_TERMS = 32
# PostgreSQL refuses lexemes of 2 KB and more (Text Search, Limitations).
_MAX_TERM = 64
_SHORT = 2
# PostgreSQL's largest position in a tsvector (Text Search, Limitations).
_MAX_POSITION = 16_383

_UNSPACED = "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecd\u0edc-\u0edf\u1000-\u103f\u1780-\u17d3"
_UNSPACED += "\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
# Letters, and the signs between them that `\w` leaves out; without the punctuation of these blocks.
_INDIAN = "\u0900-\u0963\u0966-\u096f\u0971-\u0dff"
_RUN = re.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|(?:[^\W_{_UNSPACED}]|[{_INDIAN}])+")
# Accents, Hebrew points, Arabic vowels and the Arabic stretching sign: most people do not type them.
_MARKS = re.compile(
    "[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc]"
)


def vector(fields: Iterable[tuple[str, str]]) -> str:
    """Return the text form of a tsvector of `(weight, text)` fields, with weights A, B, C or D."""
    lexemes: dict[str, list[str]] = {}
    position = 0
    for weight, text in fields:
        for run, unspaced in _runs(text):
            # Single characters too, so that a query of one character finds something.
            for term in (*run, *_pairs(run)) if unspaced else (run[:_MAX_TERM],):
                position = min(position + 1, _MAX_POSITION)
                lexemes.setdefault(term, []).append(f"{position}{weight}")
    return " ".join(f"'{term}':{','.join(places)}" for term, places in sorted(lexemes.items()))


class Term(NamedTuple):
    """A term of a query. A `prefix` also matches the words that begin with it."""

    text: str
    prefix: bool


def terms(text: str) -> list[Term]:
    """Return the distinct terms of a search text. Raises `Malformed` over the caps."""
    if len(text) > MAX_QUERY:
        raise Malformed(SearchCode.QUERY, f"A search has at most {MAX_QUERY} characters.")
    terms_of_query: list[Term] = []
    runs = list(_runs(text))
    for run, unspaced in runs:
        if unspaced:
            terms_of_query.extend(Term(term, False) for term in (_pairs(run) or run))
        else:
            # The `of` of a sentence is not the beginning of `often`.
            terms_of_query.append(Term(run[:_MAX_TERM], len(run) > _SHORT or len(runs) == 1))
    terms_of_query = list(dict.fromkeys(terms_of_query))
    if len(terms_of_query) > MAX_QUERY_TERMS:
        raise Malformed(SearchCode.QUERY, f"A search has at most {MAX_QUERY_TERMS} words or pairs of characters.")
    return terms_of_query


def query(terms: Iterable[Term], weights: str = "") -> str:
    """Return the text form of the tsquery for all of `terms`. `weights`: match only occurrences with one of these letters."""
    lexemes = ((text, f"{'*' if prefix else ''}{weights}") for text, prefix in terms)
    return " & ".join(f"'{text}':{marks}" if marks else f"'{text}'" for text, marks in lexemes)


def _runs(text: str) -> Iterator[tuple[str, bool]]:
    """Return the runs of `text`, each with whether its script has no spaces. No run contains a quote or a backslash."""
    for match in _RUN.finditer(_folded(text)):
        yield match[0], match["unspaced"] is not None


def _folded(text: str) -> str:
    # Decomposed first, so that a mark is a character of its own. Composed last: kana and Hangul keep their parts.
    return unicodedata.normalize("NFKC", _MARKS.sub("", unicodedata.normalize("NFKD", text).casefold()))


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)]
