"""Message routing: an environment and its members. `document.md` is the protocol.

`message`, `memory`, `flow`, `member` and `environment` are the rules, without a protocol around them. The two sessions speak
them, and `in_process` runs them without agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treaty_handler import Session, Value, decode_json, encode_json

from .environment_session import EnvironmentSession
from .member_session import MemberSession
from .wire import unpack, wire_faults


class MessageRouting:
    """The handler."""

    def open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes = b"") -> Session:
        """Open a session in one of the two roles."""
        state = unpack(snapshot) if snapshot else {}
        if role == "environment":
            return EnvironmentSession(parameters["seed"], state)
        return MemberSession(parameters["peer"], parameters["seed"], state)

    def encode(self, message: Value) -> bytes:
        """Return the message as compact JSON."""
        return encode_json(message)

    def decode(self, data: bytes) -> Value:
        """Return the message in these bytes. Raises `ValueError` for what is no JSON."""
        return decode_json(data)

    def validate(self, message: Value, sender: str) -> Sequence[str]:
        """Return the faults of a message, a sentence each."""
        return wire_faults(message, sender)


handler = MessageRouting()
