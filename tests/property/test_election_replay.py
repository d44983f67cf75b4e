"""Random elections in a signed log: whatever agents do, a decision is what somebody finds who kept notes and counts by hand, its
states follow the rule, and a second replay recomputes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal, TypeAlias

import msgspec
from depth import examples
from elections import Tiered, ranks_of
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from simulated_log import TOPIC, LogBuilder

from treaty_consensus.audit import Replay
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.kinds import NONE, Decision, State

FIELD_STATES = {"candidate", "provisional", "consensus"}
STEPS: set[tuple[State, State]] = {
    ("published", "candidate"),
    ("candidate", "provisional"),
    ("candidate", "published"),
    ("provisional", "candidate"),
    ("provisional", "published"),
    ("provisional", "consensus"),
    ("consensus", "dormant"),
    ("consensus", "superseded"),
    ("consensus", "repealed"),
    ("dormant", "provisional"),
    ("superseded", "provisional"),
    ("repealed", "provisional"),
}

AGENTS = 5
DOCUMENTS = 3
HORIZON = 3
MEMORY = 2 * HORIZON
PARAMETERS = msgspec.structs.replace(development_parameters(), horizon_epochs=HORIZON, memory_horizons=2)

Outcome: TypeAlias = Literal["agreed", "failed"]
Pair: TypeAlias = frozenset[int]


@dataclass
class Said:
    """A report, as somebody notes it down."""

    epoch: int
    agents: tuple[int, int]
    document: int
    outcome: Outcome
    nid: str
    void: bool = False


@dataclass
class Notes:
    """A topic of a log, and what somebody notes down who watches the agents."""

    log: LogBuilder = field(default_factory=lambda: LogBuilder(PARAMETERS))
    reports: list[Said] = field(default_factory=list)
    ballots: dict[int, Tiered] = field(default_factory=dict)
    equivocations: list[tuple[int, Pair]] = field(default_factory=list)
    cast: dict[int, int] = field(default_factory=dict)
    favourites: dict[int, tuple[set[int], int]] = field(default_factory=dict)
    suspect: dict[int, int] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    states: dict[str, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.choices = [*(self.log.publish(self.log.agents[n], f"protocol-{n}") for n in range(DOCUMENTS)), NONE]

    def report(self, one: int, other: int, document: int, outcome: Outcome) -> None:
        agents = self.log.agents
        nid = self.log.report(agents[one], agents[other], self.choices[document], outcome=outcome)
        self.reports.append(Said(self.log.epoch, (one, other), document, outcome, nid))

    def ring(self, document: int, outcome: Outcome, size: int = AGENTS) -> None:
        for agent in range(size):
            self.report(agent, (agent + 1) % AGENTS, document, outcome)

    def contradict(self, which: int, document: int) -> None:
        """Two agents report again what they reported before, with another document."""
        report = self.reports[which % len(self.reports)]
        if report.void or report.document == document:
            return
        one, other = (self.log.agents[n] for n in report.agents)
        self.log.report(one, other, self.choices[document], nid=report.nid)
        report.void = True
        self.equivocations.append((self.log.epoch, frozenset(report.agents)))

    def vote(self, agent: int, tiers: Tiered) -> None:
        self.log.vote(self.log.agents[agent], *(tuple(self.choices[c] for c in tier) for tier in tiers))
        self.ballots[agent], self.cast[agent] = tiers, self.log.epoch

    def close(self) -> None:
        """Close the epoch, and hold the decision against the notes."""
        expected = self.recount()
        decisions = self.log.close()
        if not decisions:  # the epoch stays open
            assert (expected["ballots"]["explicit"], expected["candidates"], any(self.agreed())) == (0, [], False)
            return
        (decision,) = decisions
        transcript: dict[str, Any] = self.log.newest_transcript()
        assert {name: transcript[name] for name in expected if name != "candidates"} | {
            "candidates": [
                {name: entry[name] for name in members}
                for entry, members in zip(transcript["candidates"], expected["candidates"], strict=True)
            ]
        } == expected
        self.decisions.append(decision)
        self.states |= dict(decision.states)

    # --- counted by hand

    def barred(self, epoch: int) -> Pair:
        """Who equivocated in these epochs."""
        return frozenset(agent for since, both in self.equivocations if since <= epoch < since + HORIZON for agent in both)

    def counting(self, past: int, outcome: Outcome) -> dict[Pair, int]:
        """The reports of a past epoch that count in the open one: of each pair the first."""
        pairs: dict[Pair, int] = {}
        for report in self.reports:
            pair = frozenset(report.agents)
            if (report.epoch, report.outcome, report.void) == (past, outcome, False) and not pair & self.barred(self.log.epoch):
                pairs.setdefault(pair, report.document)
        return pairs

    def agreed(self) -> list[set[Pair]]:
        """For each document the pairs that agreed on it."""
        epoch = self.log.epoch
        by_epoch = [self.counting(past, "agreed") for past in range(epoch - HORIZON + 1, epoch + 1)]
        return [{pair for pairs in by_epoch for pair in pairs if pairs[pair] == document} for document in range(DOCUMENTS)]

    def loyally(self) -> dict[int, tuple[set[int], int]]:
        """For each agent with reports the documents with most counterparties, by the newest report with each, and since when; of
        these those that were it before, if any."""
        epoch, newest = self.log.epoch, dict[Pair, int]()
        for past in range(epoch - MEMORY + 1, epoch + 1):
            newest |= self.counting(past, "agreed")
        favourites = {}
        for agent in {agent for pair in newest for agent in pair}:
            met = [sum(agent in pair and newest[pair] == document for pair in newest) for document in range(DOCUMENTS)]
            foremost = {document for document in range(DOCUMENTS) if met[document] == max(met)}
            named, since = self.favourites.get(agent, (set(), epoch))
            favourite = foremost & named or foremost
            favourites[agent] = favourite, since if favourite == named else epoch
        return favourites

    def recount(self) -> dict[str, Any]:
        """What the decision has to say of who counts, what is voted on, and how."""
        agreed = self.agreed()
        barred = self.barred(self.log.epoch)
        explicit = {agent: tiers for agent, tiers in self.ballots.items() if tiers and agent not in barred}
        favourites = self.loyally()
        for agent, (liked, since) in favourites.items():
            if agent in explicit and since > self.cast[agent] and not liked.intersection(explicit[agent][0]):
                del explicit[agent]  # its use left it
        implied = {agent: (tuple(liked),) for agent, (liked, _) in favourites.items() if agent not in explicit}
        if any(len(pairs) >= 3 for pairs in agreed) or set(self.states.values()) - {"published"}:
            self.favourites = favourites  # a topic that only stands in keeps nothing
        ranks = [ranks_of(tiers, DOCUMENTS) for tiers in (explicit | implied).values()]

        def preferring(a: int, b: int) -> int:
            return ONE * sum(r[a] < r[b] for r in ranks)

        total = ONE * len(ranks)

        def shared(weight: int) -> int:
            """What three equal clusters make up; everybody is a cluster."""
            return 3 * (weight // 3) if weight >= 3 * ONE else 0

        incumbent = self.decisions[-1].consensus if self.decisions else None
        entries, left = {}, {}
        for document, pairs in enumerate(agreed):
            reporters = {agent for pair in pairs for agent in pair}
            over, under = preferring(document, DOCUMENTS), preferring(DOCUMENTS, document)
            eligible = len(pairs) >= 3 and len(reporters) >= 2 and 20 * ONE * len(reporters) >= total - over
            if eligible or self.choices[document] == incumbent:
                opposed = shared(under)
                failed = sum(with_it == document for with_it in self.counting(self.log.epoch, "failed").values())
                rejected = self.choices[document] == incumbent and 0 < under >= 2 * over and 0 < 3 * opposed >= total - under
                left[document] = 2 if failed >= 3 or rejected else max(self.suspect.get(document, 0) - 1, 0)
                event(f"failed: {failed >= 3}, rejected: {rejected}")
                entries[document] = {
                    "hash": self.choices[document],
                    "pairs": len(pairs),
                    "clusters": len(reporters),
                    "weight": str(ONE * len(reporters)),
                    "approval": str(over),
                    "support": str(shared(over)),
                    "quorum": str(max(-(-(total - over) // 3), 1)),
                    "opposition": str(opposed),
                    "suspect": left[document],
                }
        self.suspect = left
        field = [*entries, DOCUMENTS]
        return {
            "ballots": {"explicit": len(explicit), "implied": len(implied)},
            "total": str(total),
            "pairwise": [[str(preferring(a, b)) for b in field] for a in field],
            "candidates": list(entries.values()),
        }


agents = st.integers(0, AGENTS - 1)
pairs = st.sampled_from(list(combinations(range(AGENTS), 2)))
documents = st.integers(0, DOCUMENTS - 1)
outcomes = st.sampled_from(["agreed", "failed"])
orders = st.tuples(st.permutations(range(DOCUMENTS + 1)), st.integers(0, DOCUMENTS + 1)).map(
    lambda made: tuple((choice,) for choice in made[0][: made[1]])
)
actions = st.one_of(
    st.tuples(st.just("report"), pairs, documents, outcomes),
    st.tuples(st.just("ring"), documents, outcomes, st.integers(2, AGENTS)),
    st.tuples(st.just("contradict"), st.integers(0, 40), documents),
    st.tuples(st.just("vote"), agents, orders),
    st.tuples(st.just("everybody"), orders),
    st.tuples(st.just("close"), st.integers(1, 4)),
    st.tuples(st.just("close"), st.integers(1, 2)),
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(actions, min_size=5, max_size=25))
@example([("ring", 0, "failed", 2), ("close", 2), ("ring", 0, "failed", 3), ("close", 3)])
def test_decisions_are_what_notes_give_and_are_recomputed(script: list[tuple[Any, ...]]) -> None:
    notes = Notes()
    for document in (0, 1):
        notes.ring(document, "agreed")
        notes.close()
    for action in script:
        match action:
            case ("report", (one, other), document, outcome):
                notes.report(one, other, document, outcome)
            case ("ring", document, outcome, size):
                notes.ring(document, outcome, size)
            case ("contradict", which, document):
                notes.contradict(which, document)
            case ("vote", agent, order):
                notes.vote(agent, order)
            case ("everybody", order):
                for agent in range(AGENTS):
                    notes.vote(agent, order)
            case ("close", times):
                for _ in range(times):
                    notes.close()
    event(f"equivocations: {min(len(notes.equivocations), 3)}")
    replay = Replay()
    for leaf in notes.log.leaves:
        replay.append(leaf)
    replay.check_checkpoint(notes.log.head())
    assert replay.decide() == notes.log.replay.decide()
    check_history(notes.decisions)


def check_history(decisions: list[Decision]) -> None:
    """One consensus at most, one step a document and epoch, and every step one that the rule knows."""
    known: dict[str, State] | None = None
    for decision in decisions:
        assert decision.topic == TOPIC
        states: dict[str, State] = dict(decision.states)
        consensus = [document for document, state in states.items() if state == "consensus"]
        assert consensus == ([decision.consensus] if decision.consensus else [])
        if known is not None:
            for document, state in states.items():
                before = known.get(document, "published")
                assert state == before or (before, state) in STEPS
            for document, state in known.items():
                assert document in states or state not in FIELD_STATES, "what leaves the field is named once more"
        known = (known or {}) | states
