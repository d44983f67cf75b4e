"""The serving side of an agent: the functions that it provides, and the port at which it answers."""

from __future__ import annotations

import asyncio
import logging
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io.codes import AgentCode
from treaty_io.pauses import shorten_pauses

if TYPE_CHECKING:
    from treaty_io.identity import Identity

    from ..sessions.arrivals import BroadcastOutcome, OnSession
    from ..sessions.context import AgentContext
    from ..sessions.endpoint import AgentEndpoint
    from ..sessions.interfaces import Answerer
    from ..sessions.middleware import Middleware
    from ..sessions.operations import Function
    from ..sessions.session import Session
    from ..sessions.shared_session import SharedSession
    from ..transport.application import Application, Door, StaticDocument
    from ..transport.connection import Connection

_F = TypeVar("_F", bound="Function")
_M = TypeVar("_M", bound="Middleware")
_OnSession = TypeVar("_OnSession", bound="OnSession")
_log = logging.getLogger(__name__)


class ServingAgent(ABC):
    """The methods of `Agent` that answer other agents."""

    _context: AgentContext
    _endpoint: AgentEndpoint

    @abstractmethod
    def reload(self, identity: Identity | None = None) -> bool:
        """See `Agent.reload`."""

    @property
    def unserved(self) -> Mapping[str, TreatyError]:
        """The provided protocols that are not served now, by URI, and the error of each."""
        return MappingProxyType(self._context.served.unserved)

    @property
    def served(self) -> Mapping[str, int]:
        """The provided protocols that are served now, by URI, and the number of open connections that speak each."""
        connections = self._context.work.connections
        return {uri: len(connections.speaking(uri)) for uri in self._context.served.ready}

    # What this agent can do

    def provides(self, uri: str, *, operation: str = "", role: str = "") -> Callable[[_F], _F]:
        """Register the decorated function for an operation of a protocol, by default the one of its name. Use it once for each
        operation.

        Other agents can connect to this one for the protocol, and discovery lists it. For operations that a peer calls back in a
        session of this side, use `connect(serving=…)`. `role`: the role of this side, where the protocol leaves it open. While
        the agent serves, the protocol is verified and served as soon as possible, and `on_event` gets `served` or `unserved`.
        Then call this in the event loop.

        Raises `Malformed`.
        """
        from ..sessions.provision import provide_later

        parse_protocol_uri(uri)

        def register(function: _F) -> _F:
            service = self._context.served.provided_service(uri)
            service.functions.add(function, name=operation)
            service.role = role or service.role
            if self._context.served.is_providing:
                provide_later(self._context, uri)
            return function

        return register

    def on_session(self, uri: str, *, role: str = "") -> Callable[[_OnSession], _OnSession]:
        """Register the decorated coroutine function for the sessions that other agents open with a protocol. It is called with
        the `Session` when both sides are ready, and cancelled when the session ends. The session goes on when it returns or
        raises.

        With it, an agent may provide a role that only calls. `role`: as for `provides`. Raises `Malformed`.
        """
        from ..sessions.provision import provide_later

        parse_protocol_uri(uri)

        def register(function: _OnSession) -> _OnSession:
            service = self._context.served.provided_service(uri)
            service.on_session, service.role = function, role or service.role
            if self._context.served.is_providing:
                provide_later(self._context, uri)
            return function

        return register

    def sessions(self, uri: str = "") -> list[Session]:
        """Return the running sessions that other agents opened, in either profile. `uri`: those with this protocol alone."""
        return self._context.served.arrivals.of(uri)

    def shared(self, uri: str) -> SharedSession:
        """Return the one session of a shared role that this agent provides, with all agents that chose it. It begins with the
        first of them, or now. Call this in the event loop, while the protocol is served.

        Raises `NotFound` (`agent.not-provided`), `Refused` (`session.role`) for a role that is not shared, and the protocol's
        error while it is not served.
        """
        from ..sessions.shared_session import shared_session

        return shared_session(self._context, uri)

    async def broadcast(
        self,
        to: str | Iterable[Session],
        operation: str,
        arguments: Mapping[str, Any] = MappingProxyType({}),
        /,
        *,
        within: float | None = None,
        **named: Any,
    ) -> list[BroadcastOutcome]:
        """Call an operation in all `sessions` with a protocol, or in some sessions, and return the outcomes. An event is over
        when it is sent. `to`: the URI, or the sessions. The arguments are given as in `Session.call`.

        Each call takes at most the operation's own time, or `within` seconds, and a peer that is slow or gone does not delay the
        others. Errors are values of the outcomes, and this method raises none.
        """
        from ..sessions.arrivals import broadcast

        sessions = self.sessions(to) if isinstance(to, str) else to
        return await broadcast(sessions, operation, dict(arguments, **named), within=within)

    async def withdraw(self, uri: str) -> None:
        """Stop providing a protocol, also while the agent serves. No session chooses it from now on. Its open sessions end when
        their calls are answered, at most `timeouts.drain` seconds later; this waits for them. Other protocols are not affected.

        Raises `NotFound` (`agent.not-provided`).
        """
        from ..sessions.provision import stop_providing

        await stop_providing(self._context, uri)

    def offers(self, function: _F) -> _F:
        """Offer a function to peers that negotiate a protocol for it. Its name, docstring and type hints describe it
        (`sessions.operations`). Raises `Malformed` (`agent.function`)."""
        self._context.served.offers.add(function)
        return function

    def converses(self, function: Answerer) -> Answerer:
        """Register a coroutine function, (text, peer's DID) → answer, that answers natural language of peers."""
        self._context.answerer = function
        return function

    @overload
    def middleware(self, function: _M, *, protocol: str = "") -> _M: ...

    @overload
    def middleware(self, *, protocol: str = "") -> Callable[[_M], _M]: ...

    def middleware(self, function: _M | None = None, *, protocol: str = "") -> _M | Callable[[_M], _M]:
        """Register a coroutine function (call, proceed) around all calls of this agent, those of peers and its own
        (`sessions.middleware`). Also a decorator. The first one is the outermost.

        `protocol`: only for the calls of this URI. Raises `Malformed` (`agent.function` for another function).
        """
        if protocol:
            parse_protocol_uri(protocol)

        def register(function: _M) -> _M:
            self._context.pipeline.add(function, protocol)
            return function

        return register if function is None else register(function)

    # Serving

    async def serve(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        public: Sequence[str] = (),
        name: str = "",
        description: str = "",
        doors: Sequence[Door] = (),
        documents: Mapping[str, StaticDocument] = MappingProxyType({}),
        signals: bool = True,
    ) -> None:
        """Serve as `listen` does, until cancelled, or until SIGTERM or SIGINT came and `drain` is done. A second signal
        ends at once. SIGHUP calls `reload`. The process serves alone, so its pauses are shortened (`treaty_io.pauses`).

        `signals`: False leaves signals alone, for an application with handlers of its own. In other threads than the main one
        they are left alone.
        """
        from .signals import stop_signals

        async with self.listen(
            host, port, tls=tls, public=public, name=name, description=description, doors=doors, documents=documents
        ):
            shorten_pauses()
            if not signals:
                await asyncio.get_running_loop().create_future()
            with stop_signals(self._reload_at_signal) as stop:
                await stop.wait()
                await self.drain()

    def _reload_at_signal(self) -> None:
        try:
            changed = self.reload()
        except (TreatyError, OSError) as error:  # the file may be unreadable, too
            _log.error("The identity cannot be read again, the former key stays in use: %s", error)
        else:
            _log.info("The identity was read again; %s", "its key changed" if changed else "its key is the same")

    async def drain(self) -> None:
        """Stop serving in good order: close the ports, refuse new sessions with 503, let calls under way finish for at most
        `timeouts.drain` seconds, and end the sessions of other agents. A function under way may call back. Peers connect again,
        and repeat calls that were not begun. Streams get two seconds, then they end with a retryable error. Sessions that this
        agent opened go on until `aclose`.

        For good: this agent takes no further sessions. Safe to repeat. Never raises.
        """
        _log.info("Draining: no further sessions are taken")
        await self._endpoint.drain()

    @asynccontextmanager
    async def listen(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        public: Sequence[str] = (),
        name: str = "",
        description: str = "",
        doors: Sequence[Door] = (),
        documents: Mapping[str, StaticDocument] = MappingProxyType({}),
    ) -> AsyncIterator[int]:
        """Verify the provided protocols, start workers, and serve WebSocket and HTTP on one port. Yield the port (0: a free one).

        `public`: the URLs under which others reach this agent, best first, such as `wss://shop.example`. With them the agent
        serves the documents of `discovery`, with a `name` and a `description` for people. HTTP requests must be signed for one
        of these URLs, without them for the address. `doors`: other protocols at paths of the port, as `treaty_a2a.A2A(agent)`.
        `documents`: yours, by path, such as `/.well-known/ucp`. The agent's own have precedence.

        An agent with the DID of a domain that provides nothing may listen with `public`: then it serves its documents alone, so
        that other agents can verify it. Protocols may be provided later.

        One line of the log (INFO) tells the address and the protocols. A provided protocol that cannot be verified or loaded is
        not served: it is in `unserved`, logged as an error, told to `on_event`, and tried again later. Sessions end with the
        block. Raises `Unavailable` when the address is taken, and the error of the first protocol when none can be served and all
        failed for good; a temporary failure, such as a registry that is away, raises nothing.
        """
        if not public and await self._does_nothing():
            raise _provides_nothing()
        await self.prepare()
        about = self._endpoint.listen(
            host, port, tls=tls, public=public, name=name, description=description, doors=doors, documents=documents
        )
        async with about as bound:
            served = ", ".join(self._context.served.ready)
            unserved = ", ".join(f"{uri} ({error.code})" for uri, error in self.unserved.items())
            _log.info("Listening on %s, port %s; served: %s; not served: %s", host, bound, served or "none", unserved or "none")
            yield bound

    def asgi(
        self,
        public: Sequence[str],
        *,
        name: str = "",
        description: str = "",
        doors: Sequence[Door] = (),
        documents: Mapping[str, StaticDocument] = MappingProxyType({}),
    ) -> Application:
        """Return an ASGI application that serves as `listen` does, for a server of your own. Call `prepare` first. `public`: as
        for `listen`, at least one."""
        return self._endpoint.application(public=public, name=name, description=description, doors=doors, documents=documents)

    async def prepare(self) -> None:
        """Do the work of `listen` before it opens the port. Raises the same errors."""
        from ..sessions.provision import begin_renewing, needs_sandbox, provide

        context = self._context
        # The DID document of a domain is worth a port of its own: other agents verify the requests of this one by it.
        if await self._does_nothing() and context.identity.parsed.method == "key":
            raise _provides_nothing()
        await provide(context)
        begin_renewing(context)
        # Before the port opens: the first session must not find that there is no sandbox. Protocols without code need none.
        if context.negotiators or needs_sandbox(context):
            await context.ports.runtime.warm()
        if context.policy.report:
            context.reports.reporter.resume()

    async def accept(self, connection: Connection) -> None:
        """Serve one connection of any transport until its session is over. Call `prepare` first."""
        await self._endpoint.enter(connection)

    async def _does_nothing(self) -> bool:
        """Load the negotiated protocols, and return whether this agent has nothing for others."""
        context = self._context
        await asyncio.to_thread(context.memory.negotiated.load)
        served = context.served.services or context.served.negotiated or len(self._endpoint.flow.registry)
        return not (served or context.negotiators or context.answerer)


def _provides_nothing() -> Refused:
    return Refused(
        AgentCode.SETTINGS,
        "This agent provides no protocol, and neither negotiates nor converses.",
        fix="Register functions: @agent.provides(URI). To serve the DID document of a domain alone, name `public`.",
    )
