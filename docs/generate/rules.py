"""The rules of docs/specification/conformance.md: a person writes number, keyword and rule in a list, the list of
the site adds the tests.

A test carries the numbers of its rules in its name: `test_000_18_…`, `test_000_33_and_34_…`, `test_001_09_to_12_…`.
"""

from __future__ import annotations

import re
from functools import partial
from typing import NamedTuple

from . import LISTS, SITE, listed, matched_rows, present
from .suite import Test, all_tests

SOURCES = {"000": 66, "001": 33, "002": 24, "003": 75, "004": 38, "005": 20}
"""The two source documents, the page of declarative protocols, AIP, handoff and message routing; and how many rules each has."""

# Two colons are those of a test, which only the site names.
_ROW = re.compile(r"^(\d+)\. \*\*(.)\*\* ((?:(?!::).)+)$", re.MULTILINE)
_NUMBERED = re.compile(r"test_(\d{3})_((?:\d\d_(?:and_|to_)?)*\d\d)_")


class RuleRow(NamedTuple):
    """A rule, and the tests that hold it."""

    number: int
    keyword: str
    rule: str
    tests: tuple[Test, ...]


def rules_of(name: str) -> list[tuple[str, int]]:
    """The rules whose numbers a test carries: source document and number of each."""
    match = _NUMBERED.match(name)
    if match is None:
        return []
    spans = re.findall(r"(\d\d)(?:_to_(\d\d))?", match[2])
    return [(match[1], number) for first, last in spans for number in range(int(first), int(last or first) + 1)]


def rows(source: str) -> list[RuleRow]:
    """The rules of a source document. Raises `DriftError` for a row of another form."""
    found = matched_rows(_ROW, present(f"rules-{source}"))
    return [RuleRow(int(number), keyword, rule, _holding(source, int(number))) for number, keyword, rule in found]


def _holding(source: str, number: int) -> tuple[Test, ...]:
    return tuple(test for test in all_tests() if (source, number) in rules_of(test.name))


def _listed(source: str) -> list[dict[str, object]]:
    return [
        {"number": number, "keyword": keyword, "rule": rule, "tests": [f"{test.path}::{test.name}" for test in tests]}
        for number, keyword, rule, tests in rows(source)
    ]


for _source in SOURCES:
    LISTS[f"rules-{_source}"] = partial(_listed, _source)
    SITE[f"rules-{_source}"] = partial(listed, f"rules-{_source}", "../lists")
