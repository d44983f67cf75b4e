"""`treaty topic TOPIC --explain`: explain why a protocol is the consensus, or which conditions it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Column, Table

from treaty_client.audit.decision import Candidate, Nominee, Transcript
from treaty_client.audit.reasons import Names, aim, choice_name, choices_of, is_kept, reasons, share
from treaty_client.audit.strength import counted, sides, strength, turnout, versions, warning

# A transcript names up to 256 voices. The first ones have the most weight, and fit on a screen.
_SHOWN_VOICES = 12


def explain(transcript: Transcript, names: Names, taken_back: Mapping[str, str] | None = None) -> Iterator[RenderableType]:
    """Yield the explanation of a decision's transcript, for people. `taken_back`: sentences about documents in place of theirs,
    since conditions matter no more."""
    yield f"Epoch {transcript.epoch}, {escape(transcript.electorate)} electorate. {' '.join(turnout(transcript))}"
    if transcript.candidates:
        yield _candidates(transcript, names)
        yield _matrix(transcript, names)
    for entry in (*transcript.candidates, *transcript.nominees):
        if taken_back and entry.hash in taken_back:
            yield f"[yellow]•[/] {escape(taken_back[entry.hash])}"
        else:
            yield from _reasons(entry, transcript, names)
    for tie in transcript.ties:
        tied = ", ".join(_name(choice, names) for choice in tie.tied)
        yield f"Tied for place {tie.rank + 1}: {tied}; {_name(tie.chosen, names)} takes it."
    for change in transcript.transitions:
        yield f"{_name(change.hash, names)}: {escape(change.before)} → [bold]{escape(change.after)}[/]"
    if transcript.voices:
        yield _voices(transcript)


def _candidates(transcript: Transcript, names: Names) -> Table:
    # A name that is cut says nothing, so it goes on in the next line.
    table = Table(
        "place",
        Column("candidate", overflow="fold"),
        "state",
        "accept",
        "reject",
        "support",
        "quorum",
        "pairs",
        "clusters",
        box=None,
    )
    for place, choice in enumerate(transcript.order, 1):
        candidate = next((entry for entry in transcript.candidates if entry.hash == choice), None)
        if candidate is None:
            table.add_row(str(place), "[dim]no consensus[/]", *[""] * 7)
            continue
        suspect = " [red](suspect)[/]" if candidate.suspect else ""
        table.add_row(
            str(place),
            _name(choice, names),
            escape(candidate.state) + suspect,
            *(share(votes, transcript.total) for votes in sides(candidate, transcript)[:2]),
            share(counted(candidate, transcript), transcript.total),
            share(transcript.quorum_of(candidate), transcript.total),
            str(candidate.pairs),
            str(candidate.clusters),
        )
    return table


def _matrix(transcript: Transcript, names: Names) -> Table:
    """Return the share of all votes that prefers the row to the column."""
    choices = choices_of(transcript)
    table = Table("over", *(_name(choice, names) for choice in choices), box=None)
    for number, (choice, row) in enumerate(zip(choices, transcript.pairwise, strict=True)):
        cells = ["" if number == other else share(votes, transcript.total) for other, votes in enumerate(row)]
        table.add_row(_name(choice, names), *cells)
    return table


def _voices(transcript: Transcript) -> Table:
    table = Table("voice", "counts", "cluster", "by", "age", "held", box=None)
    for voice in transcript.voices[:_SHOWN_VOICES]:
        table.add_row(
            escape(voice.principal),
            share(voice.counts, transcript.total),
            escape(voice.cluster),
            voice.by,
            str(voice.age),
            str(voice.held),
        )
    return table


def _reasons(entry: Candidate | Nominee, transcript: Transcript, names: Names) -> Iterator[str]:
    name = _name(entry.hash, names)
    if entry.missing:
        yield f"[yellow]•[/] To {aim(entry)}, {name} lacks these conditions:"
    else:
        yield f"[green]✓[/] {name} {'is the consensus, and kept' if is_kept(entry) else 'lacks nothing'}."
    for reason in reasons(entry, transcript, names):
        yield f"    It {escape(reason)}."
    if isinstance(entry, Candidate):
        for sentence in (*strength(entry, transcript), *versions(entry, names), *warning(entry)):
            yield f"    [dim]{escape(sentence)}[/]"


def _name(choice: str, names: Names) -> str:
    return escape(choice_name(choice, names))
