"""Assembly: many members in one session of a room, which tells all of them each text.

The room is a shared role: its session has all members, so it can send to each of them the words of one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from treaty_handler import Session, Value, decode_json, encode_json

from .member import Member
from .messages import issues
from .room import Room


class Assembly:
    """The protocol: a message is a JSON object with `type`."""

    def open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes = b"") -> Session:
        """A session as room or member."""
        state = decode_json(snapshot) if snapshot else {}
        return Room(state) if role == "room" else Member(parameters["peer"], parameters["seed"], state)

    def encode(self, message: Value) -> bytes:
        """A message as JSON."""
        return encode_json(message)

    def decode(self, data: bytes) -> Value:
        """JSON as a message."""
        return decode_json(data)

    def validate(self, message: Value, sender: str) -> list[str]:
        """Each type has its members, and its sender."""
        return issues(message, sender)


handler = Assembly()
