"""`treaty diff`: compare the documents and the operations of two protocols."""

from __future__ import annotations

from dataclasses import asdict
from difflib import unified_diff
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from treaty_client.authoring.building import build
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.project import load_project
from treaty_consensus.handler import Manifest
from treaty_consensus.handler.comparison import operation_changes, operation_views
from treaty_consensus.printable import escaped
from treaty_consensus.protocol import parse_protocol_uri

from .context import Options, run
from .info import read_manifest, read_published
from .values import uris

MAX_LINES = 1_500
"""Lines of each document that are compared. The comparison takes quadratic time for hostile texts."""
Subject = Annotated[str, Parameter(completer=uris, help="The URI of a protocol, or a folder with protocol.toml.")]
_BREAKING = " [yellow](breaking)[/]"
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def diff(old: Subject, new: Subject, /, *, options: Options = Options()) -> None:
    """Compare two protocols: their documents, and the operations of their publishers' handlers. Their proofs are checked.

    A change is breaking if an agent of the old one can no longer speak to one of the new one. A protocol that was taken back is
    compared too.
    """

    async def work() -> list[tuple[list[str], Manifest | None]]:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            return [await _read(fetcher, name, options) for name in (old, new)]

    (before, earlier), (after, later) = run(work())
    lines = list(unified_diff(before[:MAX_LINES], after[:MAX_LINES], old, new, lineterm=""))
    cut = max(len(before), len(after)) > MAX_LINES
    changes = operation_changes(operation_views(earlier), operation_views(later)) if earlier and later else None
    notes = [f"[yellow]![/] Only the first {MAX_LINES} lines were compared."] if cut else []
    for change in changes or ():
        notes.append(f"[bold]{escape(escaped(change.name))}[/] {change.change}{_BREAKING if change.is_breaking else ''}")
        notes += [f"  {escape(escaped(fact.text))}{_BREAKING if fact.is_breaking else ''}" for fact in change.facts]
    notes += ["[yellow]![/] One has no handler of its publisher: no operations are compared."] if changes is None else []
    value = {"old": old, "new": new, "lines": lines, "is_cut": cut}
    value["operations"] = None if changes is None else [{**asdict(one), "is_breaking": one.is_breaking} for one in changes]
    coloured = [f"[{_COLOURS.get(line[:1], 'default')}]{escape(line)}[/]" for line in lines]
    options.output.result(value, *(coloured or ["The documents are equal."]), *notes)


async def _read(fetcher: Fetcher, name: str, options: Options) -> tuple[list[str], Manifest | None]:
    if "://" in name:
        uri = parse_protocol_uri(name)
        answer, document = await read_published(fetcher, uri, options)
        manifest = await read_manifest(fetcher, uri, answer)
    else:
        project = load_project(Path(name))
        document, manifest = project.document, build(project).manifest if project.handler else None
    # Not `splitlines`, which also splits at characters that no editor takes for the end of a line.
    return document.decode("utf-8", "replace").split("\n"), manifest
