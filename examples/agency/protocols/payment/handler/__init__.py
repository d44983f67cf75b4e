"""Travel payment: a payer lets a bank reserve an amount, and then capture it.

The second step depends on the answer to the first one, so the protocol needs code.
"""

from __future__ import annotations

from collections.abc import Mapping

from treaty_handler import Session, Value, decode_json, encode_json

from .bank import Bank
from .messages import issues
from .payer import Payer


class Payment:
    """The protocol: a message is a JSON object with `id` and `type`."""

    def open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes = b"") -> Session:
        """A session as payer or bank."""
        state = decode_json(snapshot) if snapshot else {}
        if role == "payer":
            return Payer(parameters["peer"], parameters["seed"], state)
        return Bank(parameters["peer"], state)

    def encode(self, message: Value) -> bytes:
        """A message as JSON."""
        return encode_json(message)

    def decode(self, data: bytes) -> Value:
        """JSON as a message."""
        return decode_json(data)

    def validate(self, message: Value, sender: str) -> list[str]:
        """Each type has its members, and its sender."""
        return issues(message, sender)


handler = Payment()
