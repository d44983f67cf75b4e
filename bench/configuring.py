"""Count the lines that open each door: what an owner writes to be used by the clients of another standard.

The lines are those of the guides, which tests run. A program's lines are those that name the door. There is no baseline: the bar
is a number of lines.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
BAR = 6
DOORS = {
    "a host of MCP: Treaty's tools": ("mcp.md", r"treaty mcp install claude-code"),
    "a host of MCP: a guard before a server": ("mcp.md", r"treaty mcp install claude-code --guard files"),
    "a host of MCP: operations of an agent as tools": ("mcp.md", r"treaty mcp install claude-code -- --operations .*"),
    "an agent as a server of MCP": ("mcp.md", r"from treaty_mcp .*|.*doors=\[MCP\(agent\)\].*"),
    "an agent for clients of A2A": ("a2a.md", r"from treaty_a2a .*|.*doors=\[A2A\(agent\)\].*"),
    "a capability of UCP": ("ucp.md", r"treaty ucp profile .*|from treaty_agent .*|.*documents.*"),
    "a protocol as a skill": ("skills.md", r"name: .*|description: .*"),
    "a namespace's skills": ("skills.md", r"npx skills add \S+namespaces\S+"),
}
"""The guide of each door, and a pattern of its lines. A registry's MCP, ARD and catalogue, and an agent's Agora need none."""


def lines_of(guide: str, pattern: str) -> list[str]:
    """The lines of a guide's blocks that open a door."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```$", (GUIDES / guide).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if re.fullmatch(pattern, line.strip())]


def main(arguments: Sequence[str]) -> int:
    """Count, and show the table; status 1 if a door needs more lines than the bar, or its guide does not show it."""
    argparse.ArgumentParser(prog="python -m bench configuring", description=__doc__).parse_args(arguments)
    table, met = Table("door", "lines", f"bar ≤ {BAR}", box=None), True
    for door, (guide, pattern) in DOORS.items():
        count = len(lines_of(guide, pattern))
        met = met and 1 <= count <= BAR
        table.add_row(door, str(count), "met" if 1 <= count <= BAR else "missed")
    Console().print(table)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
