"""The meta-protocol manager: one agent's negotiations, in both directions.

manager = MetaProtocolManager(identity, keys, Surroundings(names, hosts), home=home)
manager.registry.add(Offer("anp:protocol:product-info:1.1", capabilities=("query",)))

await manager.accept(connection)                                                    # the shop
async with await manager.negotiate(connection, Goal("buying"), peer=did) as session:       # the buyer
    info = await session.call("getProductInfo", productId="P12345")
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from pathlib import Path

from treaty_consensus.errors import Malformed, Refused, TreatyError

from ..identity import Identity
from ..transport.connection import Connection
from . import parameters as rules
from .actions import Agreed, Shortcut
from .capabilities import CapabilityManager, Goal
from .driver import FlowDriver
from .engine import PROTOCOL_HASH
from .history import History
from .initiator import Initiator
from .payloads import ContextInfo
from .ports import Surroundings
from .processor import Keys, MessageProcessor, ReplayMemory
from .registry import Offer, ProtocolRegistry
from .responder import Responder
from .session import FlowSession

STARTUP = 1000
"""Milliseconds before this agent's first negotiation in which a message may have been sent."""

_log = logging.getLogger(__name__)


class MetaProtocolManager:
    """For one event loop. `registry`: what this agent speaks in this profile; `drivers`: of the connections that are open."""

    def __init__(
        self,
        identity: Identity,
        keys: Keys,
        surroundings: Surroundings,
        *,
        home: Path,
    ) -> None:
        """Sends nothing."""
        self.settings = surroundings.settings
        self.registry = ProtocolRegistry()
        self.capabilities = CapabilityManager(self.registry, self.settings.context)
        self.history = History(home)
        self._identity, self._keys, self._surroundings = identity, keys, surroundings
        self.drivers: set[FlowDriver] = set()
        self._memory: ReplayMemory | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, connection: Connection, *, first: str | None = None) -> None:
        """Serve one connection until it is over. `first`: its first message, if that was received already. Raises nothing but
        cancellation."""
        engine = Responder(
            self._identity.did, connection.peer, self.capabilities, new_id, self.settings.timeouts, self.settings.limits
        )
        await self._run(FlowDriver(connection, engine, self._processor(connection.peer), self._surroundings), first)

    async def negotiate(self, connection: Connection, goal: Goal, *, peer: str = "") -> FlowSession:
        """A session by the protocol that fits best. `peer`: the other side's DID, which has to sign; by default the one that the
        transport proved. Raises `TreatyError` (`flow.*`); then the connection is closed."""
        (session,) = await self._negotiate(connection, goal, peer, 1)
        return session

    async def negotiate_batch(self, connection: Connection, goal: Goal, count: int, *, peer: str = "") -> list[FlowSession]:
        """Up to `count` sessions over one connection, by the best protocols, negotiated at once; at least one. Raises as
        `negotiate` does. The connection ends with the last of them."""
        if not 1 <= count <= self.settings.limits.batch:
            raise Malformed("flow.batch", f"From 1 to {self.settings.limits.batch} protocols are negotiated at once.")
        return await self._negotiate(connection, goal, peer, count)

    def tell(self, context: ContextInfo) -> None:
        """This agent's situation changed: peers that began sessions with it are told, and may want to change them."""
        self.capabilities.context = context
        for driver in self.drivers:
            driver.post(driver.tell)

    async def aclose(self) -> None:
        """End what is still open on connections that this side began."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _negotiate(self, connection: Connection, goal: Goal, peer: str, count: int) -> list[FlowSession]:
        if not peer and not connection.peer:
            raise Malformed("flow.peer", "A negotiation is with a DID.", fix="Name the other side's DID.")
        if connection.peer not in ("", peer or connection.peer):
            raise Refused("flow.peer", f"The connection leads to {connection.peer}, not to {peer}.")
        peer = peer or connection.peer
        shortcut = await self._shortcut(goal, peer) if count == 1 and self.settings.shortcuts else None
        engine = Initiator(
            self._identity.did,
            peer,
            self.capabilities,
            new_id,
            self.settings.timeouts,
            self.settings.limits,
            goal=goal,
            count=count,
            shortcut=shortcut,
        )
        driver = FlowDriver(connection, engine, self._processor(peer), self._surroundings)
        task = asyncio.create_task(self._run(driver))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await driver.agreed
        except BaseException:
            if shortcut is not None:
                self._note(lambda: self.history.forget(peer, goal.purpose))
            driver.leave()
            await task
            raise
        sessions = list(driver.sessions.values())
        if shortcut is not None and engine.shortcut is None:
            self._note(lambda: self.history.forget(peer, goal.purpose))
        self._note(lambda: self.history.remember(peer, goal.purpose, sessions[0].agreed))
        return sessions

    async def _run(self, driver: FlowDriver, first: str | None = None) -> None:
        self.drivers.add(driver)
        try:
            await driver.run(first)
        finally:
            self.drivers.discard(driver)

    async def _shortcut(self, goal: Goal, peer: str) -> Shortcut | None:
        """What to propose at once: what the goal says, what succeeded with this peer, what usually succeeds; None for the long
        way."""
        ids = [offer.id for offer in self.registry if not goal.protocols or offer.id in goal.protocols]
        ids = [id for id in ids if set(goal.required) <= set(self._offered(id).capabilities)]
        if goal.simplified:
            return await self._simplified(ids[0]) if ids else None
        known = self.history.recall(peer, goal.purpose, ids)
        if known is not None and self._still_holds(known.agreed):
            return known
        predicted = self.history.predict(peer, goal.purpose, ids)
        return await self._simplified(predicted) if predicted is not None else None

    async def _simplified(self, id: str) -> Shortcut | None:
        """None for an id that means nothing here: the long way finds another."""
        offer = self._offered(id)
        try:
            located = await self._surroundings.names.locate(id)
        except TreatyError:
            return None
        terms = rules.preferred(offer.parameters), rules.preferred(offer.extensions)
        return Shortcut(Agreed(id, *terms, located.uri, located.digest), confirmed=False)

    def _still_holds(self, agreed: Agreed) -> bool:
        """Whether this side would still agree to what it agreed to."""
        offer = self._offered(agreed.protocol)
        extensions = {name: value for name, value in agreed.extensions.items() if name != PROTOCOL_HASH}
        try:
            return all(
                rules.same(rules.counter(own, terms, terms), terms)
                for own, terms in ((offer.parameters, agreed.parameters), (offer.extensions, extensions))
            )
        except rules.Unsupported:
            return False

    def _offered(self, id: str) -> Offer:
        offer = self.registry.get(id)
        assert offer is not None
        return offer

    def _processor(self, peer: str) -> MessageProcessor:
        if self._memory is None:
            self._memory = ReplayMemory(since=self._surroundings.clock().unix - STARTUP)
        return MessageProcessor(self._identity, self._keys, self._memory, peer)

    def _note(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:  # costs the next negotiation a round trip or two, and nothing else
            _log.warning("What was negotiated cannot be written down: %s", error)


def new_id(kind: str) -> str:
    """A fresh id of 128 random bits, such as `msg-Zk3J…`."""
    return f"{kind}-{secrets.token_urlsafe(16)}"
