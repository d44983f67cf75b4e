"""Invariants of the election that attacks were made against, on random histories."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from random import Random
from typing import Any

import numpy as np
import pytest
from depth import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from signers import Signer, domain_signer, key_signer
from simulated_log import SUFFIX_LIST, TOPIC, LogBuilder, document_hash, open_log

from treaty_consensus.canonical import parse_json
from treaty_consensus.did import parse_did
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.ballot import Approval, Ballots, Implied, implied_ballots, votes
from treaty_consensus.election.credit import Credits
from treaty_consensus.election.defaults import open_parameters
from treaty_consensus.election.electorate import Electorate
from treaty_consensus.election.principals import PrincipalDirectory
from treaty_consensus.election.report import Pair, Reports
from treaty_consensus.election.roll import roll
from treaty_consensus.election.rule import Support, in_order
from treaty_consensus.kinds import NONE, Report

SLOW = [HealthCheck.too_slow]
NAMES = "abcdefgh"
pairs = st.sampled_from(list(combinations(NAMES, 2))).map(lambda two: Pair.of(*two))
documents = st.sampled_from("xyz")


def did(name: str) -> str:
    """Return the DID, which is also the principal, of a letter."""
    return f"did:wba:{name}.example"


def named(pair: Pair) -> Pair:
    return Pair(did(pair.first), did(pair.second))


# What weighs nothing opens nothing

STRANGERS = (domain_signer("stranger.example"), domain_signer("other.example"), domain_signer("sub.anchor-00.example"))
LOOSE = (*STRANGERS, key_signer("loose"))
INVENTED = ("invented/0", "invented/1", TOPIC)
loose = st.tuples(st.sampled_from(["vote", "report", "meet"]), st.integers(0, 3), st.integers(0, 3), st.sampled_from(INVENTED))


def told(actions: list[tuple[str, int, int, str]]) -> tuple[list[str], dict[str, Any]]:
    """Log what members do and what strangers do besides; return the decided topics and the transcript of the members' topic."""
    log = open_log()
    document = log.publish(log.agents[0], "one")
    for one, other in zip(log.agents[:5], log.agents[1:6], strict=True):
        log.report(one, other, document)
    log.vote(log.agents[1], document)
    for what, number, another, topic in actions:
        author, second = LOOSE[number], log.agents[0] if what == "meet" else LOOSE[another]
        if what == "vote":
            log.vote(author, NONE, topic=topic)
        elif author != second:
            log.report(author, second, document, topic=topic)
    decided = [decision.topic for decision in log.close()]
    return decided, log.newest_transcript()


@pytest.mark.threat(75)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=SLOW)
@given(st.lists(loose, min_size=1, max_size=10))
def test_what_weighs_nothing_opens_nothing(actions: list[tuple[str, int, int, str]]) -> None:
    (alone, expected), (decided, found) = told([]), told(actions)
    assert decided == alone == [TOPIC]
    for name in ("pairwise", "total", "ballots", "voices", "weights", "nominees"):
        assert found[name] == expected[name]
    stripped = [{name: value for name, value in entry.items() if name != "index"} for entry in found["candidates"]]
    assert stripped == [{name: value for name, value in entry.items() if name != "index"} for entry in expected["candidates"]]


# A topic in which nothing changed costs no decision

TOPICS = ("one", "two", "three")
steps = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 4), st.sampled_from(["report", "vote", "none", "withdraw"])), max_size=4
)


@pytest.mark.threat(75)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=SLOW)
@given(st.lists(steps, min_size=4, max_size=12))
def test_a_topic_in_which_nothing_changed_costs_no_decision(epochs: list[list[tuple[int, int, str]]]) -> None:
    log = LogBuilder()
    candidates = [log.candidate(topic, topic=topic) for topic in TOPICS]
    by_topic: dict[str, object] = {}
    news = set(TOPICS)
    for actions in [[], *epochs]:
        for number, agent, what in actions:
            one, other = log.agents[agent], log.agents[(agent + 1) % 5]
            news.add(TOPICS[number])
            if what == "report":
                log.report(one, other, candidates[number], topic=TOPICS[number])
            else:
                ballots: dict[str, tuple[str, ...]] = {"vote": (candidates[number],), "none": (NONE,), "withdraw": ()}
                log.vote(one, *ballots[what], topic=TOPICS[number])
        size = len(log.leaves)
        decided = log.close()
        for place, decision in enumerate(decided, size):
            transcript = parse_json(log.transcripts[place], limit=2**20)
            assert isinstance(transcript, dict)
            suspects = [bool(entry["suspect"]) for entry in transcript["candidates"]]
            now = decision.states, suspects
            if decision.topic not in news and by_topic.get(decision.topic) == now:
                assert len(decided) == 1, "it stands in for an epoch in which nothing is decided"
            by_topic[decision.topic] = now
        assert news <= {decision.topic for decision in decided} | quiet(log)
        news = set()


