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


def _rows(status: RegistryStatus) -> Iterator[tuple[str, str]]:
    yield "registry", f"{status.origin} at {status.base_url}, Treaty {status.version}"
    yield "writes", "taken" if not status.ready else f"refused ({status.ready}): {status.reason}"
    yield "leader", "this process" if status.leads else status.leader or "none"
    yield "signed head", _head(status, status.signed)
    yield "published head", _head(status, status.published)
    yield "witnessed head", _head(status, status.witnessed) if status.witnessed else "none"
    for witness in status.witnesses:
        state = f"fails: {witness.failure}" if witness.failure else f"{status.signed.size - witness.size} leaves behind"
        yield "witness", f"{witness.name}: {state}"
    yield "backup", _ago(status, status.backup) if status.backup else "none that is known"
    for name, end in status.certificates.items():
        yield "certificate", f"{name}: until {datetime.fromtimestamp(end, UTC):%Y-%m-%d}"
    for disk in status.disks:
        yield "disk", f"{disk.purpose}: {disk.free / 1024**3:.1f} GiB free"
    apart = "" if status.database_clock is None else f", {abs(status.database_clock):.1f} seconds from PostgreSQL's"
    yield "clock", (f"wrong: {status.clock}" if status.clock else "right") + apart
    yield "queues", ", ".join(f"{name} {waiting}" for name, waiting in status.queues.items())
    yield "senders", f"{status.blocked} blocked, {status.quotas} with a quota of their own"
    yield "contact", status.contact or "none"


def _head(status: RegistryStatus, head: HeadStatus) -> str:
    return f"{head.size} leaves, {_ago(status, head.time)}"


def _ago(status: RegistryStatus, time: int) -> str:
    seconds = max(0, status.now - time)
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} seconds ago"
