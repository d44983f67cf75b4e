"""The session manager: which sessions a connection has, until when, and what may be said in them.

A session is named by the initiator (`sessionId`, 128 random bits or more), confirmed with a time at which it expires, and
survives changes of its parameters and of its protocol. Its messages bear its id and the name of its protocol as type. Of the
parameters that sides may agree on the session itself keeps one: `maxMessageSize`, the bytes of one handler's message, in both
directions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused, TooLarge, TreatyError

from .actions import Agreed, SessionEnded
from .identifiers import parse_protocol_id
from .messages import MAX_DATA, Foreign, Message

MAX_SESSIONS = 16
"""Sessions of one connection."""
MAX_WAITING = 64
"""Messages that wait while a session changes."""


@dataclass
class Session:
    """One that runs. `changing`: nothing may be sent until the other side has acknowledged the change."""

    id: str
    agreed: Agreed
    expires_at: int
    changing: bool = False
    renegotiations: int = 0
    waiting: list[bytes] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The type of its messages."""
        return parse_protocol_id(self.agreed.protocol).name

    @property
    def limit(self) -> int:
        """The bytes that one message may have."""
        agreed = self.agreed.parameters.get("maxMessageSize")
        return min(int(agreed), MAX_DATA) if isinstance(agreed, int | float) and not isinstance(agreed, bool) else MAX_DATA


class SessionManager:
    """The sessions of one connection."""

    def __init__(self) -> None:
        """None yet."""
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, id: object) -> bool:
        return id in self._sessions

    def get(self, id: str) -> Session:
        """Raises `NotFound` (`flow.session`)."""
        if id not in self._sessions:
            raise NotFound("flow.session", "There is no such session on this connection, or it is over.")
        return self._sessions[id]

    def of(self, protocol: str) -> Session | None:
        """The session that runs by this id."""
        return next((session for session in self._sessions.values() if session.agreed.protocol == protocol), None)

    def check_free(self, id: str) -> None:
        """Raises `Conflict` (`flow.session`) for an id that is in use, `TooLarge` (`flow.sessions`) beyond the cap."""
        if id in self._sessions:
            raise Conflict("flow.session", "A session of this id runs already.")
        if len(self._sessions) >= MAX_SESSIONS:
            raise TooLarge("flow.sessions", f"A connection has at most {MAX_SESSIONS} sessions.")

    def open(self, id: str, agreed: Agreed, expires_at: int) -> bool:
        """A session begins, or goes on by new terms; whether its protocol changed."""
        known = self._sessions.get(id)
        if known is None:
            self._sessions[id] = Session(id, agreed, expires_at)
            return False
        replaced = known.agreed.protocol != agreed.protocol
        known.agreed, known.expires_at, known.changing = agreed, expires_at, False
        known.renegotiations += 1
        if replaced:
            known.waiting.clear()  # the former handler said it; what it was for is asked of the new one
        return replaced

    def end(self, id: str) -> None:
        """It is over."""
        self._sessions.pop(id, None)

    def expire(self, unix: int) -> list[SessionEnded]:
        """End the sessions whose time has come."""
        over = [session.id for session in self._sessions.values() if unix >= session.expires_at]
        for id in over:
            self.end(id)
        return [SessionEnded(id, expired()) for id in over]

    def next_expiry(self) -> int | None:
        """When, in milliseconds since 1970, the next one expires."""
        return min((session.expires_at for session in self._sessions.values()), default=None)

    def receive(self, message: Message, unix: int) -> tuple[Session, bytes]:
        """The session and the handler's bytes of a protocol's message. Raises `TreatyError`, which ends the connection."""
        session = self.get(message.session_id or "")
        if unix >= session.expires_at:
            raise expired()
        if message.type != session.name:
            raise Malformed("flow.session", f"A message of {message.type} in a session about {session.name}.")
        assert isinstance(message.payload, Foreign)
        data = message.payload.data()
        if len(data) > session.limit:
            raise TooLarge("flow.too-large", f"A message of this session has at most {session.limit} bytes.")
        return session, data

    def check_send(self, id: str, data: bytes) -> Session:
        """The session to send this in. Raises `NotFound`, `TooLarge`."""
        session = self.get(id)
        if len(data) > session.limit:
            raise TooLarge("flow.too-large", f"A message of this session has at most {session.limit} bytes, not {len(data)}.")
        if len(session.waiting) >= MAX_WAITING:
            raise TooLarge("flow.waiting", "Too much was said while the session changed.")
        return session


def expired() -> TreatyError:
    """A session's time is over."""
    return Refused("flow.expired", "The session has expired.", fix="Negotiate again, or renew it in time.")
