"""The pages of docs/decisions, as Sphinx lists them: their index has them by subject, which Sphinx does not read as a list."""

from __future__ import annotations

import re

from . import ROOT, SITE

INDEX = ROOT / "docs" / "decisions" / "README.md"


def topics() -> list[str]:
    """The names of the pages that the index links, in its order."""
    return re.findall(r"^- \[[^]]+\]\(([\w-]+)\.md\): ", INDEX.read_text(encoding="utf-8"), re.MULTILINE)


def listing() -> str:
    """A list that shows nothing, and gives each page its place after its index."""
    return "\n".join(["```{toctree}", ":hidden:", "", *topics(), "```"])


SITE["decisions"] = listing
