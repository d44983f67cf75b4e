"""Rules of the sources: length of packages and functions, unique names, plain prose. The order of rooms is import-linter's.

Each rule has a list of today's exceptions. A new exception fails, and so does an entry that is not needed any more: the lists
only get shorter.
"""

from __future__ import annotations

import ast
import gc
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from docs.generate.syntax import tree_of

ROOT = Path(__file__).parents[2]
SOURCES = (
    "consensus",
    "client",
    "registry",
    "protocols/aip/python",
    "protocols/handoff/python",
    "protocols/message-routing/python",
)
"""The folders of the packages."""
FOLDERS = ("consensus", "client", "registry", "protocols", "tests", "docs", "demo", "examples", "bench", "tools", "deploy")
"""The folders of all Python."""

LINES = {
    "protocols": 5_000,
    "treaty_a2a": 400,
    "treaty_agent": 25_950,
    "treaty_aip": 3_500,
    "treaty_anp": 9_600,
    "treaty_client": 13_700,
    "treaty_command": 5_550,
    "treaty_consensus": 15_450,
    "treaty_handler": 1_600,
    "treaty_handoff": 4_000,
    "treaty_io": 5_100,
    "treaty_mcp": 2_250,
    "treaty_registry": 32_800,
    "treaty_routing": 800,
    "treaty_sandbox": 7_600,
}
"""The budget of each package, in lines of product Python. `protocols`: all handlers of the catalogue."""
SPARE = 500
"""Lines that a package may be below its budget."""
MAX_FUNCTION = 60
"""Lines of a function, without its decorators."""
MAX_INDIRECT = 2.0
"""Indirect words per 1,000 words of docstrings, for each package."""
INDIRECT = frozenset(("what", "whoever", "whatever", "whom", "nobody", "somebody"))

LONG_FUNCTIONS = {
    "tests/faults/test_mirror_kill.py:test_a_mirror_is_killed_and_promoted",
    "tests/interop/sdk/live.py:provide",
    "tests/support/made_records.py:names",
    "tests/unit/test_agent_publishing.py:test_a_models_draft_reaches_strangers_without_models",
}
HOMONYMS = {
    "bench.Buyer",
    "bench.Figure",
    "bench.Figures",
    "bench.Line",
    "bench.Row",
    "bench.Sample",
    "bench.Scene",
    "bench.Shop",
    "bench.Size",
    "tests/support.Case",
    "tests/support.Log",
    "tests/support.Member",
    "tests/support.Page",
    "tests/support.Provider",
    "tests/support.Run",
    "tests/support.Script",
    "tests/support.Shown",
    "tests/support.SimulatedNames",
    "tests/support.Wire",
    "tests/vectors.Side",
}
INDIRECT_TODAY = {
    "bench": 14.0,
    "demo": 8.0,
    "protocols/aip/0.0.1": 3.0,
    "protocols/message-routing/1.0": 4.0,
    "tests/attack": 17.0,
    "tests/contract": 19.0,
    "tests/deploy": 6.0,
    "tests/end_to_end": 7.0,
    "tests/faults": 14.0,
    "tests/game_day": 6.0,
    "tests/interop": 12.0,
    "tests/pages": 15.0,
    "tests/property": 26.0,
    "tests/simulation": 5.0,
    "tests/support": 9.0,
    "tests/unit": 22.0,
    "tests/vectors": 14.0,
}
"""The packages that are above `MAX_INDIRECT`, and how far they may be until they are rewritten."""
PRIVATE_FOREIGN = {
    "_from_parts",
    "_build_dsse_request",
    "_parser",
    "_act",
    "_observe",
    "_set_react_mode",
    "_watch",
    "_create_unverified_context",
    "_exit",
    "_fields",
    "_replace",
}
"""Private names of other packages that tests and programs use; theirs offer no other way."""
MODULE = re.compile(r"`(treaty_[a-z]+(?:\.[A-Za-z_]\w*)+)`")
FOREIGN_PRIVATE = re.compile(r"(?<!\bself)(?<!\bcls)\s*\._[a-z]")
PRIVATE_TODAY: set[str] = {
    "bench/agreeing.py:_meet",
    "tests/contract/test_runtime.py:_has_worker",
    "tests/contract/test_runtime.py:_leaving",
    "tests/contract/test_runtime.py:_session",
    "tests/contract/test_runtime.py:_spares",
    "tests/contract/test_runtime.py:_worker",
    "tests/property/test_secure_channel.py:_opener",
    "tests/support/flow_peers.py:_say",
    "tests/support/secure_peers.py:_keys",
    "tests/unit/test_flow_reports.py:_write",
    "tests/unit/test_flow_states.py:_fire",
}
"""Private attributes of ours that tests and programs use, each with its file."""


