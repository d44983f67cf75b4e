"""Read the transcript of a decision, for people.

`treaty_consensus.election.decision` specifies its format. A signed decision names its digest, so the operator is committed to it.
It is unverified here; an audit recomputes it.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from treaty_consensus import canonical
from treaty_consensus.codes import DecisionCode
from treaty_consensus.errors import Malformed
from treaty_consensus.kinds import MAX_TRANSCRIPT

Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,255}\Z")]
"""A digest, a DID, a domain, a topic or a word of the rule: nothing that works on a terminal."""
Amount: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A(0|[1-9][0-9]{0,39})\Z")]


class Missing(msgspec.Struct, frozen=True):
    """A condition that does not hold, with the present and the needed number."""

    condition: Name
    has: Amount
    needs: Amount
    against: Name | None = None


class Nominee(msgspec.Struct, frozen=True):
    """A document that is not a candidate, and the conditions that it lacks."""

    hash: Name
    pairs: int
    clusters: int
    weight: Amount
    approval: Amount
    missing: list[Missing]


class Candidate(Nominee, frozen=True):
    """A line of the field, by its version to speak. `support`: S, `opposition`: S'.

    `line`: its first document, where that is another one. `versions`: its documents with the weight of their users, where it has
    several. `voters`: the principals that approve it. Under the rule `schulze-margins-v2` these and the quorums are absent.
    """

    index: int
    support: Amount
    opposition: Amount
    state: Name
    provisional: int
    ahead: int
    failing: int
    repealing: int
    suspect: int
    line: Name | None = None
    versions: list[tuple[Name, Amount]] = []
    voters: int | None = None
    quorum: Amount | None = None
    opposing_quorum: Amount | None = None


class Voice(msgspec.Struct, frozen=True):
    """A principal whose ballots count, and their weight."""

    principal: Name
    cluster: Name
    weight: Amount
    ballots: int
    implied: bool
    age: int
    held: int
    counts: Amount

    @property
    def by(self) -> str:
        """Return what its weight comes from: "ballot", "reports", or "ballot and reports", as far as the transcript says it."""
        # `implied` tells of the freshest of its ballots alone.
        return "ballot" if not self.implied else "reports" if self.ballots == 1 else "ballot and reports"


class Tie(msgspec.Struct, frozen=True):
    """The documents that were tied at a rank, and the chosen one."""

    rank: int
    tied: list[Name]
    chosen: Name


class Transition(msgspec.Struct, frozen=True, rename={"before": "from", "after": "to"}):
    """A document's new state."""

    hash: Name
    before: Name
    after: Name


class Ballots(msgspec.Struct, frozen=True):
    """The numbers of ballots that were counted."""

    explicit: int
    implied: int


class Turnout(msgspec.Struct, frozen=True):
    """Numbers of principals, each with the sum of their weights: of all, of those with weight in the topic, and of the voters."""

    roll: tuple[int, Amount]
    topic: tuple[int, Amount]
    votes: tuple[int, Amount]


class Transcript(msgspec.Struct, frozen=True):
    """The transcript of a decision. `total` is W. Under the rule `schulze-margins-v2` it has `cap` and `quorum`, κ and q, and no
    `turnout`."""

    topic: Name
    epoch: int
    electorate: Name
    ballots: Ballots
    total: Amount
    voices: list[Voice]
    candidates: list[Candidate]
    pairwise: list[list[Amount]]
    order: list[Name]
    ties: list[Tie]
    nominees: list[Nominee]
    former: list[tuple[Name, Name]]
    transitions: list[Transition]
    consensus: Name | None = None
    turnout: Turnout | None = None
    cap: Amount | None = None
    quorum: Amount | None = None

    @property
    def spoken(self) -> dict[str, Candidate]:
        """Return document → the candidate whose line it is of, of the documents in the transcript."""
        return {
            document: candidate
            for candidate in self.candidates
            for document in (candidate.hash, candidate.line or candidate.hash, *(version for version, _ in candidate.versions))
        }

    def quorum_of(self, candidate: Candidate) -> int:
        """Return the support that a candidate needs."""
        return int(candidate.quorum or self.quorum or 0)


def read_transcript(data: bytes) -> Transcript:
    """Parse a transcript. Raises `Malformed` (`decision.rule`, …) or `TooLarge`."""
    try:
        # The cap comes first: the operator chooses the size of a transcript.
        transcript = msgspec.convert(canonical.loads(data, limit=MAX_TRANSCRIPT, name="decision transcript"), Transcript)
    except msgspec.ValidationError as error:
        raise Malformed(DecisionCode.RULE, f"This is not the transcript of a decision: {error}.") from error
    choices = len(transcript.candidates) + 1
    # The tables that are printed from it index the matrix by place.
    if {len(transcript.order), len(transcript.pairwise), *map(len, transcript.pairwise)} != {choices}:
        raise Malformed(DecisionCode.RULE, "The transcript's matrix and order are not of its candidates.")
    if transcript.quorum is None and any(candidate.quorum is None for candidate in transcript.candidates):
        raise Malformed(DecisionCode.RULE, "The transcript has no quorum for one of its candidates.")
    return transcript
