"""Serve sessions over HTTP: the destination's end of the HTTP binding.

docs/specification/transports.md, sections 2 and 4, has the rules and bounds. For example, `POST /anp/v1/sessions?key=KEY` with a
sourceHello is answered with 201 and the `Location` of the session.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from treaty_consensus.canonical import parse_decimal
from treaty_consensus.errors import Conflict, Gone, Malformed, NotFound, Refused, Unavailable
from treaty_io.admission.message_turns import MessageTurns
from treaty_io.codes import ConnectionCode
from treaty_io.task_set import TaskSet

from .connection import ConnectionLost, unwatched
from .http import (
    ACKNOWLEDGE,
    HOLD,
    MAX_INBOX,
    MAX_NUMBER,
    MEDIA_TYPE,
    SEQUENCE,
    SESSIONS,
    checked_size,
    decode_messages,
    encode_messages,
    fitting,
    size_of,
)

if TYPE_CHECKING:
    from .application import Application

EXPIRY = 60
"""Seconds without a request after which the source counts as gone."""
LINGER = 30
"""Seconds for which a closed session still answers, so that the source gets the last messages."""
DELIVERY = 1.0
"""Seconds for sources to fetch the last messages when the agent stops. A source asks again as soon as it has an answer."""
# Closed sessions are cheap, but strangers choose their number; the oldest is forgotten first.
MAX_LINGERING = 256
MAX_HELD = 256 * 1024 * 1024
"""Bytes of all unread and unacknowledged messages of all sessions. Beyond the limit the largest session is dropped."""
MAX_AT_ONCE = 3
"""Concurrent requests of one session: one that asks, one that sends, and one that replaces one of them."""

_KEY = re.compile(r"[A-Za-z0-9_-]{22,64}")
_REASON = re.compile(r"[ -~]{0,120}")


class HttpResponse(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class SessionGone(Gone):
    """The session is over, and all its messages are delivered. `reason`: the destination's, or ""."""

    def __init__(self, reason: str) -> None:
        super().__init__(ConnectionCode.SESSION, "The session is over.", fix="Open another one.")
        self.reason = reason


