"""Collect the statements of a log that an election counts.

These are identities, grants, publications, reports, vouches and ballots. Every admitted statement is passed in, in the order
of the leaves. This module knows no weights, thresholds or outcomes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import msgspec

from ..facts import report_key
from ..kinds import Ballot, Grant, Identity, Publish, Report, Status, Vouch
from ..statement import Statement
from .ballot import Ballots, SavedBallots
from .principals import PrincipalDirectory, SavedDirectory
from .report import Reports, SavedReports
from .vouch import SavedVouches, Vouches


class SavedEvidence(msgspec.Struct, frozen=True, array_like=True):
    """Hold the contents of `Evidence`."""

    identities: dict[str, str]
    appeared: dict[str, int]
    published: dict[str, dict[str, int]]
    uris: dict[str, dict[str, set[str]]]
    inactive: set[str]
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
    `uris`: topic → document → the protocol URIs that publish it there.
    `inactive`: the protocol URIs whose newest status is not `active`.
    """

    identities: dict[str, str] = field(default_factory=dict)
    appeared: dict[str, int] = field(default_factory=dict)
    published: defaultdict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    uris: defaultdict[str, dict[str, set[str]]] = field(default_factory=lambda: defaultdict(dict))
    inactive: set[str] = field(default_factory=set)
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
        own = self.identities, self.appeared, self.published, self.uris, self.inactive, self.directory.saved()
        return SavedEvidence(*own, ballots, self.reports.saved(), self.vouches.saved())

    @classmethod
    def restored(cls, saved: SavedEvidence) -> Evidence:
        """Return evidence with saved contents."""
        made = cls(saved.identities, saved.appeared, inactive=saved.inactive)
        made.published.update(saved.published)
        made.uris.update(saved.uris)
        # First: the others have its numbers.
        made.directory.restore(saved.directory)
        for topic, cast in saved.ballots.items():
            made.ballots[topic] = Ballots(made.directory)
            made.ballots[topic].restore(cast)
        made.reports.restore(saved.reports)
        made.vouches.restore(saved.vouches)
        return made

    def observe(self, statement: Statement, index: int, epoch: int) -> None:
        """Add an admitted statement: leaf `index`, logged while `epoch` was open."""
        match statement.body:
            case Identity() as body:
                self.identities[body.did] = statement.id
                # The first identity counts: a new key or a new tenure does not make a principal younger.
                self.appeared.setdefault(body.did, epoch)
                self.directory.identify(body.did, body.tenure)
            case Grant() as body:
                self.directory.grant(body.namespace, body.to, statement.author.text, withdrawn=body.withdrawn)
            case Publish() as body:
                # The first publication orders documents; a later one of the same bytes is another URI for them.
                self.published[body.topic].setdefault(body.document.sha256, index)
                self.uris[body.topic].setdefault(body.document.sha256, set()).add(body.uri)
            case Status(uri=uri, state=state, wheel=None):
                (self.inactive.discard if state == "active" else self.inactive.add)(uri)
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
        return {document for document, uris in self.uris.get(topic, {}).items() if uris <= self.inactive}
