"""The prose of the documentation keeps the house rules that can be counted; CONTRIBUTING.md states them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs.generate.parts import completed

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])
RELATIVES = frozenset({"what", "whoever", "whatever", "whom", "nobody", "somebody"})
"""Words that make a reader whose first language is not English look for their noun."""

ALLOWED = 2
"""Of each page, for each thousand words and one more: a question may need such a word."""


def words(text: str) -> list[str]:
    """The words of a page without code."""
    return re.findall(r"[A-Za-z']+", re.sub(r"```.*?^```|`[^`]*`", "", text, flags=re.DOTALL | re.MULTILINE))


def relatives(text: str) -> list[str]:
    """The words of a page that make its sentences hard."""
    return [word for word in words(text) if word.lower() in RELATIVES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sentences_name_their_nouns(page: Path) -> None:
    text = completed(page.read_text(encoding="utf-8"))
    hits = relatives(text)
    assert len(hits) <= ALLOWED * (1 + len(words(text)) // 1000), hits


def test_code_is_not_prose() -> None:
    assert relatives("What holds\n```\nwhat\n```\nand `nobody` knows") == ["What"]


def test_every_page_that_code_names_exists() -> None:
    sources = [
        path for folder in ("consensus", "client", "registry", "tests", "bench", "demo") for path in (ROOT / folder).rglob("*.py")
    ]
    named = {name for path in sources for name in re.findall(r"\bdocs/[\w/.-]+\.md\b", path.read_text(encoding="utf-8"))}
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_every_heading_of_the_glossary_has_terms_in_one_form() -> None:
    lines = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines()
    terms = [line for line in lines if line.startswith("- ")]
    assert len(terms) > 100
    assert [line for line in terms if not re.match(r"- \*\*[^*]+\*\*( \([^)]+\))?: .", line)] == []
