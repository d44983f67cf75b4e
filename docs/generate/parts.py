"""All parts: those of the repository, which this writes anew, and those that only the site has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from . import (
    GENERATORS,
    PART,
    SHOWN,
    SITE,
    DriftError,
    codes,
    commands,
    configuration,
    diagrams,
    errors,
    interfaces,
    limits,
    overview,
    pages,
    project,
    rules,
    states,
    threats,
    vectors,
)

MODULES = (
    codes,
    commands,
    configuration,
    diagrams,
    errors,
    interfaces,
    limits,
    overview,
    project,
    rules,
    states,
    threats,
    vectors,
)
"""The modules that add to `GENERATORS` and `SITE` when they are imported."""

_BEGIN = re.compile(r"^[ \t]*<!-- (?:generated|site): ", re.MULTILINE)


def renewed() -> dict[Path, str]:
    """The pages with parts of the repository, and their texts with each of these parts written anew.

    Raises `DriftError` when the comments do not name the parts of `GENERATORS` and `SITE`, each once.
    """
    texts, found = dict[Path, str](), list[tuple[str, str]]()
    for page in pages():
        text = page.read_text(encoding="utf-8")
        named = [(part["kind"], part["name"]) for part in PART.finditer(text)]
        if len(named) != len(_BEGIN.findall(text)):
            raise DriftError(f"{page}: a part without its <!-- end -->")
        found += named
        if any(kind == "generated" for kind, _ in named):
            texts[page] = text
    expected = [*(("generated", name) for name in GENERATORS), *(("site", name) for name in SITE)]
    if sorted(found) != sorted(expected):
        raise DriftError(f"parts {sorted(found)} are not those of the generators {sorted(expected)}")
    return {page: _written(text, "generated", GENERATORS) for page, text in texts.items()}


def completed(text: str) -> str:
    """The text of a page as the site has it."""
    return _written(_written(text, "site", SITE), "generated", SHOWN)


def drifted() -> list[Path]:
    """The pages that are not as the code says."""
    return [page for page, text in renewed().items() if page.read_text(encoding="utf-8") != text]


def _written(text: str, kind: str, generators: Mapping[str, Callable[[], str]]) -> str:
    def write(part: re.Match[str]) -> str:
        return (
            part["begin"] + generators[part["name"]]().strip("\n") + "\n" + part["end"]
            if part["kind"] == kind and part["name"] in generators
            else part[0]
        )

    return PART.sub(write, text)
