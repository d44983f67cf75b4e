"""Evidence: what the statements of a log have said so far that an election counts.

Identities (who exists), publications (which documents a topic has, since when), reports and ballots. It is fed every admitted
statement in the order of the leaves, and knows nothing of weights, thresholds or outcomes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ..admit import report_key
from ..kinds import Ballot, Identity, Publish, Report
from ..statement import Statement
from .ballot import Tiers
from .report import Reports


@dataclass
class Evidence:
    """Mutable: `observe` in the order of the leaves.

    `identities`: DID → id of its newest identity statement. `published`: topic → document → the leaf that published it first.
    `ballots`: topic → DID → the tiers of its newest ballot.
    """

    identities: dict[str, str] = field(default_factory=dict)
    published: defaultdict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    ballots: defaultdict[str, dict[str, Tiers]] = field(default_factory=lambda: defaultdict(dict))
    reports: Reports = field(default_factory=Reports)

    def observe(self, statement: Statement, index: int, epoch: int) -> None:
        """Take in an admitted statement: leaf `index`, logged while `epoch` was open."""
        match statement.body:
            case Identity() as body:
                self.identities[body.did] = statement.id
            case Publish() as body:
                self.published[body.topic].setdefault(body.document.sha256, index)
            case Report() as body:
                self.reports.add(report_key(statement.authors, body.nid), body, statement.authors, epoch)
            case Ballot() as body:
                self.ballots[body.topic][statement.author.text] = body.tiers

    def topics(self) -> list[str]:
        """The topics that are decided: those with any report or ballot, in order."""
        return sorted(self.reports.topics | self.ballots.keys())
