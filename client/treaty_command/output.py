"""Print the results of commands: tables and sentences for people, or one JSON value for machines.

With `--json` standard output has exactly one JSON value. Progress, and errors for people, go to standard error. Foreign text
cannot control a terminal: characters that are not printable are escaped, in JSON as `\\u001b`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from treaty_consensus.errors import TreatyError
from treaty_consensus.printable import escaped

if TYPE_CHECKING:
    from rich.console import Console


@dataclass
class Output:
    """The output of a command. `as_json`: print one JSON value to standard output instead of text."""

    as_json: bool = False

    @cached_property
    def console(self) -> Console:
        """Standard output, for people."""
        return _console()

    @cached_property
    def errors(self) -> Console:
        """Standard error, for people."""
        return _console(stderr=True)

    def say(self, line: str) -> None:
        """Print a line for people; nothing with `--json`. The line is Rich markup: escape foreign text."""
        if not self.as_json:
            self.console.print(_visible(line))

    def result(self, value: dict[str, Any], *renderables: Any) -> None:
        """Print the result: `value` as JSON, or the renderables for people."""
        if self.as_json:
            # `print`, not Rich: the JSON must not be wrapped or styled. Flushed: a program that reads the lines of a command that
            # goes on, such as `treaty test --watch`, must not wait for a full buffer.
            print(_json(value), flush=True)
            return
        for renderable in renderables:
            self.console.print(_visible(renderable) if isinstance(renderable, str) else renderable)

    def plain(self, value: dict[str, Any], *lines: str) -> None:
        """Print the result: `value` as JSON, or lines without markup. Rich is slow to import, and is not."""
        if self.as_json:
            print(_json(value), flush=True)
            return
        for line in lines:
            print(_visible(line), flush=True)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Show that work is in progress, on standard error and only on a terminal."""
        with self.errors.status(escape(what)):
            yield

    def error(self, error: TreatyError) -> None:
        """Print an error: its data, message and fix, and the step of the verification that failed, if there is one."""
        from treaty_client.protocols.verification.steps import VerificationFailed

        step = error.step if isinstance(error, VerificationFailed) else None
        if self.as_json:
            value: dict[str, Any] = {"code": error.code, "message": error.message, "fix": error.fix}
            value |= {"family": error.family, "retryable": error.retryable, "origin": error.origin}
            optional = {"peerCode": error.peer_code, "traceId": error.trace_id, "clockDifference": error.clock_difference}
            value |= {name: data for name, data in optional.items() if data not in ("", None)}
            value |= {"step": step.value} if step else {}
            print(_json({"error": value}), flush=True)
            return
        where = f"Step {step.value} ({step.title}): " if step else ""
        self.errors.print(f"[bold red]✗[/] {where}{escape(error.message)}  [dim]{escape(error.code)}[/]")
        if error.fix:
            self.errors.print(f"  [bold]→[/] {escape(error.fix)}")


def escape(text: str) -> str:
    """Return text without meaning as Rich markup."""
    from rich.markup import escape as rich_escape  # here, because `plain` results do without Rich

    return rich_escape(text)


def _console(*, stderr: bool = False) -> Console:
    """Return a console. With NO_COLOR in the environment it writes no escape sequence at all."""
    from rich.console import Console  # a command with --json needs no console

    if os.environ.get("NO_COLOR"):
        # Rich's own `no_color` keeps bold text and moves the cursor, and FORCE_COLOR would bring both back.
        return Console(
            stderr=stderr, highlight=False, emoji=False, soft_wrap=True, color_system=None, force_terminal=False, no_color=True
        )
    return Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=True)


def _visible(lines: str) -> str:
    return "\n".join(map(escaped, lines.split("\n")))


def _json(value: dict[str, Any]) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # JSON may be shown on a terminal too. The escapes keep it the same value for a parser.
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
