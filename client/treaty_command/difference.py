"""`treaty diff`: compare the documents, the operations and the handlers of two protocols."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from msgspec import to_builtins
from rich.markup import escape

from treaty_client.authoring.building import build
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.project import load_project
from treaty_consensus.handler.comparison import operation_changes, operation_views
from treaty_consensus.printable import escaped
from treaty_consensus.protocol import parse_protocol_uri

from .context import Options, run
from .info import read_package, read_published
from .values import uris
from .verdicts import verdict_lines

if TYPE_CHECKING:
    from treaty_consensus.handler import HandlerPackage
    from treaty_consensus.handler.compatibility import Compatibility

MAX_LINES = 1_500
"""Lines of each document that are compared. The comparison takes quadratic time for hostile texts."""
Subject = Annotated[str, Parameter(completer=uris, help="The URI of a protocol, or a folder with protocol.toml.")]
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True)
class _Subject:
    """A protocol to compare. `name`: its version. `package`: that of its publisher's newest handler."""

    name: str
    lines: list[str]
    package: HandlerPackage | None
    is_published: bool


def diff(old: Subject, new: Subject, /, *, options: Options = Options()) -> None:
    """Compare two protocols: their documents, their operations, and whether agents of one can talk to agents of the other.

    The operations are those of their publishers' handlers. Their proofs are checked. Each verdict has its reasons, with a value
    that one side writes and the other refuses. Handlers make the calls of their vectors with each other: those without code, and
    with code if both are folders. A protocol that was taken back is compared too.
    """

    async def work() -> tuple[list[_Subject], Compatibility | None]:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            subjects = [await _read(fetcher, name, options) for name in (old, new)]
        return subjects, await _verdict(*subjects)

    (before, after), verdict = run(work())
    lines = list(unified_diff(before.lines[:MAX_LINES], after.lines[:MAX_LINES], old, new, lineterm=""))
    cut = max(len(before.lines), len(after.lines)) > MAX_LINES
    views = [operation_views(subject.package.manifest) for subject in (before, after) if subject.package]
    changes = operation_changes(*views) if len(views) == 2 else None
    notes = [f"[yellow]![/] Only the first {MAX_LINES} lines were compared."] if cut else []
    for change in changes or ():
        notes.append(f"[bold]{escape(escaped(change.name))}[/] {change.change}")
        notes += [f"  {escape(escaped(fact))}" for fact in change.facts]
    notes += verdict_lines(verdict) if verdict else []
    notes += ["[yellow]![/] One has no handler of its publisher: no operations are compared."] if changes is None else []
    value = {"old": old, "new": new, "lines": lines, "is_cut": cut}
    value["operations"] = None if changes is None else [asdict(change) for change in changes]
    value["compatibility"] = to_builtins(verdict)
    coloured = [f"[{_COLOURS.get(line[:1], 'default')}]{escape(line)}[/]" for line in lines]
    options.output.result(value, *(coloured or ["The documents are equal."]), *notes)


async def _verdict(before: _Subject, after: _Subject) -> Compatibility | None:
    if before.package is None or after.package is None:
        return None
    # Here, because these need the extra of agents.
    from treaty_sandbox import SandboxPool
    from treaty_sandbox.compatibility.versions import compatibility

    # The code of a published handler runs only after all ten checks.
    is_own = not (before.is_published or after.is_published)
    async with SandboxPool() as pool:
        return await compatibility(before.package, after.package, (before.name, after.name), pool, runs_code=is_own)


async def _read(fetcher: Fetcher, name: str, options: Options) -> _Subject:
    if "://" in name:
        uri = parse_protocol_uri(name)
        answer, document = await read_published(fetcher, uri, options)
        package = await read_package(fetcher, uri, answer)
        version = uri.version
    else:
        project = load_project(Path(name))
        document, package = project.document, build(project) if project.handler else None
        version = project.version
    # Not `splitlines`, which also splits at characters that no editor takes for the end of a line.
    return _Subject(version, document.decode("utf-8", "replace").split("\n"), package, is_published="://" in name)
