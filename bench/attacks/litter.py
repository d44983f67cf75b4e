"""Litter: statements in invented topics that make the log, and every reader of it, bear more bytes than they have.

Some members of an open electorate have topics to themselves. The figure is the bytes of the decisions that were logged
there and of their transcripts, for each byte that the members posted. A real log is built, so all rules of admission, of the
agenda and of the decisions hold. An honest topic is alive all the time, so epochs need no topic to stand in.

    ballots          one ballot in each topic, which has no candidate
    documents/news   so many candidates in each topic; `quiet`: nothing else; `ballot`, `failure`: one of them in every epoch
    best             the largest of all
    in use           no invented topic: all members have used one for long, which is quiet now, and one member votes in each epoch

Counted are two horizons: one in which the members post, one in which the log still remembers it. The bytes of documents and of
their cards are not counted as posted, so the true figures are lower.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations, cycle
from typing import Literal, TypeAlias

from treaty_consensus.audit import Replay
from treaty_consensus.election.defaults import open_parameters
from treaty_consensus.kinds import NONE

from .campaigns import HORIZON
from .laboratory import Laboratory, Row
from .ours import PARAMETERS
from .signed import SUFFIX_LIST, TOPIC, LogBuilder, Signer, domain_signer, suffix_blob

News: TypeAlias = Literal["quiet", "ballot", "failure"]
TOPICS = 2
MEMBERS = (4, 192)
"""Four have three counterparties each, and so all the weight they can have. Of 192 each can report once for a full field, and all
are listed as voters."""
OTHERS = 12
"""Members that use the honest topic."""
DOCUMENTS = (1, 8, 32)
PAIRS = PARAMETERS.candidate_pairs


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """What each way costs others; the world is not used."""
    del lab
    worst = []
    for members in MEMBERS:
        worst.append(_ballots(members))
        yield Row("litter", members, "cost", detail="ballots"), worst[-1]
        for documents in DOCUMENTS:
            for news in ("quiet", "ballot", "failure"):
                worst.append(Littered(members, documents, news).run())
                yield Row("litter", members, "cost", detail=f"{documents}/{news}"), worst[-1]
    yield Row("litter", 0, "cost", detail="best"), max(worst)
    for members in MEMBERS:
        yield Row("litter", members, "cost", detail="in use"), Littered(members, 1).run_in_use()


class Littered:
    """A log with an honest topic and the topics of some members, and what was posted and caused there."""

    def __init__(self, members: int, documents: int = 0, news: News = "quiet") -> None:
        anchors = tuple(f"anchor-{number:03}.example" for number in range(members + OTHERS))
        self.log = LogBuilder(open_parameters(anchors, SUFFIX_LIST, epoch_seconds=1), replay=Replay(suffix_blob))
        self.log.agents = tuple(map(domain_signer, anchors))
        self.log.identify(*self.log.agents)
        self.members = self.log.agents[:members]
        self._others = self.log.agents[members:]
        self.topics = [f"litter/{number}" for number in range(TOPICS)]
        self.posted = self.caused = 0
        self._documents, self._news = documents, news
        self._honest = self.log.publish(self.log.agents[-1], "honest")
        self._meeting = cycle(combinations(self.members, 2))

    def run(self) -> float:
        """Post for a horizon, wait for another; return the bytes caused for each byte posted."""
        wanted = {topic: self._reports(topic) for topic in self.topics}
        for epoch in range(2 * HORIZON):
            if epoch < HORIZON:
                for topic in self.topics:
                    self._post(topic, wanted[topic])
            self.close()
        return self.caused / self.posted

    def run_in_use(self) -> float:
        """Let all members use the topics and vote, then one in each epoch; return the bytes caused for each byte of its votes."""
        wanted = {topic: self._reports(topic) * len(self.members) for topic in self.topics}
        for topic, documents in wanted.items():
            for member in self.members:
                self.log.vote(member, documents[0], topic=topic)
        for _ in range(HORIZON):
            for topic in self.topics:
                self._post(topic, wanted[topic])
            self.close()
        self.posted = self.caused = 0
        for epoch in range(HORIZON):
            for topic in self.topics:
                self.vote(self.members[epoch % len(self.members)], topic)
            self.close()
        return self.caused / self.posted

    def close(self) -> None:
        """Close the epoch; the honest topic is in use."""
        for one, other in zip(self._others, self._others[1:], strict=False):
            self.log.report(one, other, self._honest)
        size = len(self.log.leaves)
        decisions = self.log.close()
        for place, decision in enumerate(decisions, size):
            if decision.topic != TOPIC:
                self.caused += len(self.log.leaves[place]) + len(self.log.transcripts[place])

    def vote(self, member: Signer, topic: str) -> None:
        """Let a member cast the shortest ballot that is not a withdrawal."""
        with self._posting():
            self.log.vote(member, NONE, topic=topic)

    def _post(self, topic: str, wanted: list[str]) -> None:
        """Report what still lacks pairs, as much as one epoch counts; then the news."""
        # Neighbours first, so that many members report once rather than few often.
        pairs = [*zip(self.members[::2], self.members[1::2], strict=True)]
        pairs += [pair for pair in combinations(self.members, 2) if pair not in pairs] if len(self.members) < 16 else []
        for (one, other), document in zip(pairs, wanted, strict=False):
            with self._posting():
                self.log.report(one, other, document, topic=topic)
        del wanted[: len(pairs)]
        if self._news == "ballot":
            self.vote(self.members[self.log.epoch % len(self.members)], topic)
        if self._news == "failure":
            one, other = next(self._meeting)
            with self._posting():
                self.log.report(one, other, self._honest, topic=topic, outcome="failed")

    def _reports(self, topic: str) -> list[str]:
        """Publish the documents of a topic; return each as often as it must be reported."""
        documents: list[str] = []
        for number in range(self._documents):
            name = f"{topic.replace('/', '-')}-{number}"
            with self._posting():
                documents.append(self.log.publish(self.members[0], name, topic=topic))
        return [document for document in documents for _ in range(PAIRS)]

    @contextmanager
    def _posting(self) -> Iterator[None]:
        """Count the bytes of the statements that are logged inside."""
        size = len(self.log.leaves)
        yield
        self.posted += sum(map(len, self.log.leaves[size:]))


def _ballots(members: int) -> float:
    """One ballot in each topic by one member, and nothing else."""
    littered = Littered(members)
    for topic in littered.topics:
        littered.vote(littered.members[0], topic)
    return littered.run()
