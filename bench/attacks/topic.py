"""A topic of a world, decided by the product itself, epoch after epoch: its implied ballots, its field, its count, its states.

Only trust is not computed anew: the electorate is that of a coalition, which `ours` weighed. Statements are not signed; the
tests compare with a log in which they are.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from treaty_consensus.canonical import hex_digest
from treaty_consensus.election.decision import Outcome, Question, TopicState, decide
from treaty_consensus.election.electorate import Electorate
from treaty_consensus.election.evidence import Evidence
from treaty_consensus.election.principals import SuffixList
from treaty_consensus.election.report import PairColumns, Tally
from treaty_consensus.election.rule import DocumentState
from treaty_consensus.kinds import Ballot, Base, Blob, Body, Input, Publish, Status
from treaty_consensus.statement import Statement

from .campaigns import HORIZON
from .graphs import Numbers
from .ours import PARAMETERS, Electors

NAME = "bench/topic"
START = 16 * HORIZON
"""The epoch in which what is measured begins. Everything may have happened before."""
NEVER = -1
_SUFFIXES = SuffixList(b"// ===BEGIN ICANN DOMAINS===\nexample\n// ===END ICANN DOMAINS===\n")


class Meetings:
    """The pairs that report to each other: friends, some strangers, and whoever one of them vouches for.

    `first`, `second`: the numbers of their principals, the first one smaller. `mixed`: of which the adversary holds one or both.
    """

    def __init__(self, electors: Electors) -> None:
        scene, weighs = electors.attacked, electors.base > 0
        ends = np.concatenate([scene.world.met.T, np.array([scene.graph.source, scene.graph.target])], axis=1)
        pairs = np.unique(np.sort(ends, axis=0), axis=1)
        self.first, self.second = pairs[:, weighs[pairs[0]] & weighs[pairs[1]]]
        self.mixed: NDArray[np.bool_] = scene.hostile[self.first] | scene.hostile[self.second]

    @property
    def honest(self) -> NDArray[np.bool_]:
        """Mark the pairs of two honest principals."""
        return ~self.mixed

    def drawn(self, share: float, seed: str) -> NDArray[np.bool_]:
        """Mark honest pairs, each with this probability."""
        return self.honest & (lots(seed, len(self.first)) < share)


def lots(seed: str, number: int) -> NDArray[np.float64]:
    """Draw as many numbers from 0 to 1: the same for the same seed, on every machine."""
    return np.random.default_rng(int(hex_digest(seed.encode())[:16], 16)).random(number)


class Topic:
    """The topic; it begins in the epoch `START`."""

    def __init__(self, electors: Electors, meetings: Meetings | None = None) -> None:
        self.electors = electors
        self.meetings = meetings or Meetings(electors)
        self.epoch = START
        self._evidence = Evidence()
        self._evidence.directory.read_domains_by(NAME, _SUFFIXES)
        self._state = TopicState()
        self._newest: dict[str, Numbers] = {}
        self._leaves = 0
        self._cast: dict[int, int] = {}

    @property
    def consensus(self) -> str | None:
        """The consensus after the newest decision."""
        return next((document for document, state in self._state.documents.items() if state.state == "consensus"), None)

    def state_of(self, document: str) -> str:
        """The state of a document after the newest decision."""
        return self._state.documents.get(document, DocumentState()).state

    def publish(self, document: str, by: int = 0, version: str = "1.0", base: Base | None = None) -> str:
        """Publish a document as a version of a principal's protocol; return its URI."""
        uri = f"https://registry.example/protocols/{self._name(by)}/protocol/{version}"
        self._observe(Publish(uri, NAME, Blob(document, 1), Blob("0" * 64, 1), "negotiated", base=base), by)
        self._newest.setdefault(document, np.full(len(self.meetings.first), NEVER))
        return uri

    def deprecate(self, uri: str, by: int = 0, successor: str | None = None) -> None:
        """Let the publisher deprecate what it publishes there."""
        self._observe(Status(uri, "deprecated", successor=successor), by)

    def report(self, document: str, pairs: NDArray[np.bool_], epoch: int | Numbers | None = None) -> None:
        """Let pairs agree on a document, in this epoch or in earlier ones. `epoch`: of all, or of each pair there is."""
        epochs = np.broadcast_to(self.epoch if epoch is None else epoch, pairs.shape)
        self._newest[document][pairs] = np.maximum(self._newest[document], epochs)[pairs]

    def forget(self, document: str) -> None:
        """Take back all reports on a document."""
        self._newest[document][:] = NEVER

    def vote(self, members: NDArray[np.bool_] | Numbers, *tiers: tuple[str, ...], epoch: int | None = None) -> None:
        """Let principals cast the same ballot, in this epoch or in an earlier one."""
        numbers = np.flatnonzero(members) if members.dtype == np.bool_ else members
        for number in numbers.tolist():
            self._cast[number] = self._cast.get(number, -1) + 1
            self._observe(Ballot(NAME, self._cast[number], tiers, ""), number, epoch)

    def settle(self, document: str) -> None:
        """Make a document the consensus, as if all honest pairs and those with the adversary had spoken it for long."""
        now, self.epoch = self.epoch, self.epoch - 4 * HORIZON
        self.report(document, np.ones(len(self.meetings.first), dtype=np.bool_))
        self.close()
        self.epoch = now
        self.report(document, np.ones(len(self.meetings.first), dtype=np.bool_), now - 1)
        self._state = TopicState({document: DocumentState("consensus")}, self._state.implied)

    def close(self) -> str | None:
        """Decide the open epoch and begin the next; return the consensus."""
        outcome = self.decide()
        self._state = outcome.after
        self.epoch += 1
        return outcome.consensus

    def decide(self) -> Outcome:
        """Decide the open epoch, and leave it open."""
        question = Question(NAME, self.epoch, "0" * 64, PARAMETERS, Input(self._leaves + 1, "0" * 64), None, self._state)
        return decide(question, self._evidence, self._tally(), self._electorate)

    def _tally(self) -> Tally:
        documents = sorted(self._newest)
        since, first, second = max(self.epoch - PARAMETERS.memory_epochs, NEVER), *self._places
        columns = []
        for number, document in enumerate(documents):
            newest = self._newest[document]
            rows = np.flatnonzero(newest > since)
            columns.append((np.full(len(rows), number), first[rows], second[rows], newest[rows]))
        return Tally(self._names, tuple(documents), PairColumns(*map(np.concatenate, zip(*columns, strict=True))))

    @cached_property
    def _names(self) -> tuple[str, ...]:
        names = self.electors.attacked.graph.principals
        return tuple(names[number] for number in np.flatnonzero(self.electors.base).tolist())

    @cached_property
    def _places(self) -> tuple[Numbers, Numbers]:
        """The places of the pairs' principals among those that weigh something."""
        place = np.cumsum(self.electors.base > 0) - 1
        return place[self.meetings.first], place[self.meetings.second]

    @cached_property
    def _electorate(self) -> Electorate:
        electors, names = self.electors, self.electors.attacked.graph.principals
        return Electorate(
            self._evidence.directory,
            "0" * 64,
            {names[number]: int(electors.base[number]) for number in np.flatnonzero(electors.base).tolist()},
            {names[number]: electors.labels[electors.clusters[number]] for number in np.flatnonzero(electors.base).tolist()},
            eligible_counterparties=frozenset(names[number] for number in np.flatnonzero(electors.eligible).tolist()),
            vouches=electors.attacked.graph,
            terms=PARAMETERS.reputation,
        )

    def _observe(self, body: Body, by: int, epoch: int | None = None) -> None:
        statement = Statement(body, "registry.example", (f"did:wba:{self._name(by)}#key",), 0, b"", ())
        self._evidence.observe(statement, self._leaves, self.epoch if epoch is None else epoch)
        self._leaves += 1

    def _name(self, number: int) -> str:
        return self.electors.attacked.graph.principals[number]
