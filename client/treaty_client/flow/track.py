"""One protocol on its way from a proposal to a session: what both sides know of it. A connection has one for each it negotiates.

state       the initiator waits for             the responder waits for
PROPOSED    protocol-response                   –
TERMS       parameter-response                  parameter-negotiation
LOADING     its own code                        its own code
OFFERED     –                                   protocol-confirmation, or other parameters
CONFIRMED   the acknowledgment, and its handler its handler
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .actions import Agreed
from .parameters import same
from .payloads import ProtocolConfirmation


class TrackState(StrEnum):
    """Where it stands."""

    PROPOSED = "proposed"
    TERMS = "terms"
    LOADING = "loading"
    OFFERED = "offered"
    CONFIRMED = "confirmed"


@dataclass
class Track:
    """`renegotiates`: the running session that this is about, or "". `parameters`, `extensions`: the last offer, or what was
    accepted.
    `asked`: the ids of the messages that wait for an answer, by action. `offers`: all that was offered, so that none comes
    twice."""

    protocol: str
    state: TrackState
    deadline: float
    renegotiates: str = ""
    fallback: str = ""
    required: tuple[str, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)
    rounds: int = 0
    offers: list[Any] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)
    uri: str = ""
    digest: str = ""
    settled: bool = False
    loaded: bool = False
    hosting: bool = False
    hosted: bool = False
    agreed: bool = False
    session_id: str = ""
    expires_at: int = 0
    ready_at: int | None = None
    early: tuple[ProtocolConfirmation, str] | None = None

    @property
    def result(self) -> Agreed:
        """What is agreed on, as far as it is."""
        return Agreed(self.protocol, self.parameters, self.extensions, self.uri, self.digest)

    def equals(self, parameters: dict[str, Any], extensions: dict[str, Any]) -> bool:
        """Whether these are the last ones."""
        return same(parameters, self.parameters) and same(extensions, self.extensions)

    def repeats(self) -> bool:
        """Whether the last offer was made before; it is noted if not."""
        offer = [self.parameters, self.extensions]
        if any(same(offer, before) for before in self.offers):
            return True
        self.offers.append(offer)
        return False

    def answers(self, reply_to: str | None) -> bool:
        """Whether a message answers one of this track."""
        return reply_to is not None and reply_to in self.asked.values()
