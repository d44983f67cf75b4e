"""Define the interface of running handlers: one session, a loaded package, and the runtime that opens sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from treaty_consensus.handler import HandlerPackage
from treaty_handler import Effect, Event, Value

from .kept_session import KeptSession


@dataclass(frozen=True)
class WorkerMetrics:
    """The sandboxed workers of an agent. `running`: with a handler; `waiting`: sessions that wait for one. Since the agent was
    made: `started`, and `failed`, which died or were killed for a fault."""

    running: int = 0
    waiting: int = 0
    started: int = 0
    failed: int = 0


class RunningHandler(Protocol):
    """One session of a handler. Its effects are already checked against the handler's manifest."""

    async def handle(self, event: Event) -> Sequence[Effect]:
        """Deliver one event and return its effects, in order.

        Raises `TreatyError`. After `operation.arguments`, `operation.result`, `session.operation` and `session.busy` the session
        is unchanged: the local application made a mistake. After any other code the session is over.
        """

    @property
    def kept(self) -> KeptSession | None:
        """Return the session after its last event, for `Runtime.open` in another process. None while it has no snapshot within
        the cap, when it has ended, and of a role that is not shared."""

    async def close(self) -> None:
        """End the session. May be called at any time, takes bounded time, never raises."""


class LoadedSession(RunningHandler, Protocol):
    """A session of a loaded package. Implemented by `HandlerSession` and `LocalSession`."""

    @property
    def role(self) -> str:
        """Return the local role."""

    @property
    def ended(self) -> bool:
        """Return whether no event follows."""

    async def move(self, worker: Any) -> None:
        """Continue from a snapshot. `worker`: of the session's own kind, package, identity and peers. Raises `TreatyError`."""

    async def branch(self) -> LoadedSession:
        """Return another session that continues from here, as this one does. Raises `TreatyError`."""


class LoadedHandler(Protocol):
    """A package that is ready for sessions of one local identity and its peers.

    `Worker` runs code in a sandbox, `LocalWorker` interprets message forms in this process.
    """

    @property
    def alive(self) -> bool:
        """Return whether the worker can still answer."""

    async def open(self, role: str, parameters: Mapping[str, Value] | None = None, *, seed: str | None = None) -> LoadedSession:
        """Open a session. Its first event must be `Opened`. Raises `TreatyError`."""

    async def encode(self, message: Value) -> bytes:
        """Return the wire form of a message. Raises `TreatyError`."""

    async def decode(self, data: bytes) -> Value:
        """Return the message in these bytes. Raises `TreatyError`."""

    async def validate(self, message: Value, sender: str) -> list[str]:
        """Return the faults of a message that the role `sender` sent. Raises `TreatyError`."""

    async def close(self) -> None:
        """End it and all its sessions. May be called again."""


class Runtime(Protocol):
    """Run handlers. `runtime.SandboxRuntime` is the implementation with a sandbox. For one event loop."""

    async def warm(self) -> None:
        """Prepare for the next `open`. Raises `Unavailable` if handlers cannot run on this machine."""

    async def preload(self, package: HandlerPackage, *, local: str) -> None:
        """Load a handler once and drop it. This finds faults early and caches the compiled code. Raises `TreatyError`."""

    async def open(
        self,
        package: HandlerPackage,
        role: str,
        *,
        local: str,
        peer: str,
        seed: str | None = None,
        kept: KeptSession | None = None,
    ) -> RunningHandler:
        """Open a session in `role` between two DIDs. A handler with code gets its own sandboxed worker.

        `seed`: 32 hex digits in the place of randomness; random unless the session is recorded. Its first event must be
        `Opened`. `kept`: a session of the same package, role and local DID to go on with, which gets no `Opened`. Raises
        `TreatyError`.
        """

    def metrics(self) -> WorkerMetrics:
        """Return the numbers of workers now."""

    async def close(self) -> None:
        """End all sessions and workers."""
