"""The parts of the documentation that follow from the code.

A page marks such a part with two comments. A part of the repository is written by the generator of that name:

    <!-- generated: NAME -->
    …
    <!-- end -->

A part of the site alone holds a text of a person, for readers of the repository. The site has the generator's text in its place:

    <!-- site: NAME -->
    `make docs` builds this list.
    <!-- end -->

A part is in the repository if a second implementation needs it as a contract, and a reviewer should see its change: codes,
limits, states, vectors, pictures. The others change with every name of the code: the lists of all commands and Python names.
A long table that people look things up in is a file for programs, `lists/NAME.json` (`LISTS`), which its page shows with a
field to filter it: the codes, the vectors, and the threats and rules with their tests.

`python -m docs.generate` (`make docs`) writes the parts of the repository anew. `--check` changes nothing and fails when a page
differs. Pages are the Markdown and SVG files of this repository's root and of docs/. `parts` imports all generators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

GENERATORS: dict[str, Callable[[], str]] = {}
"""The generators of parts of the repository, by name. Each returns its part without the comments."""

SITE: dict[str, Callable[[], str]] = {}
"""The generators of parts that only the site has."""

SHOWN: dict[str, Callable[[], str]] = {}
"""Generators of the site for parts of the repository that it shows in another form."""

LISTS: dict[str, Callable[[], list[dict[str, object]]]] = {}
"""The tables of the site that are files for programs, by name. Each row has the same members."""

PART = re.compile(
    r"(?P<begin>^[ \t]*<!-- (?P<kind>generated|site): (?P<name>[\w-]+) -->\n)(?P<text>.*?)(?P<end>^[ \t]*<!-- end -->$)",
    re.DOTALL | re.MULTILINE,
)


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
        for part in PART.finditer(page.read_text(encoding="utf-8")):
            if part["name"] == name:
                return part["text"]
    raise DriftError(f"no page has a part {name}")


def listed(name: str, folder: str) -> str:
    """The place where a page of the site shows a table of `LISTS`: a link, to which the page's script adds the rows.

    `folder`: that of all tables, as the page links it.
    """
    return f'<div data-list="{folder}/{name}.json"><a href="{folder}/{name}.json">{name}.json</a></div>'


def matched_rows(row: re.Pattern[str], table: str) -> list[tuple[str, ...]]:
    """The groups of each row of a table, or of a list, that begins with a number.

    Raises `DriftError` for such a row that does not match: a table that is made of the rows would lose it.
    """
    found = row.findall(table)
    if len(found) != len(re.findall(r"^(?:\| *)?\d", table, re.MULTILINE)):
        raise DriftError(f"a row is not of the form {row.pattern}")
    return found
