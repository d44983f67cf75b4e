"""The calling side of an agent without `async`, for scripts and notebooks.

    with SyncAgent.from_home() as agent, agent.peer("shop.example", topic="commerce/product-info") as shop:
        info = shop.call("getProductInfo", productId="P12345")

The event loop runs in a thread of its own (anyio's portal), so this works in a notebook, whose own loop is running already. The
sessions go on between two calls, and the functions of `serving` run meanwhile. Each method waits for the method of the same name,
raises its errors, and cancels it when it is interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from .agent import Agent
from .sessions.calls import NO_ARGUMENTS, Arguments
from .sessions.peer import Peer
from .sessions.session import Session


class SyncPeer:
    """A `Session` or a `Peer`, in `wrapped`. Any thread may use it."""

    def __init__(self, portal: BlockingPortal, wrapped: Session | Peer) -> None:
        self.wrapped, self._portal = wrapped, portal

    def call(self, operation: str, arguments: Arguments = NO_ARGUMENTS, /, *, within: float | None = None, **named: Any) -> Any:
        """Call an operation, see `Session.call` and `Peer.call`."""
        return self._portal.call(partial(self.wrapped.call, operation, arguments, within=within, **named))

    def stream(
        self, operation: str, arguments: Arguments = NO_ARGUMENTS, /, *, within: float | None = None, **named: Any
    ) -> Iterator[Any]:
        """Yield the items of a stream, see `Session.stream` and `Peer.stream`. It is left with the generator."""
        items = self._portal.call(partial(self.wrapped.stream, operation, arguments, within=within, **named))
        end = object()
        try:
            while (item := self._portal.call(anext, items, end)) is not end:
                yield item
        finally:
            self._portal.call(items.aclose)


class SyncAgent:
    """An `Agent` for callers. Use it with `with`, which closes the agent. Any thread may use it."""

    def __init__(self, agent: Agent) -> None:
        """Start nothing yet. `agent`: not in use by another event loop."""
        self.agent, self._block = agent, ExitStack()

    @classmethod
    def from_home(cls, *arguments: Any, **options: Any) -> SyncAgent:
        """Make the agent of a home, with the arguments of `Agent.from_home`."""
        return cls(Agent.from_home(*arguments, **options))

    def __enter__(self) -> SyncAgent:
        with ExitStack() as block:
            self._portal = block.enter_context(start_blocking_portal())
            block.enter_context(self._portal.wrap_async_context_manager(self.agent))
            self._block = block.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._block.__exit__(kind, error, trace)

    @contextmanager
    def connect(self, address: str, **options: Any) -> Iterator[SyncPeer]:
        """Open a session for the time of a block, see `Agent.connect`."""
        with self._portal.wrap_async_context_manager(self.agent.connect(address, **options)) as session:
            yield SyncPeer(self._portal, session)

    @contextmanager
    def peer(self, address: str, **options: Any) -> Iterator[SyncPeer]:
        """Keep a handle for calls for the time of a block, see `Agent.peer`."""
        with self._portal.wrap_async_context_manager(self.agent.peer(address, **options)) as peer:
            yield SyncPeer(self._portal, peer)

    @contextmanager
    def stay(self, address: str, **options: Any) -> Iterator[SyncPeer]:
        """Stay in a session for the time of a block, see `Agent.stay`."""
        with self._portal.wrap_async_context_manager(self.agent.stay(address, **options)) as stay:
            yield SyncPeer(self._portal, stay)
