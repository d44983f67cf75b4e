"""A session as its application sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ..meta.transcript import TranscriptRecorder
from .driver import SessionDriver
from .timing import SessionEvent


class Session:
    """Made by `Agent.connect`. For one event loop; several calls may be under way at once."""

    def __init__(self, driver: SessionDriver, recorder: TranscriptRecorder | None = None) -> None:
        """Wraps a driver that somebody else runs."""
        self._driver, self._recorder = driver, recorder

    @property
    def peer(self) -> str:
        """The DID that the other agent claims, see `peer_is_proved`. "" until its Hello has come."""
        return self._driver.machine.peer.source_did if self._driver.machine.peer else ""

    @property
    def peer_is_proved(self) -> bool:
        """Whether the peer has proved its DID: by end-to-end encryption or an HTTP signature; the plain profile proves none."""
        return self._driver.peer_is_proved

    @property
    def protocol(self) -> str:
        """The URI of the protocol that is spoken, `urn:treaty:negotiated:HASH` for one that was negotiated; "" until it is
        known."""
        return self._driver.code.protocol.uri if self._driver.code.protocol else ""

    @property
    def document(self) -> str:
        """The text of the protocol, if it was negotiated; else ""."""
        return self._driver.code.document

    @property
    def resumed(self) -> bool:
        """Whether the peer confirmed a remembered agreement, so that nothing was negotiated or fetched."""
        agreement = self._driver.machine.agreement
        return agreement is not None and agreement.confirmed

    @property
    def timeline(self) -> list[SessionEvent]:
        """What happened so far, and when."""
        return list(self._driver.timeline)

    @property
    def transcript(self) -> bytes:
        """What `meta.transcript` reads and replays, so far; b"" where the agent records nothing."""
        return self._recorder.transcript() if self._recorder else b""

    async def call(self, operation: str, /, **arguments: Any) -> Any:
        """Call an operation of the other side; returns its value, a JSON value by the operation's schema.

        Raises `OperationError` when the operation fails (its `status` and message are the other side's; 504 when no answer came
        within the operation's time), `Malformed` (`operation.arguments`) or `Refused` (`session.operation`, `session.busy`) when
        the call does not fit the protocol, and what ended the session when it is over.
        """
        return await self._driver.call(operation, arguments)

    async def say(self, text: str) -> None:
        """Say something in natural language; Markdown is welcome. Waits while the peer is slow to read.

        Raises `Refused` (`meta.not-agreed`) unless both sides converse, and what ended the session.
        """
        await self._driver.say(text)

    def heard(self) -> AsyncIterator[str]:
        """What the peer says in natural language, until the session is over. While 16 texts wait, nothing more is read."""
        return self._driver.conversation.heard()

    async def ask(self, question: str) -> str:
        """Ask the other side's negotiator about the protocol, and wait for its answer.

        Raises `Refused` (`meta.not-agreed`) unless both sides negotiate, and what ended the session, no answer in time included.
        """
        return await self._driver.requests.ask(question)

    async def complain(self, description: str) -> None:
        """Tell the other side what is wrong with its messages, and wait until its code is mended; open calls are then issued
        again.

        Calls that it answers outside of the protocol make this side complain by itself, once each. Raises `Refused`:
        `meta.not-agreed` unless both sides negotiate, `negotiation.fault-denied` with its reason; and what ended the session.
        """
        await self._driver.requests.complain(description)
