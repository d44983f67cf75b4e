"""A session's code: the protocol that is spoken, and the handler that speaks it, from the agreement on and through repairs.

The code of a published protocol is fetched and verified, that of a negotiated one written by the negotiator; either happens in a
task, after which the handler sees its first event and the machine is told. A handler is replaced when the hash it stood for was
not confirmed, when the tests made the negotiator mend it, and when either side repairs its code: then both begin a new
conversation, and open calls are issued again.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from treaty_consensus.errors import TreatyError, Unavailable

from ..meta.actions import Agreement
from ..negotiation.negotiator import Implementation
from .hosting import HandlerHost
from .negotiated import NegotiatedProtocol, accept_implementation
from .ports import SpokenProtocol

if TYPE_CHECKING:
    from .driver import SessionDriver

_log = logging.getLogger(__name__)


class SessionCode:
    """One session's. All its attributes are for reading."""

    def __init__(self, driver: SessionDriver) -> None:
        self.protocol: SpokenProtocol | None = None
        self.handler: HandlerHost | None = None
        self._driver = driver
        self._written: Implementation | None = None
        self._document = ""

    @property
    def document(self) -> str:
        """The agreed text of a protocol that was negotiated, in this session or in an earlier one; "" for a published one."""
        if not self._document and isinstance(self.protocol, NegotiatedProtocol):
            self._document = self._driver.side.document(self.protocol)
        return self._document

    @property
    def peer(self) -> str:
        """The DID of the other side."""
        assert self._driver.machine.peer is not None
        return self._driver.machine.peer.source_did

    async def begin_early(self, protocol: SpokenProtocol, peer: str) -> None:
        """Have a handler before the agreement, for the hash that is offered. Raises `TreatyError`, TimeoutError."""
        self.protocol = protocol
        async with asyncio.timeout(self._driver.side.timeouts.code):
            await self._host(protocol, peer)
        await self._open()

    async def load(self, agreement: Agreement, error: str) -> None:
        """The machine wants the code for an agreement; `error`: again, and what was wrong with it."""
        if agreement.confirmed and not error and self.handler is not None and self.protocol is not None:
            await self._driver.perform(self._driver.machine.code_ready(self.protocol.hash, self._driver.now()))
            return
        await self.retire()  # what spoke too early, or wrongly; with new code everything is said again
        self._document = agreement.document or self._document
        self._driver.spawn(self._get_ready(agreement, error))

    @property
    def is_new(self) -> bool:
        """Whether there is code that the negotiator wrote and nobody took."""
        return self._written is not None

    def take_written(self) -> Implementation | None:
        """What the negotiator wrote since this was asked last."""
        written, self._written = self._written, None
        return written

    async def retire(self) -> None:
        """End the handler: the conversation so far is void."""
        if self.handler is not None:
            handler, self.handler = self.handler, None
            await handler.close()

    async def restart(self) -> None:
        """Begin a new conversation by the same code, as the other side's is new. Raises `TreatyError`, TimeoutError."""
        assert self.protocol is not None
        await self.retire()
        async with asyncio.timeout(self._driver.side.timeouts.code):
            await self._host(self.protocol, self.peer)
        await self._open()

    async def adopt(self, implementation: Implementation) -> None:
        """Go on with code that passed the tests. Raises `TreatyError`, TimeoutError."""
        self._written = implementation
        protocol = accept_implementation(implementation, self.document, self.peer)
        if self.protocol is None or protocol.package.digest != self.protocol.package.digest:
            self.protocol = protocol
            await self.restart()

    async def _get_ready(self, agreement: Agreement, error: str) -> None:
        failure: TreatyError
        try:
            async with asyncio.timeout(self._driver.side.timeouts.code):
                self.protocol = await self._get(agreement, error)
                await self._host(self.protocol, self.peer)
        except TreatyError as reason:
            failure = reason
        except TimeoutError:
            failure = Unavailable("session.code-timeout", "This side's code was not ready in time.")
        except Exception:
            _log.exception("Getting the code for %s ready failed", agreement.uri or "what was negotiated")
            failure = Unavailable("session.internal", "This side failed; its log says why.")
        else:
            self._driver.post(self._open_and_announce)
            return
        self._driver.post(partial(self._failed, failure))

    async def _get(self, agreement: Agreement, error: str) -> SpokenProtocol:
        if agreement.document is not None or error:
            written = self._written = await self._driver.negotiation.implement(self.document, error)
            self._driver.tell("written")
            return accept_implementation(written, self.document, self.peer)
        protocol = await self._driver.side.resolve(agreement)
        if not agreement.confirmed:
            self._driver.tell("verified")
        return protocol

    async def _open_and_announce(self) -> None:
        driver = self._driver
        assert self.protocol is not None
        if driver.machine.is_final:
            return
        try:
            await self._open()
        except TreatyError as error:
            await self._failed(error)
        else:
            await driver.perform(driver.machine.code_ready(self.protocol.hash, driver.now()))

    async def _failed(self, error: TreatyError) -> None:
        await self._driver.perform(self._driver.machine.code_failed(error))

    async def _host(self, protocol: SpokenProtocol, peer: str) -> None:
        self.handler = await self._driver.side.host(self._driver, protocol, peer)

    async def _open(self) -> None:
        assert self.handler is not None
        await self.handler.open()
        self._driver.tell("sandbox")
        await self._driver.calls.issue()
