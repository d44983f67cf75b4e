"""Define the commands that look at the running registry: `status`, `doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
from rich.markup import escape

from treaty_consensus.errors import NotFound

from ..operator.control import NOT_RUNNING, ask
from ..status import Diagnosis, HeadStatus, RegistryStatus, failing, problems_of
from .console import folding_table
from .options import Options, run

_UNITS = (("days", 86_400), ("hours", 3600), ("minutes", 60))


def status(*, options: Options = Options()) -> None:
    """Show how the running registry is: leader, heads, witnesses, backup, certificates, disks, clock, queues, last acts."""
    report = _status(options)
    table = folding_table("", "", show_header=False)
    for name, value in _rows(report):
        table.add_row(f"[bold]{name}[/]", escape(value))
    acts = folding_table("last acts", "by", "when")
    for act in report.acts:
        acts.add_row(escape(f"{act.command} {act.detail}"), escape(f"{act.user} (uid {act.uid})"), _ago(report, act.at))
    options.show(msgspec.to_builtins(report), table, *([acts] if report.acts else []))


def doctor(*, options: Options = Options()) -> int:
    """Name each problem of the running registry, and its fix. The exit status is 1 when there is one; an advice is none."""
    try:
        problems = problems_of(_status(options))
    except NotFound as error:
        if error.code != NOT_RUNNING:
            raise
        fix = "systemctl start treaty-registry, and journalctl -u treaty-registry if it does not stay."
        problems = [Diagnosis("problem", error.message, fix)]
    marks = {"problem": "[red]✗[/]", "advice": "[yellow]![/]"}
    lines = [f"{marks[each.kind]} {escape(each.what)}\n  [bold]→[/] {escape(each.fix)}" for each in problems]
    options.show({"problems": msgspec.to_builtins(problems)}, *(lines or ["[green]✓[/] No problem."]))
    return 1 if failing(problems) else 0


def _status(options: Options) -> RegistryStatus:
    return msgspec.convert(run(ask(options.settings.control, "status")), RegistryStatus)


def _rows(found: RegistryStatus) -> Iterator[tuple[str, str]]:
    yield "registry", f"{found.origin} at {found.base_url}, Treaty {found.version}"
    yield "writes", "taken" if not found.ready else f"refused ({found.ready}): {found.reason}"
    yield "leader", "this process" if found.leads else found.leader or "none"
    yield "signed head", _head(found, found.signed)
    yield "published head", _head(found, found.published)
    yield "witnessed head", _head(found, found.witnessed) if found.witnessed else "none"
    for witness in found.witnesses:
        state = f"fails: {witness.failure}" if witness.failure else f"{found.signed.size - witness.size} leaves behind"
        yield "witness", f"{witness.name}: {state}"
    yield "backup", _ago(found, found.backup) if found.backup else "none that is known"
    for name, end in found.certificates.items():
        yield "certificate", f"{name}: until {datetime.fromtimestamp(end, UTC):%Y-%m-%d}"
    for disk in found.disks:
        yield "disk", f"{disk.purpose}: {disk.free / 1024**3:.1f} GiB free"
    apart = "" if found.database_clock is None else f", {abs(found.database_clock):.1f} seconds from PostgreSQL's"
    yield "clock", (f"wrong: {found.clock}" if found.clock else "right") + apart
    yield "queues", ", ".join(f"{name} {waiting}" for name, waiting in found.queues.items())
    yield "senders", f"{found.blocked} blocked, {found.quotas} with a quota of their own"
    yield "contact", found.contact or "none"


def _head(found: RegistryStatus, head: HeadStatus) -> str:
    return f"{head.size} leaves, {_ago(found, head.time)}"


def _ago(found: RegistryStatus, time: int) -> str:
    seconds = max(0, found.now - time)
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} seconds ago"
