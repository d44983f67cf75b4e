"""Load the code of a Hello session: the protocol and its handler, from the agreement on and through repairs.

The code of a published protocol is fetched and verified. The code of a negotiated protocol is written by the negotiator. Both run
in a task, unless a hash was confirmed whose protocol has no code. Then the handler gets its first event and the machine gets a
command.

A handler is replaced in three cases: the peer did not confirm the hash that it was started for, the tests made the negotiator
repair it, or either side repairs its code. Both sides then begin a new conversation, and open calls are issued again.
"""

from __future__ import annotations

import asyncio
from functools import partial

from treaty_anp.hello_profile import commands
from treaty_anp.hello_profile.actions import Agreement
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_io.codes import SessionCode
from treaty_io.identity import PeerIdentity
from treaty_io.line_limit import limited_logger

from ..negotiators.negotiator import Implementation
from .agreements import accept_implementation
from .calls import CallTable
from .handler_context import HandlerPort
from .hello_core import HelloCore
from .interfaces import SpokenProtocol
from .negotiation import Negotiation
from .operations import check_peer_role

_log = limited_logger(__name__)


class CodeLoader:
    """Load and replace the code of one session: its `HelloCore.protocol` and `HelloCore.handler`."""

    def __init__(self, core: HelloCore, port: HandlerPort, negotiation: Negotiation, calls: CallTable) -> None:
        """Load nothing yet. `port`: the session, for its handlers. `negotiation`: writes code. `calls`: are issued to each new
        handler."""
        self._core, self._port, self._negotiation, self._calls = core, port, negotiation, calls
        self._written: Implementation | None = None

    @property
    def is_new(self) -> bool:
        """Whether the negotiator wrote code that `take_written` has not returned yet."""
        return self._written is not None

    async def begin_early(self, protocol: SpokenProtocol, peer: PeerIdentity) -> None:
        """Start a handler before the agreement, for the offered hash. Raises `TreatyError`, TimeoutError."""
        self._core.protocol = protocol
        if protocol.package.is_declarative:
            await self._host(protocol, peer)  # nothing starts
        else:
            async with self._limit():
                await self._host(protocol, peer)
        await self._open()

    async def load(self, agreement: Agreement, error: str) -> None:
        """Load the code for an agreement. `error`: the fault of the former code when this is a repair, else ""."""
        core = self._core
        if agreement.confirmed and not error and core.handler is not None and core.protocol is not None:
            try:
                # The handler was started before the peer said its role.
                check_peer_role(core.protocol.package.manifest, core.handler.role, agreement.peer_role)
            except TreatyError as failure:
                await core.command(commands.CodeFailed(failure))
            else:
                await self._announce()
            return
        await self.retire()  # it sent unconfirmed or wrong messages; the new handler repeats them
        core.agreed_text = agreement.document or core.agreed_text
        held_protocol = core.role.held_protocol(agreement) if agreement.confirmed and not error else None
        if held_protocol is None:
            core.loop.spawn(self._get_ready(agreement, error))
        else:
            await self._begin(held_protocol)

    def take_written(self) -> Implementation | None:
        """Return the code that the negotiator wrote since the last call, or None."""
        written, self._written = self._written, None
        return written

    async def retire(self) -> None:
        """Close the handler; the conversation so far is void."""
        if self._core.handler is not None:
            handler, self._core.handler = self._core.handler, None
            await handler.close()

    async def restart(self) -> None:
        """Begin a new conversation with the same code, because the other side did. Raises `TreatyError`, TimeoutError."""
        protocol = self._core.protocol
        assert protocol is not None
        await self.retire()
        async with self._limit():
            await self._host(protocol, self._core.peer)
        await self._open()

    async def adopt(self, implementation: Implementation) -> None:
        """Continue with code that passed the tests. Raises `TreatyError`, TimeoutError."""
        # Kept even if the code did not change: the agreement is written with it.
        self._written = implementation
        previous, protocol = self._core.protocol, accept_implementation(implementation, self._core.document, self._core.peer.did)
        if previous is None or protocol.package.digest != previous.package.digest:
            self._core.protocol = protocol
            await self.restart()

    async def _begin(self, protocol: SpokenProtocol) -> None:
        """Start the handler of a protocol that needs no wait."""
        self._core.protocol = protocol
        try:
            await self._host(protocol, self._core.peer)
        except TreatyError as error:
            await self._core.command(commands.CodeFailed(error))
        else:
            await self._open_and_announce()

    async def _get_ready(self, agreement: Agreement, error: str) -> None:
        failure: TreatyError
        try:
            # Fetching and writing have one limit: the peer waits for both.
            async with self._limit():
                protocol = self._core.protocol = await self._get(agreement, error)
                await self._host(protocol, self._core.peer)
        except TreatyError as reason:
            failure = reason
        except TimeoutError:
            failure = Unavailable(SessionCode.CODE_TIMEOUT, "This side's code was not ready in time.")
        except Exception:
            _log.exception("Getting the code for %s ready failed", agreement.uri or "a negotiated protocol")
            failure = Unavailable(SessionCode.INTERNAL, "This side failed; its log says why.")
        else:
            self._core.loop.post(self._open_and_announce)
            return
        # Posted, because commands run only in the connection's task.
        self._core.loop.post(partial(self._core.command, commands.CodeFailed(failure)))

    async def _get(self, agreement: Agreement, error: str) -> SpokenProtocol:
        if agreement.document is not None or error:
            # Before this side's model writes anything: the code that was published for the same text.
            published = None if error else await self._core.role.published_code(self._core.document, self._core.told_uri)
            if published is not None:
                self._core.record_event("verified")
                return published
            written = self._written = await self._negotiation.implement(self._core.document, error)
            self._core.record_event("written")
            return accept_implementation(written, self._core.document, self._core.peer.did)
        protocol = await self._core.role.resolve(agreement)
        if not agreement.confirmed:
            self._core.record_event("verified")
        return protocol

    async def _open_and_announce(self) -> None:
        # The session may have ended while the code was loaded.
        if self._core.machine.is_final:
            return
        try:
            await self._open()
        except TreatyError as error:
            await self._core.command(commands.CodeFailed(error))
        else:
            await self._announce()

    async def _announce(self) -> None:
        assert self._core.protocol is not None
        self._core.role.end_opening()
        await self._core.command(commands.CodeReady(self._core.protocol.hash))

    async def _host(self, protocol: SpokenProtocol, peer: PeerIdentity) -> None:
        self._core.handler = await self._core.role.host(self._port, protocol, peer, self._core.peer_role)

    async def _open(self) -> None:
        assert self._core.handler is not None
        await self._core.handler.open()
        self._core.record_event("sandbox")
        await self._calls.issue()

    def _limit(self) -> asyncio.Timeout:
        """Return the time limit for code to be ready."""
        return asyncio.timeout(self._core.role.timeouts.code)
