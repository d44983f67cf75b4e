"""`treaty audit`: believe nobody, recompute everything."""

from __future__ import annotations

import datetime as dt

from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Table

from ..registries.audit import AuditReport
from ..registries.audit import audit as audit_log
from ..registries.trust import parse_registry_name
from .context import Options, run
from .output import short


def audit(registry: str | None = None, /, *, options: Options = Options()) -> None:
    """Mirror a registry's log, check every signature and rule, and recompute every decision to the byte.

    Needs nothing but the log's URL and key. A later audit continues the mirror below HOME/audit.

    Parameters
    ----------
    registry
        URL#KEY. Default: the registry you trust.
    """
    name = parse_registry_name(registry) if registry else options.trusted().name
    folder = options.home / "audit" / name.origin.replace(":", "_")
    with Progress(console=options.output.errors, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        report = run(audit_log(name, folder, options.network, progress=show))
    options.output.result(_value(report), *_lines(report))


def _value(report: AuditReport) -> dict[str, object]:
    head = report.checkpoint.checkpoint
    return {
        "origin": report.origin,
        "size": head.size,
        "root": head.root.hex(),
        "time": report.checkpoint.time,
        "leaves": dict(report.leaves),
        "witnesses": report.witnesses,
        "decisions": [
            {
                "index": d.index,
                "statement": d.statement,
                "topic": d.body.topic,
                "epoch": d.body.epoch,
                "consensus": d.body.consensus,
            }
            for d in report.decisions
        ],
    }


def _lines(report: AuditReport) -> list[object]:
    head, time = report.checkpoint.checkpoint, report.checkpoint.time
    when = (
        dt.datetime.fromtimestamp(time, dt.UTC).isoformat(sep=" ", timespec="seconds") if time is not None else "never cosigned"
    )
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.leaves.items()))
    table = Table("leaf", "topic", "epoch", "consensus", box=None)
    for decision in report.decisions:
        body = decision.body
        table.add_row(str(decision.index), escape(body.topic), str(body.epoch), short(body.consensus or "–"))
    return [
        f"[green]✓[/] [bold]{escape(report.origin)}[/] holds: {head.size} leaves, root {short(head.root.hex())} ({when})",
        f"  {kinds}",
        f"  {len(report.decisions)} decisions recomputed to the same bytes; {report.witnesses} checkpoints that others saw agree",
        *([table] if report.decisions else []),
    ]
