"""An epoch of a large open electorate, in one process: taken in leaf by leaf, then closed.

A hundred thousand principals, each with a root DID and nine more that it granted, vote in one topic: a million ballots, all of
them different DIDs'. Everybody is acquainted with about eight others, by reports in three epochs, and vouches for them: 8·10^5
vouches. The statements are made by a fixed seed and observed as admitted ones; signatures and admission are another row's
(`vote`), so they have none.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, islice

from treaty_consensus import kinds
from treaty_consensus.election.ballot import approvals, implied_ballots, votes
from treaty_consensus.election.ballot import count as count_votes
from treaty_consensus.election.credit import Credits
from treaty_consensus.election.decision import Question, TopicState, decide
from treaty_consensus.election.defaults import open_parameters
from treaty_consensus.election.electorate import Electorate, electorate_of
from treaty_consensus.election.evidence import Evidence
from treaty_consensus.election.principals import SuffixList
from treaty_consensus.election.report import Tally
from treaty_consensus.election.roll import roll
from treaty_consensus.election.schulze import rank
from treaty_consensus.statement import Statement

PRINCIPALS = 100_000
DIDS = 10
"""Of each principal."""
ANCHORS = PRINCIPALS // 20
"""As many as are recommended; nobody weighs much who is far from all of them."""
DOCUMENTS = 10
REPORTED = 3
"""Epochs of reports; the last one is decided."""
CLOSING = "closing: "
"""How the names of those things begin of which a closing consists."""
TOPIC = "bench/large"
SUFFIXES = b"// ===BEGIN ICANN DOMAINS===\nexample\n// ===END ICANN DOMAINS===\n"

_CHUNK = 20_000


@dataclass
class Scene:
    """The evidence as it grows. `seconds`: of one processor, for each thing that was done."""

    evidence: Evidence = field(default_factory=Evidence)
    seconds: dict[str, float] = field(default_factory=dict)
    _random: random.Random = field(default_factory=lambda: random.Random(0))
    _leaves: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.domains = [f"agent-{number:06d}.example" for number in range(PRINCIPALS)]
        self.documents = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(DOCUMENTS)]
        self.parameters = open_parameters(self.domains[:: PRINCIPALS // ANCHORS][:ANCHORS], kinds.Blob("0" * 64, len(SUFFIXES)))
        self._pairs = self._acquaintances()

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count what happens as `what`."""
        start = time.process_time()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.process_time() - start

    def observe(self, what: str, bodies: Iterator[tuple[kinds.Body, tuple[str, ...]]], epoch: int = REPORTED - 1) -> None:
        """Take in statements by these DIDs; making them is not counted."""
        while chunk := list(islice(bodies, _CHUNK)):
            statements = [Statement(body, "bench", tuple(f"{did}#key-1" for did in by), 0, b"", ()) for body, by in chunk]
            assert all(statement.authors for statement in statements)  # parsed by whoever admitted them
            with self.timed(what):
                for statement in statements:
                    self.evidence.observe(statement, next(self._leaves), epoch)

    def identities(self) -> Iterator[tuple[kinds.Body, tuple[str, ...]]]:
        """Of the root DIDs."""
        key = kinds.Key("did:key:z6Mk#z6Mk", "z6Mk")
        for domain in self.domains:
            yield kinds.Identity(root(domain), kinds.Blob("0" * 64, 1), (key,), 1), (root(self.domains[0]),)

    def grants(self) -> Iterator[tuple[kinds.Body, tuple[str, ...]]]:
        """Of the other DIDs."""
        for domain in self.domains:
            for did in speakers(domain)[1:]:
                yield kinds.Grant(domain, did), (root(domain),)

    def publications(self) -> Iterator[tuple[kinds.Body, tuple[str, ...]]]:
        """Of what is voted on."""
        for document in self.documents:
            uri = f"https://bench/protocols/{self.domains[0]}/{document}/1.0"
            blobs = kinds.Blob(document, 1), kinds.Blob("0" * 64, 1)
            yield kinds.Publish(uri, TOPIC, *blobs, "negotiated"), (root(self.domains[0]),)

    def reports(self, epoch: int) -> Iterator[tuple[kinds.Body, tuple[str, ...]]]:
        """One of each two who are acquainted."""
        for one, other in self._pairs:
            document = self.documents[int(DOCUMENTS * self._random.random() ** 2)]
            nid = f"{self._random.getrandbits(256):064x}"
            yield kinds.Report(TOPIC, nid, document, "agreed", epoch, ""), (root(one), root(other))

    def vouches(self) -> Iterator[tuple[kinds.Body, tuple[str, ...]]]:
        """Of everybody for everybody it is acquainted with."""
        for one, other in self._pairs:
            yield kinds.Vouch(root(other), 0), (root(one),)
            yield kinds.Vouch(root(one), 0), (root(other),)

    def ballots(self) -> Iterator[tuple[kinds.Body, tuple[str, ...]]]:
        """Of every DID: one to five documents, the earlier ones mostly first."""
        for place in range(DIDS):
            for domain in self.domains:
                ranked = sorted(range(DOCUMENTS), key=lambda number: number + 6 * self._random.random())
                tiers = tuple((self.documents[number],) for number in ranked[: self._random.randint(1, 5)])
                yield kinds.Ballot(TOPIC, 0, tiers, ""), (speakers(domain)[place],)

    def close(self) -> None:
        """Close the epoch, and do the parts of the decision once more, one by one."""
        epoch, parameters, evidence = REPORTED - 1, self.parameters, self.evidence
        evidence.directory.read_domains_by("0" * 64, SuffixList(SUFFIXES))
        with self.timed(CLOSING + "principals of all DIDs, once"):
            evidence.directory.places(())
        assert all(evidence.directory.principal_of(did) == domain for domain in self.domains for did in speakers(domain))
        with self.timed(CLOSING + "electorate: vouches, trust, weights, clusters"):
            electorate = electorate_of(evidence, epoch, parameters)
        assert len(electorate.weights) > PRINCIPALS / 2
        with self.timed(CLOSING + "reports that count"):
            counted = evidence.reports.count(epoch, parameters.horizon_epochs, electorate.weights)
        tally = counted.tally(TOPIC)
        self._parts(electorate, tally)
        asked = Question(TOPIC, epoch, "0" * 64, parameters, kinds.Input(next(self._leaves), "0" * 64), None, TopicState())
        with self.timed(CLOSING + "decision in the topic, and its transcript"):
            outcome = decide(asked, evidence, tally, electorate)
        assert dict(outcome.states)
        with self.timed(CLOSING + "credits for the reports"):
            horizon = parameters.horizon_epochs
            credits, earned = Credits().close(epoch, electorate.clusters, counted.agreed, parameters.credit, horizon, {})
        with self.timed(CLOSING + "roll"):
            roll(epoch, "0" * 64, electorate, credits.standings(epoch, horizon), earned)

    def _parts(self, electorate: Electorate, tally: Tally) -> None:
        epoch, horizon = REPORTED - 1, self.parameters.horizon_epochs
        with self.timed("of the decision: weights in the topic, implied ballots"):
            weights = electorate.in_topic(tally)
            implied = implied_ballots(tally, electorate.vouches, {}, epoch)
        with self.timed("of the decision: votes: whose, how fresh, of what weight"):
            cast = votes(self.evidence.ballots[TOPIC], implied, weights, epoch, horizon)
            approvals(cast)
        assert len(cast.weight) > PRINCIPALS * DIDS / 2
        with self.timed("of the decision: count"):
            counted = count_votes(cast, self.documents, electorate.clusters)
        with self.timed("of the decision: Schulze"):
            rank(counted.pairwise)

    def _acquaintances(self) -> list[tuple[str, str]]:
        pairs = set()
        for _ in range(4):
            others = self.domains.copy()
            self._random.shuffle(others)
            pairs |= {(min(pair), max(pair)) for pair in zip(self.domains, others, strict=True) if pair[0] != pair[1]}
        return sorted(pairs)


def root(domain: str) -> str:
    """The DID of a principal that needs no grant."""
    return f"did:wba:{domain}"


def speakers(domain: str) -> list[str]:
    """All DIDs of a principal."""
    return [root(domain), *(f"did:wba:{domain}:agent-{number}" for number in range(1, DIDS))]


def live() -> dict[str, float]:
    """Seconds for each thing that is done in an epoch."""
    scene = Scene()
    scene.observe("take in identities and grants", scene.identities())
    scene.observe("take in identities and grants", scene.grants())
    scene.observe("take in identities and grants", scene.publications())
    for epoch in range(REPORTED):
        scene.observe("take in 1.2 million reports", scene.reports(epoch), epoch)
    scene.observe("take in 800,000 vouches", scene.vouches())
    scene.observe("take in 1,000,000 ballots", scene.ballots())
    scene.close()
    return scene.seconds
