"""Draw the charts of a topic's page, with the numbers for the table beside each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from treaty_client.audit.decision import Candidate as Counted
from treaty_client.audit.decision import Transcript
from treaty_client.audit.reasons import choice_name, choices_of, share
from treaty_client.audit.strength import counted, sides
from treaty_consensus.kinds import NONE

from ..catalogue.resources import Candidate
from ..serving.history import EpochApprovals
from . import charts
from .charts import Bar, BarPart, Curve
from .voices import UNKNOWN, CountedVoice, VoiceCluster, clusters_of

MAX_LINES = 5
"""Documents whose votes are drawn over epochs."""
_NONE_SERIES = 5
_REST = -1


@dataclass(frozen=True)
class CountedChoice:
    """A choice of the count. `label`: its short name in charts: its place among the documents, or "none"."""

    hash: str
    label: str
    name: str
    series: int


@dataclass(frozen=True)
class Chart:
    """A chart, and the table with its numbers."""

    svg: Markup
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Charts:
    """The charts of a topic's page."""

    order: Sequence[CountedChoice]
    clusters: Chart
    epochs: Chart | None
    voices: Sequence[CountedVoice]
    more_voices: int


def order_of(transcript: Transcript, names: Mapping[str, str]) -> list[CountedChoice]:
    """Return the choices in the order of the count, each with the label and the colour that it has in every chart."""
    ordered, place = [], 0
    for choice in transcript.order:
        if choice == NONE:
            ordered.append(CountedChoice(NONE, "none", choice_name(NONE, names), _NONE_SERIES))
            continue
        place += 1
        series = place - 1 if place <= _NONE_SERIES else _REST
        ordered.append(CountedChoice(choice, str(place), choice_name(choice, names), series))
    return ordered


def heat(transcript: Transcript, names: Mapping[str, str]) -> Chart:
    """Draw the matrix in the order of the count."""
    order, choices = order_of(transcript, names), choices_of(transcript)
    numbers = [choices.index(choice.hash) for choice in order]
    cells = [[int(transcript.pairwise[row][column]) for column in numbers] for row in numbers]
    title = "For each pair of choices, the share of all votes that prefers the row to the column, in per cent"
    svg = charts.heat_map([choice.label for choice in order], cells, int(transcript.total), title)
    rows = [
        [f"{choice.label}. {choice.name}" if choice.hash != NONE else choice.name]
        + ["–" if row == column else share(votes, transcript.total) for column, votes in enumerate(cells[row])]
        for row, choice in enumerate(order)
    ]
    return Chart(svg, ["preferred over", *(choice.label for choice in order)], rows)


def clusters(transcript: Transcript, voices: Sequence[CountedVoice], names: Mapping[str, str]) -> Chart:
    """Draw the weight of each cluster by first choice."""
    largest, rest = clusters_of(voices)
    drawn = [*largest, rest] if rest else largest
    order = {choice.hash: choice for choice in order_of(transcript, names)}
    most = max((cluster.weight for cluster in drawn), default=0)
    svg = charts.bars([_cluster_bar(cluster, order) for cluster in drawn], most, "The weight of each cluster, by first choice")
    rows = [
        [
            cluster.name,
            str(cluster.voices),
            share(cluster.weight, transcript.total),
            _firsts(cluster.by_choice, order, transcript),
        ]
        for cluster in drawn
    ]
    return Chart(svg, ["cluster", "voters", "of all votes", "first choices"], rows)


def meter(candidate: Counted, transcript: Transcript, series: int) -> Markup:
    """Draw the votes for a candidate and its support, with its quorum as a mark."""
    total, support, quorum = int(transcript.total), counted(candidate, transcript), transcript.quorum_of(candidate)
    over, _, _ = sides(candidate, transcript)
    limited = f"{share(support, total)} with the limit for each cluster"
    title = f"{share(over, total)} of all votes accept it, {limited}; its quorum is {share(quorum, total)}"
    return charts.meter(support, over, total, quorum, series, title)


def first_choices(voice: CountedVoice, order: Sequence[CountedChoice]) -> str:
    """Return the first choices of a voice, for a table."""
    names = {choice.hash: choice.name for choice in order}
    return ", ".join(names.get(choice, "not known") for choice in voice.firsts)


def _cluster_bar(cluster: VoiceCluster, order: Mapping[str, CountedChoice]) -> Bar:
    parts = [
        BarPart(cluster.by_choice[choice], described.series, described.label)
        for choice, described in order.items()
        if cluster.by_choice.get(choice)
    ]
    if cluster.by_choice.get(UNKNOWN):
        parts.append(BarPart(cluster.by_choice[UNKNOWN], _REST, "?"))
    return Bar(cluster.name, parts)


def _firsts(by_choice: Mapping[str, int], order: Mapping[str, CountedChoice], transcript: Transcript) -> str:
    labels = [
        f"{described.name} {share(by_choice[choice], transcript.total)}"
        for choice, described in order.items()
        if by_choice.get(choice)
    ]
    unknown = [f"not known {share(by_choice[UNKNOWN], transcript.total)}"] if by_choice.get(UNKNOWN) else []
    return ", ".join([*labels, *unknown])


def epochs(transcript: Transcript, approvals: Sequence[EpochApprovals], names: Mapping[str, str]) -> Chart | None:
    """Draw the votes for the first documents over the newest decisions; None with fewer than two."""
    if len(approvals) < 2:
        return None
    drawn = [choice for choice in order_of(transcript, names) if choice.hash != NONE][:MAX_LINES]
    lines = {candidate.hash: candidate.line or candidate.hash for candidate in transcript.candidates}
    curves = [Curve(choice.label, choice.series, [_permille(at, lines[choice.hash]) for at in approvals]) for choice in drawn]
    title = "The votes for the first documents at the end of each epoch, in per cent of all votes"
    svg = charts.lines([str(at.epoch) for at in approvals], curves, 1000, title)
    rows = [[str(at.epoch), *(_told(at, lines[choice.hash]) for choice in drawn)] for at in approvals]
    return Chart(svg, ["epoch", *(choice.name for choice in drawn)], rows)


def states(candidates: Iterable[Candidate], names: Mapping[str, str]) -> Markup:
    """Draw the states with the documents of the topic in them."""
    present: dict[str, list[str]] = {}
    for candidate in candidates:
        present.setdefault(candidate.state or "published", []).append(names[candidate.hash])
    summary = "; ".join(f"{state}: {len(documents)}" for state, documents in present.items())
    return charts.state_picture(present, f"The states of a document, and how many documents of this topic are in each: {summary}")


def _permille(at: EpochApprovals, line: str) -> int | None:
    votes = at.by_line.get(line)
    return None if votes is None or not at.total else min(votes * 1000 // at.total, 1000)


def _told(at: EpochApprovals, line: str) -> str:
    votes = at.by_line.get(line)
    return "no candidate" if votes is None else share(votes, at.total)
