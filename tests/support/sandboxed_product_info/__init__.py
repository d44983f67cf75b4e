"""Product information: one side asks for a product by id or name, the other answers with its details."""

from __future__ import annotations

from collections.abc import Mapping

from treaty_handler import Session, Value

from . import messages
from .provider import Provider
from .requester import Requester


class ProductInfo:
    """The protocol of every version; what a version adds is in its manifest."""

    def open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes = b"") -> Session:
        """A session as `requester` or `provider`."""
        return Requester(parameters, snapshot) if role == "requester" else Provider(parameters, snapshot)

    def encode(self, message: Value) -> bytes:
        """The message as UTF-8 JSON."""
        return messages.encode(message)

    def decode(self, data: bytes) -> Value:
        """The JSON object in these bytes."""
        return messages.decode(data)

    def validate(self, message: Value, sender: str) -> list[str]:
        """Requesters send requests, providers send responses."""
        return messages.request_issues(message) if sender == "requester" else messages.response_issues(message)


handler = ProductInfo()
