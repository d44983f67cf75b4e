"""Handlers for the sessions of this profile, from the parts that the Hello profile's sessions stand on."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from treaty_consensus.handler import Role

from ..session.hosting import Driver, HandlerHost, Situation
from ..session.operations import Functions
from ..session.ports import Runtime, SpokenProtocol
from ..session.store import SessionStore
from .ports import HostRequest


class Served(Protocol):
    """What an agent does in a protocol: its role, and the functions behind its operations."""

    def __call__(self, protocol: SpokenProtocol, *, calling: bool) -> tuple[Role, Functions]:
        """Raises `Refused` (`session.role`) or `NotFound` (`agent.function-missing`)."""


class HandlerHosts:
    """Implements `Hosts` with a runtime, the store of sessions below `home`, and what the agent serves. `handler_time`: as in
    `hosting.Situation`."""

    def __init__(self, local: str, home: Path, runtime: Runtime, served: Served, *, handler_time: float = 10.0) -> None:
        """Starts nothing."""
        self._local, self._home, self._runtime, self._served = local, home, runtime, served
        self._handler_time = handler_time

    async def host(self, driver: Driver, protocol: SpokenProtocol, request: HostRequest) -> HandlerHost:
        role, functions = self._served(protocol, calling=request.calling)
        handler = await self._runtime.open(protocol.package, role.name, local=self._local, peer=request.peer)
        situation = Situation(request.peer, role, self._handler_time)
        return HandlerHost(handler, situation, functions, self._store(protocol, role, request), driver)

    async def carry(self, former: SpokenProtocol, protocol: SpokenProtocol, request: HostRequest) -> None:
        """What the former handler kept with this peer is copied for the new one, unless that has something of its own already."""
        stores = []
        for spoken in (former, protocol):
            role, _ = self._served(spoken, calling=request.calling)
            stores.append(self._store(spoken, role, request))
        kept, own = [await store.load() for store in stores]
        for key, value in kept.items() if not own else ():
            await stores[1].put(key, value)

    def _store(self, protocol: SpokenProtocol, role: Role, request: HostRequest) -> SessionStore:
        return SessionStore(self._home, wheel=protocol.package.digest, role=role.name, local=self._local, peer=request.peer)
