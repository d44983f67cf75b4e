"""Run one agent's negotiations in the flow profile, in both directions: the meta-protocol manager.

    manager = MetaProtocolManager(identity, keys, FlowDependencies(names, hosts), home=home)
    manager.registry.add(ProtocolOffer("anp:protocol:product-info:1.1", capabilities=("query",)))

    await manager.accept(connection)                                                             # the shop
    async with await manager.negotiate(connection, FlowRequest("buying"), peer=did) as session:  # the buyer
        info = await session.call("getProductInfo", productId="P12345")

The specification is docs/specification/flow-profile.md.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from treaty_anp.flow_profile import parameters as rules
from treaty_anp.flow_profile.actions import Agreed, Shortcut
from treaty_anp.flow_profile.capabilities import CapabilityManager, FlowRequest, ProtocolOffer, ProtocolRegistry
from treaty_anp.flow_profile.initiator import Initiator
from treaty_anp.flow_profile.machine import OWN_EXTENSIONS
from treaty_anp.flow_profile.parameters import kept
from treaty_anp.flow_profile.payloads import ContextInfo
from treaty_anp.flow_profile.processor import Keys, MessageProcessor, ReplayMemory
from treaty_anp.flow_profile.responder import Responder
from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_io.codes import FlowCode
from treaty_io.identity import UNNAMED, Identity
from treaty_io.line_limit import limited_logger

from ..transport.connection import Connection
from ..transport.secure import SecureConnection
from .agreements import FlowHistory
from .flow_context import FlowDependencies, RequestedNames
from .flow_run import MetaProtocolNegotiator
from .flow_session import FlowSession
from .handler_hosts import HostRequest
from .interfaces import SpokenProtocol
from .operations import Functions
from .session import Session

STARTUP = 2500
"""Milliseconds before the first negotiation from which messages are accepted: clocks differ, and some peers write whole seconds.
Older messages may be replays."""

_log = limited_logger(__name__)


class MetaProtocolManager:
    """The negotiations of one agent. For one event loop. `identity`: signs the messages; `registry`: the protocols that this
    agent offers."""

    def __init__(
        self,
        identity: Identity,
        keys: Keys,
        dependencies: FlowDependencies,
        *,
        home: Path,
        registry: ProtocolRegistry | None = None,
    ) -> None:
        """Send nothing yet. `registry`: a new one by default."""
        self.settings = dependencies.settings
        self.registry = ProtocolRegistry() if registry is None else registry
        self.capabilities = CapabilityManager(self.registry, self.settings.context)
        self.history = FlowHistory(home)
        self.identity, self._keys, self._dependencies = identity, keys, dependencies
        self._runs: set[MetaProtocolNegotiator] = set()
        self._memory: ReplayMemory | None = None
        self._begun: dict[MetaProtocolNegotiator, asyncio.Task[None]] = {}

    @property
    def sessions(self) -> list[Session]:
        """The sessions of all open connections."""
        return [
            Session(session, self._dependencies.hosts.activity.calls) for run in self._runs for session in run.sessions.values()
        ]

    async def accept(self, connection: Connection, *, first: str | None = None, peer: str = "") -> None:
        """Serve one connection until it ends. Raises only CancelledError.

        `first`: the first message, if it was received already.
        `peer`: the DID that must sign, if it is known before the first message.
        """
        signer, recorder = connection.peer or peer, self._dependencies.recorder()
        machine = Responder(
            self.identity.did,
            signer,
            self.capabilities,
            new_id,
            self.settings.timeouts,
            self.settings.limits,
            self._dependencies.reports,
            _is_encrypted(connection),
            recorder,
        )
        await self._run(
            MetaProtocolNegotiator(
                connection, machine, self._processor(signer), self._dependencies, first=first, recorder=recorder
            )
        )

    async def negotiate(self, connection: Connection, goal: FlowRequest, *, peer: str = "") -> Session:
        """Return a session with the protocol that fits best. `peer`: the DID of the other side, which must sign; by default
        the DID that the transport proved. Raises `TreatyError` (`flow.*`) and closes the connection."""
        (session,) = await self.agree(await self.begin(connection, goal, peer=peer))
        return Session(session, self._dependencies.hosts.activity.calls)

    async def negotiate_batch(self, connection: Connection, goal: FlowRequest, count: int, *, peer: str = "") -> list[Session]:
        """Return one to `count` sessions over one connection, with the best protocols, negotiated at once. The connection ends
        with the last session. Raises the errors of `negotiate`."""
        if not 1 <= count <= self.settings.limits.batch:
            raise Malformed(FlowCode.BATCH, f"From 1 to {self.settings.limits.batch} protocols are negotiated at once.")
        sessions = await self.agree(await self.begin(connection, goal, peer=peer, count=count))
        return [Session(session, self._dependencies.hosts.activity.calls) for session in sessions]

    def tell(self, context: ContextInfo) -> None:
        """Set this agent's situation, and inform the peers that began sessions with it. They may then change the sessions."""
        self.capabilities.context = context
        for run in self._runs:
            run.post(run.tell_context)

    async def aclose(self) -> None:
        """End all connections that this side began."""
        tasks = list(self._begun.values())
        # Only connections that this side began: a listener ends the others.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def begin(
        self,
        connection: Connection,
        goal: FlowRequest,
        *,
        peer: str = "",
        count: int = 1,
        offers: Sequence[ProtocolOffer] = (),
        serving: Functions | None = None,
    ) -> MetaProtocolNegotiator:
        """Start a negotiation in a task of its own; `agree` waits for the outcome. Raises `Malformed` or `Refused` (`flow.peer`).

        `offers`: used on this connection instead of the registry; a URI in an offer defines the meaning of its id.
        `serving`: the functions of the sessions, or None for those that the agent provides.
        """
        if not peer and not connection.peer:
            raise Malformed(FlowCode.PEER, "A negotiation needs the DID of the other side.", fix="Name the other side's DID.")
        # The transport proved another DID: its messages would fail one by one.
        if connection.peer not in ("", peer or connection.peer):
            raise Refused(FlowCode.PEER, f"The connection leads to {connection.peer}, not to {peer}.")
        peer, dependencies, capabilities = peer or connection.peer, self._dependencies, self.capabilities
        if offers:
            registry = ProtocolRegistry()
            for offer in offers:
                registry.add(offer)
            capabilities = CapabilityManager(registry, self.capabilities.context)
            uris = {offer.id: offer.uri for offer in offers if offer.uri}
            dependencies = replace(dependencies, names=RequestedNames(dependencies.names, uris))
        encrypted = _is_encrypted(connection)
        shortcuts = _Shortcuts(capabilities.registry, dependencies, self.history, encrypted=encrypted)
        # A simplified negotiation is the caller's wish, which the owner's general setting does not change.
        may_shorten = count == 1 and (self.settings.shortcuts or goal.simplified)
        shortcut = await shortcuts.choose(goal, peer, recall=self.settings.shortcuts) if may_shorten else None
        recorder = self._dependencies.recorder()
        machine = Initiator(
            self.identity.did,
            peer,
            capabilities,
            new_id,
            self.settings.timeouts,
            self.settings.limits,
            self._dependencies.reports,
            encrypted,
            recorder,
            goal=goal,
            count=count,
            shortcut=shortcut,
        )
        own = HostRequest(UNNAMED, True, role=goal.role, serving=serving)
        run = MetaProtocolNegotiator(connection, machine, self._processor(peer), dependencies, wanted=own, recorder=recorder)
        # Kept, because the event loop holds tasks only weakly, and `aclose` must find it.
        self._begun[run] = task = asyncio.create_task(self._run(run))
        task.add_done_callback(lambda _: self._begun.pop(run, None))
        return run

    async def agree(self, run: MetaProtocolNegotiator) -> list[FlowSession]:
        """Wait until the first negotiation of a run ends, and remember its outcome. Raises `TreatyError` (`flow.*`) and closes
        the connection."""
        machine, task = run.machine, self._begun.get(run)
        assert isinstance(machine, Initiator)
        peer, purpose, shortcut = machine.peer, machine.goal.purpose, machine.shortcut
        try:
            await run.agreed
        except BaseException:
            # A shortcut that failed once may fail each time, so it is forgotten; a lost connection says nothing about it.
            if shortcut is not None and not run.was_cut:
                self._note(lambda: self.history.forget(peer, purpose))
            # Also for a cancelled caller: the connection and its handlers must not outlive it.
            run.leave()
            if task is not None:
                await task
            raise
        sessions = list(run.sessions.values())
        if shortcut is not None and machine.shortcut is None:
            self._note(lambda: self.history.forget(peer, purpose))
        self._note(lambda: self.history.remember(peer, purpose, sessions[0].agreed))
        return sessions

    async def _run(self, run: MetaProtocolNegotiator) -> None:
        self._runs.add(run)
        try:
            with self._dependencies.connections.holding(run, partial(_spoken, run), is_initiator=run.is_initiator):
                await run.run()
        finally:
            self._runs.discard(run)
        await self._dependencies.keep_transcript(run.is_initiator, new_id("flow"), run.recorder)

    def _processor(self, peer: str) -> MessageProcessor:
        if self._memory is None:
            # One memory for all connections: a message may be replayed on another one.
            self._memory = ReplayMemory(since=self._dependencies.clock().unix - STARTUP)
        return MessageProcessor(self.identity, self._keys, self._memory, peer)

    def _note(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:  # a lost entry only costs the next negotiation one or two round trips
            _log.warning("The outcome of a negotiation cannot be written: %s", error)


def _spoken(run: MetaProtocolNegotiator) -> list[SpokenProtocol]:
    return [session.spoken for session in run.sessions.values() if session.spoken is not None]


class _Shortcuts:
    """Choose a proposal that needs no question for capabilities."""

    def __init__(
        self, registry: ProtocolRegistry, dependencies: FlowDependencies, history: FlowHistory, *, encrypted: bool
    ) -> None:
        self._registry, self._names, self._history = registry, dependencies.names, history
        self._encrypted, self._time = encrypted, dependencies.settings.timeouts.work

    async def choose(self, goal: FlowRequest, peer: str, *, recall: bool) -> Shortcut | None:
        """Return the first possible shortcut: the last success with this peer, the goal's own, the usual success. Return None to
        negotiate in full. `recall`: whether successes are remembered."""
        ids = [offer.id for offer in self._registry if not goal.protocols or offer.id in goal.protocols]
        ids = [id for id in ids if set(goal.required) <= set(self._offered(id).capabilities)]
        ids = ids[:1] if goal.simplified else ids
        success = self._history.recall(peer, goal.purpose, ids) if recall else None
        if success is not None and self._still_holds(success.agreed):
            return success
        if goal.simplified:
            return await self._simplified(ids[0]) if ids else None
        predicted = self._history.predict(peer, goal.purpose, ids)
        return await self._simplified(predicted) if predicted is not None else None

    async def _simplified(self, id: str) -> Shortcut | None:
        """Return a shortcut for an id; None if the id has no meaning here."""
        offer = self._offered(id)
        try:
            # Bounded like all work of this side, although no peer waits yet: the caller does.
            async with asyncio.timeout(self._time):
                located = await self._names.locate(id)
                # Without the hash no parameters can be offered yet, which would cost a round trip to the peer. The session needs
                # the protocol anyway, so it is fetched first.
                digest = located.digest or (await self._names.fetch(id, located)).hash
            terms = rules.preferred(self._kept(offer)), rules.preferred(offer.extensions)
        except (TreatyError, TimeoutError):
            return None  # the full negotiation finds out why, and may choose another protocol
        return Shortcut(Agreed(id, *terms, located.uri, digest), confirmed=False)

    def _still_holds(self, agreed: Agreed) -> bool:
        """Return whether this side would accept the same terms again."""
        offer = self._offered(agreed.protocol)
        extensions = {name: value for name, value in agreed.extensions.items() if name not in OWN_EXTENSIONS}
        try:
            return all(
                rules.json_equal(rules.counter(own, terms, terms), terms)
                for own, terms in ((self._kept(offer), agreed.parameters), (offer.extensions, extensions))
            )
        except rules.Unsupported:
            return False

    def _kept(self, offer: ProtocolOffer) -> rules.Rules:
        return kept(offer.parameters, encrypted=self._encrypted)

    def _offered(self, id: str) -> ProtocolOffer:
        offer = self._registry.get(id)
        assert offer is not None
        return offer


def _is_encrypted(connection: Connection) -> bool:
    return isinstance(connection, SecureConnection) and connection.is_encrypted


def new_id(kind: str) -> str:
    """Return a new id with 128 random bits, such as `msg-Zk3J…`."""
    return f"{kind}-{secrets.token_urlsafe(16)}"
