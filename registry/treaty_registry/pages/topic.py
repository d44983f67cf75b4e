"""The page of a topic: the protocol to speak, the reasons for it, and the numbers behind it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from treaty_client.audit import reasons, strength
from treaty_client.audit.decision import Transcript
from treaty_consensus import statement
from treaty_consensus.canonical import b64decode
from treaty_consensus.election.states import FORMER
from treaty_consensus.kinds import NONE, Decision, Parameters
from treaty_consensus.statement import MAX_LEAF

from ..catalogue.agents import Named
from ..catalogue.resources import Candidate, DecisionView, Topic
from ..serving.history import ConsensusPeriod, EpochApprovals, VoterChoice
from . import topic_charts, voices
from .renderer import Gathered, digest
from .topic_documents import Book, ShownDocument, cards, document_of, names_of

if TYPE_CHECKING:
    from markupsafe import Markup

    from ..catalogue.agents import AgentQueries
    from ..serving.history import TopicHistory
    from ..serving.views import Views
    from .renderer import Renderer

MAX_OTHERS = 12
MAX_OPEN = 6
"""Candidates that are shown at once. The others follow in a fold."""
MAX_TIES = 5
MAX_PERIODS = 20
_MAX_BODIES = 64  # decisions that are remembered, of some KiB each


@dataclass(frozen=True)
class Verdict:
    """The protocol to speak. `kind`: consensus, withdrawn (it was elected, and its publisher yanked or revoked it), provisional,
    candidates, published, undecided. `entry`: its subject.

    `since`: the epoch since which it is the consensus. `beaten`: how many of the `others` it is preferred to.
    """

    kind: str
    entry: ShownDocument | None = None
    since: int | None = None
    beaten: int = 0
    others: int = 0


@dataclass(frozen=True)
class Found:
    """All that is read for the page of a topic. `parameters`: those of the decision."""

    shown: Topic
    periods: Sequence[ConsensusPeriod]
    named: Mapping[str, Named]
    pairs: reasons.ReportedPairs | None
    votes: Mapping[str, Sequence[VoterChoice]]
    approvals: Sequence[EpochApprovals]
    parameters: Parameters | None


class _Voter(msgspec.Struct):
    principal: str


class _Voices(msgspec.Struct):
    """The part of a transcript that names the voters."""

    voices: list[_Voter]


async def gather(views: Views, history: TopicHistory, agents: AgentQueries, renderer: Renderer, topic: str) -> Gathered:
    """Read the page of a topic. Raises `NotFound`, `Malformed`."""
    head = views.registry.head
    topic_view, log = await asyncio.gather(views.elections.election(topic, head), views.elections.log(head))
    decision = decided(topic_view.decision)
    (periods, named), pairs, (votes, approvals) = await asyncio.gather(
        _periods(history, agents, topic_view, head.size),
        _pairs(history, log.parameters, topic_view, _others(topic_view)[:MAX_OTHERS]),
        _counted(history, topic_view, decision),
    )
    parameters = await history.parameters(decision.parameters) if decision else None
    gathered = Found(topic_view, periods, named, pairs, votes, approvals, parameters)
    registry = f"{views.registry.base_url}#{views.registry.log_key}"
    return Gathered(_data(gathered), lambda: _context(renderer, registry, gathered, decision))


def _data(page_data: Found) -> object:
    """Return the data of the page. A decision's statement names its transcript, if that was not withdrawn, with the matrix."""
    election, decided = page_data.shown, page_data.shown.decision
    if decided is None:
        return page_data
    named = replace(decided, leaf="", transcript=None)
    return decided.transcript is not None, dataclasses.replace(page_data, shown=replace(election, matrix=None, decision=named))


def _others(topic: Topic) -> list[Candidate]:
    """Return the documents without a state."""
    return [candidate for candidate in topic.candidates if not candidate.state]


def _context(renderer: Renderer, registry: str, page_data: Found, decision: Decision | None) -> Mapping[str, object]:
    election, periods, named = page_data.shown, page_data.periods, page_data.named
    transcript = None
    if election.decision is not None and election.decision.transcript is not None:
        transcript = msgspec.json.decode(election.decision.transcript, type=Transcript)
    first, others = [candidate for candidate in election.candidates if candidate.state], _others(election)
    names = names_of(election.candidates, named)
    choices = {choice.hash: choice for choice in topic_charts.order_of(transcript, names)} if transcript else {}
    book = Book(names, transcript, choices)
    entries = _ordered([document_of(candidate, book, None) for candidate in first])
    verdict = judge(entries, election, transcript, periods)
    return {
        "topic": election,
        "decision": decision,
        "transcript": transcript,
        "verdict": verdict,
        "field": [entry for entry in entries if entry.place or entry.shown.state not in FORMER],
        "former": [entry for entry in entries if entry.shown.state in FORMER],
        "others": [document_of(candidate, book, page_data.pairs) for candidate in others[:MAX_OTHERS]],
        "most_open": MAX_OPEN,
        "most_ties": MAX_TIES,
        "more_others": max(len(others) - MAX_OTHERS, 0),
        "parameters": page_data.parameters,
        "periods": [(period, named.get(period.consensus or "")) for period in periods[:MAX_PERIODS]],
        "names": book.names,
        "picture": topic_charts.states(election.candidates, book.names),
        "registry": registry,
        "card": cards(renderer, decision, book),
        "is_few": transcript is not None and strength.is_few(transcript),
        "few_decide": strength.FEW_DECIDE,
        "support": _support(renderer, page_data, decision, book) if decision and transcript else None,
        "matrix": _matrix(renderer, decision, book) if decision and transcript else None,
    }


def decided(view: DecisionView | None) -> Decision | None:
    """Return the body of the newest decision."""
    return None if view is None else _body(view.leaf)


