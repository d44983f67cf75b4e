"""Print the output of commands: lines and tables for people, or one JSON value for programs; errors with their code and fix.

The output has the same form as the agent's command line, whose modules are not imported because of their dependencies.
"""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from treaty_consensus.errors import TreatyError


def show(value: dict[str, Any], *renderables: Any, as_json: bool) -> None:
    """Print the result: `value` as one line of JSON, or the renderables (rich markup: escape foreign text)."""
    if as_json:
        print(json.dumps(value, ensure_ascii=False), flush=True)
        return
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    for renderable in renderables:
        console.print(renderable)
    console.file.flush()


def folding_table(*headings: str, show_header: bool = True) -> Table:
    """Return a table that breaks long names and cuts none, because people copy them."""
    table = Table(box=None, show_header=show_header)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def print_error(error: TreatyError, *, as_json: bool) -> None:
    """Print a refusal: on standard output as JSON, or on standard error for people."""
    if as_json:
        show({"error": {"code": error.code, "message": error.message, "fix": error.fix}}, as_json=True)
        return
    console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
    console.print(f"[bold red]✗[/] {escape(error.message)}  [dim]{escape(error.code)}[/]")
    if error.fix:
        console.print(f"  [bold]→[/] {escape(error.fix)}")
