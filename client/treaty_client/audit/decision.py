"""Read the transcript of a decision, for people.

`treaty_consensus.election.decision` specifies its format. A signed decision names its digest, so the operator is committed to it.
It is unverified here; an audit recomputes it.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed
from treaty_consensus.kinds import MAX_TRANSCRIPT

from ..codes import ClientDecisionCode

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
    """A document of the field. `support`: Q, `opposition`: Q'."""

    index: int
    support: Amount
    opposition: Amount
    state: Name
    provisional: int
    ahead: int
    failing: int
    repealing: int
    suspect: int


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


class Transcript(msgspec.Struct, frozen=True):
    """The transcript of a decision. `total`, `cap` and `quorum` are W, κ and q."""

    topic: Name
    epoch: int
    electorate: Name
    ballots: Ballots
    total: Amount
    cap: Amount
    quorum: Amount
    voices: list[Voice]
    candidates: list[Candidate]
    pairwise: list[list[Amount]]
    order: list[Name]
    ties: list[Tie]
    nominees: list[Nominee]
    former: list[tuple[Name, Name]]
    transitions: list[Transition]
    consensus: Name | None = None


def read_transcript(data: bytes) -> Transcript:
    """Parse a transcript. Raises `Malformed` (`decision.transcript`, …) or `TooLarge`."""
    try:
        # The cap comes first: the operator chooses the size of a transcript.
        found = msgspec.convert(canonical.loads(data, limit=MAX_TRANSCRIPT, name="decision transcript"), Transcript)
    except msgspec.ValidationError as error:
        raise Malformed(ClientDecisionCode.TRANSCRIPT, f"This is not the transcript of a decision: {error}.") from error
    choices = len(found.candidates) + 1
    # The tables that are printed from it index the matrix by place.
    if {len(found.order), len(found.pairwise), *map(len, found.pairwise)} != {choices}:
        raise Malformed(ClientDecisionCode.TRANSCRIPT, "The transcript's matrix and order are not of its candidates.")
    return found
