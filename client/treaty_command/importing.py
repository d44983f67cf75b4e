"""`treaty import`: a protocol without code from a description that exists."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.markup import escape

from treaty_client.authoring.new_project import NewProtocol

from .context import Options, run
from .values import Topic

if TYPE_CHECKING:
    from treaty_agent.importing.imported_project import ImportResult

MAX_SHOWN = 40
"""Lines about parts that the protocol lacks; `--json` has all of them."""


def import_(
    kind: Literal["openapi", "openrpc", "mcp", "a2a"],
    source: Annotated[str, Parameter(allow_leading_hyphen=True)],
    folder: Path,
    /,
    *,
    topic: Topic,
    name: str | None = None,
    only: tuple[str, ...] = (),
    options: Options = Options(),
) -> None:
    """Make a protocol without code from a description, in a folder that passes `treaty test`. Parts of the description that a
    protocol cannot have are listed with their reasons.

    Parameters
    ----------
    kind
        openapi (OpenAPI 3, JSON or YAML), openrpc, mcp (a server's answer to tools/list) or a2a (an agent card whose skills
        have schemas).
    source
        A file, - for standard input, or an https URL; for mcp, the URL of the server.
    folder
        The folder to make.
    topic
        The topic of the protocol, such as commerce/product-info.
    name
        The protocol's name: lower-case words joined by dashes. Default: the folder's name.
    only
        An operation to take, by its name in the description or its place, such as 'GET /pets'. May be repeated. Default: all,
        at most 64.
    """
    new = NewProtocol(name or folder.resolve().name, topic)
    result = run(_imported(kind, source, folder, new, only, options))
    operations = [f"  [bold]{escape(name)}[/]  {escape(operation.place)}" for name, operation in result.operations.items()]
    value = {
        "folder": str(folder),
        "files": [str(path) for path in result.paths],
        "licence": result.licence,
        "operations": [{"name": name, "place": operation.place} for name, operation in result.operations.items()],
        "omissions": [dataclasses.asdict(omission) for omission in result.omissions],
    }
    head = f"[green]✓[/] [bold]{escape(new.name)}[/]: {len(operations)} operations"
    options.output.result(value, head, *operations, *_notes(result), f"Check with: treaty test {escape(str(folder))}")


def _notes(result: ImportResult) -> Iterator[str]:
    # Whole operations first: they are the more important ones.
    omissions = sorted(result.omissions, key=lambda omission: not omission.is_whole)
    yield from (f"[yellow]![/] {escape(str(omission))}" for omission in omissions[:MAX_SHOWN])
    if len(omissions) > MAX_SHOWN:
        yield f"[yellow]![/] and {len(omissions) - MAX_SHOWN} more: --json"
    if result.licence.startswith("LicenseRef-"):
        yield f"[yellow]![/] Write the licence of the description in protocol.toml, instead of {result.licence}."


async def _imported(
    kind: str, source: str, folder: Path, new: NewProtocol, only: tuple[str, ...], options: Options
) -> ImportResult:
    # Here, as most commands need no agent.
    from treaty_agent.importing.imported_project import ImportedProject
    from treaty_agent.importing.source import read_source

    description, data = await read_source(kind, source, options.network, only)
    return await ImportedProject(description, data, new).write(folder)
