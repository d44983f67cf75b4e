"""The test functions of this repository, read without running them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import NamedTuple

from . import ROOT

TESTS = ROOT / "tests"


class Test(NamedTuple):
    """A test function: its file below tests/, its name, and the numbers in its `@pytest.mark.threat(…)`."""

    path: str
    name: str
    threats: tuple[int, ...]

    def __str__(self) -> str:
        return f"`{self.path}::{self.name}`"


@cache
def all_tests() -> tuple[Test, ...]:
    """Every test function, by file and name."""
    return tuple(sorted(_functions()))


def _functions() -> Iterator[Test]:
    for path in TESTS.rglob("test_*.py"):
        module = ast.parse(path.read_text(encoding="utf-8"))
        # pytest takes no test from anywhere else; to walk all statements takes longer than to parse them.
        bodies = [module.body, *(node.body for node in module.body if isinstance(node, ast.ClassDef))]
        for node in chain.from_iterable(bodies):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield Test(path.relative_to(TESTS).as_posix(), node.name, tuple(_threats(node)))


def _threats(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.threat":
            yield from (int(ast.literal_eval(argument)) for argument in decorator.args)
