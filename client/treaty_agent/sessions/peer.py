"""Call another agent for as long as the application runs, over sessions that come and go.

    async with agent.peer("shop.example", topic="commerce/product-info") as shop:
        info = await shop.call("getProductInfo", productId="P12345")

A `Peer` opens a session at the first call, and another one when that is over: idle, lost, or too old. Calls at the same time
share it. A failed call is repeated only if that is safe:

    it was not sent                         again, on another session
    sent, not answered, idempotent          again
    sent, not answered, not idempotent      `OutcomeUnknown`: the application decides
    answered, also with an error            the answer
    an error of this side's middleware      the error

A pause of this process counts a part at most of the time of a call, and of the time for connecting.

There are no parallel attempts. The first repetition is at once, later ones follow after a random pause, as in `Backoff`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Any

from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_io import tracing
from treaty_io.awake_clock import AwakeClock
from treaty_io.awake_timeout import AwakeTimeout
from treaty_io.codes import PeerCode, SessionCode
from treaty_io.errors import PeerUnavailable

from ..transport.connection import Backoff, ConnectionFailed
from .call_context import next_trace
from .calls import NO_ARGUMENTS, Arguments
from .context import AgentContext
from .interfaces import PeerSettings
from .lifecycle import OpenSession
from .opening import PeerName, SessionOpener
from .operation_errors import OperationError, OutcomeUnknown
from .roles import SessionRequest
from .session import ItemStream

_IDLE = 0.9
"""The part of the idle time after which a session is not used any more: the peer may be ending it at this moment."""
_FINAL = frozenset((SessionCode.LATE, SessionCode.PEER_REFUSED))
"""The codes of calls that were not sent and are not repeated: the time is over, or the peer would refuse them again."""
_PAUSE = 2.0
"""The longest pause in seconds between two attempts to open a session for calls that wait."""
_log = logging.getLogger(__name__)


class Peer:
    """Another agent, over sessions that come and go. For one event loop; `aclose` it, or use `async with`."""

    def __init__(self, pool: SessionPool, *, backoff: Backoff, on_close: Callable[[SessionPool], None]) -> None:
        """Open nothing yet. `on_close`: called with the pool by `aclose`."""
        self._pool, self._backoff, self._on_close = pool, backoff, on_close

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    @property
    def did(self) -> str:
        """The DID of the agent of the newest session, "" before the first one."""
        return self._pool.did

    async def call(
        self, operation: str, arguments: Arguments = NO_ARGUMENTS, /, *, within: float | None = None, **named: Any
    ) -> Any:
        """Call an operation of the other agent and return its value, as `Session.call` does.

        It takes at most the operation's own time and the time for connecting, or `within` seconds, connecting and repetitions
        included.

        Raises `OutcomeUnknown` (`session.outcome-unknown`) if the call was sent, not answered, and may not be repeated;
        `PeerUnavailable` if it was not sent; `OperationError` for an answer that is an error; `Refused` (`peer.changed`) for
        another DID, (`peer.closed`) after `aclose`; and the other errors of `Agent.connect` and `Session.call`.
        """
        attempts, trace, limited = _Attempts(self._backoff, within), next_trace(), within is not None
        arguments = dict(arguments, **named)
        # One trace for all attempts, and for the opening of the session.
        with tracing.span("peer call"), attempts:
            while True:
                pooled = await self._pool.get(attempts.clock, self._backoff)
                attempts.begin()
                try:
                    return await pooled.session.attempt(operation, arguments, within=attempts.left, limited=limited, trace=trace)
                except TreatyError as error:
                    failure = error
                finally:
                    self._pool.put(pooled)
                await attempts.next(failure, pooled)
                trace = trace.child()

    def stream(
        self, operation: str, arguments: Arguments = NO_ARGUMENTS, /, *, within: float | None = None, **named: Any
    ) -> ItemStream[Any]:
        """Call a stream of the other agent and return its items, as `Session.stream` does.

        It is repeated as `call` is, but only before its first item. `within`: seconds until that, connecting and repetitions
        included. Raises the errors of `call` and of `Session.stream`.
        """
        return ItemStream(self._items(operation, dict(arguments, **named), within))

    async def aclose(self) -> None:
        """End the sessions. Calls under way fail. Their reports and the ends of the connections
        follow in the background. Safe to repeat."""
        self._on_close(self._pool)
        await self._pool.aclose()

    async def _items(self, operation: str, arguments: dict[str, Any], within: float | None) -> AsyncGenerator[Any, None]:
        attempts, has_begun, limited = _Attempts(self._backoff, within), False, within is not None
        with attempts:
            while True:
                pooled = await self._pool.get(attempts.clock, self._backoff)
                attempts.begin()
                try:
                    opened = pooled.session.attempt_stream(operation, arguments, within=attempts.left, limited=limited)
                    async with opened as items:
                        async for item in items:
                            has_begun = True
                            yield item
                    return
                except TreatyError as error:
                    # The items that were given would come twice.
                    if has_begun:
                        raise
                    failure = error
                finally:
                    self._pool.put(pooled)
                await attempts.next(failure, pooled)


class _Attempts:
    """The attempts of one call. `clock`: their time, or None. Use them as `with`."""

    def __init__(self, backoff: Backoff, within: float | None) -> None:
        self.clock = None if within is None else AwakeClock(within)
        self._backoff, self._failures, self._began = backoff, 0, 0.0

    def __enter__(self) -> None:
        if self.clock is not None:
            self.clock.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.clock is not None:
            self.clock.stop()

    @property
    def left(self) -> float | None:
        """The seconds that are left, or None."""
        return None if self.clock is None else self.clock.remaining

    def begin(self) -> None:
        """Note the beginning of an attempt."""
        self._began = self._now()

    async def next(self, error: TreatyError, pooled: PooledSession) -> None:
        """Wait before the next attempt. Raises the error of the last one if the call may not be repeated, or not any more."""
        if not pooled.session.has_failed_with(error):
            raise error  # of middleware, perhaps after the answer: the call may be done
        if isinstance(error, OutcomeUnknown):
            if error.operation is None or not error.operation.idempotent:
                raise error
            # All attempts together have the time of one.
            if self.clock is None:
                self.clock = AwakeClock(max(self._began + error.operation.timeout - self._now(), 0.0))
                self.clock.start()
        elif error.code == SessionCode.BUSY:
            pooled.is_busy = pooled.calls > 0  # the handler refused it before it sent anything
        elif isinstance(error, OperationError) or error.code in _FINAL or not pooled.session.is_over:
            raise error
        self._failures += 1
        if self.left is not None and self.left <= 0:
            raise error
        try:
            async with asyncio.timeout(self.left):
                # The first repetition is at once: a peer that goes away in good order is usually there again.
                if self._failures == 1 < self._backoff.attempts or await self._backoff.pause(self._failures):
                    return
        except TimeoutError:
            pass
        raise error

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


class PooledSession:
    """A session of a pool. `calls`: those under way. `is_busy`: it refused a call, and gets none until one is over. `is_kept`: it
    is used until its end, and not replaced for its age."""

    def __init__(self, opened: OpenSession, now: float) -> None:
        self.opened, self.session = opened, opened.session
        self.calls, self.is_busy, self.is_kept = 0, False, False
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
        self._sessions: list[PooledSession] = []
        self._opening: asyncio.Task[PooledSession] | None = None
        # The error of the last attempt to open one; None after a success.
        self._failure: TreatyError | None = None
        # Set when a call is over: a busy session may take another one.
        self._room = asyncio.Event()
        self._closed = False

    async def get(self, clock: AwakeClock | None, backoff: Backoff) -> PooledSession:
        """Return a session for one call, and open one if there is none. `put` it back. `clock`: the time for it. Raises the
        errors of `SessionOpener.open`."""
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
                async with AwakeTimeout(clock.remaining) if clock is not None else nullcontext():
                    if len(self._sessions) < self._settings.sessions or self._opening is not None:
                        opening = self._begin_opening(backoff)
                        # `wait`, because a caller that gives up must not end it for the others, nor be ended by `aclose`.
                        await asyncio.wait({opening})
                        if not opening.cancelled():
                            opening.result()
                    else:
                        self._room.clear()
                        await self._room.wait()
            except TimeoutError:
                raise self._late() from self._failure

    def _late(self) -> PeerUnavailable:
        sentence = f"No session with {self._name.text[:120]} took the call in time. It was not sent."
        if self._failure is None:
            return PeerUnavailable(SessionCode.LATE, sentence)
        late = PeerUnavailable(SessionCode.LATE, f"{sentence} The last attempt failed: {self._failure.message}")
        late.peer_code = self._failure.peer_code
        return late

    def _never_open(self, limit: float | None, last: Unavailable) -> PeerUnavailable:
        """Return the error for attempts that failed until the time was over. The last one had only the rest of it."""
        assert self._failure is not None
        sentence = f"No session with {self._name.text[:120]} was open within {limit:.3g} seconds."
        error = PeerUnavailable(last.code, f"{sentence} An attempt failed: {self._failure.message}", fix=last.fix)
        error.peer_code = self._failure.peer_code
        return error

    def put(self, pooled: PooledSession) -> None:
        """Take a session back after a call."""
        pooled.calls -= 1
        pooled.is_busy = pooled.is_busy and pooled.calls > 0
        pooled.used_at = asyncio.get_running_loop().time()
        self.did = pooled.session.peer.did or self.did
        if pooled not in self._sessions and not pooled.calls:
            pooled.opened.leave()
        self._room.set()

    async def aclose(self) -> None:
        """End all sessions, in the background."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        for pooled in self._sessions:
            pooled.opened.leave()
        self._sessions.clear()
        self._room.set()
        self._request.close()

    def _sort_out(self) -> None:
        """Give no more calls to sessions that are over, too old or idle for long. `put` ends one with calls after the last."""
        now, idle = asyncio.get_running_loop().time(), _IDLE * self._context.timeouts.idle
        for pooled in list(self._sessions):
            is_old = not pooled.is_kept and now - pooled.opened_at > self._settings.lifetime
            is_idle = not pooled.calls and now - pooled.used_at > idle
            if pooled.session.is_over or is_old or is_idle:
                self._sessions.remove(pooled)
                if not pooled.calls:
                    pooled.opened.leave()

    def _begin_opening(self, backoff: Backoff) -> asyncio.Task[PooledSession]:
        # One attempt for all callers: a burst of calls must not become a burst of connections.
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(backoff))
            self._opening.add_done_callback(self._opened)
        return self._opening

    def _opened(self, opening: asyncio.Task[PooledSession]) -> None:
        self._opening = None
        if opening.cancelled() or opening.exception() is not None:
            return  # its callers get the error; reading it here marks it as retrieved, for they may be gone
        if self._closed:
            opening.result().opened.leave()
        else:
            self._sessions.append(opening.result())

    async def _open(self, backoff: Backoff) -> PooledSession:
        """Open a session, again after failures that may pass, for as long as connecting may take."""
        limit = self._timeout if self._timeout is not None else self._opener.time_limit(self._request)
        if limit is None:
            return await self._open_within(None, backoff)
        with AwakeClock(limit) as clock:
            # The time bounds the attempts. Pauses are short, so that the waiting calls go on soon after the peer is back.
            return await self._open_within(clock, replace(backoff, attempts=sys.maxsize, most=_PAUSE))

    async def _open_within(self, clock: AwakeClock | None, backoff: Backoff) -> PooledSession:
        limit, failures = clock.remaining if clock is not None else None, 0
        while True:
            try:
                left = clock.remaining if clock is not None else None
                opened = await self._opener.open(self._name, self._request, within=left)
                self._failure = None
                return PooledSession(opened, asyncio.get_running_loop().time())
            except Unavailable as error:
                is_late = clock is not None and clock.remaining <= 0
                if is_late and self._failure is not None and failures:
                    raise self._never_open(limit, error) from self._failure
                failures, self._failure = failures + 1, error
                if is_late or (isinstance(error, ConnectionFailed) and not error.again):
                    raise
                # The other side asked for a pause. Each earlier attempt might cost both a request to a model.
                if error.retry_after is not None and error.retry_after > _PAUSE:
                    raise
                _log.info("No session with %s yet: %s", self._name.text, error)
                try:
                    async with asyncio.timeout(clock.remaining if clock is not None else None):
                        if not await backoff.pause(failures):
                            raise
                except TimeoutError:
                    raise error from None
