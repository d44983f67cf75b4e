"""A rejection as a table of cases names it: one code has several reasons, and a table tells them apart by the words."""

from __future__ import annotations

import re

from treaty_consensus.errors import TreatyError


def rejection(error: TreatyError, expected: str) -> str:
    """Return `expected`, "CODE" or "CODE: PATTERN", when the error has the code and a message with the pattern; else the code
    and message of the error."""
    code, _, pattern = expected.partition(": ")
    return expected if error.code == code and re.search(pattern, error.message) else f"{error.code}: {error.message}"
