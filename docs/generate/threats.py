"""The tables of SECURITY.md: a person writes number, threat and answer, the site adds the tests.

A test says which threats it covers with `@pytest.mark.threat(NUMBER, …)`. Numbers are never used for another threat.
"""

from __future__ import annotations

import re
from functools import partial
from typing import NamedTuple

from . import SITE, matched_rows, present
from .suite import Test, all_tests

SECTIONS = ("log", "registry-lies", "publishers", "handlers", "registry", "pages", "peers")

_ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


class ThreatRow(NamedTuple):
    """A threat, the answer to it, and the tests that cover it."""

    number: int
    threat: str
    answer: str
    tests: tuple[Test, ...]


def rows(section: str) -> list[ThreatRow]:
    """The threats of a section of SECURITY.md."""
    found = matched_rows(_ROW, present(f"threats-{section}"))
    return [ThreatRow(int(number), threat, answer, covering(int(number))) for number, threat, answer in found]


def covering(number: int) -> tuple[Test, ...]:
    """The tests of a threat, those of tests/attack first."""
    return tuple(
        sorted((test for test in all_tests() if number in test.threats), key=lambda test: not test.path.startswith("attack/"))
    )


def _table(section: str) -> str:
    lines = ["| | threat | answer | tests |", "|---|---|---|---|"]
    for row in rows(section):
        lines.append(f"| {row.number} | {row.threat} | {row.answer} | {', '.join(map(str, row.tests))} |")
    return "\n".join(lines)


for _section in SECTIONS:
    SITE[f"threats-{_section}"] = partial(_table, _section)
