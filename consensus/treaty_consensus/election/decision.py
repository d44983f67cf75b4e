"""A decision: everything an epoch's outcome in a topic rests on, as one canonical transcript, and the statement that binds it.

The transcript is JCS. Weights are decimal strings in units of 1 / `arithmetic.ONE`, epochs, leaves and numbers of pairs are
integers, digests hexadecimal; what there is none of is left out. `docs/specification/election.md` explains it.

    {"rule", "electorate", "topic", "epoch", "parameters": statement id, "input": {"size", "root"}, "previous": statement id,
     "anchors": SHA-256 of the JCS of their sorted list, "suffixes": digest of the suffix list,       in an open electorate
     "identities", "weights":   SHA-256 of the JCS of the sorted lists [[DID, identity statement id], …] and, of the topic,
                                [[principal, weight], …]
     "ballots": {"explicit": n, "implied": n}, "total": W, "cap": κ, "quorum": q,
     "voices": [{"principal", "cluster", "weight", "ballots", "implied", "age", "held", "counts"}, …]   the heaviest
     "candidates": [{"hash", "index", "pairs", "clusters", "weight", "approval", "support": Q, "opposition": Q', "state",
                     "provisional", "ahead", "failing", "repealing", "suspect", "missing"}, …]   in the order of publication
     "pairwise": [[V, …], …],              rows and columns: the candidates, then NONE
     "order": [hash or "none", …], "ties": [{"rank", "tied": [hash or "none", …], "chosen"}, …],
     "nominees": [{"hash", "pairs", "clusters", "weight", "approval", "missing"}, …],   the strongest that are not candidates
     "former": [[hash, state], …],         once the consensus, and not candidates now
     "transitions": [{"hash", "from", "to"}, …], "consensus": hash}

A voice is a principal whose ballots count: `weight` is what it weighs in the topic, `counts` what its ballots weigh together
after fading and ripening, `age` and `held` those of its freshest ballot (`ballot`). There are at most `MAX_VOICES` of them, those
that count most.

`missing` says why a document is not the consensus (or, for the consensus, what it lacks to be kept), as a list of
`{"condition", "has", "needs", "against"}` with decimal strings: the conditions of `rule`, compared with the consensus as it is
after this decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from .. import canonical
from ..kinds import Blob, Decision, Input, Parameters, State
from .ballot import Ballots, Implied, Votes, approvals, count, implied_ballots, votes
from .electorate import Electorate, digest_of
from .evidence import Evidence
from .report import Pair, Tally
from .rule import FORMER, Poll, Shortfall, Standing, Support, advance, candidacy_shortfalls, field_of, incumbent_of, strength

Json: TypeAlias = dict[str, object]

MAX_VOICES = 256


@dataclass(frozen=True)
class Carried:
    """What a topic's next decision needs of the one before: where each document stands, and what reports implied."""

    standings: Mapping[str, Standing] = field(default_factory=dict)
    implied: Mapping[str, Implied] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """What is to be decided. `parameters_id`, `previous`: statement ids; `carried`: how the decision before left the topic."""

    topic: str
    epoch: int
    parameters_id: str
    parameters: Parameters
    input: Input
    previous: str | None
    carried: Carried


@dataclass(frozen=True)
class Outcome:
    """The answer: what the transcript says, what the statement says of each document, and what the next epoch begins with."""

    question: Question
    transcript: bytes
    states: tuple[tuple[str, State], ...]
    carried: Carried

    @property
    def consensus(self) -> str | None:
        """The document that is the consensus now."""
        return incumbent_of(self.carried.standings)

    @property
    def elected(self) -> str | None:
        """The document that became the consensus by this decision."""
        before = incumbent_of(self.question.carried.standings)
        return self.consensus if self.consensus != before else None

    def statement(self, roll: Blob, *, remaining: int) -> Decision:
        """The statement's body. `remaining`: how many decisions of the epoch follow it."""
        asked = self.question
        return Decision(
            topic=asked.topic,
            epoch=asked.epoch,
            rule=asked.parameters.rule,
            electorate=asked.parameters.electorate,
            parameters=asked.parameters_id,
            input=asked.input,
            remaining=remaining,
            transcript=Blob(canonical.hex_digest(self.transcript), len(self.transcript)),
            roll=roll,
            states=self.states,
            consensus=self.consensus,
            previous=asked.previous,
        )


