"""The reason with which an agent ends a session in good order, and the calls that it did not begin.

    session.draining 17        the agent stops; it read 17 messages of this connection
    session.withdrawn 17       the agent no longer serves the protocol
    session.revoked 17         the protocol was taken back by its publisher

Before such an end the agent has answered the calls that it had begun. The number is that of the messages of the peer that it read
on this connection, Hello included. A call whose messages all came later was not begun, and may be repeated although it is not
idempotent.
"""

from __future__ import annotations

import re

from treaty_io.codes import SessionCode
from treaty_io.errors import PeerUnavailable

_SAYS = {
    SessionCode.DRAINING: ("The agent that answered stops.", "Connect again: it may be back soon."),
    SessionCode.WITHDRAWN: ("The agent that answered no longer serves this protocol.", "Connect again: it may serve another."),
    SessionCode.REVOKED: ("The publisher of this protocol took it back.", "Connect again: another version may be served."),
}
# A count of messages has few digits; an absurd one must not cost anything.
_REASON = re.compile(r"(session\.(?:draining|withdrawn|revoked)) ([0-9]{1,15})")


class SessionParting(PeerUnavailable):
    """One side ended the session after the calls that it had begun. `received`: the messages of the other side that it read."""

    def __init__(self, code: SessionCode, received: int) -> None:
        sentence, fix = _SAYS[code]
        super().__init__(code, sentence, fix=fix)
        self.received, self.peer_code = received, code

    @property
    def reason(self) -> str:
        """The reason to close the connection with."""
        return f"{self.code} {self.received}"

    @classmethod
    def parse(cls, reason: str) -> SessionParting | None:
        """Return the parting that a peer's reason means, or None for another reason."""
        match = _REASON.fullmatch(reason)
        code = next((code for code in _SAYS if match and code == match[1]), None)
        return cls(code, int(match[2])) if match and code else None


def is_draining(reason: str) -> bool:
    """Return whether a peer closes because it stops, so that another connection may lead to its successor."""
    parting = SessionParting.parse(reason)
    return parting is not None and parting.code == SessionCode.DRAINING
