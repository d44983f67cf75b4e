"""Collect the statements of a log that an election counts.

These are identities, grants, publications, reports, vouches and ballots. Every admitted statement is passed in, in the order
of the leaves. This module knows no weights, thresholds or outcomes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from ..facts import report_key
from ..kinds import Ballot, Grant, Identity, Publish, Report, Status, Vouch
from ..statement import Statement
from .ballot import Ballots, SavedBallots
from .line import line_begun_by
from .principals import PrincipalDirectory, SavedDirectory
from .report import Reports, SavedReports
from .vouch import SavedVouches, Vouches


class StatusEntry(msgspec.Struct, frozen=True, array_like=True):
    """Hold the newest status of a protocol URI that is not active, and the epoch of its statement."""

    state: Literal["active", "deprecated", "yanked", "revoked"]
    successor: str | None
    epoch: int


class SavedEvidence(msgspec.Struct, frozen=True, array_like=True):
    """Hold the contents of `Evidence`."""

    identities: dict[str, str]
    appeared: dict[str, int]
    restarted: dict[str, int]
    published: dict[str, dict[str, int]]
    publishers: dict[str, dict[str, dict[str, str]]]
    lines: dict[str, dict[str, str]]
    statuses: dict[str, StatusEntry]
    directory: SavedDirectory
    ballots: dict[str, SavedBallots]
    reports: SavedReports
    vouches: SavedVouches


@dataclass
class Evidence:
    """Hold the collected statements. Mutable: `observe` in the order of the leaves.

    `identities`: DID → the id of its newest identity statement.
    `appeared`: DID → the epoch of its first identity statement.
    `published`: topic → document → the leaf that published it first.
    `restarted`: DID → the epoch in which its newest tenure began; absent for a first tenure.
    `publishers`: topic → document → the protocol URIs that publish it there, in the order of the log → the DID that did so.
    `lines`: topic → document → the first document of its line (`line`); absent for a document that begins a line.
    `statuses`: protocol URI → its newest status; absent for an active one.
    """

    identities: dict[str, str] = field(default_factory=dict)
    appeared: dict[str, int] = field(default_factory=dict)
    restarted: dict[str, int] = field(default_factory=dict)
    published: defaultdict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    publishers: defaultdict[str, dict[str, dict[str, str]]] = field(default_factory=lambda: defaultdict(dict))
    lines: defaultdict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    statuses: dict[str, StatusEntry] = field(default_factory=dict)
    ballots: dict[str, Ballots] = field(default_factory=dict)
    directory: PrincipalDirectory = field(default_factory=PrincipalDirectory)
    reports: Reports = field(init=False)
    vouches: Vouches = field(init=False)

    def __post_init__(self) -> None:
        # They share its numbers of DIDs.
        self.reports, self.vouches = Reports(self.directory), Vouches(self.directory)

    def saved(self) -> SavedEvidence:
        """Return the contents."""
        ballots = {topic: cast.saved() for topic, cast in self.ballots.items()}
        return SavedEvidence(
            self.identities,
            self.appeared,
            self.restarted,
            self.published,
            self.publishers,
            self.lines,
            self.statuses,
            self.directory.saved(),
            ballots,
            self.reports.saved(),
            self.vouches.saved(),
        )

    @classmethod
    def restored(cls, saved: SavedEvidence) -> Evidence:
        """Return evidence with saved contents."""
        evidence = cls(saved.identities, saved.appeared, saved.restarted, statuses=saved.statuses)
        evidence.published.update(saved.published)
        evidence.publishers.update(saved.publishers)
        evidence.lines.update(saved.lines)
        # First: the others have its numbers.
        evidence.directory.restore(saved.directory)
        for topic, cast in saved.ballots.items():
            evidence.ballots[topic] = Ballots(evidence.directory)
            evidence.ballots[topic].restore(cast)
        evidence.reports.restore(saved.reports)
        evidence.vouches.restore(saved.vouches)
        return evidence

    def observe(self, statement: Statement, index: int, epoch: int) -> None:
        """Add an admitted statement: leaf `index`, logged while `epoch` was open."""
        match statement.body:
            case Identity() as body:
                self.identities[body.did] = statement.id
                # The first identity counts: a new key or a new tenure does not make a principal younger.
                self.appeared.setdefault(body.did, epoch)
                if body.tenure != self.directory.tenure(body.did):
                    self.restarted[body.did] = epoch
                self.directory.identify(body.did, body.tenure)
            case Grant() as body:
                self.directory.grant(body.namespace, body.to, statement.author.text, withdrawn=body.withdrawn)
            case Publish() as body:
                self._publish(body, statement.author.text, index)
            case Status(uri=uri, state="active", wheel=None):
                self.statuses.pop(uri, None)
            case Status(uri=uri, state=state, wheel=None, successor=successor):
                self.statuses[uri] = StatusEntry(state, successor, epoch)
            case Report() as body:
                self.reports.add(report_key(statement.authors, body.nid), body, statement.authors, index, epoch)
            case Vouch() as body:
                self.vouches.add(statement.author.text, body, epoch)
            case Ballot() as body:
                if body.topic not in self.ballots:
                    self.ballots[body.topic] = Ballots(self.directory)
                self.ballots[body.topic].cast(statement.author.text, body.tiers, epoch)

    def withdrawn(self, topic: str) -> set[str]:
        """Return the documents of a topic that are deprecated, yanked or revoked under every URI that publishes them there."""
        return {document for document, uris in self.publishers.get(topic, {}).items() if uris.keys() <= self.statuses.keys()}

    def _publish(self, body: Publish, author: str, index: int) -> None:
        published, document = self.published[body.topic], body.document.sha256
        # Only the first publication of the bytes decides their line.
        if document not in published:
            first = line_begun_by(body, self.publishers.get(body.topic, {}), self.lines.get(body.topic, {}))
            if first != document:
                self.lines[body.topic][document] = first
        # The first publication orders documents; a later one of the same bytes is another URI for them.
        published.setdefault(document, index)
        self.publishers[body.topic].setdefault(document, {}).setdefault(body.uri, author)
