"""Record the subjects that the newest leaves changed, so that caches drop outdated answers.

A *subject* names something that answers depend on. An answer that depends on several subjects is outdated when any of them
changes:

    https://HOST/protocols/NAMESPACE/NAME/VERSION     a version: its record, its bundle
    https://HOST/protocols/NAMESPACE/NAME             the list of its versions
    TOPIC                                             the protocols of a topic
    DID                                               the identities of a DID, and the grants by it and to it
    acts DID                                          the list of what a DID signed
    elected TOPIC                                     the states of the documents of a topic, and its newest decision
    CATALOGUE                                         everything that lists protocols
    PERIODIC                                          all answers that may be a period old: weights, reports, proofs, topics
    HEAD                                              the newest head itself; every head changes it

A decision changes its topic, and the state of each document there. It also closes an epoch, so all weights and all topics change.
New parameters can change any answer, and a withdrawal any bytes that are kept. They change every subject.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from treaty_consensus.kinds import Decision, Genesis, Grant, Handler, Identity, Parameters, Publish, Status, Withdrawal
from treaty_consensus.rotation import Rotation
from treaty_consensus.statement import Statement

from .entry import Entry

CATALOGUE = "catalogue"
HEAD = "head"
PERIODIC = "periodic"
MAX_LEAVES = 65_536
"""Leaves that `Changes` keeps. A cache that was last updated before them must drop everything."""


def subjects_of(statement: Statement) -> frozenset[str] | None:
    """Return the subjects that a statement changes, or None when it changes every subject."""
    changed = _subjects_of(statement)
    return None if changed is None else changed.union(acts(did.text) for did in statement.authors)


def _subjects_of(statement: Statement) -> frozenset[str] | None:
    match statement.body:
        case Genesis() | Parameters() | Withdrawal() | Rotation():
            return None
        case Decision() as body:
            return frozenset((body.topic, elected(body.topic), CATALOGUE, PERIODIC))
        case Publish() as body:
            bases = () if body.base is None else (body.base.uri,)
            return frozenset((body.uri, versions_of(body.uri), body.topic, CATALOGUE, *bases))
        case Status() as body:
            return frozenset((body.uri, versions_of(body.uri), CATALOGUE))
        case Handler() as body:
            # The records of other versions have the verdict on theirs and this handler.
            return frozenset((body.uri, versions_of(body.uri)))
        case Identity() as body:
            return frozenset((body.did,))
        case Grant() as body:
            return frozenset((statement.author.text, body.to))
    return frozenset()


def acts(did: str) -> str:
    """Return the subject of what a DID signed. No topic and no DID has a space."""
    return f"acts {did}"


def elected(topic: str) -> str:
    """Return the subject of the states of a topic's documents."""
    return f"elected {topic}"


def versions_of(uri: str) -> str:
    """Return the subject of the version list that contains a protocol's URI."""
    return uri.rpartition("/")[0]


class Changes:
    """The changed subjects of each leaf since this process started to lead. Used from one event loop."""

    def __init__(self) -> None:
        self._first = 0
        self._leaves: deque[frozenset[str] | None] = deque(maxlen=MAX_LEAVES)

    def record(self, entries: Iterable[Entry]) -> None:
        """Record the changes of `entries`, ascending and without gaps. If their commit fails, this object must not be used
        again."""
        for entry in entries:
            if entry.index != self._first + len(self._leaves):
                # The first leaf after a take-over. Leaves before a gap are of no use, because `between` needs all of
                # them.
                self._first = entry.index
                self._leaves.clear()
            elif len(self._leaves) == MAX_LEAVES:
                # The full deque drops its first leaf.
                self._first += 1
            self._leaves.append(subjects_of(entry.statement) if entry.statement else frozenset())

    def between(self, old: int, new: int) -> frozenset[str] | None:
        """Return the subjects that the leaves from `old` up to, not including, `new` changed. None: any subject may have
        changed."""
        if old >= new:
            return frozenset()
        begin, end = old - self._first, new - self._first
        # Some of the leaves are not recorded. The caller must then drop everything.
        if begin < 0 or end > len(self._leaves):
            return None
        changed: set[str] = set()
        for subjects in islice(self._leaves, begin, end):
            if subjects is None:
                return None
            changed |= subjects
        return frozenset(changed)
