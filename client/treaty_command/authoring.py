"""`treaty new`, `document`, `test`, `record`, `stubs`: the tools of a protocol's author."""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from treaty_client.authoring.building import build
from treaty_client.authoring.check import ProtocolCheck, check_package, check_project
from treaty_client.authoring.document import write_document
from treaty_client.authoring.file_changes import changed, fingerprint
from treaty_client.authoring.new_project import KINDS, Form, Kind, NewProtocol, forms_of, write_project
from treaty_client.authoring.recorded import add_recordings
from treaty_client.authoring.stubs import write_stubs
from treaty_client.authoring.template_text import PLACEHOLDER
from treaty_client.protocols.project import DOCUMENT, load_project
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Malformed, Unavailable
from treaty_consensus.printable import printable
from treaty_io import durable
from treaty_io.codes import SandboxCode

from .context import Options, run
from .values import Publishers, Uri

if TYPE_CHECKING:
    from treaty_client.authoring.coverage import Coverage
    from treaty_consensus.handler import HandlerPackage
    from treaty_sandbox import Mismatch

MAX_SECONDS = 300
"""Seconds for the vectors of a published protocol, whose publisher chose their number and length."""
_MAX_SHOWN = 4_000
# Of the effects of a vector that are compared. A foreign vector has thousands of lines, and the comparison takes quadratic time.
_MAX_LINES = 1_000


def new(
    folder: Path,
    /,
    *,
    name: str | None = None,
    topic: str | None = None,
    summary: str | None = None,
    kind: str | None = None,
    form: str | None = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    options: Options = Options(),
) -> None:
    """Write a folder with a new protocol. With a summary it passes `treaty test`. On a terminal it asks for the choices that are
    missing.

    Parameters
    ----------
    folder
        The folder to make.
    name
        The protocol's name: lower-case words joined by dashes. Default: the folder's name.
    topic
        Its topic, such as commerce/product-info.
    summary
        One sentence that says what the protocol is for. Without it, you write it before the protocol can be published.
    kind
        The exchange: request (one answer), stream (many items), event (no answer) or shared (one session for many members).
        Default: request.
    form
        declarative (message forms in the manifest, no code) or python (a handler that runs in the sandbox). Default: declarative;
        python for a shared role, which needs code.
    from_
        A class, such as greeter:Greeter in greeter.py of this folder: each public method becomes an operation, by its type hints
        and its docstring. The module runs in this process. Its protocol is declarative, and has no --kind.
    """
    usual = folder.resolve().name
    asking = sys.stdin.isatty() and not options.json
    name = name or _ask("Name", asking, default=usual)
    topic = topic or _ask("Topic, such as commerce/product-info", asking, default=None)
    if from_ is not None:
        if summary is not None:
            raise Malformed(SystemCode.USAGE, "The summary of a protocol from a class is the first line of its docstring.")
        protocol = _of_class(name, topic, kind, form)
        paths = run(_write_class(folder, from_, protocol))
    else:
        summary = summary or _ask("Summary, one sentence", asking, default=PLACEHOLDER)
        kind = kind or _ask("Kind of exchange", asking, KINDS, default=KINDS[0])
        forms = forms_of(kind)
        form = form or _ask("Declarative, or a handler in Python", asking and len(forms) > 1, forms, default=forms[0])
        protocol = NewProtocol(name, topic, cast(Kind, kind), cast(Form, form), summary)
        paths = write_project(folder, protocol)
    lines = [f"  {escape(str(path))}" for path in paths]
    value = {"folder": str(folder), "files": [str(path) for path in paths], **dataclasses.asdict(protocol)}
    after = f"Change document.md first, then the others. Check with: treaty test {escape(str(folder))} --watch"
    options.output.result(value, f"[green]✓[/] [bold]{escape(protocol.name)}[/]", *lines, after)


def _of_class(name: str, topic: str, kind: str | None, form: str | None) -> NewProtocol:
    if kind is not None or form not in (None, "declarative"):
        fix = "Leave --kind and --form out. An async generator becomes a stream, and another method a request."
        raise Malformed(SystemCode.USAGE, "The kind and the form of a protocol from a class follow from its methods.", fix=fix)
    return NewProtocol(name, topic)


async def _write_class(folder: Path, place: str, protocol: NewProtocol) -> list[Path]:
    from treaty_agent.authoring.class_project import load_class, write_class_project  # here, as most commands need no agent

    # The console script begins its search for modules elsewhere.
    sys.path.insert(0, str(Path.cwd()))
    return await write_class_project(folder, load_class(place), protocol)


