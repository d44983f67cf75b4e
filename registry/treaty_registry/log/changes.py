"""What the newest leaves changed for readers, so that whoever remembers an answer forgets it when it is no longer true.

A *subject* names something that answers follow from. Whatever is made of several of them follows from each:

    https://HOST/protocols/NAMESPACE/NAME/VERSION     a version: its record, its bundle
    https://HOST/protocols/NAMESPACE/NAME             the list of its versions
    TOPIC                                             the protocols of a topic
    DID                                               the identities of a DID, and the grants by it and to it
    CATALOGUE                                         everything that lists protocols
    HEAD                                              the newest head itself; every head changes it

A decision closes an epoch, parameters change the rules, a withdrawal takes bytes away that may be anywhere: each changes
everything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from treaty_consensus.kinds import Decision, Genesis, Grant, Handler, Identity, Parameters, Publish, Status, Withdrawal
from treaty_consensus.statement import Statement

from .entry import Entry

CATALOGUE = "catalogue"
HEAD = "head"
MAX_LEAVES = 65_536
"""How many leaves back `Changes` knows. Who has last looked before them has to forget everything."""


def subjects_of(statement: Statement) -> frozenset[str] | None:
    """The subjects that a statement changes; None for one that changes everything."""
    match statement.body:
        case Genesis() | Parameters() | Decision() | Withdrawal():
            return None
        case Publish() as body:
            return frozenset((body.uri, versions_of(body.uri), body.topic, CATALOGUE))
        case Status() as body:
            return frozenset((body.uri, versions_of(body.uri), CATALOGUE))
        case Handler() as body:
            return frozenset((body.uri,))
        case Identity() as body:
            return frozenset((body.did,))
        case Grant() as body:
            return frozenset((statement.author.text, body.to))
    return frozenset()


def versions_of(uri: str) -> str:
    """The subject of the list of versions that a protocol's URI is in."""
    return uri.rpartition("/")[0]


class Changes:
    """What changed at which leaf, since this process took over the log. Used from one event loop."""

    def __init__(self) -> None:
        self._first = 0
        self._leaves: deque[frozenset[str] | None] = deque(maxlen=MAX_LEAVES)

    def record(self, entries: Iterable[Entry]) -> None:
        """Note what `entries`, ascending and without gaps, change. They may yet fail to be committed, as long as this object is
        not used any more after that."""
        for entry in entries:
            if entry.index != self._first + len(self._leaves):
                self._first = entry.index
                self._leaves.clear()
            elif len(self._leaves) == MAX_LEAVES:
                self._first += 1
            self._leaves.append(subjects_of(entry.statement) if entry.statement else frozenset())

    def between(self, old: int, new: int) -> frozenset[str] | None:
        """The subjects that the leaves from `old` to before `new` changed. None: anything may have changed."""
        if old >= new:
            return frozenset()
        begin, end = old - self._first, new - self._first
        if begin < 0 or end > len(self._leaves):
            return None
        changed: set[str] = set()
        for subjects in islice(self._leaves, begin, end):
            if subjects is None:
                return None
            changed |= subjects
        return frozenset(changed)
