"""The test vectors of each format: the section of its page, and the list for programs, from `tests/vectors/index.toml`."""

from __future__ import annotations

import hashlib
import json
import tomllib
from functools import partial
from pathlib import Path
from typing import NamedTuple

from . import GENERATORS, LISTS, ROOT, SHOWN, DriftError, listed
from .limits import table

FOLDER = ROOT / "tests" / "vectors"
INDEX = FOLDER / "index.toml"


class VectorRow(NamedTuple):
    """Files of one kind. `pattern`: their paths in the repository. `holds`: their content, in a phrase."""

    pattern: str
    holds: str
    files: tuple[Path, ...]


class Group(NamedTuple):
    """The vectors of a page. `tests`: the test modules that read them, below tests/."""

    rows: tuple[VectorRow, ...]
    tests: tuple[str, ...]


def load(index: Path = INDEX) -> dict[str, Group]:
    """Return the vectors of each page of docs/specification, by its name. Raises `DriftError` for a row without a file."""
    found = tomllib.loads(index.read_text(encoding="utf-8"))
    return {page: Group(tuple(map(_row, part["files"])), tuple(part["tests"])) for page, part in found.items()}


def _row(entry: dict[str, str]) -> VectorRow:
    pattern = entry["path"]
    files = tuple(sorted(path for path in ROOT.glob(pattern) if path.is_file()))
    if not files:
        raise DriftError(f"{INDEX.relative_to(ROOT)}: there is no {pattern}")
    return VectorRow(pattern, entry["holds"], files)


def name(path: Path) -> str:
    """Return the name of a file below `/docs/vectors/` of a site, which is also its name in the list for programs."""
    return (path.relative_to(FOLDER) if path.is_relative_to(FOLDER) else path.relative_to(ROOT)).as_posix()


def index() -> str:
    """Return the list for programs: page → its files, each with name, size, SHA-256 and content."""
    return json.dumps(
        {page: [_entry(path, row.holds) for row in group.rows for path in row.files] for page, group in load().items()}, indent=1
    )


def files() -> list[Path]:
    """Return every file once."""
    return sorted({path for group in load().values() for row in group.rows for path in row.files})


def _entry(path: Path, holds: str) -> dict[str, str | int]:
    data = path.read_bytes()
    return {"file": name(path), "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "holds": holds}


def section(page: str) -> str:
    """Return the table of a page's vectors."""
    return table(("file", "content"), ((_links(row), row.holds) for row in load()[page].rows))


def _links(row: VectorRow) -> str:
    return ", ".join(f"[`{path.name}`](../../{path.relative_to(ROOT).as_posix()})" for path in row.files)


def _listed(page: str) -> list[dict[str, object]]:
    return [{"file": [f"vectors/{name(path)}" for path in row.files], "content": row.holds} for row in load()[page].rows]


for _page in load():
    GENERATORS[f"vectors-{_page}"] = partial(section, _page)
    SHOWN[f"vectors-{_page}"] = partial(listed, f"vectors-{_page}", "../lists")
    LISTS[f"vectors-{_page}"] = partial(_listed, _page)
