"""Call another agent for as long as the application runs, over sessions that come and go.

    async with agent.peer("shop.example", topic="commerce/product-info") as shop:
        info = await shop.call("getProductInfo", productId="P12345")

A `Peer` opens a session at the first call, and another one when that is over: idle, lost, or too old. Calls at the same time
share it. A failed call is repeated only if that is safe:

    it was not sent                         again, on another session
    sent, not answered, idempotent          again
    sent, not answered, not idempotent      `OutcomeUnknown`: the application decides
    answered, also with an error            the answer

There are no parallel attempts. The first repetition is at once, later ones follow after a random pause, as in `Backoff`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any

from treaty_consensus.errors import Refused, TreatyError, Unavailable

from ..codes import PeerCode, SessionCode
from ..network.transport.connection import Backoff, ConnectionFailed
from .context import AgentContext
from .interfaces import PeerSettings
from .lifecycle import OpenSession
from .opening import PeerName, SessionOpener
from .operations import OperationError, OutcomeUnknown
from .roles import SessionRequest

_IDLE = 0.9
"""The part of the idle time after which a session is not used any more: the peer may be ending it at this moment."""
_log = logging.getLogger(__name__)


class Peer:
    """Another agent, whatever happens to its sessions. For one event loop; `aclose` it, or use `async with`."""

    def __init__(
        self, pool: SessionPool, *, backoff: Backoff, on_close: Callable[[SessionPool], None], within: float | None = None
    ) -> None:
        """Open nothing yet. `on_close`: called with the pool by `aclose`. `within`: seconds for each call, connecting and
        repetitions included; None for the default."""
        self._pool, self._backoff, self._on_close, self._within = pool, backoff, on_close, within

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    @property
    def did(self) -> str:
        """The DID of the agent of the newest session, "" before the first one."""
        return self._pool.did

    def within(self, seconds: float) -> Peer:
        """Return this peer with a time for each call, connecting and repetitions included. It shares the sessions."""
        return Peer(self._pool, backoff=self._backoff, on_close=self._on_close, within=seconds)

    async def call(self, operation: str, /, **arguments: Any) -> Any:
        """Call an operation of the other agent and return its value, as `Session.call` does.

        It takes at most the operation's own time and the time for connecting, or the seconds of `within`.

        Raises `OutcomeUnknown` (`session.outcome-unknown`) if the call was sent, not answered, and may not be repeated;
        `Unavailable` if it was not sent; `OperationError` for an answer that is an error; `Refused` (`peer.changed`) for another
        DID, (`peer.closed`) after `aclose`; and the other errors of `Agent.connect` and `Session.call`.
        """
        now = asyncio.get_running_loop().time
        deadline = None if self._within is None else now() + self._within
        failures, failure = 0, None
        while True:
            pooled = await self._pool.get(deadline, self._backoff)
            began = now()
            try:
                return await pooled.session.call_within(None if deadline is None else deadline - began, operation, arguments)
            except OperationError:
                raise
            except TreatyError as error:
                deadline = _deadline(error, pooled, began, deadline)
                failure = error
            finally:
                self._pool.put(pooled)
            failures += 1
            # The first repetition is at once: a peer that goes away in good order is usually there again.
            if not await self._pause(failures, deadline):
                raise failure

    async def aclose(self) -> None:
        """End the sessions, also for the views of `within`. Calls under way fail. Safe to repeat."""
        self._on_close(self._pool)
        await self._pool.aclose()

    async def _pause(self, failures: int, deadline: float | None) -> bool:
        """Wait before the next attempt. Return False if there is none."""
        if failures == 1:
            return self._backoff.attempts > 1
        try:
            async with asyncio.timeout_at(deadline):
                return await self._backoff.pause(failures)
        except TimeoutError:
            return False


def _deadline(error: TreatyError, pooled: _PooledSession, began: float, deadline: float | None) -> float | None:
    """Return the time when repetitions of a failed call must be over. Raises the error if the call may not be repeated."""
    if isinstance(error, OutcomeUnknown):
        if error.operation is None or not error.operation.idempotent:
            raise error
        return began + error.operation.timeout if deadline is None else deadline
    # The handler refused it before it sent anything.
    if error.code == SessionCode.BUSY:
        pooled.is_busy = True
    elif not pooled.session.is_over or error.code == SessionCode.LATE:
        raise error
    return deadline


class _PooledSession:
    """A session of a pool. `calls`: those under way. `is_busy`: it refused a call, and gets none until one is over."""

    def __init__(self, opened: OpenSession, now: float) -> None:
        self.opened, self.session = opened, opened.session
        self.calls, self.is_busy = 0, False
        self.opened_at = self.used_at = now


class SessionPool:
    """The sessions with one agent for one request. `did`: the DID of the agent of the newest one. For one event loop."""

    def __init__(
        self,
        context: AgentContext,
        opener: SessionOpener,
        name: PeerName,
        request: SessionRequest,
        settings: PeerSettings,
        timeout: float | None,
    ) -> None:
        """Open nothing yet. `timeout`: seconds for opening a session; None for the default."""
        self.did = ""
        self._context, self._opener, self._name, self._request = context, opener, name, request
        self._settings, self._timeout = settings, timeout
        self._sessions: list[_PooledSession] = []
        self._opening: asyncio.Task[_PooledSession] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        # Set when a call is over: a busy session may take another one.
        self._room = asyncio.Event()
        self._closed = False

    async def get(self, deadline: float | None, backoff: Backoff) -> _PooledSession:
        """Return a session for one call, and open one if there is none. `put` it back. Raises the errors of
        `SessionOpener.open`."""
        while True:
            if self._closed:
                raise Refused(PeerCode.CLOSED, "This peer was closed.", fix="Make another one: agent.peer(…).")
            self._sort_out()
            free = [pooled for pooled in self._sessions if not pooled.is_busy]
            if free:
                pooled = min(free, key=lambda pooled: pooled.calls)
                pooled.calls += 1
                return pooled
            try:
                async with asyncio.timeout_at(deadline):
                    if len(self._sessions) < self._settings.sessions or self._opening is not None:
                        await asyncio.shield(self._begin_opening(backoff))
                    else:
                        self._room.clear()
                        await self._room.wait()
            except TimeoutError as error:
                raise Unavailable(
                    SessionCode.LATE, f"No session with {self._name.text[:120]} took the call in time. It was not sent."
                ) from error

    def put(self, pooled: _PooledSession) -> None:
        """Take a session back after a call."""
        pooled.calls -= 1
        pooled.is_busy = pooled.is_busy and pooled.calls > 0
        pooled.used_at = asyncio.get_running_loop().time()
        self.did = pooled.session.peer or self.did
        if pooled not in self._sessions and not pooled.calls:
            self._end(pooled)
        self._room.set()

    async def aclose(self) -> None:
        """End all sessions."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        for pooled in self._sessions:
            self._end(pooled)
        self._sessions.clear()
        self._room.set()
        await asyncio.gather(*self._ending)

    def _sort_out(self) -> None:
        """Give no more calls to sessions that are over, too old or idle for long. `put` ends one with calls after the last."""
        now, idle = asyncio.get_running_loop().time(), _IDLE * self._context.timeouts.idle
        for pooled in list(self._sessions):
            is_old = now - pooled.opened_at > self._settings.lifetime
            is_idle = not pooled.calls and now - pooled.used_at > idle
            if pooled.session.is_over or is_old or is_idle:
                self._sessions.remove(pooled)
                if not pooled.calls:
                    self._end(pooled)

    def _begin_opening(self, backoff: Backoff) -> asyncio.Task[_PooledSession]:
        # One attempt for all callers: a burst of calls must not become a burst of connections.
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(backoff))
            self._opening.add_done_callback(self._opened)
        return self._opening

    def _opened(self, opening: asyncio.Task[_PooledSession]) -> None:
        self._opening = None
        if opening.cancelled() or opening.exception() is not None:
            return  # its callers get the error; reading it here marks it as retrieved, for they may be gone
        if self._closed:
            self._end(opening.result())
        else:
            self._sessions.append(opening.result())

    async def _open(self, backoff: Backoff) -> _PooledSession:
        """Open a session, again after failures that may pass, within the time for connecting."""
        now = asyncio.get_running_loop().time
        limit = self._timeout if self._timeout is not None else self._opener.time_limit(self._request)
        until, failures = None if limit is None else now() + limit, 0
        while True:
            left = None if until is None else max(until - now(), 0.0)
            try:
                opened = await self._opener.open(self._name, self._request, within=left)
                return _PooledSession(opened, now())
            except Unavailable as error:
                failures += 1
                if (isinstance(error, ConnectionFailed) and not error.again) or (until is not None and now() >= until):
                    raise
                _log.info("No session with %s yet: %s", self._name.text, error)
                try:
                    async with asyncio.timeout_at(until):
                        if not await backoff.pause(failures):
                            raise
                except TimeoutError:
                    raise error from None

    def _end(self, pooled: _PooledSession) -> None:
        """End a session in the background: its peer may be gone, and closing then takes seconds."""

        async def end() -> None:
            if not pooled.session.is_over:
                await pooled.opened.finish()
            await pooled.opened.end()

        task = self._context.spawn(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