class ServedSession:
    """The destination's end of one session; see `Connection` for the contract.

    The backlog is what the source has not acknowledged.
    """

    def __init__(
        self, address: str, peer: str, *, key: str, weigh: Callable[[ServedSession, int], None], turns: MessageTurns
    ) -> None:
        """Open a session. `weigh`: called with each change of `held`. `turns`: each message waits for its own."""
        # The id alone finds the session, so it must not be guessable where requests are not signed.
        self.id = secrets.token_urlsafe(32)
        self.key = key
        self.held = self._backlog = 0
        self._weigh, self._turns = weigh, turns
        self._address, self._peer = address, peer
        self._incoming: deque[str | bytes] = deque()
        self._unacknowledged: deque[str | bytes] = deque()
        self._taken = self._acknowledged = 0
        self._over: str | None = None
        self._wake: Callable[[], None] = unwatched
        # Set for a moment by each change, for all requests: one may wait for room, for messages and for its successor at once.
        self._changed = asyncio.Event()
        self._held: object | None = None
        self._taking: object | None = None
        self.told = asyncio.Event()
        """Set when the source was told that the session is over."""
        self.requests = 0
        self.last_request = asyncio.get_running_loop().time()

    @property
    def address(self) -> str:
        return self._address

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def backlog(self) -> int:
        return self._backlog

    def watch(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def send(self, message: str | bytes) -> None:
        size = checked_size(message)
        if self._over is not None:
            raise ConnectionLost(self._over)
        self._unacknowledged.append(message)
        self._backlog += size
        self._tell_requests()
        self._hold_more(size)

    def receive(self) -> str | bytes | None:
        if not self._incoming:
            if self._over is not None:
                raise ConnectionLost(self._over)
            return None
        size = size_of(self._incoming[0])
        if not self._turns.take_now(size, self._wake_owner):
            return None
        message = self._incoming.popleft()
        self._tell_requests()
        self._hold_more(-size)
        return message

    async def close(self, reason: str = "") -> None:
        self.end(reason)

    def end(self, reason: str = "") -> None:
        """End the session. What arrived can be received, and what was sent can be asked for."""
        if self._over is None:
            self._over = reason.encode("ascii", "replace")[:120].decode()
            self._tell_requests()
            self._wake()

    def discard(self) -> None:
        """Drop the incoming messages, when the agent will not receive them any more."""
        dropped = sum(map(size_of, self._incoming))
        self._incoming.clear()
        self._hold_more(-dropped)

    def withdraw(self) -> None:
        """End the session and drop the outgoing messages, when the source will not ask any more."""
        dropped, self._backlog = self._backlog, 0
        self._unacknowledged.clear()
        self._hold_more(-dropped)
        self.end()

    async def leave(self) -> None:
        """Close the session because this agent stops."""
        self.end()

    async def exchange(self, messages: list[str | bytes], *, sequence: int, acknowledge: int) -> HttpResponse:
        """Process a request and return its answer.

        `sequence`: the number of the first message. `acknowledge`: the number of messages that the source has. Raises `Conflict`
        (`connection.session`) or `SessionGone`.
        """
        # One deadline for both waits below: the source's own timeout begins with its request.
        deadline = asyncio.get_running_loop().time() + HOLD
        # First the acknowledgment: it makes room for the agent, whose answer may then go with this response.
        self._forget(acknowledge)
        if messages:
            await self._take(messages, sequence, deadline)
        mine = await self._hold(deadline, replace=not messages)
        chosen = fitting(self._unacknowledged) if mine else []
        # Also for the request that opens the session: a Hello that is refused without a word is refused at once.
        if mine and not chosen and self._over is not None:
            self.told.set()
            raise SessionGone(self._over)
        headers = {"Content-Type": MEDIA_TYPE, SEQUENCE: str(self._acknowledged), ACKNOWLEDGE: str(self._taken)}
        return HttpResponse(200, headers, encode_messages(chosen))

    def _forget(self, acknowledged: int) -> None:
        if acknowledged > self._acknowledged + len(self._unacknowledged):
            raise Conflict(ConnectionCode.SESSION, "The source acknowledges more than was sent.")
        before = self._backlog
        while self._acknowledged < acknowledged:  # a delayed request acknowledges less and has no effect
            self._backlog -= size_of(self._unacknowledged.popleft())
            self._acknowledged += 1
        if self._backlog < before:
            self._hold_more(self._backlog - before)
            self._wake()

    async def _take(self, messages: list[str | bytes], sequence: int, deadline: float) -> None:
        """Store the new messages as far as there is room. A later request with messages replaces this one."""
        # A source repeats a request whose answer got lost. Two requests that wait with the same messages would
        # both store them, so the newest one takes over.
        turn = self._taking = object()
        self._tell_requests()
        if sequence > self._taken:
            raise Conflict(ConnectionCode.SESSION, f"Message {self._taken} is missing.")
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                for number, message in enumerate(messages, sequence):
                    if number < self._taken:
                        continue
                    await self._until(
                        lambda: self._over is not None or self._taking is not turn or len(self._incoming) < MAX_INBOX
                    )
                    if self._over is not None or self._taking is not turn:
                        return
                    self._incoming.append(message)
                    self._taken += 1
                    self._hold_more(size_of(message))
                    self._wake()

    async def _hold(self, deadline: float, *, replace: bool) -> bool:
        """Wait until there is a message to send. Return False if another request will carry it."""
        if not replace and self._held is not None:
            return False
        # A proxy keeps few connections open for each client, so only the newest request is held.
        me = self._held = object()
        self._tell_requests()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._until(lambda: self._held is not me or bool(self._unacknowledged) or self._over is not None)
            return self._held is me
        finally:
            self._held = None if self._held is me else self._held

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()

    def _tell_requests(self) -> None:
        # Whoever waits now is woken, although the event is not set afterwards.
        self._changed.set()
        self._changed.clear()

    def _wake_owner(self) -> None:
        self._wake()  # another owner may watch by now

    def _hold_more(self, change: int) -> None:
        self.held += change
        self._weigh(self, change)


class Sessions:
    """All sessions of an agent over HTTP. For one event loop."""

    def __init__(self, application: Application) -> None:
        """Start with no session. `application`: serves each."""
        self._application = application
        self._sessions: dict[str, ServedSession] = {}
        self._keys: dict[str, ServedSession] = {}
        self._lingering: OrderedDict[str, asyncio.TimerHandle] = OrderedDict()
        self._tasks = TaskSet[None]()
        self.holding: set[ServedSession] = set()
        """The sessions with messages that arrived and were not received, or were said and not acknowledged."""
        self.held = 0
        """Bytes of these messages."""

    async def deliver(self) -> None:
        """Wait a moment for the sources of closed sessions to fetch the last messages and the reason."""
        waiting = [self._sessions[id] for id in self._lingering]
        # Only sources that ask now or did lately: the others are gone.
        since = asyncio.get_running_loop().time() - DELIVERY
        asking = [session for session in waiting if session.requests or session.last_request >= since]
        if asking:
            notified = asyncio.gather(*(session.told.wait() for session in asking))
            with suppress(TimeoutError):
                async with asyncio.timeout(DELIVERY):
                    await notified

    def __len__(self) -> int:
        """How many sessions are open, or over and still answer."""
        return len(self._keys)

    @contextmanager
    def admit(self, path: str, parameters: Mapping[str, str]) -> Iterator[None]:
        """Count a request, from before its body is read until its answer is sent.

        Raises `NotFound` (`connection.session`) or `Unavailable` (`connection.busy`).
        """
        session = self._keys.get(parameters.get("key", "")) if path == SESSIONS else self._find(path)
        if session is None:
            if (refusal := self._application.refusal(None)) is not None:
                raise refusal
            yield
            return
        # Before the body is read: otherwise one session could keep many bodies of 2 MiB in memory.
        if session.requests >= MAX_AT_ONCE:
            raise Unavailable(ConnectionCode.BUSY, f"This session has {MAX_AT_ONCE} requests already; wait for an answer.")
        session.requests += 1
        try:
            yield
        finally:
            session.requests -= 1
            session.last_request = asyncio.get_running_loop().time()

    async def answer(
        self, method: str, path: str, parameters: Mapping[str, str], body: bytes, *, address: str, peer: str
    ) -> HttpResponse:
        """Answer a request below SESSIONS. `peer`: the DID that the request proves, or "". Raises `TreatyError`."""
        if path == SESSIONS:
            return await self._open(parameters.get("key", ""), decode_messages(body), address, peer)
        session = self._find(path)
        if session.peer != peer:
            raise Refused(ConnectionCode.SESSION, "Another DID opened this session.")
        if method == "DELETE":
            reason = parameters.get("reason", "")
            if not _REASON.fullmatch(reason):
                raise Malformed(ConnectionCode.REQUEST, "A reason has at most 120 printable ASCII characters.")
            session.end(reason)
            self._drop(session)
            return HttpResponse(204, {}, b"")
        sequence, acknowledge = (
            parse_decimal(parameters.get(name, ""), limit=MAX_NUMBER) for name in ("sequence", "acknowledge")
        )
        return await session.exchange(decode_messages(body), sequence=sequence, acknowledge=acknowledge)

    async def _open(self, key: str, messages: list[str | bytes], address: str, peer: str) -> HttpResponse:
        if not _KEY.fullmatch(key):
            raise Malformed(ConnectionCode.REQUEST, "The key of a new session has 22 to 64 of A-Z a-z 0-9 _ -.")
        if not messages:
            raise Malformed(ConnectionCode.REQUEST, "A session is opened by the sourceHello.")
        session = self._keys.get(key)
        if session is None:
            if (refusal := self._application.refusal(address.rpartition(":")[0])) is not None:
                raise refusal
            turns = self._application.turns(address.rpartition(":")[0])
            session = ServedSession(address, peer, key=key, weigh=self._weigh, turns=turns)
            self._sessions[session.id] = self._keys[key] = session
            self._tasks.start(self._run(session))
            self._expire(session)
        # The key of an opening travels in a URL, which logs keep. A reader of logs must not take the session over.
        elif session.peer != peer:
            raise Refused(ConnectionCode.SESSION, "Another DID opened this session.")
        reply = await session.exchange(messages, sequence=0, acknowledge=0)
        return HttpResponse(201, {**reply.headers, "Location": f"{SESSIONS}/{session.id}"}, reply.body)

    async def _run(self, session: ServedSession) -> None:
        try:
            await self._application.serve(session, "")
        finally:
            session.end()
            session.discard()
            if session.id in self._sessions:
                self._linger(session)

    def _find(self, path: str) -> ServedSession:
        session = self._sessions.get(path.removeprefix(f"{SESSIONS}/"))
        if session is None:
            raise NotFound(ConnectionCode.SESSION, "There is no such session, or no longer.", fix="Open another one.")
        return session

    def _expire(self, session: ServedSession) -> None:
        """Drop the session after `EXPIRY` seconds without a request; check again until then."""
        loop = asyncio.get_running_loop()
        if session.id not in self._sessions or session.id in self._lingering:
            return
        # A held request is a sign of life, however long it is held.
        left = EXPIRY if session.requests else session.last_request + EXPIRY - loop.time()
        if left > 0:
            loop.call_later(left, self._expire, session)
            return
        self._drop(session)

    def _weigh(self, session: ServedSession, change: int) -> None:
        self.held += change
        if session.held:
            self.holding.add(session)
        else:
            self.holding.discard(session)
        # The heaviest session pays, not the newest: an attacker must not push honest sessions out.
        if change > 0 and self.held > MAX_HELD:
            heaviest = max(self.holding, key=lambda session: session.held)
            self._drop(heaviest)
            heaviest.discard()

    def _linger(self, session: ServedSession) -> None:
        # A dictionary keeps its order, so the first is the one that lingers longest.
        if len(self._lingering) >= MAX_LINGERING:
            self._drop(self._sessions[next(iter(self._lingering))])
        self._lingering[session.id] = asyncio.get_running_loop().call_later(LINGER, self._drop, session)

    def _drop(self, session: ServedSession) -> None:
        self._sessions.pop(session.id, None)
        self._keys.pop(session.key, None)
        session.told.set()  # by its DELETE, or it does not ask any more
        session.withdraw()
        timer = self._lingering.pop(session.id, None)
        if timer is not None:
            timer.cancel()
