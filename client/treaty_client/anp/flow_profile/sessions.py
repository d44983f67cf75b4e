"""Keep the sessions of a connection, with their expiry and their message limits (the session manager).

The initiator names a session (`sessionId`, at least 128 random bits) and confirms it with an expiry time. A session survives
changes of its parameters and of its protocol. Its messages have its id, and the name of its protocol as type. The session
enforces one agreed parameter: `maxMessageSize`, the bytes of one handler's message in each direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused, TooLarge, TreatyError

from ...codes import FlowCode
from ..hello_profile.hello import REPORT_COSIGNATURE
from .actions import Agreed, SessionEnded
from .messages import MAX_DATA, FlowMessage, Foreign
from .payloads import parse_protocol_id
from .processor import Now
from .states import FlowLimits

MAX_SESSIONS = 16
"""The cap of sessions of one connection."""
MAX_WAITING = 64
"""The cap of messages that wait while a session changes."""


@dataclass
class AgreedSession:
    """A session that runs. `changing`: nothing may be sent until the other side has acknowledged the change. `acknowledgment`:
    the messageId of the acknowledgment of the present protocol. With the session's id it makes the negotiation id of a
    report."""

    id: str
    agreed: Agreed
    expires_at: int
    acknowledgment: str = ""
    changing: bool = False
    renegotiations: int = 0
    waiting: list[bytes] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return the type of its messages."""
        return parse_protocol_id(self.agreed.protocol).name

    @property
    def reports(self) -> bool:
        """Return whether both sides agreed to co-sign reports on it."""
        return self.agreed.extensions.get(REPORT_COSIGNATURE) is True

    @property
    def limit(self) -> int:
        """Return the cap of bytes of one message."""
        agreed = self.agreed.parameters.get("maxMessageSize")
        return min(int(agreed), MAX_DATA) if isinstance(agreed, int | float) and not isinstance(agreed, bool) else MAX_DATA


class SessionManager:
    """The sessions of one connection."""

    def __init__(self) -> None:
        """Start without sessions."""
        self._sessions: dict[str, AgreedSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[str]:
        """The ids of the sessions, in the order in which they became ready."""
        return iter(self._sessions)

    def __contains__(self, id: object) -> bool:
        return id in self._sessions

    def get(self, id: str) -> AgreedSession:
        """Return the session with this id. Raises `NotFound` (`flow.session`)."""
        if id not in self._sessions:
            raise NotFound(FlowCode.SESSION, "There is no such session on this connection, or it is over.")
        return self._sessions[id]

    def of(self, protocol: str) -> AgreedSession | None:
        """Return the running session of this protocol id, or None."""
        return next((session for session in self._sessions.values() if session.agreed.protocol == protocol), None)

    def check_free(self, id: str) -> None:
        """Check that a session may open. Raises `Conflict` (`flow.session`) for a used id, `TooLarge` (`flow.sessions`)."""
        if id in self._sessions:
            raise Conflict(FlowCode.SESSION, "A session of this id runs already.")
        if len(self._sessions) >= MAX_SESSIONS:
            raise TooLarge(FlowCode.SESSIONS, f"A connection has at most {MAX_SESSIONS} sessions.")

    def open(self, id: str, agreed: Agreed, expires_at: int, acknowledgment: str = "") -> bool:
        """Open a session, or continue one with new terms. Return whether its protocol changed."""
        known = self._sessions.get(id)
        if known is None:
            self._sessions[id] = AgreedSession(id, agreed, expires_at, acknowledgment)
            return False
        replaced = known.agreed.protocol != agreed.protocol
        known.agreed, known.expires_at, known.changing = agreed, expires_at, False
        known.renegotiations += 1
        if replaced:
            known.acknowledgment = acknowledgment  # a report names one document: another protocol needs another negotiation id
            known.waiting.clear()  # they are from the former handler; the calls are repeated to the new one
        return replaced

    def end(self, id: str) -> None:
        """Remove a session."""
        self._sessions.pop(id, None)

    def expire(self, unix: int) -> list[SessionEnded]:
        """End the expired sessions."""
        over = [session.id for session in self._sessions.values() if unix >= session.expires_at]
        for id in over:
            self.end(id)
        return [SessionEnded(id, expired()) for id in over]

    def next_expiry(self) -> int | None:
        """Return the next expiry in milliseconds since 1970, or None."""
        return min((session.expires_at for session in self._sessions.values()), default=None)

    def receive(self, message: FlowMessage, unix: int) -> tuple[AgreedSession, bytes]:
        """Return the session and the handler's bytes of a protocol's message. A raised `TreatyError` ends the connection."""
        session = self.get(message.session_id or "")
        if unix >= session.expires_at:
            raise expired()
        if message.type != session.name:
            raise Malformed(FlowCode.SESSION, f"A message of {message.type} in a session about {session.name}.")
        assert isinstance(message.payload, Foreign)
        data = message.payload.data()
        if len(data) > session.limit:
            raise TooLarge(FlowCode.TOO_LARGE, f"A message of this session has at most {session.limit} bytes.")
        return session, data

    def check_send(self, id: str, data: bytes) -> AgreedSession:
        """Return the session for a message to send. Raises `NotFound`, `TooLarge`."""
        session = self.get(id)
        if len(data) > session.limit:
            raise TooLarge(FlowCode.TOO_LARGE, f"A message of this session has at most {session.limit} bytes, not {len(data)}.")
        if len(session.waiting) >= MAX_WAITING:
            raise TooLarge(FlowCode.WAITING, "Too much was said while the session changed.")
        return session


def expired() -> TreatyError:
    """Return the error for an expired session."""
    return Refused(FlowCode.EXPIRED, "The session has expired.", fix="Negotiate again, or renew it in time.")


def check_lifetime(expires_at: int, now: Now, limits: FlowLimits) -> None:
    """Check an expiry. Raises `Refused` (`flow.lifetime`) if it has passed or is too far ahead."""
    if not now.unix < expires_at <= now.unix + limits.lifetime * 1000 + 60_000:
        raise Refused(
            FlowCode.LIFETIME, f"A session lasts at most {limits.lifetime} seconds here, and is not over when it begins."
        )
