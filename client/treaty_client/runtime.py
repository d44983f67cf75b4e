"""Where an agent's handlers run: for each session a sandboxed worker of its own.

Workers are not shared among sessions of one peer: the plain profile of the Hello does not prove who a peer is, and a stranger
that claims another's DID must not meet what the other's messages did to a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from treaty_consensus.handler import HandlerPackage
from treaty_handler import Effect, Event

from .handlers import CodeCache, Isolation, SandboxPool, Session, Worker
from .ports import RunningHandler


class SandboxRuntime:
    """Implements `Runtime` with a pool of sandboxed workers, and compiled code kept in HOME/code. For one event loop."""

    def __init__(self, home: Path, isolation: Isolation = "bubblewrap") -> None:
        """Starts nothing."""
        self._pool = SandboxPool(isolation=isolation)
        self._code = CodeCache(home / "code")

    async def warm(self) -> None:
        """Have workers ready. Raises `Unavailable` (`sandbox.unavailable`): better at the start than at the first session."""
        await self._pool.warm()

    async def open(self, package: HandlerPackage, role: str, *, local: str, peer: str) -> RunningHandler:
        worker = await self._pool.load(package, local=local, peers=[peer], code_cache=self._code)
        try:
            return _Sandboxed(worker, await worker.open(role))
        except BaseException:
            await worker.close()
            raise

    async def close(self) -> None:
        """End all workers."""
        await self._pool.close()


class _Sandboxed:
    """A session and the worker that exists for it."""

    def __init__(self, worker: Worker, session: Session) -> None:
        self._worker, self._session = worker, session

    async def handle(self, event: Event) -> Sequence[Effect]:
        return await self._session.handle(event)

    async def close(self) -> None:
        await self._worker.close()
