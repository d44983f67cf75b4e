"""The table of rooms: `make test ROOM=registry/log` runs the tests that it names for a room."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest
from shards import TESTS, selected, shards

ROOT = TESTS.parent
ROOMS: dict[str, list[str]] = tomllib.loads((TESTS / "rooms.toml").read_text(encoding="utf-8"))
FOLDERS = (
    "consensus",
    "client",
    "registry",
    "protocols/aip/python",
    "protocols/handoff/python",
    "protocols/message-routing/python",
)
PACKAGES = {place.name.removeprefix("treaty_"): place for folder in FOLDERS for place in sorted((ROOT / folder).glob("treaty_*"))}
"""The name of each package's rooms, and its folder."""


def rooms() -> set[str]:
    """Return the name of each package, and of each package in it."""
    names = set(PACKAGES)
    for name, folder in PACKAGES.items():
        names |= {f"{name}/{room.parent.name}" for room in folder.glob("*/__init__.py")}
    return names - {"aip/stubs"}  # generated


@cache
def imported(file: Path) -> frozenset[str]:
    """Return the modules that a file of the tests imports, also by way of `tests/support`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    for module in sorted(names):
        helper = TESTS / "support" / f"{module.partition('.')[0]}.py"
        if helper.is_file() and helper != file:
            names |= imported(helper)
    return frozenset(names)


def test_every_room_has_its_tests() -> None:
    assert set(ROOMS) == rooms()


@pytest.mark.parametrize("room", ROOMS)
def test_the_tests_of_a_room_import_it(room: str) -> None:
    package, _, part = room.partition("/")
    module = f"treaty_{package}.{part}".rstrip(".")
    files = [TESTS / name for name in ROOMS[room]]
    # `treaty_agent.Agent` is of the room `agent`.
    assert files and len(set(files)) == len(files)
    assert [file.name for file in files if not any(f"{name.lower()}.".startswith(f"{module}.") for name in imported(file))] == []


def test_a_room_a_path_and_everything_are_run_in_shards() -> None:
    files = {file for file in TESTS.rglob("test_*.py") if "support" not in file.parts}
    parts = shards([TESTS])
    assert sorted(file for _, part in parts for file in part) == sorted(files)
    assert {file for _, part in shards(selected("registry/log")) for file in part} == set(selected("registry/log"))
    assert selected(str(TESTS / "unit")) == [TESTS / "unit"]
    with pytest.raises(SystemExit, match="neither a path nor a room"):
        selected("registry/attic")
