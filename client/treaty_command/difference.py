"""`treaty diff`: compare the documents of two protocols."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.project import load_project
from treaty_consensus.protocol import parse_protocol_uri

from .context import Options, run
from .info import read_published
from .values import uris

MAX_LINES = 1_500
"""Lines of each document that are compared. The comparison takes quadratic time for hostile texts."""
Subject = Annotated[str, Parameter(completer=uris, help="The URI of a protocol, or a folder with protocol.toml.")]
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def diff(old: Subject, new: Subject, /, *, options: Options = Options()) -> None:
    """Compare the documents of two protocols, also of those that were taken back. Their proofs are checked."""

    async def work() -> list[list[str]]:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            return [await _document(fetcher, name, options) for name in (old, new)]

    before, after = run(work())
    lines = list(unified_diff(before[:MAX_LINES], after[:MAX_LINES], old, new, lineterm=""))
    cut = max(len(before), len(after)) > MAX_LINES
    notes = [f"[yellow]![/] Only the first {MAX_LINES} lines were compared."] if cut else []
    value = {"old": old, "new": new, "lines": lines, "is_cut": cut}
    coloured = [f"[{_COLOURS.get(line[:1], 'default')}]{escape(line)}[/]" for line in lines]
    options.output.result(value, *(coloured or ["The documents are equal."]), *notes)


async def _document(fetcher: Fetcher, name: str, options: Options) -> list[str]:
    if "://" in name:
        _, document = await read_published(fetcher, parse_protocol_uri(name), options)
    else:
        document = load_project(Path(name)).document
    # Not `splitlines`, which also splits at characters that no editor takes for the end of a line.
    return document.decode("utf-8", "replace").split("\n")
