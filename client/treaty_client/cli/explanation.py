"""`treaty topic TOPIC --explain`: explain why a protocol is the consensus, or which conditions it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from treaty_consensus.kinds import NONE

from ..audit.decision import Candidate, Missing, Nominee, Transcript
from .output import short

Names: TypeAlias = Mapping[str, str]
"""Document hash → name for people."""

# A transcript names up to 256 voices. The first ones have the most weight, and fit on a screen.
_SHOWN_VOICES = 12
_COUNTED = ("published", "pairs", "clusters", "field", "schulze-place", "provisional-epochs", "ahead-epochs")
"""Conditions on counts; all other conditions are on weight."""
_SENTENCES = {
    "published": "is not published in this topic",
    "pairs": "was reported by {has} pairs of principals, and needs {needs}",
    "clusters": "was reported from {has} clusters, and needs {needs}",
    "reporter-weight": "was reported by principals of {has} of all votes, and needs {needs}",
    "field": "is number {has} of those that could be candidates, and {needs} are",
    "schulze-place": "is number {has} in the order, after {against}",
    "provisional-quorum": "has {has} of all votes behind it (no cluster beyond its share), and needs {needs}",
    "majority-over-none": "is preferred to no consensus by {has} of all votes, and needs {needs}",
    "provisional-epochs": "was provisional for {has} epochs, and needs {needs}",
    "quorum": "has {has} of all votes behind it (no cluster beyond its share), and needs {needs}",
    "ratio-over-none": "is preferred to no consensus by {has} of all votes, and needs {needs}",
    "unbeaten": "is preferred to {against} by {has} of all votes, and needs {needs}",
    "ratio-over-incumbent": "is preferred to the consensus {against} by {has} of all votes, and needs {needs}",
    "ahead-epochs": "was ahead of the consensus {against} for {has} epochs, and needs {needs}",
}


def explain(transcript: Transcript, names: Names) -> Iterator[RenderableType]:
    """Yield the explanation of a decision's transcript, for people."""
    ballots, total = transcript.ballots, transcript.total
    yield (
        f"Epoch {transcript.epoch}, {escape(transcript.electorate)} electorate: {ballots.explicit} ballots, "
        f"{ballots.implied} implied by reports; a quorum is {_share(transcript.quorum, total)} of their weight, and no cluster "
        f"counts for more than {_share(transcript.cap, total)}."
    )
    if transcript.candidates:
        yield _candidates(transcript, names)
        yield _matrix(transcript, names)
    for candidate in transcript.candidates:
        yield from _reasons(candidate, transcript, names)
    for nominee in transcript.nominees:
        yield from _reasons(nominee, transcript, names)
    for tie in transcript.ties:
        tied = ", ".join(_name(choice, names) for choice in tie.tied)
        yield f"Tied for place {tie.rank + 1}: {tied}; {_name(tie.chosen, names)} takes it."
    for change in transcript.transitions:
        yield f"{_name(change.hash, names)}: {escape(change.before)} → [bold]{escape(change.after)}[/]"
    if transcript.voices:
        yield _voices(transcript)


def _candidates(transcript: Transcript, names: Names) -> Table:
    table = Table("place", "candidate", "state", "for", "against", "pairs", "clusters", box=None)
    for place, choice in enumerate(transcript.order, 1):
        candidate = next((entry for entry in transcript.candidates if entry.hash == choice), None)
        if candidate is None:
            table.add_row(str(place), "[dim]no consensus[/]", "", "", "", "", "")
            continue
        suspect = " [red](suspect)[/]" if candidate.suspect else ""
        table.add_row(
            str(place),
            _name(choice, names),
            escape(candidate.state) + suspect,
            _share(candidate.support, transcript.total),
            _share(candidate.opposition, transcript.total),
            str(candidate.pairs),
            str(candidate.clusters),
        )
    return table


def _matrix(transcript: Transcript, names: Names) -> Table:
    """Return the share of all votes that prefers the row to the column."""
    choices = [*(candidate.hash for candidate in transcript.candidates), NONE]
    table = Table("over", *(_name(choice, names) for choice in choices), box=None)
    for number, (choice, row) in enumerate(zip(choices, transcript.pairwise, strict=True)):
        cells = ["" if number == other else _share(votes, transcript.total) for other, votes in enumerate(row)]
        table.add_row(_name(choice, names), *cells)
    return table


def _voices(transcript: Transcript) -> Table:
    table = Table("voice", "counts", "cluster", "ballots", "age", "held", box=None)
    for voice in transcript.voices[:_SHOWN_VOICES]:
        table.add_row(
            escape(voice.principal),
            _share(voice.counts, transcript.total),
            escape(voice.cluster),
            "implied" if voice.implied else str(voice.ballots),
            str(voice.age),
            str(voice.held),
        )
    return table


def _reasons(entry: Candidate | Nominee, transcript: Transcript, names: Names) -> Iterator[str]:
    name = _name(entry.hash, names)
    kept = isinstance(entry, Candidate) and entry.state == "consensus"
    if not entry.missing:
        yield f"[green]✓[/] {name} {'is the consensus, and kept' if kept else 'lacks nothing'}."
        return
    wanted = "stay the consensus" if kept else "be the consensus" if isinstance(entry, Candidate) else "be a candidate"
    yield f"[yellow]•[/] To {wanted}, {name}"
    for missing in entry.missing:
        lost = _lost_by(entry.hash, missing, transcript) if missing.condition == "schulze-place" else ""
        yield f"    {_sentence(missing, transcript, names)}{lost}"


def _sentence(missing: Missing, transcript: Transcript, names: Names) -> str:
    # A later version of the rule may name a condition that this version does not know.
    sentence = _SENTENCES.get(missing.condition)
    if sentence is None:
        return f"{escape(missing.condition)}: has {missing.has}, needs {missing.needs}"
    numbers = (missing.has, missing.needs)
    has, needs = numbers if missing.condition in _COUNTED else (_share(number, transcript.total) for number in numbers)
    return sentence.format(has=has, needs=needs, against=_name(missing.against or "", names))


def _lost_by(document: str, missing: Missing, transcript: Transcript) -> str:
    """Return the votes between a candidate and the first of the order."""
    choices = [*(candidate.hash for candidate in transcript.candidates), NONE]
    if document not in choices or missing.against not in choices:
        return ""
    own, first = choices.index(document), choices.index(missing.against)
    over, under = (_share(transcript.pairwise[a][b], transcript.total) for a, b in ((own, first), (first, own)))
    return f": {under} of all votes prefer that, {over} this"


def _name(choice: str, names: Names) -> str:
    return "no consensus" if choice == NONE else escape(names.get(choice, short(choice)))


def _share(part: str, whole: str) -> str:
    """Return a part of all votes in per cent, rounded down to a tenth."""
    tenths = int(part) * 1000 // int(whole) if int(whole) else 0
    return f"{tenths // 10}.{tenths % 10} %"
