"""Every rule of both source documents has a test that carries its number: docs/specification/conformance.md against the tests.

Run as a program it writes the table's last column anew.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "specification" / "conformance.md"
SEEDS = {"000": 66, "001": 33}
"""The source documents, and how many rules each has."""

ROW = re.compile(r"^\| (\d+) \| (.) \| (.+?) \| (.*?) ?\|$", re.MULTILINE)
SECTION = re.compile(r"^## (\d{3}):.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
NUMBERED = re.compile(r"test_(\d{3})_((?:\d\d_(?:and_|to_)?)*\d\d)_")
NAMED = re.compile(r"`([^`]+\.py)::(\w+)`")

Rule = tuple[str, int]


class Row(NamedTuple):
    """A row of the table. `tests`: path below tests/ and name of each."""

    keyword: str
    text: str
    tests: tuple[tuple[str, str], ...]


def rules_of(name: str) -> list[Rule]:
    """The rules whose numbers a test carries."""
    match = NUMBERED.match(name)
    if match is None:
        return []
    spans = re.findall(r"(\d\d)(?:_to_(\d\d))?", match[2])
    return [(match[1], number) for first, last in spans for number in range(int(first), int(last or first) + 1)]


@cache
def existing() -> frozenset[tuple[str, str]]:
    """Every test function there is."""
    return frozenset(
        (path.relative_to(TESTS).as_posix(), node.name)
        for path in sorted(TESTS.rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def rows(text: str) -> dict[Rule, Row]:
    """The table's rows by rule."""
    found = {}
    for section in SECTION.finditer(text):
        for number, keyword, rule, cell in ROW.findall(section[0]):
            found[section[1], int(number)] = Row(keyword, rule, tuple(NAMED.findall(cell)))
    return found


def renewed(text: str) -> str:
    """The table with its last column written anew: the numbered tests in order, then those without a number that stood there."""
    numbered = defaultdict(list)
    for path, name in sorted(existing()):
        for rule in rules_of(name):
            numbered[rule].append((path, name))

    def section(match: re.Match[str]) -> str:
        def row(found: re.Match[str]) -> str:
            number, keyword, rule, cell = found.groups()
            kept = [test for test in NAMED.findall(cell) if not rules_of(test[1])]
            tests = ", ".join(f"`{path}::{name}`" for path, name in [*numbered[match[1], int(number)], *kept])
            return f"| {number} | {keyword} | {rule} | {tests} |"

        return ROW.sub(row, match[0])

    return SECTION.sub(section, text)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_rule_has_a_row_and_a_test(seed: str) -> None:
    found = {number: row for (of, number), row in rows(TABLE.read_text()).items() if of == seed}
    assert sorted(found) == list(range(1, SEEDS[seed] + 1))
    assert [number for number, row in found.items() if not row.tests] == []
    assert {row.keyword for row in found.values()} <= {"M", "S", "O", "–"}


def test_every_test_in_the_table_exists() -> None:
    named = {test for row in rows(TABLE.read_text()).values() for test in row.tests}
    assert named - existing() == set()


def test_every_numbered_test_stands_in_its_row() -> None:
    table = rows(TABLE.read_text())
    numbered = [(test, rule) for test in existing() for rule in rules_of(test[1])]
    assert numbered
    missing = [f"{path}::{name}" for (path, name), rule in numbered if rule not in table or (path, name) not in table[rule].tests]
    assert missing == [], f"run: python {Path(__file__).relative_to(TESTS.parent)}"


def test_the_column_is_the_one_that_is_written() -> None:
    text = TABLE.read_text()
    assert renewed(text) == text


def test_what_is_named_and_what_is_numbered_is_read() -> None:
    assert rules_of("test_000_33_and_34_without_code") == [("000", 33), ("000", 34)]
    assert rules_of("test_000_45_46_a_question") == [("000", 45), ("000", 46)]
    assert rules_of("test_001_01_and_09_to_11_all") == [("001", number) for number in (1, 9, 10, 11)]
    assert rules_of("test_001_08_the_score") == [("001", 8)]
    assert rules_of("test_the_table") == []
    text = "## 000: a\n\n| 1 | M | a rule | `unit/test_x.py::test_000_01_gone`, `unit/test_x.py::test_kept` |\n"
    assert rows(text) == {
        ("000", 1): Row("M", "a rule", (("unit/test_x.py", "test_000_01_gone"), ("unit/test_x.py", "test_kept")))
    }
    kept = renewed(text)
    assert "gone" not in kept
    assert "test_kept" in kept
    assert "unit/test_meta_frame.py::test_000_01_" in kept


if __name__ == "__main__":
    TABLE.write_text(renewed(TABLE.read_text()))
    for (seed, number), row in rows(TABLE.read_text()).items():
        if not row.tests:
            print(f"{seed}-{number:02} has no test")
