"""Keep the sessions of a connection, with their expiry and their message limits (the session manager).

The initiator names a session (`sessionId`, at least 128 random bits) and confirms it with an expiry time. A session survives
changes of its parameters and of its protocol. Its messages have its id, and the name of its protocol as type. Its codec enforces
the agreed parameters that concern messages (`transfer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused, TooLarge, TreatyError
from treaty_io.codes import FlowCode

from ..call_metadata import CallMetadata
from ..hello_profile.hello import REPORT_COSIGNATURE
from .actions import Agreed, SessionEnded
from .messages import FlowMessage, Foreign
from .payloads import parse_protocol_id
from .processor import Now
from .states import FlowLimits
from .transfer import BYTE_FORM, PayloadCodec

MAX_SESSIONS = 16
"""The cap of sessions of one connection: each has a handler, with a process of its own."""
MAX_WAITING = 64
"""The cap of messages that wait while a session changes: the peer chooses how long that takes."""


@dataclass
class NegotiationSession:
    """A session that runs. `changing`: nothing may be sent until the other side has acknowledged the change. `acknowledgment`:
    the messageId of the acknowledgment of the present protocol. With the session's id it makes the negotiation id of a
    report. `renew_at`: when this side renews it, in milliseconds since 1970. `waiting`: messages, with their actions and
    metadata."""

    id: str
    agreed: Agreed
    expires_at: int
    acknowledgment: str = ""
    changing: bool = False
    renegotiations: int = 0
    renew_at: int | None = None
    waiting: list[tuple[bytes, str, CallMetadata | None]] = field(default_factory=list)
    codec: PayloadCodec = field(default_factory=PayloadCodec)

    @property
    def name(self) -> str:
        """Return the type of its messages."""
        return parse_protocol_id(self.agreed.protocol).name

    @property
    def reports(self) -> bool:
        """Return whether both sides agreed to co-sign reports on it."""
        return self.agreed.extensions.get(REPORT_COSIGNATURE) is True

    def begin_change(self) -> None:
        """Send nothing until `continue_with`."""
        self.changing = True

    def continue_with(self, agreed: Agreed, expires_at: int, acknowledgment: str, codec: PayloadCodec) -> bool:
        """Continue with new terms. Return whether the protocol changed."""
        # A renewal with the same terms is no change: it only costs messages, as any other use of the session does.
        if agreed != self.agreed:
            self.renegotiations += 1
            # The form of the messages is the peer's habit, which new terms do not change.
            codec.speak_like(self.codec)
            self.codec = codec
        replaced = self.agreed.protocol != agreed.protocol
        self.agreed, self.expires_at, self.changing = agreed, expires_at, False
        if replaced:
            self.acknowledgment = acknowledgment  # a report names one document: another protocol needs another negotiation id
            self.waiting.clear()  # they are from the former handler; the calls are repeated to the new one
        return replaced

    def plan_renewal(self, at: int | None) -> None:
        """Set when this side renews the session, in milliseconds since 1970; None for never."""
        self.renew_at = at

    def hold(self, data: bytes, action: str, metadata: CallMetadata | None) -> None:
        """Keep a message until the session has changed. `SessionManager.check_send` bounds their number."""
        self.waiting.append((data, action, metadata))

    def release(self) -> list[tuple[bytes, str, CallMetadata | None]]:
        """Return the messages that were kept, and forget them."""
        waiting, self.waiting = self.waiting, []
        return waiting


class SessionManager:
    """The sessions of one connection."""

    def __init__(self) -> None:
        """Start without sessions."""
        self._sessions: dict[str, NegotiationSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[str]:
        """The ids of the sessions, in the order in which they became ready."""
        return iter(self._sessions)

    def __contains__(self, id: object) -> bool:
        return id in self._sessions

    def get(self, id: str) -> NegotiationSession:
        """Return the session with this id. Raises `NotFound` (`flow.session`)."""
        if id not in self._sessions:
            raise NotFound(FlowCode.SESSION, "There is no such session on this connection, or it is over.")
        return self._sessions[id]

    def of(self, protocol: str) -> NegotiationSession | None:
        """Return the running session of this protocol id, or None."""
        return next((session for session in self._sessions.values() if session.agreed.protocol == protocol), None)

    def check_free(self, id: str) -> None:
        """Check that a session may open. Raises `Conflict` (`flow.session`) for a used id, `TooLarge` (`flow.too-large`)."""
        if id in self._sessions:
            raise Conflict(FlowCode.SESSION, "A session of this id runs already.")
        if len(self._sessions) >= MAX_SESSIONS:
            raise TooLarge(FlowCode.TOO_LARGE, f"A connection has at most {MAX_SESSIONS} sessions.")

    def open(self, id: str, agreed: Agreed, expires_at: int, acknowledgment: str = "") -> bool:
        """Open a session, or continue one with new terms. Return whether its protocol changed."""
        session = self._sessions.get(id)
        codec = PayloadCodec(agreed.parameters, json_form=agreed.extensions.get(BYTE_FORM) is not True)
        if session is not None:
            return session.continue_with(agreed, expires_at, acknowledgment, codec)
        self._sessions[id] = NegotiationSession(id, agreed, expires_at, acknowledgment, codec=codec)
        return False

    def end(self, id: str) -> None:
        """Remove a session."""
        self._sessions.pop(id, None)

    def expire(self, unix: int) -> list[SessionEnded]:
        """End the expired sessions."""
        # Collected first: the loop below changes the dictionary.
        over = [session.id for session in self._sessions.values() if unix >= session.expires_at]
        for id in over:
            self.end(id)
        return [SessionEnded(id, expired()) for id in over]

    def next_expiry(self) -> int | None:
        """Return the next expiry in milliseconds since 1970, or None."""
        return min((session.expires_at for session in self._sessions.values()), default=None)

    def next_renewal(self) -> int | None:
        """Return the next renewal in milliseconds since 1970, or None."""
        return min((session.renew_at for session in self._sessions.values() if session.renew_at is not None), default=None)

    def to_renew(self, unix: int) -> list[NegotiationSession]:
        """Return the sessions whose renewal is due."""
        return [session for session in self._sessions.values() if session.renew_at is not None and unix >= session.renew_at]

    def receive(self, message: FlowMessage, unix: int) -> tuple[NegotiationSession, tuple[bytes, str] | None]:
        """Return the session of a protocol's message, and the handler's bytes with their action, or None while chunks are
        missing. A raised `TreatyError` ends the connection."""
        session = self.get(message.session_id or "")
        # The timer may be late; the agreed end is exact.
        if unix >= session.expires_at:
            raise expired()
        if message.type != session.name:
            raise Malformed(FlowCode.SESSION, f"A message of {message.type} in a session about {session.name}.")
        assert isinstance(message.payload, Foreign)
        return session, session.codec.decode(message.payload.value, message.action)

    def check_send(self, id: str) -> NegotiationSession:
        """Return the session for a message to send. Raises `NotFound`, `TooLarge` (`flow.too-large`)."""
        session = self.get(id)
        if len(session.waiting) >= MAX_WAITING:
            raise TooLarge(FlowCode.TOO_LARGE, "Too much was said while the session changed.")
        return session


def expired() -> TreatyError:
    """Return the error for an expired session."""
    return Refused(FlowCode.EXPIRED, "The session has expired.", fix="Negotiate again, or renew it in time.")


def check_lifetime(expires_at: int, now: Now, limits: FlowLimits) -> None:
    """Check an expiry. Raises `Refused` (`flow.lifetime`) if it has passed or is too far ahead."""
    # A minute more than the limit, because the clocks of the two sides differ.
    if not now.unix < expires_at <= now.unix + limits.lifetime * 1000 + 60_000:
        raise Refused(
            FlowCode.LIFETIME, f"A session lasts at most {limits.lifetime} seconds here, and is not over when it begins."
        )
