"""A session as its application sees it."""

from __future__ import annotations

from typing import Any

from .driver import SessionDriver
from .timing import SessionEvent


class Session:
    """Made by `Agent.connect`. For one event loop; several calls may be under way at once."""

    def __init__(self, driver: SessionDriver) -> None:
        """Wraps a driver that somebody else runs."""
        self._driver = driver

    @property
    def peer(self) -> str:
        """The DID that the other agent claims; the plain profile does not prove it. "" until its Hello has come."""
        return self._driver.machine.peer.source_did if self._driver.machine.peer else ""

    @property
    def protocol(self) -> str:
        """The URI of the protocol that is spoken; "" until it is known."""
        return self._driver.protocol.uri if self._driver.protocol else ""

    @property
    def resumed(self) -> bool:
        """Whether the peer confirmed a remembered agreement, so that nothing was negotiated or fetched."""
        agreement = self._driver.machine.agreement
        return agreement is not None and agreement.confirmed

    @property
    def timeline(self) -> list[SessionEvent]:
        """What happened so far, and when."""
        return list(self._driver.timeline)

    async def call(self, operation: str, /, **arguments: Any) -> Any:
        """Call an operation of the other side; returns its value, a JSON value by the operation's schema.

        Raises `OperationError` when the operation fails (its `status` and message are the other side's; 504 when no answer came
        within the operation's time), `Malformed` (`operation.arguments`) or `Refused` (`session.operation`, `session.busy`) when
        the call does not fit the protocol, and what ended the session when it is over.
        """
        return await self._driver.call(operation, arguments)
