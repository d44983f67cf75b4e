"""Choose the version of each line to speak, and find out what its publishers took back.

The *version to speak* of a line is the newest document that the principals with half of the weight of its users have reached. A
user's version is the newest that it agreed on in the last epoch with a report of its own on the line. So it is a median, and one
user more of a version never makes it an older one. A document that is deprecated is passed over once the users of the others
weigh 1 / `quorum_share`; a document that was taken back, always.

A document is *deprecated*, *yanked* or *revoked* when every URI that counts for it is: those in the namespace of its first
publisher, and those of authors with weight; of several states the mildest. Anybody can publish bytes again, so the other URIs
say nothing. Yanked and revoked documents are *taken back*. A line without any other document has left the election.

A status may name a successor. While no document of a line is active, and for `horizon_epochs` from that statement, each ballot
that ranks the line, and not the successor's, ranks both in the same tier. So the votes of silent users go to whom the publisher
named, and to nobody else.

Specification: `docs/specification/election.md`, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..kinds import NEGATIVE_STATES, Parameters
from ..protocol import parse_protocol_uri
from .electorate import Electorate
from .evidence import Evidence
from .line import Lines
from .report import Tally

_SEVERITY = ("active", "deprecated", "yanked", "revoked")


def lines_of(
    evidence: Evidence,
    topic: str,
    tally: Tally,
    weights: Mapping[str, int],
    electorate: Electorate,
    epoch: int,
    parameters: Parameters,
) -> Lines:
    """Return the lines of a topic at the end of `epoch`.

    `tally`: the reports that count in it, by document.
    `weights`: principal → weight in the topic.
    """
    first, publishers = evidence.lines.get(topic, {}), evidence.publishers.get(topic, {})
    standings = {
        document: _Standing.of(evidence, uris, electorate)
        # Most documents were never withdrawn anywhere, and need no look at their authors.
        for document, uris in publishers.items()
        if not uris.keys().isdisjoint(evidence.statuses.keys())
    }
    members: dict[str, list[str]] = {}
    # In the order of the log: the first document of a line comes before the others.
    for document in evidence.published.get(topic, {}):
        members.setdefault(first.get(document, document), []).append(document)
    gone = {document for document, standing in standings.items() if standing.is_taken_back}
    deprecated = {document for document, standing in standings.items() if standing.state == "deprecated"}
    several = {line: documents for line, documents in members.items() if len(documents) > 1}
    reached = _reached(several, tally, weights)
    versions = {
        line: _version([d for d in documents if d not in gone], deprecated, reached.get(line, {}), parameters.quorum_share)
        for line, documents in several.items()
        if not gone.issuperset(documents)
    }
    return Lines(
        first,
        _successors(standings, publishers, first, epoch, parameters.horizon_epochs),
        versions,
        reached,
        frozenset(line for line, documents in members.items() if gone.issuperset(documents)),
    )


@dataclass(frozen=True)
class _Standing:
    """The status of a document: that of the URIs that count.

    `successor`: what the first of them to name one names. `epoch`: that of its statement.
    """

    state: str
    successor: str | None
    epoch: int

    @property
    def is_taken_back(self) -> bool:
        return self.state in NEGATIVE_STATES

    @classmethod
    def of(cls, evidence: Evidence, publishers: Mapping[str, str], electorate: Electorate) -> _Standing:
        """`publishers`: the URIs of the document in the order of the log → their authors."""
        own = parse_protocol_uri(next(iter(publishers))).namespace
        counted = [
            evidence.statuses.get(uri)
            for uri, author in publishers.items()
            if parse_protocol_uri(uri).namespace == own or evidence.directory.principal_of(author) in electorate.weights
        ]
        state = min((entry.state if entry else "active" for entry in counted), key=_SEVERITY.index)
        named = next((entry for entry in counted if entry and entry.successor), None)
        return cls(state, named.successor if named else None, named.epoch if named else 0)


def _successors(
    standings: Mapping[str, _Standing],
    publishers: Mapping[str, Mapping[str, str]],
    first: Mapping[str, str],
    epoch: int,
    horizon: int,
) -> dict[str, str]:
    """Return line → the line that inherits its votes in this epoch."""
    documents = {uri: document for document, uris in publishers.items() for uri in uris}
    active = {first.get(d, d) for d in publishers if d not in standings or standings[d].state == "active"}
    heirs: dict[str, str] = {}
    for document, standing in standings.items():
        line, heir = first.get(document, document), documents.get(standing.successor or "")
        # A line with an active document goes on by itself.
        if line not in active and heir is not None and epoch - standing.epoch < horizon and first.get(heir, heir) != line:
            heirs.setdefault(line, first.get(heir, heir))
    return heirs


def _reached(several: Mapping[str, Sequence[str]], tally: Tally, weights: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return line → document → the weight of the users whose version it is, for lines of several documents."""
    number = {document: place for place, document in enumerate(d for documents in several.values() for d in documents)}
    owner = {document: line for line, documents in several.items() for document in documents}
    names = [*number]
    place = np.array([number.get(document, -1) for document in tally.documents], dtype=np.int64)
    line_number = {line: count for count, line in enumerate(several)}
    line = np.array([line_number[owner[document]] for document in names], dtype=np.int64)
    agreed, rows = tally.agreed, place[tally.agreed.document] >= 0
    document = np.tile(place[agreed.document[rows]], 2)
    principal = np.concatenate([agreed.first[rows], agreed.second[rows]])
    epoch = np.tile(agreed.epoch[rows], 2)
    # The newest epoch of a user in a line comes first, and in it the newest document: numbers follow publication.
    order = np.lexsort((-document, -epoch, line[document], principal))
    user = principal[order] * max(len(several), 1) + line[document[order]]
    firsts = order[np.flatnonzero(np.diff(user, prepend=-1))]
    weighed = np.array([weights.get(name, 0) for name in tally.principals], dtype=np.uint64)
    sums = np.zeros(len(names), dtype=np.uint64)
    np.add.at(sums, document[firsts], weighed[principal[firsts]])
    reached: dict[str, dict[str, int]] = {}
    for name, weight in zip(names, sums.tolist(), strict=True):
        reached.setdefault(owner[name], {})[name] = weight
    return reached


def _version(documents: Sequence[str], deprecated: Iterable[str], users: Mapping[str, int], share: int) -> str:
    """Return the version to speak. `documents`: in the order of publication. `users`: document → weight."""
    active = [document for document in documents if document not in deprecated]
    total, actives = (sum(users.get(document, 0) for document in some) for some in (documents, active))
    # Deprecation alone must not move everyone: the publisher could name a document that nobody speaks.
    line = active if active and share * actives >= total else documents
    whole, reached = sum(users.get(document, 0) for document in line), 0
    for document in reversed(line):
        reached += users.get(document, 0)
        if reached and 2 * reached >= whole:
            return document
    return line[0]
