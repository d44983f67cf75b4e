"""`treaty audit`: believe nobody, recompute everything."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from treaty_consensus.canonical import loads
from treaty_consensus.errors import NotFound
from treaty_consensus.kinds import MAX_TRANSCRIPT, Decision

from ..registries.anchors import read_anchors
from ..registries.audit import AuditedDecision, AuditReport, Wishes
from ..registries.audit import audit as audit_log
from ..registries.trust import TrustedRegistries, parse_registry_name
from ..verification.decision import read_transcript
from .context import Options, run
from .explanation import explain
from .output import short


def audit(
    registry: str | None = None, /, *, anchors: Path | None = None, topic: str | None = None, options: Options = Options()
) -> None:
    """Mirror a registry's log, check every signature and rule, and recompute every decision to the byte.

    Needs nothing but the log's URL and key. A later audit continues the mirror below HOME/audit.

    Parameters
    ----------
    registry
        URL#KEY. Default: the registry you trust.
    anchors
        What if you trusted these instead? A file of registrable domains, one a line. Decisions are then not compared: you see
        which of them would have been others.
    topic
        Show what the newest decision in this topic rests on, as it was recomputed.
    """
    name = parse_registry_name(registry) if registry else options.trusted().name
    folder = options.home / "audit" / name.origin.replace(":", "_")
    wishes = Wishes(read_anchors(anchors) if anchors else None, topic)
    evidence = TrustedRegistries(options.home).evidence
    with _Bars(options) as bars:
        report = run(audit_log(name, folder, evidence, options.network, progress=bars.show, wishes=wishes))
    if topic is not None and report.newest is None:
        raise NotFound("topic.undecided", f"Nothing was decided in {topic}.")
    options.output.result(_value(report, wishes), *_lines(report, wishes))


class _Bars:
    """A bar for each stage, with its rate and the time that is left."""

    def __init__(self, options: Options) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=options.output.errors, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._progress.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """So much is done."""
        if what not in self._tasks:  # what was there before says nothing of how fast it goes
            self._tasks[what] = self._progress.add_task(what, total=total, completed=done)
        self._progress.update(self._tasks[what], completed=done, total=total)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Leaves a second."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "")


def _value(report: AuditReport, wishes: Wishes) -> dict[str, object]:
    head = report.checkpoint.checkpoint
    value: dict[str, Any] = {
        "origin": report.origin,
        "size": head.size,
        "root": head.root.hex(),
        "time": report.checkpoint.time,
        "leaves": dict(report.leaves),
        "witnesses": report.witnesses,
        "decisions": [_decision(decision, wishes) for decision in report.decisions],
    }
    if wishes.anchors is not None:
        value |= {"anchors": list(wishes.anchors), "known": list(report.known), "parts": _first_parting(report)}
    if report.newest is not None:
        value["transcript"] = loads(report.newest.transcript, limit=MAX_TRANSCRIPT)
    return value


def _decision(decision: AuditedDecision, wishes: Wishes) -> dict[str, object]:
    value: dict[str, object] = {
        "index": decision.index,
        "statement": decision.statement,
        "topic": decision.body.topic,
        "epoch": decision.body.epoch,
        "consensus": decision.body.consensus,
        "states": dict(decision.body.states),
    }
    if wishes.anchors is not None:
        value["instead"] = {"consensus": decision.recomputed.consensus, "states": dict(decision.recomputed.states)}
    return value


def _lines(report: AuditReport, wishes: Wishes) -> Iterator[RenderableType]:
    head, time = report.checkpoint.checkpoint, report.checkpoint.time
    when = (
        dt.datetime.fromtimestamp(time, dt.UTC).isoformat(sep=" ", timespec="seconds") if time is not None else "never cosigned"
    )
    yield f"[green]✓[/] [bold]{escape(report.origin)}[/] holds: {head.size} leaves, root {short(head.root.hex())} ({when})"
    yield "  " + ", ".join(f"{count} {kind}" for kind, count in sorted(report.leaves.items()))
    compared = "recomputed to the same bytes" if wishes.anchors is None else "recomputed with your anchors, and not compared"
    yield f"  {len(report.decisions)} decisions {compared}; {report.witnesses} reports and ballots carry checkpoints that agree"
    if wishes.anchors is not None:
        yield from _instead(report, wishes.anchors)
    elif report.decisions:
        table = Table("leaf", "topic", "epoch", "consensus", box=None)
        for decision in report.decisions:
            body = decision.body
            table.add_row(str(decision.index), escape(body.topic), str(body.epoch), short(body.consensus or "–"))
        yield table
    if report.newest is not None:
        yield from explain(read_transcript(report.newest.transcript), {})


def _instead(report: AuditReport, anchors: Sequence[str]) -> Iterator[RenderableType]:
    """What would have been decided otherwise."""
    yield f"  {len(report.known)} of {len(anchors)} anchors have an identity in this log"
    if not report.is_open:
        yield "  Its electorate is not open: nobody's weight depends on anchors."
        return
    parting = _first_parting(report)
    if parting is None:
        yield "  Every decision would have been the same."
        return
    yield f"  [bold]Epoch {parting} is the first that would have been decided otherwise[/]"
    table = Table("epoch", "topic", "was decided", "would have been", box=None)
    for decision in report.decisions:
        if decision.parts:
            one, other = _differing(decision.body, decision.recomputed)
            table.add_row(str(decision.body.epoch), escape(decision.body.topic), one, other)
    yield table


def _first_parting(report: AuditReport) -> int | None:
    return min((decision.body.epoch for decision in report.decisions if decision.parts), default=None)


def _differing(one: Decision, other: Decision) -> tuple[str, str]:
    """The states in which two decisions differ; a document that one does not name is published to it, or unknown."""
    states, others = dict(one.states), dict(other.states)
    documents = [d for d in sorted(states.keys() | others.keys()) if states.get(d) != others.get(d)]
    lines = ([f"{short(d)} {known.get(d, '–')}" for d in documents] for known in (states, others))
    left, right = ("\n".join(line) or "the same states" for line in lines)
    return left, right