def quiet(log: LogBuilder) -> set[str]:
    """Return the topics without a candidate and without a former consensus: news there is no reason for a decision."""
    topics = set()
    for topic in TOPICS:
        newest = next(
            parse_json(data, limit=2**20)
            for _, data in sorted(log.transcripts.items(), reverse=True)
            if f'"topic":"{topic}"'.encode() in data
        )
        assert isinstance(newest, dict)
        if not newest["candidates"] and not newest["former"]:
            topics.add(topic)
    return topics


# The newest report of a pair is the one that counts, in whichever order they were logged

reported = st.lists(st.tuples(pairs, st.integers(0, 5), documents), min_size=1, max_size=20, unique_by=lambda one: one[:2])


@settings(max_examples=examples(200))
@given(reported, st.randoms(use_true_random=False))
def test_the_newest_report_of_a_pair_counts(entries: list[tuple[Pair, int, str]], random: Random) -> None:
    newest: dict[Pair, tuple[int, str]] = {}
    for pair, epoch, document in entries:
        newest[named(pair)] = max(newest.get(named(pair), (epoch, document)), (epoch, document))
    expected = {}
    for name in {name for pair in newest for name in pair}:
        met = Counter(document_hash(document) for pair, (_, document) in newest.items() if name in pair)
        expected[name] = {document for document, number in met.items() if number == max(met.values())}
    for _ in range(2):
        log = Logged()
        for pair, epoch, document in entries:
            log.add(pair, document, epoch)
        implied = log.implied(5)
        assert {name: set(ballot.favourites) for name, ballot in implied.items()} == expected
        random.shuffle(entries)


class Logged:
    """Reports as they are stored, between principals that all weigh ONE."""

    def __init__(self) -> None:
        self.directory, self._leaf = PrincipalDirectory(), 0
        self.reports = Reports(self.directory)

    def add(self, pair: Pair, document: str, epoch: int, *, topic: str = TOPIC, key: str = "", agreed: bool = True) -> None:
        """Log a report, under a key of its own unless one is given."""
        self._leaf += 1
        authors = parse_did(did(pair.first)), parse_did(did(pair.second))
        key = key or f"key {pair} {epoch} {document} {topic} {agreed}"
        nid, sha256 = document_hash(key), document_hash(document)
        body = Report(topic, nid, sha256, "agreed" if agreed else "failed", epoch, "a note")
        self.reports.add(key, body, authors, self._leaf, epoch)

    def acquainted(self) -> list[int]:
        """Return in how many epochs each two principals agreed."""
        who = np.array([self.directory.number(did(name)) for name in NAMES])
        one, other = (self.directory.owners(who)[list(side)] for side in zip(*combinations(range(len(NAMES)), 2), strict=True))
        return [int(epochs) for epochs in self.reports.acquainted().between(one, other)]

    def implied(self, epoch: int) -> dict[str, Implied]:
        """Return the implied ballots of the topic."""
        weights = {did(name): ONE for name in NAMES}
        tally = self.reports.count(epoch, 13, weights).tally(TOPIC)
        return implied_ballots(tally, None, {}, epoch)


# Clones of one publisher share places

groups = st.lists(st.integers(1, 100), min_size=1, max_size=4)


@pytest.mark.threat(75)
@settings(max_examples=examples(200))
@given(st.integers(1, 100), groups, st.integers(2, 12))
def test_a_bloc_gets_its_share_of_the_field(bloc: int, others: list[int], places: int) -> None:
    """Each group approves more documents than there are places. By D'Hondt's bound a list of a share s gets at most
    s · (places + groups) places."""
    sizes = [bloc * 10**6, *(size * 10**6 for size in others)]
    approvals = [
        Approval(frozenset(f"{group}/{number}" for number in range(places + 1)), weight) for group, weight in enumerate(sizes)
    ]
    supports = {
        document: Support(group * 100 + int(document.split("/")[1]), 3, 3, ONE, approval.weight)
        for group, approval in enumerate(approvals)
        for document in sorted(approval.documents)
    }
    field = in_order(supports.keys(), supports, approvals, places)[:places]
    clones = sum(document.startswith("0/") for document in field)
    # Shares are rounded down to a millionth of a voter here, so the bound is short of that.
    assert clones * sum(sizes) <= sizes[0] * (places + len(others)) + places * sum(sizes) // 10**5


# The order inside a tie means nothing

rankings = st.lists(st.lists(st.sampled_from("vwxyz"), min_size=2, max_size=4, unique=True).map(tuple), max_size=2).map(tuple)
repeated = st.lists(rankings, min_size=1, max_size=2).flatmap(
    lambda pool: st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(pool), st.integers(0, 3)), min_size=2, max_size=10)
)
"""Few voters and few rankings, so that many ballots reaffirm the one before."""


