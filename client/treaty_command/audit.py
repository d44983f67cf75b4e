"""`treaty audit`: check a whole log and recompute its decisions, without trust in the registry."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from treaty_client.audit.auditor import AuditOptions, AuditReport, read_anchors
from treaty_client.audit.auditor import audit as audit_log
from treaty_client.audit.constitution import Amendment, ConstitutionHistory
from treaty_client.audit.decision import read_transcript
from treaty_client.audit.replay import AuditedDecision
from treaty_client.protocols.stamping import StampedFolder, read_stamped
from treaty_client.registries.trust import TrustedRegistries, parse_registry_name
from treaty_consensus.amendment import constitution_of
from treaty_consensus.canonical import loads
from treaty_consensus.kinds import MAX_TRANSCRIPT, Decision
from treaty_consensus.printable import escaped, short

from .context import Options, run
from .explanation import explain
from .failures import NOT_YET

_MAX_EPOCHS = 52  # a year of weeks


def audit(
    registry: str | None = None,
    /,
    *,
    anchors: Path | None = None,
    topic: str | None = None,
    dask: str | None = None,
    from_start: bool = False,
    stamped: tuple[Path, ...] = (),
    options: Options = Options(),
) -> None:
    """Mirror a registry's log, check every signature and rule, and recompute every decision to the byte.

    Needs only the log's URL and key. A later audit continues the mirror below HOME/audit, and the replay where it ended.

    Parameters
    ----------
    registry
        URL#KEY. Default: the registry you trust.
    anchors
        A file of registrable domains, one a line, to trust instead of the registry's anchors. The audit then shows the
        decisions that would differ, instead of comparing them.
    topic
        Explain the newest decision in this topic, as it was recomputed. The exit status is 6 while there is none.
    dask
        The address of a Dask scheduler (tcp://HOST:8786), whose workers verify signatures and count topics. They must be yours.
    from_start
        Replay the log from its first leaf, not from where your last audit ended. Audits with --anchors, --topic or --stamped
        always do.
    stamped
        A stamped statement, or a witness's answer with several, that the log must have. May be repeated. Those of your own votes
        are looked for always.
    """
    name = parse_registry_name(registry) if registry else options.trusted().name
    # A port's colon is replaced in file names, because some file systems do not allow it.
    folder = options.home / "audit" / name.origin.replace(":", "_")
    own = StampedFolder(options.home / "stamped", name.origin)
    stored = own.read()
    stamps = [*stored.values(), *(each for path in stamped for each in read_stamped(path))]
    other_anchors = read_anchors(anchors) if anchors else None
    requested = AuditOptions(other_anchors, topic, dask, from_start or bool(stamped), stamps)
    registries = TrustedRegistries(options.home)
    trusted = registries.all().get(name.origin)
    keys = trusted.keys if trusted and trusted.name.key == name.key else None
    with _Bars(options) as bars:
        evidence, network = registries.evidence, options.network
        # Beside the mirrors, which anyone may hand on with their snapshots: without this key these count nowhere else.
        own_key = options.home / "audit.key"
        progress = bars.show
        report = run(audit_log(name, folder, evidence, network, progress=progress, options=requested, keys=keys, own_key=own_key))
    # A log of another key with this name may have them too.
    if keys is not None:
        own.drop(path for path, each in stored.items() if each in report.logged)
    options.output.result(_value(report, requested), *_lines(report, requested))
    if topic is not None and report.newest is None:
        # The log holds, so this is no failed audit.
        options.output.say(f"[yellow]•[/] Nothing is decided in {escape(escaped(topic))} yet.")
        sys.exit(NOT_YET)


class _Bars:
    """Progress bars, one for each stage, with the rate and the remaining time."""

    def __init__(self, options: Options) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
        console = options.output.errors
        # Off a terminal Rich would still write an empty line.
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._progress.stop()

    def show(self, stage: str, done: int, total: int) -> None:
        """Show the progress of a stage."""
        if stage not in self._tasks:  # work of an earlier audit does not count for the rate
            self._tasks[stage] = self._progress.add_task(stage, total=total, completed=done)
        self._progress.update(self._tasks[stage], completed=done, total=total)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Return the rate of a task, each second."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "")


def _value(report: AuditReport, requested: AuditOptions) -> dict[str, object]:
    head = report.checkpoint.checkpoint
    value: dict[str, Any] = {
        "origin": report.origin,
        "size": head.size,
        "root": head.root.hex(),
        "time": report.checkpoint.time,
        "resumed": report.resumed,
        "leaves": dict(report.leaves),
        "witnesses": report.witnesses,
        "amendments": msgspec.to_builtins(report.constitution.amendments),
        "epochs": msgspec.to_builtins(report.constitution.epochs),
        "decisions": [_decision(decision, requested) for decision in report.decisions],
        "stamped": {"sought": len(requested.stamped), "logged": len(report.logged)},
    }
    if report.constitution.in_force is not None:
        value["constitution"] = constitution_of(report.constitution.in_force)
    if requested.anchors is not None:
        value |= {"anchors": list(requested.anchors), "known": list(report.known), "parts": _first_parting(report)}
    if report.newest is not None:
        value["transcript"] = loads(report.newest.transcript, limit=MAX_TRANSCRIPT)
    return value


def _decision(decision: AuditedDecision, requested: AuditOptions) -> dict[str, object]:
    value: dict[str, object] = {
        "index": decision.index,
        "statement": decision.statement,
        "topic": decision.body.topic,
        "epoch": decision.body.epoch,
        "consensus": decision.body.consensus,
        "states": dict(decision.body.states),
    }
    if requested.anchors is not None:
        value["instead"] = {"consensus": decision.recomputed.consensus, "states": dict(decision.recomputed.states)}
    return value


def _lines(report: AuditReport, requested: AuditOptions) -> Iterator[RenderableType]:
    head, time = report.checkpoint.checkpoint, report.checkpoint.time
    when = _date(time) if time is not None else "never cosigned"
    yield f"[green]✓[/] [bold]{escape(report.origin)}[/] holds: {head.size} leaves, root {short(head.root.hex())} ({when})"
    if report.resumed:
        yield f"  {report.resumed} of them were replayed by your earlier audits"
    yield "  " + ", ".join(f"{count} {kind}" for kind, count in sorted(report.leaves.items()))
    compared = "recomputed to the same bytes" if requested.anchors is None else "recomputed with your anchors, and not compared"
    yield f"  {len(report.decisions)} decisions {compared}; {report.witnesses} reports and ballots carry checkpoints that agree"
    if requested.stamped:
        yield f"  no stamped statement was left out; {len(report.logged)} of {len(requested.stamped)} are in the log"
    yield from _constitution(report.constitution)
    if requested.anchors is not None:
        yield from _instead(report, requested.anchors)
    elif report.decisions:
        table = Table("leaf", "topic", "epoch", "consensus", box=None)
        for decision in report.decisions:
            body = decision.body
            table.add_row(str(decision.index), escape(body.topic), str(body.epoch), short(body.consensus or "–"))
        yield table
    if report.newest is not None:
        yield from explain(read_transcript(report.newest.transcript), {})


def _constitution(history: ConstitutionHistory) -> Iterator[RenderableType]:
    """Yield the constitution in force, each change of it, and the times of the epochs."""
    if history.in_force is not None:
        yield f"  constitution [bold]{constitution_of(history.in_force)}[/]"
    for amendment in history.amendments:
        yield f"  [bold]parameters[/] {short(amendment.statement)}, leaf {amendment.index}: {_said(amendment)}"
        yield from (f"    {escape(escaped(str(change)))}" for change in amendment.changes)
    if history.epochs:
        table = Table("epoch", "opened", "closed", "parameters", box=None)
        if len(history.epochs) > _MAX_EPOCHS:
            yield f"  the newest {_MAX_EPOCHS} of {len(history.epochs)} decided epochs; --json has all"
        for epoch in history.epochs[-_MAX_EPOCHS:]:
            table.add_row(str(epoch.number), _date(epoch.opened), _date(epoch.closed), short(epoch.parameters))
        yield table


def _said(amendment: Amendment) -> str:
    announced = f"announced {_date(amendment.announced)}"
    match amendment.state:
        case "pending":
            since = f"the epoch that opens on or after {_date(amendment.holds)}" if amendment.holds else "the next epoch"
            return f"{announced}, [yellow]will hold from {since}[/]"
        case "dropped":
            return f"{announced}, and taken back or replaced before they held"
    return f"{announced}, {'in force' if amendment.state == 'in force' else 'held'} from epoch {amendment.epoch}"


def _date(time: int) -> str:
    try:
        return dt.datetime.fromtimestamp(time, dt.UTC).isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError):  # the operator may have dated a leaf beyond all calendars
        return f"second {time}"


def _instead(report: AuditReport, anchors: Sequence[str]) -> Iterator[RenderableType]:
    """Yield the decisions that would differ with other anchors."""
    yield f"  {len(report.known)} of {len(anchors)} anchors have an identity in this log"
    if not report.is_open:
        yield "  Its electorate is not open: no weight depends on anchors."
        return
    parting = _first_parting(report)
    if parting is None:
        yield "  Every decision would have been the same."
        return
    yield f"  [bold]Epoch {parting} is the first that would have been decided otherwise[/]"
    table = Table("epoch", "topic", "was decided", "would have been", box=None)
    for decision in report.decisions:
        if decision.differs:
            one, other = _differing(decision.body, decision.recomputed)
            table.add_row(str(decision.body.epoch), escape(decision.body.topic), one, other)
    yield table


def _first_parting(report: AuditReport) -> int | None:
    return min((decision.body.epoch for decision in report.decisions if decision.differs), default=None)


def _differing(one: Decision, other: Decision) -> tuple[str, str]:
    """Return the states in which two decisions differ; a document that one of them does not name has no state in it."""
    states, others = dict(one.states), dict(other.states)
    documents = [d for d in sorted(states.keys() | others.keys()) if states.get(d) != others.get(d)]
    lines = ([f"{short(d)} {side.get(d, '–')}" for d in documents] for side in (states, others))
    left, right = ("\n".join(line) or "the same states" for line in lines)
    return left, right
