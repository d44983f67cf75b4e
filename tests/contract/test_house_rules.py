"""Rules of the sources: length of files and functions, unique names, plain prose. The order of rooms is import-linter's.

Each rule has a list of today's exceptions. A new exception fails, and so does an entry that is not needed any more: the lists
only get shorter.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

from docs.generate.syntax import tree_of

ROOT = Path(__file__).parents[2]
SOURCES = ("consensus", "client", "registry", "protocols/aip/python", "protocols/handoff/python")

MAX_FUNCTION = 60
"""Lines of a function, without its decorators."""
MAX_INDIRECT = 2.0
"""Indirect words per 1,000 words of docstrings, for each package."""
INDIRECT = frozenset(("what", "whoever", "whatever", "whom", "nobody", "somebody"))

LONG_FUNCTIONS: set[str] = set()
HOMONYMS: set[str] = set()
INDIRECT_TODAY: dict[str, float] = {}
"""The packages that are above `MAX_INDIRECT`, and how far they may be until they are rewritten."""
PRIVATE_FOREIGN = {
    "_from_parts",
    "_build_dsse_request",
    "_parser",
    "_observe",
    "_set_react_mode",
    "_watch",
}
"""Private names of other packages that tests use; theirs offer no other way."""
FOREIGN_PRIVATE = re.compile(r"(?<!\bself)(?<!\bcls)\s*\._[a-z]")
PRIVATE_TODAY: set[str] = {
    "contract/test_runtime.py:_has_worker",
    "contract/test_runtime.py:_leaving",
    "contract/test_runtime.py:_session",
    "contract/test_runtime.py:_spares",
    "contract/test_runtime.py:_worker",
    "property/test_secure_channel.py:_opener",
    "support/flow_peers.py:_say",
    "support/secure_peers.py:_keys",
    "unit/test_flow_reports.py:_write",
    "unit/test_flow_states.py:_fire",
}
"""Private attributes of ours that tests use, each with its file."""


@cache
def sources() -> dict[str, ast.Module]:
    """Path below its root → tree, of every module."""
    found = {}
    for root in SOURCES:
        for path in sorted((ROOT / root).rglob("*.py")):
            if path.parent.name == "stubs":  # generated
                continue
            found[str(path.relative_to(ROOT / root))] = tree_of(path)
    assert len(found) > 100
    return found


def test_no_function_is_too_long() -> None:
    long = {
        f"{path}:{node.name}"
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION
    }
    assert long == LONG_FUNCTIONS


def test_a_public_class_name_is_unique_in_its_package() -> None:
    places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for path, tree in sources().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[Path(path).parts[0], node.name].append(path)
    assert {f"{package}.{name}" for (package, name), paths in places.items() if len(paths) > 1} == HOMONYMS


def test_docstrings_name_things_directly() -> None:
    words: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words[Path(path).parts[0]] += re.findall(r"[A-Za-z']+", (ast.get_docstring(node) or "").lower())
    density = {package: 1000 * sum(word in INDIRECT for word in found) / len(found) for package, found in words.items() if found}
    above = {package: round(value, 1) for package, value in density.items() if value > MAX_INDIRECT}
    assert above.keys() == INDIRECT_TODAY.keys()
    assert all(above[package] <= INDIRECT_TODAY[package] for package in above), above


def test_no_room_is_outside_the_order_of_its_package() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rooms = {contract["containers"][0]: contract for contract in contracts if "containers" in contract}
    packages = {place.name for root in SOURCES for place in (ROOT / root).glob("treaty_*")}
    assert packages - set(rooms) == set()
    # Otherwise import-linter lets a room pass that no layer names.
    assert [name for name, contract in rooms.items() if not contract.get("exhaustive")] == []


def test_tests_use_no_private_attribute() -> None:
    found = set()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text()
        if not FOREIGN_PRIVATE.search(text):
            continue  # to parse all tests takes seconds
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Attribute) or not re.fullmatch(r"_[a-z]\w*", node.attr) or node.attr in PRIVATE_FOREIGN:
                continue
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                found.add(f"{path.relative_to(ROOT / 'tests')}:{node.attr}")
    assert found == PRIVATE_TODAY