def _ask(question: str, asking: bool, choices: Sequence[str] = (), *, default: str | None) -> str:
    """Return the answer of a person, or the default."""
    if asking:
        from rich.prompt import Prompt  # imported here: only `new` asks

        options = list(choices) or None
        try:
            return Prompt.ask(question, choices=options, default=default) if default else Prompt.ask(question, choices=options)
        except EOFError as error:  # Ctrl-D
            fault = f"The input ended at the question {question!r}. Nothing was written."
            raise Malformed(SystemCode.USAGE, fault, fix="Answer it with an option: treaty new --help") from error
    return default or ""


def document(folder: Path, /, *, options: Options = Options()) -> None:
    """Write the part of document.md that follows from the manifest, and its front matter. Your own text stays as it is.

    The part stands between two marks: roles, operations, forms, schemas, errors, and examples from the vectors. Without the marks
    it is added at the end.

    Parameters
    ----------
    folder
        The folder with protocol.toml.
    """
    is_changed = write_document(folder)
    path = folder / DOCUMENT
    line = f"[green]✓[/] {escape(str(path))}{'' if is_changed else ' is as it should be'}"
    options.output.result({"file": str(path), "changed": is_changed}, line)


def test(
    subject: Uri,
    /,
    *,
    watch: Annotated[bool, Parameter()] = False,
    allow_uncovered: Annotated[bool, Parameter()] = False,
    publisher: Publishers = (),
    options: Options = Options(),
) -> None:
    """Check a protocol as publishing would, and report all problems at once: its files, its package, its vectors, its coverage.

    Parameters
    ----------
    subject
        A folder with protocol.toml, or the URI of a published protocol, whose vectors are in its package.
    watch
        Check the folder again each time that a file changes, until Ctrl-C.
    allow_uncovered
        An operation that no vector reaches is no problem.
    """
    folder = Path(subject)
    if "://" in subject:
        result = run(_published(subject, publisher, options, allow_uncovered=allow_uncovered))
        _report(result, options, verdict="The published handler passes")
    elif watch:
        run(_watch(folder, options, allow_uncovered=allow_uncovered))
    else:
        result = run(check_project(folder, allow_uncovered=allow_uncovered))
        _report(result, options)
    if not result.passed:
        sys.exit(1)


async def _watch(folder: Path, options: Options, *, allow_uncovered: bool) -> None:
    while True:
        # Before the check, so that a change during it begins another one.
        before = fingerprint(folder)
        _report(await check_project(folder, allow_uncovered=allow_uncovered), options)
        options.output.say(f"[dim]Watching {escape(str(folder))}. Ctrl-C ends.[/]")
        await changed(folder, before)


async def _published(uri: str, publishers: tuple[str, ...], options: Options, *, allow_uncovered: bool) -> ProtocolCheck:
    package = await _fetched(uri, publishers, options)
    try:
        async with asyncio.timeout(MAX_SECONDS):
            return await check_package(package, allow_uncovered=allow_uncovered)
    except TimeoutError as error:
        fault = f"The vectors of {uri} take more than {MAX_SECONDS} seconds."
        raise Unavailable(SandboxCode.LIMIT, fault, fix="Fetch it, and replay them one by one.") from error


async def _fetched(uri: str, publishers: tuple[str, ...], options: Options) -> HandlerPackage:
    from treaty_client.protocols.fetch import Fetcher  # imported here: Sigstore is slow to import

    async with Fetcher(options.home, options.policy(*publishers), options.network) as fetcher:
        return (await fetcher.fetch(uri)).package


def record(folder: Path, /, *recordings: Path, options: Options = Options()) -> None:
    """Add recorded sessions to a project as vectors, after its handler has repeated them in the sandbox.

    An agent records its sessions into the folder that `recordings` of agent.toml names, a file for each session and role.

    Parameters
    ----------
    folder
        The folder with protocol.toml.
    recordings
        The files to add.
    """
    added = run(add_recordings(folder, recordings))
    lines = [f"[green]✓[/] {escape(str(path))}" for path in added.files]
    value = {"files": [str(path) for path in added.files], "coverage": _coverage_value(added.after)}
    options.output.result(
        value,
        *lines,
        f"The vectors reach {added.after.summary}; before, {added.before.summary}.",
        "[yellow]![/] They have the data of a real session, and publishing makes them public. Read them first.",
    )


