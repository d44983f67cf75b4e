"""The calling side of an agent: sessions that it opens, and handles for the agents that it calls for long."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..config import AgentConfig
    from ..negotiators.negotiator import Requirement
    from ..sessions.context import AgentContext
    from ..sessions.endpoint import AgentEndpoint
    from ..sessions.interfaces import PeerSettings
    from ..sessions.opening import SessionOpener
    from ..sessions.operations import Function, Functions
    from ..sessions.peer import Peer, SessionPool
    from ..sessions.roles import SessionRequest
    from ..sessions.session import Session
    from ..sessions.stay import Stay
    from ..transport.connection import Connection


class ConnectingAgent:
    """The methods of `Agent` that call other agents. `config`: the effective configuration."""

    config: AgentConfig
    _context: AgentContext
    _endpoint: AgentEndpoint
    _opener: SessionOpener
    _pools: set[SessionPool]

    @asynccontextmanager
    async def connect(
        self,
        address: str,
        *,
        topic: str = "",
        protocols: Sequence[str] = (),
        requirement: Requirement | None = None,
        natural: bool = False,
        did: str = "",
        role: str = "",
        serving: Sequence[Function] = (),
        timeout: float | None = None,  # noqa: ASYNC109  # the time of opening, and not of the block
    ) -> AsyncIterator[Session]:
        """Open a session with the agent at an `address`: a `ws`, `wss`, `http` or `https` URL; or a domain, a DID, or the `https`
        URL of an agent description, which ends in `.json`. The latter three are discovered.

        Choose by a `topic`, by `protocols` (URIs, or ids `anp:protocol:…`, best first), by a `requirement` to negotiate, or only
        by `natural` language. A requirement beside a topic or protocols is negotiated when those lead nowhere. Without any, the
        protocols that a discovered agent lists are offered. Of a topic the consensus is offered first, then the protocols that
        a discovered agent lists, then the others. `sessions.profiles` says how the profile is chosen.

        `did`: the DID that the peer has to claim; by default the one that answered there first. `role`: the role of this side,
        where the protocol leaves it open. `serving`: functions for the operations that the peer calls back in this session, by
        their names as in `provides`; without any, those that this agent provides. `timeout`: seconds for opening the session; by
        default `timeouts.connect`, and no limit for a requirement. With a remembered agreement the session begins at once, and
        the first call raises its errors; otherwise both sides are ready when it begins. The application leaves the block at once:
        the report and the publication, by the policies, and the end of the connection follow in the background, and `aclose`
        waits for them. At an error in the block the session ends without a report.

        Raises `Malformed`, `Unavailable` (`connection.failed`), `Refused` (`session.no-common-protocol`,
        `session.role`, `peer.changed`, `negotiation.rejected`, …), and the errors of discovery, verification and negotiators.
        """
        from ..sessions.opening import PeerName
        from ..sessions.roles import SessionRequest

        name = PeerName.parse(address)
        request = SessionRequest(topic, tuple(protocols), did, requirement, natural, role, _functions(serving))
        with closing(request):
            async with await self._opener.open(name, request, within=timeout) as session:
                yield session

    def peer(
        self,
        address: str,
        *,
        topic: str = "",
        protocols: Sequence[str] = (),
        requirement: Requirement | None = None,
        did: str = "",
        role: str = "",
        serving: Sequence[Function] = (),
        timeout: float | None = None,
    ) -> Peer:
        """Return a long-lived handle for calls to one agent. It opens sessions, replaces broken ones, and repeats calls that may
        be repeated (`sessions.peer`). Nothing is sent yet. Close it, or use `async with`.

        The arguments are those of `connect`. Raises `Malformed`
        (`agent.call`) and `Refused` (`agent.settings`).
        """
        from ..sessions.peer import Peer
        from ..sessions.roles import SessionRequest
        from ..transport.connection import Backoff

        request = SessionRequest(topic, tuple(protocols), did, requirement, False, role, _functions(serving))
        pool = self._pool(address, request, self.config.peers, timeout)
        return Peer(pool, backoff=Backoff(attempts=self.config.peers.attempts), on_close=self._pools.discard)

    def stay(
        self,
        address: str,
        *,
        topic: str = "",
        protocols: Sequence[str] = (),
        did: str = "",
        role: str = "",
        serving: Sequence[Function] = (),
        timeout: float | None = None,
    ) -> Stay:
        """Return a handle that opens a session with one agent and keeps one open until the end of its `async with` block, so that
        the other side may call the functions `serving` at any time (`sessions.stay`). Nothing is sent yet.

        `timeout`: seconds for opening a session. The arguments and errors are those of `peer`.
        """
        from ..sessions.roles import SessionRequest
        from ..sessions.stay import Stay
        from ..transport.connection import Backoff

        request = SessionRequest(topic, tuple(protocols), did, None, False, role, _functions(serving))
        # One: a second session would be a second member of a room.
        pool = self._pool(address, request, replace(self.config.peers, sessions=1), timeout)
        return Stay(pool, backoff=Backoff(attempts=self.config.peers.attempts), on_close=self._pools.discard)

    def _pool(self, address: str, request: SessionRequest, settings: PeerSettings, timeout: float | None) -> SessionPool:
        from ..sessions.opening import PeerName
        from ..sessions.peer import SessionPool

        name = PeerName.parse(address)
        if name.is_url:
            request.check(self._context)
        pool = SessionPool(self._context, self._opener, name, request, settings, timeout)
        self._pools.add(pool)
        return pool

    def connect_over(
        self,
        connection: Connection,
        *,
        topic: str = "",
        protocols: Sequence[str] = (),
        requirement: Requirement | None = None,
        natural: bool = False,
        did: str = "",
        role: str = "",
        serving: Sequence[Function] = (),
    ) -> AbstractAsyncContextManager[Session]:
        """Open a session as `connect` does, over an open connection of any transport. The agreement is remembered by the address
        of the connection. After a failed negotiation the next session proposes the document that a person chose."""
        from ..sessions import lifecycle
        from ..sessions.roles import SessionRequest

        async def dial(for_hello: bool) -> Connection:
            return self._endpoint.sealed(connection) if for_hello else connection

        request = SessionRequest(topic, tuple(protocols), did, requirement, natural, role, _functions(serving))
        return lifecycle.run_initiator(self._context, self._endpoint.flow, dial, connection.address, request, again=False)

    async def dial(self, url: str) -> Connection:
        """Open a connection to a URL without end-to-end encryption, for `flow`. Raises `Malformed`, `Unavailable`."""
        return await self._endpoint.dial(url, repeat=False)


def _functions(serving: Sequence[Function]) -> Functions | None:
    # Here, so that importing an agent's class costs little.
    from ..sessions.operations import Functions

    return Functions.of(serving)
