"""SECURITY.md is checked against the tests: every one it names exists, and every attack that is tested has its row."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
TEXT = (TESTS.parent / "SECURITY.md").read_text()
REFERENCE = re.compile(r"`([a-z_]+/test_\w+\.py)::(test_\w+)`")
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| threat ")]


@cache
def functions_of(path: Path) -> frozenset[str]:
    """The functions of a test file, read without running it."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions))


def test_every_test_that_is_named_exists() -> None:
    references = REFERENCE.findall(TEXT)
    assert len(references) == TEXT.count("::"), "a reference is written in another way"
    for file, name in references:
        path = TESTS / file
        assert path.is_file(), file
        assert name in functions_of(path), f"{file}::{name}"


def test_every_threat_has_an_answer_and_a_test() -> None:
    assert len(ROWS) > 30
    for row in ROWS:
        threat, answer, tests = (cell.strip() for cell in row.strip("|").split("|"))
        assert threat and answer
        assert REFERENCE.findall(tests), threat


def test_every_attack_that_is_tested_has_a_row() -> None:
    named = {file for row in ROWS for file, _ in REFERENCE.findall(row)}
    attacks = {f"attack/{path.name}" for path in (TESTS / "attack").glob("test_*.py")}
    assert attacks
    assert attacks <= named


def test_the_attacks_of_the_demo_are_marked() -> None:
    assert TEXT.count("(*demo*)") == 3


def test_it_invents_no_address() -> None:
    assert not re.search(r"[\w.]+@[\w.]+|https?://", TEXT)
    assert "private security advisory" in TEXT
