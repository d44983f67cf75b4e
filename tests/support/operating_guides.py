"""The guides of an operator, as the commands that they name."""

from __future__ import annotations

import re

from units import ROOT

GUIDES = ROOT / "docs" / "guides"
DEPLOYING = (GUIDES / "deploying.md").read_text()
OPERATING = (GUIDES / "operating.md").read_text()
MODERATION = (GUIDES / "moderation.md").read_text()
ELECTORATE = (GUIDES / "electorate.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    """Return the blocks of a language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """Return the commands of `treaty-registry` in the blocks of a page."""
    lines = [line for language in ("sh", "console") for block in blocks(text, language) for line in block.splitlines()]
    return [line for line in lines if line.startswith("treaty-registry ")]


LIBRARIES = blocks(DEPLOYING, "console")[0]
"""The commands that install the programs, the users and the folders."""
UNITS, OPEN, KEY, WITNESS, NAME, BACK_UP, DRILL, UPGRADE = blocks(DEPLOYING, "sh")
PREPARE, ROTATE, RETIRE = blocks(OPERATING, "sh")
CONSTANTS = blocks(ELECTORATE, "toml")[0]
"""A file `electorate.toml`, which an operator writes."""
