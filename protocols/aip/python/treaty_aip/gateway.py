"""The gateway: nodes register at it, and it routes their calls."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Self

from treaty_agent import OperationError

from .addresses import NodeAddresses
from .calls import Bounds
from .data import AgentInfo, ToolInfo
from .host import SessionHost
from .node import described
from .security import Security

HEARTBEAT_TIMEOUT = 30.0
"""Seconds of silence after which a node is deregistered."""
SESSION_SECONDS = 300.0
"""Seconds without a message after which a session ends."""


class Gateway:
    """A gateway. For one event loop."""

    def __init__(
        self,
        address: str,
        gateway_id: str | None = None,
        *,
        security: Security | None = None,
        bounds: Bounds | None = None,
        allowed_networks: Sequence[str] = (),
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
        session_seconds: float = SESSION_SECONDS,
    ) -> None:
        """Start nothing.

        `address`: host and port, for example "localhost:50051". `gateway_id`: new if there is none. `allowed_networks`: such as
        "10.1.0.0/16"; a node may name an address in them. Without, each names its own (`addresses`).
        Raises `OperationError` (400) for a text that is no network.
        """
        self.address, self.gateway_id = address, gateway_id or str(uuid.uuid4())
        self._security, self._bounds = security or Security(), bounds or Bounds()
        self._parameters = {"heartbeat_timeout": heartbeat_timeout, "session_seconds": session_seconds}
        self._addresses = NodeAddresses(allowed_networks, self._named)
        self._host: SessionHost | None = None

    async def start(self) -> Self:
        """Serve; port 0 becomes a free one in `address`. Raises `OperationError` (409, 503)."""
        if self._host is not None:
            raise OperationError(409, "This gateway is started.")
        host = SessionHost("gateway", {}, self._parameters, self._security, self._bounds, self._addresses)
        self.address = await host.start(self.address, "GatewayService")
        self._host = host
        return self

    async def __aenter__(self) -> Self:
        """Start."""
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()

    async def stop(self) -> None:
        """End the server. May be called again."""
        host, self._host = self._host, None
        if host is not None:
            await host.stop()

    def get_registered_nodes(self) -> dict[str, AgentInfo | ToolInfo]:
        """Return all nodes by their ids."""
        return {} if self._host is None else described([*self._host.query("registered_nodes").values()])

    def get_registered_agents(self) -> dict[str, AgentInfo]:
        """Return the agents by their ids."""
        return {name: info for name, info in self.get_registered_nodes().items() if isinstance(info, AgentInfo)}

    def get_registered_tools(self) -> dict[str, ToolInfo]:
        """Return the tools by their ids."""
        return {name: info for name, info in self.get_registered_nodes().items() if isinstance(info, ToolInfo)}

    def _named(self) -> Iterable[str]:
        return [info.address for info in self.get_registered_nodes().values()]
