"""A decision: everything an epoch's outcome in a topic rests on, as one canonical transcript, and the statement that binds it.

The transcript is JCS. Weights are decimal strings in units of 1 / `weight.ONE`, epochs, leaves and numbers of pairs are integers,
digests hexadecimal; `previous` and `consensus` are left out where there is none. `docs/specification/election.md` explains it.

    {"rule", "electorate", "topic", "epoch", "parameters": statement id, "input": {"size", "root"}, "previous": statement id,
     "identities", "weights", "clusters":  SHA-256 of the JCS of the sorted lists [[DID, identity statement id], …],
                                           [[principal, weight], …] and [[principal, cluster], …]
     "ballots": {"explicit": n, "implied": n}, "total": W, "cap": κ, "quorum": q,
     "candidates": [{"hash", "index", "pairs", "clusters", "weight", "support": Q, "opposition": Q', "state",
                     "provisional", "ahead", "failing", "repealing", "missing"}, …]   in the order of publication
     "pairwise": [[V, …], …],              rows and columns: the candidates, then NONE
     "order": [hash or "none", …], "ties": [{"rank", "tied": [hash or "none", …], "chosen"}, …],
     "nominees": [{"hash", "pairs", "clusters", "weight", "missing"}, …],   the strongest documents that are not candidates
     "former": [[hash, state], …],         once the consensus, and not candidates now
     "transitions": [{"hash", "from", "to"}, …], "consensus": hash}

`missing` says why a document is not the consensus (or, for the consensus, what it lacks to be kept), as a list of
`{"condition", "has", "needs", "against"}` with decimal strings: the conditions of `rule`, compared with the consensus as it is
after this decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from .. import canonical
from ..kinds import Blob, Decision, Input, Parameters, State
from . import weight
from .ballot import Cast, count, live_ballots
from .evidence import Evidence
from .report import Tally
from .rule import FORMER, Poll, Shortfall, Standing, Support, advance, candidacy_shortfalls, field_of, incumbent_of, strength

Json: TypeAlias = dict[str, object]


@dataclass(frozen=True)
class Electorate:
    """Who counts in an epoch. The roots are SHA-256 over canonical lists, in hexadecimal."""

    weights: Mapping[str, int]
    clusters: Mapping[str, str]
    identities_root: str
    weights_root: str
    clusters_root: str


@dataclass(frozen=True)
class Question:
    """What is to be decided. `parameters_id`, `previous`: statement ids; `standings`: how the epoch before left the topic."""

    topic: str
    epoch: int
    parameters_id: str
    parameters: Parameters
    input: Input
    previous: str | None
    standings: Mapping[str, Standing]


@dataclass(frozen=True)
class Outcome:
    """The answer: the statement's body, the transcript it names, and the standings that the next epoch begins with."""

    decision: Decision
    transcript: bytes
    standings: Mapping[str, Standing]


def electorate_of(evidence: Evidence, epoch: int, parameters: Parameters) -> Electorate:
    """Who counts at the end of `epoch`."""
    weights = weight.weights(evidence.identities, evidence.reports.barred(epoch, parameters.horizon_epochs))
    clusters = weight.clusters(weights)
    return Electorate(
        weights,
        clusters,
        _root(sorted(evidence.identities.items())),
        _root((principal, str(value)) for principal, value in sorted(weights.items())),
        _root(sorted(clusters.items())),
    )


def decide(question: Question, evidence: Evidence, electorate: Electorate, *, remaining: int) -> Outcome:
    """Decide one topic. `remaining`: how many topics are decided after it in this epoch."""
    topic, parameters = question.topic, question.parameters
    tally = evidence.reports.tally(topic, question.epoch, parameters.horizon_epochs, electorate.weights)
    cast = live_ballots(evidence.ballots.get(topic, {}), tally.counterparties(), electorate.weights)
    supports = _supports(evidence.published.get(topic, {}), tally, electorate)
    field = field_of(supports, question.standings, sum(ballot.weight for ballot in cast), parameters)
    poll = Poll(parameters, count(cast, field, electorate.clusters), question.standings)
    after = advance(poll)
    transcript = canonical.dumps(
        {
            **_head(question, electorate),
            **_votes(poll, cast),
            "candidates": _candidates(Poll(parameters, poll.count, after), supports),
            "nominees": _nominees(poll, supports, after),
            "former": sorted((d, standing.state) for d, standing in after.items() if d not in field),
            **_result(question.standings, after),
        }
    )
    return Outcome(_decision(question, after, field, transcript, remaining), transcript, after)


def _decision(
    question: Question, after: Mapping[str, Standing], field: tuple[str, ...], transcript: bytes, remaining: int
) -> Decision:
    left = sorted(d for d, _, _ in _transitions(question.standings, after) if d not in field)
    return Decision(
        topic=question.topic,
        epoch=question.epoch,
        rule=question.parameters.rule,
        electorate=question.parameters.electorate,
        parameters=question.parameters_id,
        input=question.input,
        remaining=remaining,
        transcript=Blob(canonical.hex_digest(transcript), len(transcript)),
        states=tuple((document, _state(after, document)) for document in (*field, *left)),
        consensus=incumbent_of(after),
        previous=question.previous,
    )