@cache
def sources() -> dict[str, ast.Module]:
    """Return path → tree, of every module."""
    paths = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    gc.disable()  # to look for garbage among millions of nodes takes three times as long as to make them
    try:
        trees = {str(path): tree_of(ROOT / path) for path in paths if path.parent.name != "stubs"}  # those are generated
    finally:
        gc.freeze()
        gc.enable()
    assert len(trees) > 1000
    return trees


def package_of(path: str) -> str:
    """Return the package of a module. Of handlers, tests and programs: their folder."""
    parts = Path(path).parts[:-1]
    named = [part for part in parts if part.startswith("treaty_")]
    depth = {"protocols": 3, "examples": 3, "tests": 2}.get(parts[0], 1)
    return named[0] if named and parts[0] != "tests" else "/".join(parts[:depth])


def is_product(path: str) -> bool:
    """Return whether a module is of a package, or of a handler of the catalogue."""
    return package_of(path).startswith("treaty_") or (path.startswith("protocols/") and "/handler/" in path)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Return a module and the statements in it: `ast.walk` would take seconds for the expressions of the tests."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from statements(child)


def test_no_package_is_longer_than_its_budget() -> None:
    """Hold the lines of each package. Only a decision (`docs/decisions`) raises a budget. A package that shrinks lowers it."""
    lines: Counter[str] = Counter()
    for path in filter(is_product, sources()):
        package = package_of(path)
        lines[package if package.startswith("treaty_") else "protocols"] += (ROOT / path).read_text().count("\n")
    assert lines.keys() == LINES.keys()
    assert {package: count for package, count in lines.items() if count > LINES[package]} == {}, "longer than the budget"
    assert {package: count for package, count in lines.items() if count <= LINES[package] - SPARE} == {}, "lower the budget"


def test_no_function_is_too_long() -> None:
    long = {
        f"{path}:{node.name}"
        for path, tree in sources().items()
        for node in statements(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION
    }
    assert long == LONG_FUNCTIONS


def test_a_public_class_name_is_unique_in_its_package() -> None:
    places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for path, tree in sources().items():
        if Path(path).name.startswith("test_"):
            continue  # no module imports a test
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[package_of(path), node.name].append(path)
    assert {f"{package}.{name}" for (package, name), paths in places.items() if len(paths) > 1} == HOMONYMS


def test_docstrings_name_things_directly() -> None:
    words: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in sources().items():
        for node in statements(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words[package_of(path)] += re.findall(r"[A-Za-z']+", (ast.get_docstring(node) or "").lower())
    density = {package: 1000 * sum(word in INDIRECT for word in text) / len(text) for package, text in words.items() if text}
    above = {package: round(value, 1) for package, value in density.items() if value > MAX_INDIRECT}
    assert above.keys() == INDIRECT_TODAY.keys()
    assert all(above[package] <= INDIRECT_TODAY[package] for package in above), above


def names_something(name: str) -> bool:
    """Return whether a dotted name is a module of ours, or a name in one."""
    package, *parts = name.split(".")
    place = next((ROOT / root / package for root in SOURCES if (ROOT / root / package).is_dir()), None)
    while place is not None and parts and ((place / parts[0]).is_dir() or (place / f"{parts[0]}.py").is_file()):
        place = place / parts.pop(0)
    if place is None:
        return False
    text = (place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text()
    return all(re.search(rf"\b{part}\b", text) for part in parts)


def test_each_module_that_a_text_names_exists() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / path for path in filter(is_product, sources()))]
    named = {(name, page) for page in pages for name in MODULE.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 60
    assert {(name, page.name) for name, page in named if not names_something(name)} == set()


def test_no_room_is_outside_the_order_of_its_package() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rooms = {contract["containers"][0]: contract for contract in contracts if "containers" in contract}
    packages = {place.name for root in SOURCES for place in (ROOT / root).glob("treaty_*")}
    assert packages - set(rooms) == set()
    # Otherwise import-linter lets a room pass that no layer names.
    assert [name for name, contract in rooms.items() if not contract.get("exhaustive")] == []


def test_tests_and_programs_use_no_private_attribute() -> None:
    uses = set()
    for path, tree in sources().items():
        if is_product(path) or not FOREIGN_PRIVATE.search((ROOT / path).read_text()):
            continue  # to walk all tests takes seconds
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not re.fullmatch(r"_[a-z]\w*", node.attr) or node.attr in PRIVATE_FOREIGN:
                continue
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                uses.add(f"{path}:{node.attr}")
    assert uses == PRIVATE_TODAY
