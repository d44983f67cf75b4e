"""The threats of SECURITY.md: a person writes number, threat and answer, the list of the site adds the tests.

A test says which threats it covers with `@pytest.mark.threat(NUMBER, …)`. Numbers are never used for another threat.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from . import LISTS, SITE, listed, matched_rows, present
from .suite import Test, all_tests

_ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


class ThreatRow(NamedTuple):
    """A threat, the answer to it, and the tests that cover it. `part`: the heading above it."""

    number: int
    part: str
    threat: str
    answer: str
    tests: tuple[Test, ...]


def rows() -> list[ThreatRow]:
    """The threats of SECURITY.md."""
    parts = (part.partition("\n") for part in present("threats").split("### ")[1:])
    found = [(heading, row) for heading, _, table in parts for row in matched_rows(_ROW, table)]
    return [ThreatRow(int(number), part, threat, answer, covering(int(number))) for part, (number, threat, answer) in found]


def covering(number: int) -> tuple[Test, ...]:
    """The tests of a threat, those of tests/attack first."""
    return tuple(
        sorted((test for test in all_tests() if number in test.threats), key=lambda test: not test.path.startswith("attack/"))
    )


def _listed() -> list[dict[str, object]]:
    return [
        {
            "number": number,
            "part": part,
            "threat": threat,
            "answer": answer,
            "tests": [f"{test.path}::{test.name}" for test in tests],
        }
        for number, part, threat, answer, tests in rows()
    ]


LISTS["threats"] = _listed
SITE["threats"] = lambda: listed("threats", "lists")
