"""Handoff: a message moves a task, a question or a report from one agent to another, with all that the other needs.

The protocol has logic of its own (expiry, duplicates, priorities, retries), so it needs code: message forms cannot express it.

forms, schemas            the form of messages, and its check
messages, remembered      reading and writing; the ids that a session remembers
rules                     the work on a message, at every door
session                   a session of two
routing, broker_session   a session of many
"""

from __future__ import annotations

from collections.abc import Mapping

from treaty_handler import Session, Value, decode_json, encode_json

from .broker_session import BrokerSession
from .messages import accepted, issues
from .session import HandoffSession


class Handoff:
    """The protocol: every message on the wire is a handoff message."""

    def open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes = b"") -> Session:
        """A session as sender, receiver or member, which have one peer, or as broker, which has many."""
        state = decode_json(snapshot) if snapshot else {}
        if role == "broker":
            return BrokerSession(parameters["seed"], state)
        return HandoffSession(role, parameters["peer"], parameters["seed"], state)

    def encode(self, message: Value) -> bytes:
        """A message as JSON."""
        return encode_json(message)

    def decode(self, data: bytes) -> Value:
        """JSON as a message, as this version writes it."""
        return accepted(decode_json(data))

    def validate(self, message: Value, sender: str) -> list[str]:
        """A message has the form of document.md; each role may send each kind."""
        return issues(message)


handler = Handoff()