# Each page of a topic needs it, and checking a statement costs as much as three queries.
@lru_cache(maxsize=_MAX_BODIES)
def _body(leaf: str) -> Decision:
    body = statement.understand(b64decode(leaf, limit=MAX_LEAF)).body
    assert isinstance(body, Decision), "the table of decisions names nothing else"
    return body


def judge(
    entries: Sequence[ShownDocument], topic: Topic, transcript: Transcript | None, periods: Sequence[ConsensusPeriod]
) -> Verdict:
    """Return the protocol to speak in a topic, and since when."""
    if topic.decision is None:
        return Verdict("undecided")
    elected = next((entry for entry in entries if entry.shown.state == "consensus"), None)
    by_state = {entry.shown.state: entry for entry in reversed(entries) if not entry.is_withdrawn}
    leader = elected or by_state.get("provisional")
    kind = ("withdrawn" if elected.is_withdrawn else "consensus") if elected else "provisional"
    if leader is None:
        first = by_state.get("candidate")
        return Verdict("candidates", first) if first else Verdict("published")
    beaten, others = _preferred(leader.shown.hash, transcript) if transcript else (0, 0)
    is_newest = bool(periods) and periods[0].consensus == leader.shown.hash
    return Verdict(kind, leader, periods[0].first if is_newest else None, beaten, others)


def _preferred(document: str, transcript: Transcript) -> tuple[int, int]:
    """Return how many other candidates the votes prefer a document to, and how many there are."""
    choices, votes = reasons.choices_of(transcript), transcript.pairwise
    if document not in choices:
        return 0, 0
    own = choices.index(document)
    others = [number for number, choice in enumerate(choices) if choice not in (document, NONE)]
    return sum(int(votes[own][other]) > int(votes[other][own]) for other in others), len(others)


def _ordered(entries: Sequence[ShownDocument]) -> list[ShownDocument]:
    """Return the documents by their place in the order of the count."""
    return sorted(entries, key=lambda entry: (entry.place is None, entry.place or 0))


async def _periods(
    history: TopicHistory, agents: AgentQueries, topic: Topic, size: int
) -> tuple[Sequence[ConsensusPeriod], Mapping[str, Named]]:
    """Return who was the consensus among the first `size` leaves, and the names of these documents."""
    if topic.decision is None:
        return (), {}
    periods = [period for period in await history.succession(topic.topic, size) if period.consensus]
    # Most of them are still documents of the topic.
    named = {candidate.hash: Named(candidate.uris[0], candidate.title) for candidate in topic.candidates}
    missing = sorted({period.consensus for period in periods[:MAX_PERIODS] if period.consensus} - named.keys())
    return periods, {**named, **await agents.names(missing)} if missing else named


async def _pairs(
    history: TopicHistory, in_force: str | None, topic: Topic, others: Sequence[Candidate]
) -> reasons.ReportedPairs | None:
    """Return the pairs that reported the documents without a state, if the log has parameters `in_force`."""
    if in_force is None or not others:
        return None
    parameters = await history.parameters(in_force)
    return await history.pairs(topic.topic, [candidate.hash for candidate in others], parameters, topic.epoch)


async def _counted(
    history: TopicHistory, topic: Topic, body: Decision | None
) -> tuple[Mapping[str, Sequence[VoterChoice]], Sequence[EpochApprovals]]:
    """Return the votes of a decision, and those for each candidate at the decisions up to it; none without its transcript."""
    if topic.decision is None or body is None or topic.decision.transcript is None:
        return {}, ()
    principals = [voice.principal for voice in msgspec.json.decode(topic.decision.transcript, type=_Voices).voices]
    return await asyncio.gather(
        history.votes(topic.topic, body.electorate, principals, body.input.size),
        history.approvals(topic.topic, topic.decision.index + 1),
    )


def _matrix(renderer: Renderer, decision: Decision, book: Book) -> Markup:
    """Return the matrix of a decision: of up to a thousand cells, drawn once for a transcript and the names of its choices."""
    transcript, order = book.transcript, [*book.choices.values()]
    assert transcript is not None
    key = f"{decision.transcript.sha256} {digest([choice.name for choice in order])}"
    return renderer.part("matrix.html", key, lambda: {"order": order, "heat": topic_charts.heat(transcript, book.names)})


def _support(renderer: Renderer, page_data: Found, decision: Decision, book: Book) -> Markup:
    """Return the voters of a decision, drawn once for its transcript, their votes, and the names of its choices."""
    transcript = book.transcript
    assert transcript is not None
    election = page_data.shown
    key = digest(
        (decision.transcript.sha256, election.topic, election.electorate, book.names, page_data.votes, page_data.approvals)
    )

    def context() -> Mapping[str, object]:
        return {
            "topic": election.topic,
            "electorate": election.electorate,
            "transcript": transcript,
            "share": reasons.share,
            "turnout": [*strength.turnout(transcript)],
            "first_choices": topic_charts.first_choices,
            "charts": _charts(transcript, book, page_data.votes, page_data.approvals),
        }

    return renderer.part("support.html", key, context)


def _charts(
    transcript: Transcript, book: Book, votes: Mapping[str, Sequence[VoterChoice]], approvals: Sequence[EpochApprovals]
) -> topic_charts.Charts:
    """Return the charts of a decision, with the numbers for their tables."""
    counted_voices = voices.hear(transcript, votes)
    return topic_charts.Charts(
        order=[*book.choices.values()],
        clusters=topic_charts.clusters(transcript, counted_voices, book.names),
        epochs=topic_charts.epochs(transcript, approvals, book.names),
        voices=counted_voices[: voices.MAX_VOICES],
        more_voices=max(len(counted_voices) - voices.MAX_VOICES, 0),
    )
