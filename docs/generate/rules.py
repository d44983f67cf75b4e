"""The tables of docs/specification/conformance.md: a person writes number, keyword and rule, the tests give the last column.

A test carries the numbers of its rules in its name: `test_000_18_…`, `test_000_33_and_34_…`, `test_001_09_to_12_…`. A test
without a number in its name stays in the row where a person put it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import partial
from typing import NamedTuple

from . import GENERATORS, matched_rows, present
from .suite import all_tests

SOURCES = {"000": 66, "001": 33, "002": 22, "003": 75, "004": 38, "005": 17}
"""The two source documents, the page of declarative protocols, AIP, handoff and message routing; and how many rules each has."""

_ROW = re.compile(r"^\| (\d+) \| (.) \| (.+?) \| (.*?) ?\|$", re.MULTILINE)
_NUMBERED = re.compile(r"test_(\d{3})_((?:\d\d_(?:and_|to_)?)*\d\d)_")
_NAMED = re.compile(r"`([^`]+\.py)::(\w+)`")


class Row(NamedTuple):
    """A row of a table. `tests`: path below tests/ and name of each."""

    number: int
    keyword: str
    rule: str
    tests: tuple[tuple[str, str], ...]


def rules_of(name: str) -> list[tuple[str, int]]:
    """The rules whose numbers a test carries: source document and number of each."""
    match = _NUMBERED.match(name)
    if match is None:
        return []
    spans = re.findall(r"(\d\d)(?:_to_(\d\d))?", match[2])
    return [(match[1], number) for first, last in spans for number in range(int(first), int(last or first) + 1)]


def rows(text: str) -> list[Row]:
    """The rows of a table."""
    return [
        Row(int(number), keyword, rule, tuple(_NAMED.findall(cell))) for number, keyword, rule, cell in matched_rows(_ROW, text)
    ]


def table(source: str, text: str) -> str:
    """The table of a source document whose present text is given, with its last column written anew."""
    numbered = defaultdict[int, list[tuple[str, str]]](list)
    for test in all_tests():
        for of, number in rules_of(test.name):
            if of == source:
                numbered[number].append((test.path, test.name))
    lines = ["| number | | rule | held by |", "|---|---|---|---|"]
    for row in rows(text):
        kept = [named for named in row.tests if not rules_of(named[1])]
        cell = ", ".join(f"`{path}::{name}`" for path, name in [*numbered[row.number], *kept])
        lines.append(f"| {row.number} | {row.keyword} | {row.rule} | {cell} |")
    return "\n".join(lines)


def _generated(name: str, source: str) -> str:
    return table(source, present(name))


for _source in SOURCES:
    GENERATORS[f"rules-{_source}"] = partial(_generated, f"rules-{_source}", _source)
