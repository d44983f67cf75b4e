"""Haggling: a buyer and a seller move towards each other's price until one accepts.

The protocol has logic of its own, the concessions, so it needs code: message forms alone cannot express it.
"""

from __future__ import annotations

from collections.abc import Mapping

from treaty_handler import Session, Value, decode_json, encode_json

from .buyer import Buyer
from .seller import Seller
from .talks import issues


class Haggling:
    """The protocol: a message is a JSON object with `id` and `type`."""

    def open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes = b"") -> Session:
        """A session as buyer or seller."""
        kind = Buyer if role == "buyer" else Seller
        return kind(parameters["peer"], parameters["seed"], decode_json(snapshot) if snapshot else {})

    def encode(self, message: Value) -> bytes:
        """A message as JSON."""
        return encode_json(message)

    def decode(self, data: bytes) -> Value:
        """JSON as a message."""
        return decode_json(data)

    def validate(self, message: Value, sender: str) -> list[str]:
        """Each type has its members, and its sender."""
        return issues(message, sender)


handler = Haggling()
