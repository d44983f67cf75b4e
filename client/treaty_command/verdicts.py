"""Show the verdict on two versions of a protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.markup import escape

from treaty_consensus.printable import escaped

if TYPE_CHECKING:
    from treaty_consensus.handler.compatibility import Compatibility

_COLOURS = {"compatible": "green", "breaking": "red", "undecided": "yellow"}


def verdict_lines(compatibility: Compatibility) -> Iterator[str]:
    """Yield the lines of both pairs: each with its verdict, the reasons, and the counterexamples."""
    for pair in compatibility.pairs:
        colour = _COLOURS[pair.verdict]
        made = f"  [dim]{pair.calls} calls made[/]" if pair.calls else ""
        yield f"a caller of {escape(pair.caller)} with a provider of {escape(pair.provider)}: [{colour}]{pair.verdict}[/]{made}"
        for reason in pair.reasons:
            text = escape(escaped(f"{reason.operation or 'all operations'}, {reason.part}: {reason.message}"))
            yield f"  [{_COLOURS[reason.verdict]}]{reason.verdict}[/]  {text}"
            if reason.value:
                yield f"    {escape(escaped(reason.value))}"