def _supports(published: Mapping[str, int], tally: Tally, electorate: Electorate) -> dict[str, Support]:
    """What reports say for every document that the topic knows."""
    supports = {}
    for document in sorted(published.keys() | tally.pairs.keys()):
        principals = tally.principals(document)
        supports[document] = Support(
            published.get(document),
            len(tally.pairs.get(document, ())),
            len({electorate.clusters[principal] for principal in principals}),
            weight.total(principals, electorate.weights),
        )
    return supports


def _head(question: Question, electorate: Electorate) -> Json:
    head: Json = {
        "rule": question.parameters.rule,
        "electorate": question.parameters.electorate,
        "topic": question.topic,
        "epoch": question.epoch,
        "parameters": question.parameters_id,
        "input": {"size": question.input.size, "root": question.input.root},
        "identities": electorate.identities_root,
        "weights": electorate.weights_root,
        "clusters": electorate.clusters_root,
    }
    return head | ({"previous": question.previous} if question.previous else {})


def _votes(poll: Poll, cast: list[Cast]) -> Json:
    choices, implied = poll.count.choices, sum(ballot.implied for ballot in cast)
    order = poll.ranking.order
    return {
        "ballots": {"explicit": len(cast) - implied, "implied": implied},
        "total": str(poll.count.total),
        "cap": str(poll.cap),
        "quorum": str(poll.quorum),
        "pairwise": [[str(votes) for votes in row] for row in poll.count.pairwise],
        "order": [choices[number] for number in order],
        "ties": [
            {"rank": tie.rank, "tied": [choices[number] for number in tie.tied], "chosen": choices[order[tie.rank]]}
            for tie in poll.ranking.ties
        ],
    }


def _candidates(poll: Poll, supports: Mapping[str, Support]) -> list[Json]:
    """`poll`: the votes, with the standings after them."""
    entries = []
    for document in poll.candidates:
        standing = poll.before[document]
        if standing.state == "consensus":
            missing = poll.kept_shortfalls(document)
        else:
            missing = poll.provisional_shortfalls(document) + poll.consensus_shortfalls(document, standing)
        entries.append(
            _support(document, supports[document])
            | {
                "index": supports[document].index,
                "support": str(poll.support(document)),
                "opposition": str(poll.opposition(document)),
                "state": standing.state,
                "provisional": standing.provisional,
                "ahead": standing.ahead,
                "failing": standing.failing,
                "repealing": standing.repealing,
                "missing": _missing(missing),
            }
        )
    return entries


def _nominees(poll: Poll, supports: Mapping[str, Support], after: Mapping[str, Standing]) -> list[Json]:
    others = [d for d in supports if d not in poll.candidates and _state(after, d) not in FORMER]
    others.sort(key=lambda document: strength(supports[document], document))
    entries = []
    place = len(poll.candidates)
    for document in others[: poll.parameters.max_candidates]:
        missing = candidacy_shortfalls(supports[document], poll.count.total, poll.parameters)
        if not missing:  # it has all it needs, but others have more
            place += 1
            missing = [Shortfall("field", place, poll.parameters.max_candidates)]
        entries.append(_support(document, supports[document]) | {"missing": _missing(missing)})
    return entries


def _support(document: str, support: Support) -> Json:
    return {"hash": document, "pairs": support.pairs, "clusters": support.clusters, "weight": str(support.weight)}


def _missing(shortfalls: Iterable[Shortfall]) -> list[Json]:
    entries = []
    for shortfall in shortfalls:
        entry: Json = {"condition": shortfall.condition, "has": str(shortfall.has), "needs": str(shortfall.needs)}
        entries.append(entry | ({"against": shortfall.against} if shortfall.against else {}))
    return entries


def _result(before: Mapping[str, Standing], after: Mapping[str, Standing]) -> Json:
    consensus = incumbent_of(after)
    transitions = [{"hash": d, "from": old, "to": new} for d, old, new in _transitions(before, after)]
    return {"transitions": transitions} | ({"consensus": consensus} if consensus else {})


def _transitions(before: Mapping[str, Standing], after: Mapping[str, Standing]) -> list[tuple[str, State, State]]:
    changes = ((d, _state(before, d), _state(after, d)) for d in sorted(before.keys() | after.keys()))
    return [(document, old, new) for document, old, new in changes if old != new]


def _state(standings: Mapping[str, Standing], document: str) -> State:
    return standings.get(document, Standing()).state


def _root(entries: Iterable[tuple[str, str]]) -> str:
    return canonical.hex_digest(canonical.dumps(list(entries)))
