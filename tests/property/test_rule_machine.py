"""The rule over many epochs of whatever votes, against the specification read backwards.

The product carries counters from epoch to epoch. `Rules` has none: it remembers every epoch, and finds out what the state must be
by looking back, from ballots that it counts itself, in fractions. Beside that it holds the promises that the rule makes to those
who rely on a consensus.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import msgspec
from depth import examples
from elections import Tiered, counted, name, ranks_of, tiered
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.election.rule import DocumentState, Poll, advance
from treaty_consensus.election.schulze import rank
from treaty_consensus.kinds import Parameters, State

DOCUMENTS = 4
NONE_NUMBER = DOCUMENTS
VOTERS = 7
CLUSTERS = ["one", "two", "three", "four", "five"]
FORMER = ("dormant", "superseded", "repealed")

documents = st.integers(0, DOCUMENTS - 1)
lengths = st.sampled_from([1, 1, 2, 3, 4])
ballots = (
    st.permutations(range(DOCUMENTS + 1)).flatmap(
        lambda order: st.integers(1, 3).map(lambda kept: tuple((c,) for c in order[:kept]))
    )
    | st.lists(st.integers(0, 2), min_size=DOCUMENTS + 1, max_size=DOCUMENTS + 1).map(tiered)
    | documents.map(lambda document: ((document,),))
    | documents.map(lambda document: ((document, NONE_NUMBER),))
)


@dataclass(frozen=True)
class Epoch:
    """What was true in an epoch, of each document in the field. `after`: the states it ended with, `incumbent`: it began with."""

    incumbent: int | None
    first: int
    provisional: frozenset[int]
    consensual: frozenset[int]
    leading: frozenset[int]
    failing: frozenset[int]
    rejected: frozenset[int]
    field: frozenset[int]
    flagged: frozenset[int]
    after: dict[int, State]


class Rules(RuleBasedStateMachine):
    """A topic whose agents vote, change their minds and go silent."""

    @initialize(
        weights=st.lists(st.integers(1, 40), min_size=VOTERS, max_size=VOTERS),
        clusters=st.lists(st.sampled_from(CLUSTERS), min_size=VOTERS, max_size=VOTERS) | st.just([*CLUSTERS, "six", "seven"]),
        over=st.sampled_from([((2, 1), (3, 2)), ((1, 1), (1, 1)), ((3, 1), (2, 1))]),
        shares=st.sampled_from([(4, 3, 2), (4, 3, 2), (2, 2, 1), (5, 1, 3)]),
        epochs=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)) | st.just((2, 4, 2)),
    )
    def begin(
        self,
        weights: list[int],
        clusters: list[str],
        over: tuple[tuple[int, int], tuple[int, int]],
        shares: tuple[int, int, int],
        epochs: tuple[int, int, int],
    ) -> None:
        self.weights, self.clusters = weights, clusters
        self.parameters: Parameters = msgspec.structs.replace(
            development_parameters(),
            over_none=over[0],
            over_incumbent=over[1],
            quorum_share=shares[0],
            cluster_share=shares[1],
            provisional_share=shares[2],
            sustain_epochs=epochs[0],
            dormant_epochs=epochs[1],
            suspect_epochs=epochs[2],
        )
        self.cast: dict[int, Tiered] = {}
        self.field = frozenset(range(DOCUMENTS))
        self.warned: frozenset[int] = frozenset()
        self.states: dict[str, DocumentState] = {}
        self.history: list[Epoch] = []

    @rule(voter=st.integers(0, VOTERS - 1), ballot=ballots | st.just(()), epochs=lengths)
    def vote_or_withdraw(self, voter: int, ballot: Tiered, epochs: int) -> None:
        self.cast[voter] = ballot
        self._close(epochs)

    @rule(ballot=ballots, other=ballots, camp=st.integers(0, VOTERS), epochs=lengths)
    def take_sides(self, ballot: Tiered, other: Tiered, camp: int, epochs: int) -> None:
        self.cast = {voter: ballot if voter < camp else other for voter in range(VOTERS)}
        self._close(epochs)

    @rule(field=st.frozensets(documents, min_size=1), epochs=lengths)
    def report_these(self, field: frozenset[int], epochs: int) -> None:
        self.field = field
        self._close(epochs)

    @rule(warned=st.frozensets(documents, max_size=2), epochs=lengths)
    def fail(self, warned: frozenset[int], epochs: int) -> None:
        self.warned = warned
        self._close(1)
        self.warned = frozenset()
        self._close(epochs)

    def _close(self, epochs: int) -> None:
        for _ in range(epochs):
            self._close_one()

    def _close_one(self) -> None:
        incumbent = self._incumbent()
        field = self.field | ({incumbent} if incumbent is not None else set())
        live = [(self.cast[voter], self.weights[voter]) for voter in sorted(self.cast)]
        clusters = {row: self.clusters[voter] for row, voter in enumerate(sorted(self.cast))}
        count = counted(live, DOCUMENTS, clusters, sorted(field))
        warned = {name(document, DOCUMENTS) for document in self.warned}
        poll = Poll(self.parameters, count, self.states, warned)
        self.states = advance(poll)
        states = {document: self._current(document).state for document in range(DOCUMENTS)}
        self._record(incumbent, frozenset(field), states)
        self.check_the_states_are_what_the_past_says()
        self.check_the_counters_are_how_long_it_lasted()
        self.check_a_warning_stands_for_its_epochs_and_no_longer()
        self.check_there_is_at_most_one_consensus()
        self.check_a_consensus_is_earned()
        self.check_a_consensus_is_not_lost_by_one_bad_epoch()

    # --- the specification, counted anew

    def _record(self, incumbent: int | None, field: frozenset[int], states: dict[int, State]) -> None:
        over_none, over_incumbent = (Fraction(*ratio) for ratio in (self.parameters.over_none, self.parameters.over_incumbent))
        choices = [*sorted(field), NONE_NUMBER]
        numbers = {choice: number for number, choice in enumerate(choices)}
        matrix = [[self._weight(lambda r, a=a, b=b: r[a] < r[b]) for b in choices] for a in choices]  # type: ignore[misc]
        order = rank(matrix, numbers[incumbent] if incumbent is not None else None).order
        first = choices[order[0]]

        def votes(a: int, b: int = NONE_NUMBER) -> int:
            return matrix[numbers[a]][numbers[b]]

        def beats(a: int, b: int, ratio: Fraction) -> bool:
            return votes(a, b) > 0 and votes(a, b) >= ratio * votes(b, a)

        total = sum(self.weights[voter] for voter, tiers in self.cast.items() if tiers)
        share = self.parameters.cluster_share

        def side(a: int, b: int) -> int:
            """What prefers a to b, as so many equal clusters make it up."""
            weights = [*self._by_cluster(lambda r: r[a] < r[b]).values()]
            return share * max(k for k in range(sum(weights) + 1) if sum(min(weight, k) for weight in weights) >= share * k)

        def needed(a: int, b: int) -> Fraction:
            """A part of all that does not prefer a to b."""
            return Fraction(total - self._weight(lambda r: r[a] < r[b]), self.parameters.quorum_share - 1)

        def has_quorum(a: int, b: int) -> bool:
            return side(a, b) >= needed(a, b) and side(a, b) > 0

        def is_weak(c: int) -> bool:
            return self.parameters.provisional_share * side(c, NONE_NUMBER) < needed(c, NONE_NUMBER)

        rejected = {c for c in field if beats(NONE_NUMBER, c, over_none) and has_quorum(NONE_NUMBER, c)} & {incumbent}
        self.history.append(
            Epoch(
                incumbent=incumbent,
                first=first,
                provisional=frozenset(c for c in field if has_quorum(c, NONE_NUMBER) and beats(c, NONE_NUMBER, over_none)),
                consensual=frozenset(
                    c for c in field if c == first and all(votes(c, x) >= votes(x, c) + (x < c) for x in choices if x != c)
                ),
                leading=frozenset(c for c in field if incumbent is not None and beats(c, incumbent, over_incumbent)),
                failing=frozenset(c for c in field if c == incumbent and (is_weak(c) or votes(c) < votes(NONE_NUMBER, c))),
                rejected=frozenset(rejected),
                field=field,
                flagged=frozenset(field & (self.warned | rejected)),
                after=states,
            )
        )

    def _weight(self, prefers: Callable[[list[int]], bool]) -> int:
        return sum(self._by_cluster(prefers).values())

    def _by_cluster(self, prefers: Callable[[list[int]], bool]) -> dict[str, int]:
        weights: defaultdict[str, int] = defaultdict(int)
        for voter, tiers in self.cast.items():
            if tiers and prefers(ranks_of(tiers, DOCUMENTS)):
                weights[self.clusters[voter]] += self.weights[voter]
        return weights

    # --- what the past says

    def _current(self, document: int) -> DocumentState:
        return self.states.get(name(document, DOCUMENTS), DocumentState())

    def _incumbent(self) -> int | None:
        return next((document for document in range(DOCUMENTS) if self._current(document).state == "consensus"), None)

    def _before(self, document: int) -> State:
        return self.history[-2].after[document] if len(self.history) > 1 else "published"

    def _run(self, holds: Callable[[Epoch], bool]) -> int:
        """For how many epochs in a row something held, the last one among them."""
        return next((n for n, epoch in enumerate(reversed(self.history)) if not holds(epoch)), len(self.history))

    def _expected(self, document: int, promoted: bool) -> State:
        """`promoted`: whether another document became the consensus."""
        now, before = self.history[-1], self._before(document)
        if document == now.incumbent:
            if promoted:
                return "superseded"
            if self._run(lambda epoch: document in epoch.rejected) >= self.parameters.sustain_epochs:
                return "repealed"
            failing = self._run(lambda epoch: document in epoch.failing)
            return "dormant" if failing >= self.parameters.dormant_epochs else "consensus"
        if document not in now.field:
            return before if before in FORMER else "published"
        returns = before not in FORMER or document == now.first
        if before == "published" or document not in now.provisional or not returns:
            return before if before in FORMER else "candidate"
        sustained = self._run(lambda epoch: epoch is now or epoch.after[document] == "provisional")
        if before != "provisional" or sustained < self.parameters.sustain_epochs or document not in now.consensual:
            return "provisional"
        return "consensus" if now.incumbent is None or self._ahead(document) >= self.parameters.sustain_epochs else "provisional"

    def _ahead(self, document: int) -> int:
        incumbent = self.history[-1].incumbent
        return self._run(lambda epoch: document in epoch.leading and epoch.incumbent == incumbent)

    def check_the_states_are_what_the_past_says(self) -> None:
        now = self.history[-1]
        promoted = {d for d in range(DOCUMENTS) if d != now.incumbent and self._expected(d, False) == "consensus"}
        assert now.after == {d: self._expected(d, bool(promoted - {d})) for d in range(DOCUMENTS)}
        for document in range(DOCUMENTS):
            if self._before(document) != now.after[document]:
                event(f"{self._before(document)} → {now.after[document]}")

    def check_the_counters_are_how_long_it_lasted(self) -> None:
        now = self.history[-1]
        for document, state in now.after.items():
            known = self._current(document)
            challenges = document != now.incumbent and self._incumbent() == now.incumbent
            assert (known.provisional, known.ahead, known.failing, known.repealing) == (
                self._run(lambda epoch, d=document: epoch.after[d] == "provisional"),  # type: ignore[misc]
                self._ahead(document) if challenges else 0,
                self._run(lambda epoch, d=document: d in epoch.failing) if state == "consensus" else 0,  # type: ignore[misc]
                self._run(lambda epoch, d=document: d in epoch.rejected) if state == "consensus" else 0,  # type: ignore[misc]
            )

    def check_a_warning_stands_for_its_epochs_and_no_longer(self) -> None:
        for document in range(DOCUMENTS):
            since = self._run(lambda epoch, d=document: d in epoch.field and d not in epoch.flagged)  # type: ignore[misc]
            flagged = since < len(self.history) and document in self.history[-1 - since].flagged
            left = max(self.parameters.suspect_epochs - since, 0) if flagged else 0
            assert self._current(document).suspect == left
            event("suspect" if left else "not suspect")

    # --- what the rule promises

    def check_there_is_at_most_one_consensus(self) -> None:
        assert sum(current.state == "consensus" for current in self.states.values()) <= 1

    def check_a_consensus_is_earned(self) -> None:
        """By epochs of being provisional, clusters enough, and nobody before it in any pair."""
        for document, state in self.history[-1].after.items():
            if state != "consensus" or self._before(document) == "consensus":
                continue
            past = [epoch.after[document] for epoch in self.history[:-1]]
            waited = max(self.parameters.sustain_epochs - 1, 1)
            assert past[-waited:] == ["provisional"] * waited
            supporters = self._by_cluster(lambda r, d=document: r[d] < r[NONE_NUMBER])  # type: ignore[misc]
            assert len(supporters) >= self.parameters.cluster_share
            rivals = [*self.history[-1].field, NONE_NUMBER]
            for rival in rivals:
                preferred = self._weight(lambda r, d=document, x=rival: r[d] < r[x])  # type: ignore[misc]
                assert preferred >= self._weight(lambda r, d=document, x=rival: r[x] < r[d])  # type: ignore[misc]

    def check_a_consensus_is_not_lost_by_one_bad_epoch(self) -> None:
        p, now = self.parameters, self.history[-1]
        if now.incumbent is None:
            return
        needed = {"dormant": p.dormant_epochs, "repealed": p.sustain_epochs, "superseded": p.sustain_epochs}
        state = now.after[now.incumbent]
        if state == "consensus":
            return
        recent = self.history[-needed[state] :]
        assert len(recent) == needed[state] and all(epoch.incumbent == now.incumbent for epoch in recent)
        if state == "dormant":
            assert all(now.incumbent in epoch.failing for epoch in recent)
        elif state == "repealed":
            assert all(now.incumbent in epoch.rejected for epoch in recent)
        else:
            successor = next(d for d, after in now.after.items() if after == "consensus")
            assert all(successor in epoch.leading for epoch in recent)


TestRules = Rules.TestCase
TestRules.settings = settings(max_examples=examples(100), stateful_step_count=12, deadline=None)
