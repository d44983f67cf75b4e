"""The bench of attacks: its search finds known thresholds, baselines fall as theory says, floods of names flip nothing, and its
numbers are those that a signed log with the same principals, vouches, reports and ballots comes to."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from bench.attacks import baselines, campaigns
from bench.attacks.adversaries import Attacked, Coalition, at_random, attacked
from bench.attacks.campaigns import GOALS, HONEST, HOSTILE, Attack, course, flips, lots
from bench.attacks.graphs import MAX_VOUCHES, World, world
from bench.attacks.laboratory import FLOOD, GATED, TURNOUTS, Laboratory, Row, Way
from bench.attacks.lines import GATES, Line, lines_of, missed
from bench.attacks.ours import Electors, Rule, electors
from bench.attacks.report import markdown
from bench.attacks.search import least
from bench.attacks.topic import Topic
from bench.attacks.trials import measure
from signers import Signer, domain_signer, key_signer
from simulated_log import SUFFIX_LIST, SUFFIXES, LogBuilder, suffix_blob

from treaty_consensus.audit import Replay
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.defaults import open_parameters
from treaty_consensus.election.principals import PrincipalDirectory, SuffixList
from treaty_consensus.election.rule import advance, incumbent_of

SMALL = 120


@pytest.mark.parametrize("guess", [None, 0, 3, 37, 38, 99, 100, 1000])
@pytest.mark.parametrize("threshold", [0, 1, 37, 100, 101])
def test_the_search_finds_the_least_whatever_it_is_told(threshold: int, guess: int | None) -> None:
    numbers: list[int] = []

    def flips(number: int) -> bool:
        numbers.append(number)
        return number >= threshold

    assert least(flips, 100, guess) == (threshold if threshold <= 100 else None)
    assert len(numbers) == len(set(numbers)) <= 16


def test_a_world_is_drawn_once_and_for_all() -> None:
    one = world(SMALL, 7)
    world.cache_clear()
    again = world(SMALL, 7)
    assert one is not again
    for name in ("anchors", "source", "target", "met"):
        assert np.array_equal(getattr(one, name), getattr(again, name))
    assert not np.array_equal(one.source, world(SMALL, 8).source)
    assert len(set(one.anchors.tolist())) == 16
    assert np.bincount(one.source).max() <= MAX_VOUCHES
    assert not (one.source == one.target).any()


def test_a_coalition_stays_within_its_vouches() -> None:
    population = world(SMALL, 1)
    corrupt = tuple(at_random(population)[:20])
    assert not set(corrupt) & set(population.anchors.tolist())
    for coalition in (Coalition(corrupt, 0, "circle"), Coalition(corrupt, 50, "domains")):
        scene = attacked(population, coalition)
        graph = scene.graph
        assert scene.hostile.sum() == 20 + coalition.domains
        assert np.bincount(graph.source).max() <= MAX_VOUCHES
        assert scene.hostile[graph.target[scene.hostile[graph.source]]].all()
        assert (graph.strength[scene.hostile[graph.source]] == ONE).all()
    kept = attacked(population, Coalition(corrupt)).graph
    assert np.array_equal(kept.target, attacked(population, Coalition()).graph.target)


# Baselines


@pytest.mark.parametrize("method", ["one-did", "domain-cap"])
def test_where_every_name_has_a_vote_names_decide(method: baselines.Method) -> None:
    def asks(goal: campaigns.Goal, turnout: float) -> int | None:
        return least(lambda n: baselines.flips(baselines.weights(method, population, n), population, goal, turnout), FLOOD)

    population = world(SMALL, 1)
    assert asks("promote", 1.0) == 2 * SMALL
    assert asks("block", 1.0) == SMALL // 2 + 1, "more than a third"
    assert asks("promote", 0.1) == 2 * SMALL // 10


def test_pagerank_gives_every_name_a_share() -> None:
    population = world(SMALL, 1)
    weights = baselines.weights("pagerank", population, SMALL)
    assert weights.sum() == pytest.approx(1)
    assert weights[SMALL:].sum() == pytest.approx(0.5), "as many names, and nobody has dealt with them"


def test_eigentrust_gives_nothing_before_an_open_endpoint() -> None:
    population = world(SMALL, 1)
    assert baselines.weights("eigentrust", population, 500)[SMALL:].sum() == 0
    half = baselines.weights("eigentrust", population, 50, SMALL)
    assert half.sum() == pytest.approx(1)
    assert half[SMALL:].sum() > 0.5, "open endpoints hand on most of their trust to strangers"


# Ours


@pytest.mark.sample(3)
@pytest.mark.parametrize("goal", GOALS)
def test_unvouched_domains_flip_nothing(goal: campaigns.Goal) -> None:
    for size in (SMALL, 300):
        flood = electors(attacked(world(size, 1), Coalition((), FLOOD, "domains")))
        assert flood.share == 0
        for turnout in TURNOUTS:
            assert not flips(flood, Attack(goal, turnout))


def test_keys_and_subdomains_are_nobody() -> None:
    directory = PrincipalDirectory()
    directory.read_domains_by(SUFFIX_LIST.sha256, SuffixList(SUFFIXES))
    names = [key_signer(f"key {number}").did for number in range(200)]
    names += [f"did:wba:sub-{number}.p{number % 9:06}.example" for number in range(FLOOD)]
    assert {directory.principal_of(name) for name in names} == {None}
    assert directory.principal_of("did:wba:p000001.example") == "p000001.example"


def test_total_power_gets_everything_and_none_gets_nothing() -> None:
    population = world(SMALL, 1)
    order = at_random(population)
    nothing, all_but_anchors = (
        electors(attacked(population, Coalition())),
        electors(attacked(population, Coalition(tuple(order), 0, "circle"))),
    )
    assert 0 == nothing.share < all_but_anchors.share < 1
    for goal in GOALS:
        for turnout in TURNOUTS:
            assert not flips(nothing, Attack(goal, turnout))
            assert flips(all_but_anchors, Attack(goal, turnout))
    assert not flips(all_but_anchors, Attack("promote", epochs=2)), "a provisional document waits"


def test_corruption_is_monotone_and_clones_gain_nothing() -> None:
    lab = Laboratory(world(SMALL, 2))
    way: Way = (200, "domains")
    shares = [lab.weighed(number, way, Rule(), "trusted").share for number in range(0, 60, 6)]
    assert shares == sorted(shares)
    for goal in GATED:
        alone = lab.fraction(Attack(goal, 0.5), [way])
        assert alone is not None and alone > GATES[goal]
        assert lab.fraction(Attack(goal, 0.5, clones=7), [way]) == alone


def test_each_defence_is_worth_something() -> None:
    lab = Laboratory(world(SMALL, 1))
    for rule, turnout in ((Rule(lending=False), 1.0), (Rule(vouched=False), 0.1)):
        without = lab.fraction(Attack("block", turnout), [(1000, "domains")], rule)
        whole = lab.fraction(Attack("block", turnout), [(1000, "domains")])
        assert without is not None and whole is not None and without < whole


# Report


@pytest.mark.deep
def test_a_report_shows_medians_and_what_misses_a_gate() -> None:
    measures = measure(60, 1, ["flood", "corrupt"])
    lines = lines_of(measures)
    assert missed(lines) == []
    text = markdown(lines)
    assert "| promote |" in text and "missed" not in text
    low = Line("corrupt", 60, "block", 0.5, "best", median=0.1, low=0.1, high=0.2, worlds=3)
    flipped = Line("flood", 60, "block", 0.5, "", median=None, low=5000.0, high=None, worlds=3)
    assert missed([*lines, low, flipped]) == [low, flipped]
    assert {line.worlds for line in lines} == {1}
    assert len({Row(line.table, line.size, line.goal, line.turnout, line.detail) for line in lines}) == len(measures)


# Against a log

TINY, DOMAINS = 40, 5


class Enacted:
    """The same attack, in a log that everybody really signs. The adversary is there from the first epoch, as in "unopposed"."""

    def __init__(self, scene: Attacked, turnout: float) -> None:
        parameters = open_parameters(scene.anchors, SUFFIX_LIST, epoch_seconds=1)
        assert parameters.reputation is not None
        reputation = msgspec.structs.replace(parameters.reputation, acquainted_epochs=1, mature_epochs=1)
        self.scene = scene
        self.agents = [domain_signer(name) for name in scene.graph.principals]
        self.log = LogBuilder(msgspec.structs.replace(parameters, reputation=reputation), replay=Replay(suffix_blob))
        self.voters = set(lots(scene.world.size, scene.world.seed)[: round(turnout * scene.world.size)].tolist())
        self.hostile = np.flatnonzero(scene.hostile).tolist()
        corrupt = self.agents[self.hostile[0]]
        self.theirs = self.log.publish(corrupt, "theirs")
        self.ours = self.log.publish(self.honest[0], "ours")
        self.vouch()

    def vouch(self) -> None:
        """Let all renew their vouches."""
        graph = self.scene.graph
        for source, target in zip(graph.source.tolist(), graph.target.tolist(), strict=True):
            self.log.vouch(self.agents[source], self.agents[target])

    @property
    def honest(self) -> list[Signer]:
        return [agent for agent, hostile in zip(self.agents, self.scene.hostile, strict=True) if not hostile]

    def epoch(self) -> str | None:
        """Friends meet, and once the adversary everybody; the voters vote once, the adversary each time. Return the consensus."""
        first = self.log.epoch == 0
        for one, other in sorted(self._pairs(everybody=first)):
            sided = self.scene.hostile[one] or self.scene.hostile[other]
            self.log.report(self.agents[one], self.agents[other], self.theirs if sided else self.ours)
        for number, agent in enumerate(self.agents):
            if number in self.hostile:
                self.log.vote(agent, self.theirs)
            elif first and number in self.voters:
                self.log.vote(agent, self.ours)
        (decision,) = self.log.close()
        return {self.theirs: HOSTILE, self.ours: HONEST, None: None}[decision.consensus]

    def _pairs(self, *, everybody: bool) -> set[tuple[int, int]]:
        world, graph = self.scene.world, self.scene.graph
        ends = list(zip(world.source.tolist(), world.target.tolist(), strict=True))
        if everybody:
            ends += [*world.met.tolist(), *zip(graph.source.tolist(), graph.target.tolist(), strict=True)]
            ends += [(one, other) for one in self.hostile for other in range(world.size) if one != other]
        return {(min(pair), max(pair)) for pair in ends}


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.parametrize(("corrupted", "wins"), [(10, HONEST), (21, HOSTILE)])
def test_a_signed_log_comes_to_the_same_numbers(corrupted: int, wins: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaigns, "_renewals", lambda size: np.zeros(size, dtype=np.int64))  # the log's voters vote on one day
    population = world(TINY, 4)
    scene = _fresh(attacked(population, Coalition(tuple(_trusted(population)[:corrupted]), DOMAINS, "domains")))
    weighed, attack = electors(scene), Attack("unopposed", 0.5)
    enacted = Enacted(scene, attack.turnout)
    for number, poll in zip(range(3), course(weighed, attack), strict=False):
        assert enacted.epoch() == incumbent_of(advance(poll))
        if number == 0:
            transcript = enacted.log.newest_transcript()
            assert transcript["pairwise"] == [[str(votes) for votes in row] for row in poll.count.pairwise]
            quorums = [candidate["quorum"] for candidate in transcript["candidates"]]  # type: ignore[attr-defined]
            assert quorums == [str(poll.quorum(document)) for document in poll.candidates]
            assert _weights(transcript) == _counted(weighed)
    assert incumbent_of(advance(poll)) == wins


@pytest.mark.deep
@pytest.mark.sample(1)
def test_a_topic_of_the_bench_is_decided_as_in_a_signed_log() -> None:
    population = world(TINY, 4)
    scene = _fresh(attacked(population, Coalition(tuple(_trusted(population)[:10]), DOMAINS, "domains")))
    enacted, topic = Enacted(scene, 0.5), Topic(electors(scene))
    topic.publish(enacted.theirs, by=enacted.hostile[0])
    topic.publish(enacted.ours)
    pairs = list(zip(topic.meetings.first.tolist(), topic.meetings.second.tolist(), strict=True))
    for epoch in range(4):
        enacted.vouch()  # the electorate of the bench stays as it is
        topic.report(enacted.theirs, topic.meetings.mixed)
        topic.report(enacted.ours, topic.meetings.honest)
        for one, other in pairs:
            sided = scene.hostile[one] or scene.hostile[other]
            enacted.log.report(enacted.agents[one], enacted.agents[other], enacted.theirs if sided else enacted.ours)
        if epoch == 1:  # some vote, and all fade and ripen
            voters = np.array(sorted(enacted.voters - {*enacted.hostile}))
            topic.vote(voters, (enacted.ours,), (enacted.theirs,))
            topic.vote(scene.hostile, (enacted.theirs,))
            for number in voters.tolist():
                enacted.log.vote(enacted.agents[number], enacted.ours, enacted.theirs)
            for number in enacted.hostile:
                enacted.log.vote(enacted.agents[number], enacted.theirs)
        enacted.log.close()
        transcript = enacted.log.newest_transcript()
        own = json.loads(topic.decide().transcript)
        topic.close()
        for member in ("pairwise", "voices", "total", "order", "transitions"):
            assert own[member] == transcript[member], (epoch, member)


def _fresh(scene: Attacked) -> Attacked:
    """With all vouches of this epoch, as in the log."""
    return replace(scene, graph=replace(scene.graph, strength=np.full_like(scene.graph.strength, ONE)))


def _trusted(world: World) -> list[int]:
    return Laboratory(world).order("trusted")


def _weights(transcript: dict[str, object]) -> dict[str, int]:
    voices = transcript["voices"]
    assert isinstance(voices, list)
    return {voice["principal"]: int(voice["weight"]) for voice in voices}


def _counted(weighed: Electors) -> dict[str, int]:
    names = weighed.attacked.graph.principals
    return {name: weight for name, weight in zip(names, weighed.weights.tolist(), strict=True) if weight}
