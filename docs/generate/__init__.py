"""The parts of the documentation that follow from the code.

A page marks such a part with two comments, and everything between them is written by the generator of that name:

    <!-- generated: NAME -->
    …
    <!-- end -->

`python -m docs.generate` (`make docs`) writes all parts anew. `--check` changes nothing and fails when a page differs.
Pages are the Markdown and SVG files of this repository's root and of docs/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

GENERATORS: dict[str, Callable[[], str]] = {}
"""The generators by name. Each returns its part without the comments. `__main__` imports the modules that add to it."""

_PART = re.compile(
    r"(?P<begin>^[ \t]*<!-- generated: (?P<name>[\w-]+) -->\n)(?P<text>.*?)(?P<end>^[ \t]*<!-- end -->$)",
    re.DOTALL | re.MULTILINE,
)
_BEGIN = re.compile(r"^[ \t]*<!-- generated: ", re.MULTILINE)


class DriftError(Exception):
    """A part has no generator, a generator has no part, or a comment is not closed. The message names it."""


def pages() -> Iterator[Path]:
    """The files that may have generated parts, in order."""
    for pattern in ("*.md", "docs/**/*.md", "docs/**/*.svg"):
        yield from sorted(ROOT.glob(pattern))


def present(name: str) -> str:
    """The part of that name as it stands in its page: for tables of which a person writes some of the columns.

    Raises `DriftError` when no page has it.
    """
    for page in pages():
        for part in _PART.finditer(page.read_text(encoding="utf-8")):
            if part["name"] == name:
                return part["text"]
    raise DriftError(f"no page has a part <!-- generated: {name} -->")


def matched_rows(row: re.Pattern[str], table: str) -> list[tuple[str, ...]]:
    """The groups of each row of a table whose first column is a number.

    Raises `DriftError` for such a row that does not match: writing the table anew would lose it.
    """
    found = row.findall(table)
    if len(found) != len(re.findall(r"^\| *\d", table, re.MULTILINE)):
        raise DriftError(f"a row is not of the form {row.pattern}")
    return found


def renewed() -> dict[Path, str]:
    """The pages with generated parts, and their texts with every part written anew.

    Raises `DriftError` when the comments and `GENERATORS` do not name the same parts, each once.
    """
    texts, found = dict[Path, str](), list[str]()
    for page in pages():
        text = page.read_text(encoding="utf-8")
        named = [part["name"] for part in _PART.finditer(text)]
        if len(named) != len(_BEGIN.findall(text)):
            raise DriftError(f"{page.relative_to(ROOT)}: a comment <!-- generated --> without its <!-- end -->")
        unknown = [name for name in named if name not in GENERATORS]
        if unknown:
            raise DriftError(f"{page.relative_to(ROOT)}: no generator is named {', '.join(unknown)}")
        if named:
            texts[page] = _PART.sub(
                lambda part: part["begin"] + GENERATORS[part["name"]]().strip("\n") + "\n" + part["end"], text
            )
        found += named
    if sorted(found) != sorted(GENERATORS):
        raise DriftError(f"parts {sorted(found)} are not those of the generators {sorted(GENERATORS)}")
    return texts


def _written(part: re.Match[str]) -> str:
    return part["begin"] + GENERATORS[part["name"]]().strip("\n") + "\n" + part["end"]


def drifted() -> list[Path]:
    """The pages that are not as the code says."""
    return [page for page, text in renewed().items() if page.read_text(encoding="utf-8") != text]