def decide(question: Question, evidence: Evidence, tally: Tally, electorate: Electorate) -> Outcome:
    """Decide one topic. `tally`: the reports that count in it."""
    topic, epoch, parameters = question.topic, question.epoch, question.parameters
    standings, voices, horizon = question.carried.standings, electorate.voices, parameters.horizon_epochs
    weights = electorate.in_topic(tally)
    implied = implied_ballots(tally.pairs, electorate.vouches, question.carried.implied, epoch)
    ballots = evidence.ballots.get(topic) or Ballots(voices)
    cast = votes(ballots, implied, weights, epoch, horizon if parameters.reputation else None)
    supports = _supports(evidence.published.get(topic, {}), tally, approvals(cast), weights, electorate)
    contenders = field_of(supports, standings, cast.total, parameters)
    warned = frozenset(d for d in contenders if _is_warned_of(tally.failed.get(d, frozenset()), electorate, parameters))
    poll = Poll(parameters, count(cast, contenders, electorate.clusters), standings, warned)
    after = advance(poll)
    transcript = canonical.dumps(
        {
            **_head(question, electorate, weights),
            **_votes(poll, cast),
            "voices": _voices(cast, weights, electorate),
            "candidates": _candidates(Poll(parameters, poll.count, after), supports),
            "nominees": _nominees(poll, supports, after),
            "former": sorted((d, standing.state) for d, standing in after.items() if d not in contenders),
            **_result(standings, after),
        }
    )
    left = sorted(d for d, _, _ in _transitions(standings, after) if d not in contenders)
    states = tuple((document, _state(after, document)) for document in (*contenders, *left))
    return Outcome(question, transcript, states, Carried(after, implied))


def _supports(
    published: Mapping[str, int],
    tally: Tally,
    approved: Mapping[str, int],
    weights: Mapping[str, int],
    electorate: Electorate,
) -> dict[str, Support]:
    """What reports and votes say for every document that the topic knows."""
    supports = {}
    for document in sorted(published.keys() | tally.pairs.keys()):
        principals = tally.principals(document)
        supports[document] = Support(
            published.get(document),
            len(tally.pairs.get(document, ())),
            len({electorate.clusters[principal] for principal in principals}),
            sum(weights.get(principal, 0) for principal in principals),
            approved.get(document, 0),
        )
    return supports


def _is_warned_of(failed: AbstractSet[Pair], electorate: Electorate, parameters: Parameters) -> bool:
    """Whether as many failed with a document in this epoch as it takes to be a candidate."""
    clusters = {electorate.clusters[principal] for pair in failed for principal in pair}
    return len(failed) >= parameters.candidate_pairs and len(clusters) >= parameters.candidate_clusters


def _head(question: Question, electorate: Electorate, weights: Mapping[str, int]) -> Json:
    parameters = question.parameters
    head: Json = {
        "rule": parameters.rule,
        "electorate": parameters.electorate,
        "topic": question.topic,
        "epoch": question.epoch,
        "parameters": question.parameters_id,
        "input": {"size": question.input.size, "root": question.input.root},
        "identities": electorate.identities_root,
        "weights": digest_of((principal, str(weight)) for principal, weight in sorted(weights.items())),
    }
    if parameters.reputation is not None:
        head |= {"anchors": digest_of(electorate.anchors), "suffixes": parameters.reputation.suffix_list.sha256}
    return head | ({"previous": question.previous} if question.previous else {})


def _votes(poll: Poll, cast: Votes) -> Json:
    choices, order = poll.count.choices, poll.ranking.order
    return {
        "ballots": {"explicit": len(cast.weight) - cast.implied, "implied": cast.implied},
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


def _voices(cast: Votes, weights: Mapping[str, int], electorate: Electorate) -> list[Json]:
    """Whose ballots count most."""
    counts = cast.by_principal()
    heaviest = np.lexsort((np.arange(len(counts)), ~counts))[:MAX_VOICES].tolist()
    explicit = len(cast.weight) - cast.implied
    entries: list[Json] = []
    for number in heaviest:
        rows = np.flatnonzero(cast.principal == number)
        if not len(rows) or not counts[number]:
            continue
        principal, freshest = cast.principals[number], int(rows[np.argmin(cast.age[rows])])
        entries.append(
            {
                "principal": principal,
                "cluster": electorate.clusters[principal],
                "weight": str(weights[principal]),
                "ballots": len(rows),
                "implied": freshest >= explicit,
                "age": int(cast.age[freshest]),
                "held": int(cast.held[freshest]),
                "counts": str(counts[number]),
            }
        )
    return entries


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
                "suspect": standing.suspect,
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
    return {
        "hash": document,
        "pairs": support.pairs,
        "clusters": support.clusters,
        "weight": str(support.weight),
        "approval": str(support.approval),
    }


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