@settings(max_examples=examples(200))
@given(repeated, st.randoms(use_true_random=False))
def test_the_order_inside_a_tie_means_nothing(
    history: list[tuple[str, tuple[tuple[str, ...], ...], int]], random: Random
) -> None:
    directory = PrincipalDirectory()
    one, other = Ballots(directory), Ballots(directory)
    for name, tiers, epoch in sorted(history, key=lambda entry: entry[2]):
        one.cast(did(name), tiers, epoch)
        other.cast(did(name), tuple(tuple(random.sample(tier, len(tier))) for tier in tiers), epoch)
    weights = {did(name): ONE for name in "ab"}
    first, second = (votes(ballots, {}, weights, 4, 13) for ballots in (one, other))
    for name in ("principal", "weight", "age", "held"):
        assert getattr(first, name).tolist() == getattr(second, name).tolist()
    assert [set(map(frozenset, first.rankings[n])) for n in first.ranking] == [
        set(map(frozenset, second.rankings[n])) for n in second.ranking
    ]


# An equivocation voids acquaintance in all topics

keyed = st.lists(
    st.tuples(pairs, st.integers(0, 4), st.sampled_from(["here", "there"]), st.booleans()), min_size=1, max_size=14, unique=True
)


@settings(max_examples=examples(200))
@given(keyed, st.data())
def test_an_equivocation_voids_acquaintance_in_all_topics(
    entries: list[tuple[Pair, int, str, bool]], data: st.DataObject
) -> None:
    void = data.draw(st.sets(st.integers(0, len(entries) - 1)))
    with_void, without = Logged(), Logged()
    for number, (pair, epoch, topic, agreed) in enumerate(entries):
        with_void.add(pair, "x", epoch, topic=topic, key=f"key {number}", agreed=agreed)
        if number not in void:
            without.add(pair, "x", epoch, topic=topic, key=f"key {number}", agreed=agreed)
    for number in sorted(void):
        pair, epoch, _, _ = entries[number]
        elsewhere = data.draw(st.sampled_from(["here", "there"]))
        with_void.add(pair, "y", epoch + 1, topic=elsewhere, key=f"key {number}")
    assert with_void.acquainted() == without.acquainted()


# Standing follows trust


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.integers(0, ONE // 4), st.integers(0, 4 * ONE)), min_size=2, max_size=6), st.integers(1, ONE // 4))
def test_standing_grows_with_trust_and_with_credits(members: list[tuple[int, int]], cap: int) -> None:
    names = [f"{letter}.example" for letter, _ in zip(NAMES, members, strict=False)]
    terms = open_parameters([f"anchor-{number}.example" for number in range(16)], SUFFIX_LIST).reputation
    electorate = Electorate(
        PrincipalDirectory(),
        "0" * 64,
        weights=dict.fromkeys(names, ONE),
        clusters={name: name for name in names},
        trust=dict(zip(names, (trust for trust, _ in members), strict=True)),
        cap=cap,
        terms=terms,
    )
    credits = dict(zip(names, (earned for _, earned in members), strict=True))
    value = parse_json(roll(0, "0" * 64, electorate, credits, Credits().earned), limit=2**20)
    assert isinstance(value, dict)
    standing = {row[0]: int(row[5]) for row in value["principals"]}
    for one, other in combinations(names, 2):
        for low, high in ((one, other), (other, one)):
            if electorate.trust[low] <= electorate.trust[high] and credits[low] <= credits[high]:
                assert standing[low] <= standing[high]
    for name in names:
        assert standing[name] <= credits[name]
        assert standing[name] * cap <= credits[name] * electorate.trust[name], "no more than its part of the cap"
        assert electorate.trust[name] < cap or standing[name] == credits[name]


# A network that moved elects within three epochs


@pytest.mark.threat(75)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
@given(st.integers(4, 12), st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=12), st.integers(3, 8))
def test_a_network_that_moved_elects_within_three_epochs(members: int, chords: set[tuple[int, int]], stayed: int) -> None:
    log = LogBuilder()
    agents = tuple(domain_signer(f"member-{number:02}.example") for number in range(members))
    ring = {(number, (number + 1) % members) for number in range(members)}
    met = {(min(pair), max(pair)) for pair in (*ring, *chords) if pair[0] != pair[1] and max(pair) < members}
    first, second = (log.publish(agents[0], name) for name in ("first", "second"))
    elected = [meet(log, agents, met, document) for document in [first] * stayed + [second] * 3]
    assert elected[stayed - 1] == first
    assert elected[-1] == second


def meet(log: LogBuilder, agents: tuple[Signer, ...], met: set[tuple[int, int]], document: str) -> str | None:
    """Let all pairs agree on a document, and close the epoch; return the consensus."""
    for one, other in sorted(met):
        log.report(agents[one], agents[other], document)
    (decision,) = log.close()
    return decision.consensus
