"""Keep the sessions that other agents opened, for an application that calls them back: one by one, or all at once.

    @agent.on_session("https://registry.example/protocols/example.com/chat/1.0")
    async def greet(session: Session) -> None:
        await session.call("said", text="Welcome.")

    outcomes = await agent.broadcast("https://registry.example/protocols/example.com/chat/1.0", "said", text="Closing time.")

The function runs in a task of its own, from the moment when both sides are ready to the end of the session. When a session
changes its protocol (flow profile), the function of the former one is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from treaty_consensus.errors import TreatyError
from treaty_io.line_limit import limited_logger

from .activity import CallCounts
from .session import Session, SessionBackend

AT_ONCE = 32
"""Calls of one broadcast that begin at the same time: each may need a worker on this side and one on the other."""
TURN = 0.25
"""Seconds after which a call that has begun makes room for the next one. So peers that hang do not delay the others for long."""

OnSession: TypeAlias = Callable[[Session], Awaitable[None]]
_log = limited_logger(__name__)


class BroadcastOutcome(NamedTuple):
    """The outcome of a broadcast in one session: the `value` that the peer returned, or the `error`."""

    session: Session
    value: Any = None
    error: TreatyError | None = None


@dataclass
class _Arrival:
    session: Session
    protocol: str
    task: asyncio.Task[None] | None = None


class ServedSessions:
    """The running sessions that other agents opened, in the order in which they began to run. For one event loop."""

    def __init__(self, function: Callable[[str], OnSession | None] = lambda uri: None, counts: CallCounts | None = None) -> None:
        """Begin without sessions. `function`: return the function for the sessions with a protocol, by its URI. `counts`: of this
        side's calls in them."""
        self._function, self._counts = function, counts or CallCounts()
        self._running: dict[SessionBackend, _Arrival] = {}

    def begin(self, backend: SessionBackend) -> None:
        """Note that a session runs, and call the application's function for its protocol. Call this again after a change of the
        protocol. Sessions that this side opened are left out."""
        if backend.is_initiator:
            return
        try:
            backend.check_open()
        except TreatyError:
            return  # it ended before this side was told that it runs
        arrival = self._running.setdefault(backend, _Arrival(Session(backend, self._counts), ""))
        protocol = arrival.session.protocol
        if arrival.protocol != protocol:
            _cancel(arrival)
            arrival.protocol = protocol
            function = self._function(protocol)
            if function is not None:
                # Kept in the table, because the event loop holds tasks only weakly.
                arrival.task = asyncio.create_task(_run(function, arrival.session))

    def end(self, backend: SessionBackend) -> None:
        """Forget a session, and cancel the application's function for it."""
        arrival = self._running.pop(backend, None)
        if arrival is not None:
            _cancel(arrival)

    def of(self, protocol: str = "") -> list[Session]:
        """Return the sessions with a protocol, by its URI; "" for those with any."""
        return [arrival.session for arrival in self._running.values() if protocol in ("", arrival.session.protocol)]


async def broadcast(
    sessions: Iterable[Session], operation: str, arguments: Mapping[str, Any], *, within: float | None = None
) -> list[BroadcastOutcome]:
    """Call an operation in some sessions, and return the outcomes in their order.

    `within`: as for `Session.call`; each session has that time for itself. Raises nothing: an error is in its session's
    outcome. A cancellation gives up all calls.
    """
    room = asyncio.Semaphore(AT_ONCE)

    async def call(session: Session) -> BroadcastOutcome:
        await room.acquire()
        with ExitStack() as turn:
            turn.callback(room.release)
            # `close` does nothing the second time, so the room is released once: here, or when the call is over.
            timer = asyncio.get_running_loop().call_later(TURN, turn.close)
            turn.callback(timer.cancel)
            try:
                return BroadcastOutcome(session, await session.call(operation, arguments, within=within))
            except TreatyError as error:
                return BroadcastOutcome(session, error=error)

    return list(await asyncio.gather(*map(call, sessions)))


async def _run(function: OnSession, session: Session) -> None:
    try:
        await function(session)
    except TreatyError as error:
        if not session.is_over:
            _log.warning("The function of a session with %s failed: %s (%s)", session.peer, error, error.code)
    except Exception:  # the application's function may raise anything; the session goes on
        _log.exception("The function of a session with %s raised", session.peer)


def _cancel(arrival: _Arrival) -> None:
    if arrival.task is not None:
        arrival.task.cancel()
        arrival.task = None
