"""Load the code of a Hello session: the protocol and its handler, from the agreement on and through repairs.

The code of a published protocol is fetched and verified. The code of a negotiated protocol is written by the negotiator. Both run
in a task; then the handler gets its first event and the machine gets a command.

A handler is replaced in three cases: the peer did not confirm the hash that it was started for, the tests made the negotiator
repair it, or either side repairs its code. Both sides then begin a new conversation, and open calls are issued again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from treaty_anp.hello_profile import commands
from treaty_anp.hello_profile.actions import Agreement
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_io.codes import SessionCode
from treaty_io.identity import PeerIdentity
from treaty_io.line_limit import limited_logger

from ..negotiators.negotiator import Implementation
from .agreements import NegotiatedProtocol, accept_implementation
from .handler_port import HostedHandler
from .interfaces import SpokenProtocol, Step
from .operations import check_peer_role

_log = limited_logger(__name__)


@dataclass(frozen=True)
class CodePort:
    """The functions that the code loader uses from its session.

    `seconds`: time limit for code to be ready.
    `peer`: the DID of the other side.
    `command`: give the machine a command and perform the actions.
    `resolve`: return the protocol of an agreement.
    `stored_document`: return the text of a negotiated protocol that is kept here.
    `implement`: let the negotiator write code.
    `host`: start a handler.
    `issue_calls`: give the handler the open calls.
    """

    seconds: float
    peer: Callable[[], PeerIdentity]
    is_over: Callable[[], bool]
    command: Callable[[commands.Command], Awaitable[None]]
    post: Callable[[Step], None]
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    record_event: Callable[[str], None]
    resolve: Callable[[Agreement], Awaitable[SpokenProtocol]]
    stored_document: Callable[[SpokenProtocol], str]
    implement: Callable[[str, str], Awaitable[Implementation]]
    host: Callable[[SpokenProtocol, PeerIdentity], Awaitable[HostedHandler]]
    issue_calls: Callable[[], Awaitable[None]]


class CodeLoader:
    """Load and replace the code of one session. Other modules only read `protocol` and `handler`."""

    def __init__(self, port: CodePort) -> None:
        self.protocol: SpokenProtocol | None = None
        self.handler: HostedHandler | None = None
        self._port = port
        self._written: Implementation | None = None
        self._document = ""

    @property
    def document(self) -> str:
        """The agreed text of a negotiated protocol, "" for a published one."""
        if not self._document and isinstance(self.protocol, NegotiatedProtocol):
            self._document = self._port.stored_document(self.protocol)
        return self._document

    @property
    def is_new(self) -> bool:
        """Whether the negotiator wrote code that `take_written` has not returned yet."""
        return self._written is not None

    async def begin_early(self, protocol: SpokenProtocol, peer: PeerIdentity) -> None:
        """Start a handler before the agreement, for the offered hash. Raises `TreatyError`, TimeoutError."""
        self.protocol = protocol
        async with asyncio.timeout(self._port.seconds):
            await self._host(protocol, peer)
        await self._open()

    async def load(self, agreement: Agreement, error: str) -> None:
        """Load the code for an agreement. `error`: the fault of the former code when this is a repair, else ""."""
        if agreement.confirmed and not error and self.handler is not None and self.protocol is not None:
            try:
                # The handler was started before the peer said its role.
                check_peer_role(self.protocol.package.manifest, self.handler.role, agreement.peer_role)
            except TreatyError as failure:
                await self._port.command(commands.CodeFailed(failure))
            else:
                await self._port.command(commands.CodeReady(self.protocol.hash))
            return
        await self.retire()  # it sent unconfirmed or wrong messages; the new handler repeats them
        self._document = agreement.document or self._document
        self._port.spawn(self._get_ready(agreement, error))

    def take_written(self) -> Implementation | None:
        """Return the code that the negotiator wrote since the last call, or None."""
        written, self._written = self._written, None
        return written

    async def retire(self) -> None:
        """Close the handler; the conversation so far is void."""
        if self.handler is not None:
            handler, self.handler = self.handler, None
            await handler.close()

    async def restart(self) -> None:
        """Begin a new conversation with the same code, because the other side did. Raises `TreatyError`, TimeoutError."""
        assert self.protocol is not None
        await self.retire()
        async with asyncio.timeout(self._port.seconds):
            await self._host(self.protocol, self._port.peer())
        await self._open()

    async def adopt(self, implementation: Implementation) -> None:
        """Continue with code that passed the tests. Raises `TreatyError`, TimeoutError."""
        # Kept even if the code did not change: the agreement is written with it.
        self._written = implementation
        protocol = accept_implementation(implementation, self.document, self._port.peer().did)
        if self.protocol is None or protocol.package.digest != self.protocol.package.digest:
            self.protocol = protocol
            await self.restart()

    async def _get_ready(self, agreement: Agreement, error: str) -> None:
        failure: TreatyError
        try:
            # Fetching and writing have one limit: the peer waits for both.
            async with asyncio.timeout(self._port.seconds):
                self.protocol = await self._get(agreement, error)
                await self._host(self.protocol, self._port.peer())
        except TreatyError as reason:
            failure = reason
        except TimeoutError:
            failure = Unavailable(SessionCode.CODE_TIMEOUT, "This side's code was not ready in time.")
        except Exception:
            _log.exception("Getting the code for %s ready failed", agreement.uri or "a negotiated protocol")
            failure = Unavailable(SessionCode.INTERNAL, "This side failed; its log says why.")
        else:
            self._port.post(self._open_and_announce)
            return
        # Posted, because commands run only in the connection's task.
        self._port.post(partial(self._port.command, commands.CodeFailed(failure)))

    async def _get(self, agreement: Agreement, error: str) -> SpokenProtocol:
        if agreement.document is not None or error:
            written = self._written = await self._port.implement(self.document, error)
            self._port.record_event("written")
            return accept_implementation(written, self.document, self._port.peer().did)
        protocol = await self._port.resolve(agreement)
        if not agreement.confirmed:
            self._port.record_event("verified")
        return protocol

    async def _open_and_announce(self) -> None:
        assert self.protocol is not None
        # The session may have ended while the code was loaded.
        if self._port.is_over():
            return
        try:
            await self._open()
        except TreatyError as error:
            await self._port.command(commands.CodeFailed(error))
        else:
            await self._port.command(commands.CodeReady(self.protocol.hash))

    async def _host(self, protocol: SpokenProtocol, peer: PeerIdentity) -> None:
        self.handler = await self._port.host(protocol, peer)

    async def _open(self) -> None:
        assert self.handler is not None
        await self.handler.open()
        self._port.record_event("sandbox")
        await self._port.issue_calls()
