"""Travel rides: a dispatch with its drivers and customers in one session, which sells each ride to the cheapest driver."""

from __future__ import annotations

from collections.abc import Mapping

from treaty_handler import Session, Value, decode_json, encode_json

from .customer import Customer
from .dispatch import Dispatch
from .driver import Driver
from .messages import issues


class Rides:
    """The protocol: a message is a JSON object with `type`."""

    def open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes = b"") -> Session:
        """A session as dispatch, driver or customer."""
        state = decode_json(snapshot) if snapshot else {}
        if role == "dispatch":
            return Dispatch(state)
        if role == "driver":
            return Driver(parameters["peer"], state)
        return Customer(parameters["peer"], parameters["seed"], state)

    def encode(self, message: Value) -> bytes:
        """A message as JSON."""
        return encode_json(message)

    def decode(self, data: bytes) -> Value:
        """JSON as a message."""
        return decode_json(data)

    def validate(self, message: Value, sender: str) -> list[str]:
        """Each type has its members, and its sender."""
        return issues(message, sender)


handler = Rides()
