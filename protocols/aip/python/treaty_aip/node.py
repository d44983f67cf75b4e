"""The parts that an agent and a tool share: a session, its start and end, and its registration."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from treaty_agent import OperationError

from .calls import Bounds
from .data import AgentInfo, AipData, Peer, ToolInfo
from .handler.registry import node_id
from .host import Function, SessionHost
from .security import Security

HEARTBEAT_INTERVAL = 10.0
"""Seconds between two heartbeats of a node."""
_FAREWELL = 2.0
"""Seconds for the gateway's answer when a node stops. The gateway forgets a silent node anyway."""


class GatewayNode(ABC):
    """A node with a server of its own. A stopped one can start again."""

    _service = ""

    def __init__(
        self,
        address: str,
        security: Security | None,
        bounds: Bounds | None,
        heartbeat_interval: float,
        parameters: Mapping[str, float] | None = None,
    ) -> None:
        """Start nothing."""
        self.address = address
        self._security, self._bounds = security or Security(), bounds or Bounds()
        self._parameters = {"heartbeat_interval": heartbeat_interval, **(parameters or {})}
        self._host: SessionHost | None = None
        self._gateway_address: str | None = None

    async def start(self) -> Self:
        """Serve at `address`; port 0 becomes a free one. Raises `OperationError` (409, 503)."""
        if self._host is not None:
            raise OperationError(409, "This node is started.")
        own = {"node_id": node_id(self._peer().to_value())}
        host = SessionHost("node", self._functions(), {**own, **self._parameters}, self._security, self._bounds)
        self.address = await host.start(self.address, self._service)
        self._host = host
        return self

    async def __aenter__(self) -> Self:
        """Start."""
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()

    async def stop(self) -> None:
        """Deregister, and end the server and all clients. May be called again."""
        host, self._host = self._host, None
        if host is None:
            return
        if self._gateway_address is not None:
            with suppress(OperationError, TimeoutError):
                await asyncio.wait_for(host.call("deregister"), _FAREWELL)
            self._gateway_address = None
        await host.stop()

    async def register_to_gateway(self, gateway_address: str) -> Self:
        """Register, and keep the registration alive. Raises `OperationError`: 409 where the id or the address is taken."""
        response = await self._call("register", peer=self._peer().to_value(), address=gateway_address)
        self._gateway_address = gateway_address
        self._registered(response)
        return self

    @abstractmethod
    def _peer(self) -> Peer:
        """Return the description that a registration sends."""

    @abstractmethod
    def _functions(self) -> Mapping[str, Function]:
        """Return the functions that the session asks this node for, by name."""

    @abstractmethod
    def _registered(self, response: Mapping[str, Any]) -> None:
        """Use the answer to a registration."""

    async def _call(self, operation: str, **arguments: Any) -> Any:
        if self._host is None:
            raise OperationError(412, "This node is not started.")
        written = {name: value.to_value() if isinstance(value, AipData) else value for name, value in arguments.items()}
        return await self._host.call(operation, **written)


def described(peers: list[Any]) -> dict[str, AgentInfo | ToolInfo]:
    """Return the descriptions in a list of peers, by id. A peer without one is left out."""
    infos = [Peer.from_value(peer).info for peer in peers]
    return {info.agent_id if isinstance(info, AgentInfo) else info.tool_id: info for info in infos if info is not None}