def stubs(subject: Uri, /, *, output: Path | None = None, publisher: Publishers = (), options: Options = Options()) -> None:
    """Write typed Python for a protocol, so that an editor completes its operations and their arguments.

    Parameters
    ----------
    subject
        The URI of a protocol, or a folder with protocol.toml.
    output
        The module to write. Default: print it.
    """
    folder = Path(subject)
    package = run(_fetched(subject, publisher, options)) if "://" in subject else build(load_project(folder))
    text = write_stubs(package)
    if output is not None:
        durable.write(output, text.encode())
    lines = [escape(text)] if output is None else [f"[green]✓[/] {escape(str(output))}"]
    options.output.result({"module": text, "file": str(output) if output else None}, *lines)


def _report(check: ProtocolCheck, options: Options, *, verdict: str = "It can be published") -> None:
    options.output.result(_value(check), *_lines(check, verdict))


def _value(check: ProtocolCheck) -> dict[str, Any]:
    problems = [
        {"file": item.file, "field": item.field, "code": item.error.code, "message": item.error.message, "fix": item.error.fix}
        for item in check.problems
    ]
    return {
        "passed": check.passed,
        "problems": problems,
        "vectors": [{"file": vector.name, "title": vector.title, "roles": vector.roles} for vector in check.vectors],
        "mismatches": [dataclasses.asdict(item) for item in check.mismatches],
        "coverage": None if check.coverage is None else _coverage_value(check.coverage),
        "hostile": None if check.hostile is None else {"tried": check.hostile.tried, "total": check.hostile.total},
    }


def _coverage_value(coverage: Coverage) -> dict[str, Any]:
    reached = [{**dataclasses.asdict(cell), "times": times} for cell, times in coverage.reached.items()]
    return {"cells": coverage.cells, "reached": reached, "missed": [dataclasses.asdict(cell) for cell in coverage.missed]}


def _lines(check: ProtocolCheck, verdict: str) -> Iterator[Any]:
    for item in check.problems:
        place = escape(printable(" ".join(filter(None, (item.file, item.field))), 200))
        fault = escape(item.error.message.removeprefix(f"{item.file}: "))
        yield f"[bold red]✗[/] [bold]{place}[/]  {fault}  [dim]{escape(item.error.code)}[/]"
        if item.error.fix:
            yield f"  [bold]→[/] {escape(item.error.fix)}"
    for mismatch in check.mismatches:
        yield f"[bold red]✗[/] [bold]{escape(printable(mismatch.place, 200))}[/]"
        yield from _difference(mismatch)
    if check.coverage is not None:
        yield _table(check.coverage)
    faults = len(check.problems) + len(check.mismatches)
    if not check.passed:
        yield f"[bold red]✗[/] {faults} problem{'s' if faults > 1 else ''}."
    elif check.coverage is None or check.hostile is None:
        yield f"[green]✓[/] {verdict}: a document without a handler."
    else:
        reached = f"{len(check.vectors)} vectors reach {check.coverage.summary}"
        yield f"[green]✓[/] {verdict}: {reached}, and {check.hostile.summary} do no harm."


def _difference(mismatch: Mismatch) -> Iterator[str]:
    """The expected effects beside the actual ones, line by line."""
    if mismatch.error:
        yield f"  [red]{escape(printable(mismatch.error, _MAX_SHOWN))}[/]"
        return
    expected, actual = _pretty(mismatch.expected), _pretty(mismatch.actual)
    yield "  [red]- expected by the vector[/]  [green]+ returned by the handler[/]"
    size = 0
    # Whole lines, as `ndiff` would compare the characters of each two lines. The first two lines name files.
    for line in islice(difflib.unified_diff(expected, actual, lineterm=""), 2, None):
        line_text = printable(f"{line[0]} {line[1:]}", 500)
        size += len(line_text)
        if size > _MAX_SHOWN:
            return
        colour = {"-": "red", "+": "green"}.get(line[0], "dim")
        yield f"  [{colour}]{escape(line_text)}[/]"


def _pretty(effects: Sequence[Mapping[str, Any]]) -> list[str]:
    return json.dumps(effects, ensure_ascii=False, indent=2, sort_keys=True).split("\n")[:_MAX_LINES]


def _table(coverage: Coverage) -> Table:
    table = Table("role", "operation", "outcomes that vectors reach", "missed", box=None)
    rows: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for cell, times in coverage.reached.items():
        rows.setdefault((cell.role, cell.operation), ([], []))[0].append(
            f"{cell.outcome} ×{times}" if times > 1 else cell.outcome
        )
    for cell in coverage.missed:
        rows.setdefault((cell.role, cell.operation), ([], []))[1].append(cell.outcome)
    for (role, operation), (reached, missed) in sorted(rows.items()):
        table.add_row(role, operation, f"[green]{', '.join(reached)}[/]", f"[yellow]{', '.join(missed)}[/]")
    return table
