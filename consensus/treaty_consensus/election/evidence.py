"""Evidence: what the statements of a log have said so far that an election counts.

Identities (who exists, since when), grants (who speaks for whom), publications (which documents a topic has, since when),
reports, vouches and ballots. It is fed every admitted statement in the order of the leaves, and knows nothing of weights,
thresholds or outcomes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ..admit import report_key
from ..kinds import Ballot, Grant, Identity, Publish, Report, Vouch
from ..statement import Statement
from .ballot import Ballots
from .principals import Voices
from .report import Reports
from .vouch import Vouches


@dataclass
class Evidence:
    """Mutable: `observe` in the order of the leaves.

    `identities`: DID → id of its newest identity statement. `appeared`: DID → the epoch that holds its first one. `published`:
    topic → document → the leaf that published it first.
    """

    identities: dict[str, str] = field(default_factory=dict)
    appeared: dict[str, int] = field(default_factory=dict)
    published: defaultdict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    ballots: dict[str, Ballots] = field(default_factory=dict)
    reports: Reports = field(default_factory=Reports)
    vouches: Vouches = field(default_factory=Vouches)
    voices: Voices = field(default_factory=Voices)

    def observe(self, statement: Statement, index: int, epoch: int) -> None:
        """Take in an admitted statement: leaf `index`, logged while `epoch` was open."""
        match statement.body:
            case Identity() as body:
                self.identities[body.did] = statement.id
                self.appeared.setdefault(body.did, epoch)
            case Grant() as body:
                self.voices.grant(body.namespace, body.to)
            case Publish() as body:
                self.published[body.topic].setdefault(body.document.sha256, index)
            case Report() as body:
                self.reports.add(report_key(statement.authors, body.nid), body, statement.authors, index, epoch)
            case Vouch() as body:
                self.vouches.add(statement.author.text, body, epoch)
            case Ballot() as body:
                if body.topic not in self.ballots:
                    self.ballots[body.topic] = Ballots(self.voices)
                self.ballots[body.topic].cast(statement.author.text, body.tiers, epoch)
