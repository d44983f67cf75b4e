"""The guides of an operator, as the commands that they name."""

from __future__ import annotations

import re

from units import ROOT

GUIDES = ROOT / "docs" / "guides"
DEPLOYING = (GUIDES / "deploying.md").read_text()
OPERATING = (GUIDES / "operating.md").read_text()
ELECTORATE = (GUIDES / "electorate.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    """Return the blocks of a language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


LIBRARIES = blocks(DEPLOYING, "console")[0]
"""The commands that install the programs, the users and the folders."""
UNITS, OPEN, KEY, WITNESS, NAME, BACK_UP, DRILL, UPGRADE = blocks(DEPLOYING, "sh")
PREPARE, ROTATE, RETIRE = blocks(OPERATING, "sh")
CONSTANTS = blocks(ELECTORATE, "toml")[0]
"""A file `electorate.toml`, which an operator writes."""
