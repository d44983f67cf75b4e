"""Carry messages over HTTP: the form of the HTTP binding, and the source's end of a session.

docs/specification/transports.md, section 2, specifies the requests and their bodies. For example, a body with the text `{}` and
the frame 40 01 is  80 00 00 02 7b 7d 00 00 00 02 40 01.

The source repeats a request after a failure for as long as `resume` allows (about 20 seconds), each time with a new signature.
Sequence numbers keep repeated messages from arriving twice.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple
from urllib.parse import urlencode, urljoin

import httpx

from treaty_anp.ending import is_about_clock
from treaty_anp.frame import MAX_FRAME
from treaty_consensus.canonical import parse_decimal, parse_json
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unavailable
from treaty_io.codes import ConnectionCode, FrameCode, NetworkCode
from treaty_io.errors import clock_difference, clock_error
from treaty_io.network.exchange import BoundedClient, HttpReply
from treaty_io.network.hosts import Network

from .connection import Backoff, Connection, ConnectionFailed, ConnectionLost, unwatched

SESSIONS = "/anp/v1/sessions"
MEDIA_TYPE = "application/vnd.treaty.messages.v1"
SEQUENCE, ACKNOWLEDGE = "Anp-Sequence", "Anp-Acknowledge"
MAX_BODY = 2 * 1024 * 1024
MAX_MESSAGES = 256
MAX_PROBLEM = 16 * 1024
MAX_NUMBER = 2**53 - 1
HOLD = 20
"""Seconds for which the destination holds an answer."""
MAX_INBOX = 4
"""Messages that an end keeps for its owner before it reads no more from the network."""
# An answer may be held for HOLD seconds, so its timeout is longer. Closing only tells the peer, so it
# waits for little: a lost DELETE costs the destination 60 seconds of an idle session.
CONNECT_TIMEOUT, ANSWER_TIMEOUT, CLOSE_TIMEOUT = 10, HOLD + 10, 3
PAUSE = 0.05
"""Seconds between an answer without progress and the next request. It bounds the requests to an agent that holds no answers."""
# About 20 seconds: the restart of a proxy takes less, and the destination keeps an idle session for 60.
RESUME = Backoff(attempts=9)

# Statuses of proxies and of a busy agent. Others say that the same request will fail again.
_AGAIN = frozenset({408, 429, 502, 503, 504})
_TEXT = 1 << 31
_REASON = re.compile(r"[ -~]{1,120}")
_CODE = re.compile(r"[a-z0-9.-]{1,80}")

Sign = Callable[[str, str, bytes], Mapping[str, str]]
"""A function of method, URL and body that returns headers with a signature. It is called anew for each attempt."""


class MessageBatch(NamedTuple):
    """An answer. `sequence`: the number of its first message. `taken`: the number of messages that arrived from the source."""

    location: str
    sequence: int
    taken: int
    messages: list[str | bytes]


def encode_messages(messages: Sequence[str | bytes]) -> bytes:
    """Encode messages as a body. The caller observes the caps."""
    body = bytearray()
    for message in messages:
        data = message.encode() if isinstance(message, str) else message
        body += (len(data) | (_TEXT if isinstance(message, str) else 0)).to_bytes(4, "big") + data
    return bytes(body)


def decode_messages(body: bytes) -> list[str | bytes]:
    """Decode the messages of a body. Raises `TooLarge` (`connection.too-large`) or `Malformed` (`connection.request`)."""
    if len(body) > MAX_BODY:
        raise TooLarge(ConnectionCode.TOO_LARGE, f"A body has at most {MAX_BODY} bytes.")
    messages: list[str | bytes] = []
    at = 0
    while at < len(body):
        head = int.from_bytes(body[at : at + 4], "big")
        length = head & ~_TEXT
        if length > MAX_FRAME or len(messages) == MAX_MESSAGES:
            raise TooLarge(ConnectionCode.TOO_LARGE, f"A message has at most {MAX_FRAME} bytes, a body {MAX_MESSAGES} messages.")
        data = body[at + 4 : at + 4 + length]
        at += 4 + length
        if at > len(body):
            raise Malformed(ConnectionCode.REQUEST, "The body ends within a message.")
        try:
            messages.append(data.decode() if head & _TEXT else data)
        except UnicodeDecodeError as error:
            raise Malformed(ConnectionCode.REQUEST, "A text in the body is not UTF-8.") from error
    return messages


def size_of(message: str | bytes) -> int:
    """Return the bytes of a message."""
    return len(message.encode()) if isinstance(message, str) else len(message)


def checked_size(message: str | bytes) -> int:
    """Return the bytes of a message. Raises `TooLarge` (`frame.too-large`)."""
    size = size_of(message)
    if size > MAX_FRAME:
        raise TooLarge(FrameCode.TOO_LARGE, f"A message has at most {MAX_FRAME} bytes.")
    return size


def fitting(messages: Iterable[str | bytes]) -> list[str | bytes]:
    """Return the first of these messages, as many as fit into one body; at least one if there are any."""
    chosen: list[str | bytes] = []
    room = MAX_BODY
    for message in messages:
        room -= 4 + size_of(message)
        if room < 0 or len(chosen) == MAX_MESSAGES:
            break
        chosen.append(message)
    return chosen


def connect(
    url: str,
    network: Network,
    *,
    sign: Sign | None = None,
    unproved: str = "",
    backoff: Backoff | None = None,
    resume: Backoff = RESUME,
) -> Connection:
    """Return the source's end of a session with the agent at `http://…` or `https://…`. The first `send` opens it.

    `sign`: signs each request. `unproved`: the fix in the error if the agent does not accept the signatures (401). `backoff`: the
    retries of the opening; `resume`: those of later requests. This call sends nothing.
    Raises `Malformed` (`network.url`).
    """
    if not url.startswith(("http://", "https://")) or "?" in url or "#" in url:
        raise Malformed(
            NetworkCode.URL, f"An agent's address begins with http:// or https:// and ends in a path, not {url[:80]!r}."
        )
    network.endpoint(url)
    client = network.client(timeout=ANSWER_TIMEOUT)
    return HttpConnection(url.rstrip("/"), client, sign, backoff or Backoff(), resume, unproved=unproved)


class HttpConnection:
    """The source's end of a session over HTTP; see `Connection` for the contract.

    The backlog is what the destination has not taken. The first `send` begins the opening. If it fails, `receive` raises
    `ConnectionFailed`, `Refused` (`connection.refused`), or `ConnectionLost` with the destination's reason.
    """

    def __init__(
        self, base: str, client: BoundedClient, sign: Sign | None, opening: Backoff, resume: Backoff, *, unproved: str = ""
    ) -> None:
        """Open nothing yet. `client`: closed with the connection."""
        self._unproved = unproved
        self._base, self._client, self._sign, self._opening, self._resume = base, client, sign, opening, resume
        self._location = ""
        self._outgoing: deque[str | bytes] = deque()
        self._incoming: deque[str | bytes] = deque()
        self._backlog = self._taken = self._received = 0
        self._over: Exception | None = None
        self._wake: Callable[[], None] = unwatched
        # What each of the two tasks waits for between its requests.
        self._unsent, self._room = asyncio.Event(), asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._asker: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return self._base

    @property
    def peer(self) -> str:
        return ""

    @property
    def backlog(self) -> int:
        return self._backlog

    def watch(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def send(self, message: str | bytes) -> None:
        size = checked_size(message)
        if self._over is not None or self._closing is not None:
            raise ConnectionLost(self._over.reason if isinstance(self._over, ConnectionLost) else "") from self._over
        self._outgoing.append(message)
        self._backlog += size
        self._unsent.set()
        if self._sender is None:
            self._sender = asyncio.create_task(self._until_over(self._send_all))

    def receive(self) -> str | bytes | None:
        if self._incoming:
            self._room.set()
            return self._incoming.popleft()
        if self._over is not None:
            raise self._over
        return None

    async def close(self, reason: str = "") -> None:
        # A task of its own: a cancelled caller must not leave the connection half closed.
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(reason))
        await asyncio.shield(self._closing)

    async def _until_over(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # `sign` may raise anything; whoever receives gets it
            self._end(error)

    async def _send_all(self) -> None:
        """Open the session, and send all messages until the connection closes."""
        await self._open()
        # A task of its own, because a held request must not delay a message that is to be sent.
        self._asker = asyncio.create_task(self._until_over(self._ask_on))
        while self._over is None:
            if self._outgoing:
                await self._send_some()
            elif self._closing is not None:
                return
            else:
                self._unsent.clear()
                await self._unsent.wait()

    async def _open(self) -> None:
        """Open the session with the first messages. Raises `ConnectionFailed`, `ConnectionLost` with the destination's reason, or
        `Refused` (`connection.refused`)."""
        # The key is the same for all attempts, so a repeated opening finds the session of the first.
        url = f"{self._base}{SESSIONS}?{urlencode({'key': secrets.token_urlsafe(32)})}"
        # As many as a destination keeps for its agent: for room for more its answer would wait.
        messages = fitting(islice(self._outgoing, MAX_INBOX))
        try:
            answer = await self._ask("POST", url, encode_messages(messages), self._opening)
            location = urljoin(url, answer.location)
            # A destination that sends the session to another host would get signatures made for that host.
            if not location.startswith(f"{self._base}{SESSIONS}/"):
                raise ConnectionFailed(self._base, again=False)
            self._count_taken(answer.taken, messages)
            self._deliver(answer)
        except ConnectionLost as lost:
            if lost.reason:
                raise
            raise ConnectionFailed(self._base, again=False) from lost
        self._location = location

    async def _send_some(self) -> None:
        messages = fitting(self._outgoing)
        answer = await self._exchange(messages)
        before = self._taken
        self._count_taken(answer.taken, messages)
        if len(self._incoming) < MAX_INBOX:  # otherwise drop them: unacknowledged messages come again
            self._deliver(answer)
        if self._taken == before:
            await asyncio.sleep(PAUSE)

    async def _ask_on(self) -> None:
        while self._over is None:
            if len(self._incoming) < MAX_INBOX:
                answer = await self._exchange([])
                self._deliver(answer)
                if not answer.messages:
                    await asyncio.sleep(PAUSE)
            else:
                self._room.clear()
                await self._room.wait()

    def _count_taken(self, taken: int, messages: Sequence[str | bytes]) -> None:
        """Forget those of these first messages that the destination has."""
        arrived = taken - self._taken
        # The destination counts wrong, so it is unknown which messages it has: repeating could do things twice.
        if not 0 <= arrived <= len(messages):
            raise ConnectionLost
        for _ in range(arrived):
            self._backlog -= size_of(self._outgoing.popleft())
        self._taken = taken
        if arrived:
            self._wake()

    def _deliver(self, answer: MessageBatch) -> None:
        """Store the new messages of an answer. A repeated answer contains messages that arrived before."""
        # Fewer than zero: messages are missing between the last answer and this one.
        already = self._received - answer.sequence
        if already < 0:
            raise ConnectionLost
        new = answer.messages[already:]
        self._incoming.extend(new)
        self._received += len(new)
        if new:
            self._wake()

    async def _exchange(self, messages: Sequence[str | bytes]) -> MessageBatch:
        """Send messages in the open session, or ask for some. Raises `ConnectionLost`."""
        url = f"{self._location}?{urlencode({'sequence': self._taken, 'acknowledge': self._received})}"
        try:
            return await self._ask("POST", url, encode_messages(messages), self._resume)
        except (ConnectionFailed, Refused) as error:
            raise ConnectionLost from error

    async def _ask(self, method: str, url: str, body: bytes, backoff: Backoff) -> MessageBatch:
        """Send a request until it is answered or `backoff` ends. Raises the errors of `_attempt`."""
        failures, until = 0, None
        while True:
            try:
                # No deadline for the first attempt: the exchange has one. Retries share one, counted from the first failure.
                async with asyncio.timeout_at(until):
                    return await self._attempt(method, url, body)
            except TimeoutError as error:
                raise ConnectionFailed(self._base, again=False) from error
            except ConnectionFailed as error:
                failures += 1
                until = until or backoff.until()
                if not error.again or not await backoff.pause(failures):
                    raise

    async def _attempt(self, method: str, url: str, body: bytes) -> MessageBatch:
        """Send one request. Raises `ConnectionLost` (the session ended), `ConnectionFailed`, `Refused` (`connection.refused`)."""
        request = self._client.build_request(method, url, content=body, headers={"Content-Type": MEDIA_TYPE}, timeout=_TIMEOUT)
        if self._sign is not None:
            # Anew for each attempt: the destination accepts a signature once.
            request.headers.update(self._sign(method, str(request.url), body))
        try:
            try:
                reply = await self._client.exchange(request, limit=MAX_BODY)
            except (httpx.HTTPError, Unavailable) as error:
                # A wrong certificate stays wrong, and an attacker in between must not get further attempts.
                raise ConnectionFailed(self._base, again=not _is_untrusted(error)) from error
            return self._read(reply)
        except (Malformed, TooLarge) as error:
            raise ConnectionFailed(self._base, again=False) from error

    def _read(self, reply: HttpReply) -> MessageBatch:
        status, body = reply.status, reply.body
        if status in _AGAIN:
            raise ConnectionFailed(self._base, again=True, code=_problem(body, "code", _CODE))
        if status == 410:
            raise ConnectionLost(_problem(body, "reason", _REASON))
        if status == 204:
            return MessageBatch("", 0, 0, [])
        if status not in (200, 201):
            raise self._refused(reply)
        if not reply.whole:
            raise TooLarge(ConnectionCode.TOO_LARGE, f"A body has at most {MAX_BODY} bytes.")
        if reply.headers.get("Content-Type") != MEDIA_TYPE:
            raise Malformed(ConnectionCode.REQUEST, "The answer is not a sequence of messages.")
        sequence, taken = (parse_decimal(reply.headers.get(name, ""), limit=MAX_NUMBER) for name in (SEQUENCE, ACKNOWLEDGE))
        return MessageBatch(reply.headers.get("Location", ""), sequence, taken, decode_messages(body))

    def _refused(self, reply: HttpReply) -> Refused:
        code = _problem(reply.body, "code", _CODE)
        message = f"The agent at {self._base[:120]} refuses the session: {code or f'HTTP status {reply.status}'}."
        if is_about_clock(code):
            error = clock_error(Refused, ConnectionCode.REFUSED, message, clock_difference(reply.headers, time.time()))
        else:
            error = Refused(ConnectionCode.REFUSED, message, fix=self._unproved if reply.status == 401 else "")
        error.peer_code = code
        return error

    def _end(self, error: Exception) -> None:
        if self._over is not None:
            return
        self._over = error
        self._outgoing.clear()
        self._backlog = 0
        self._unsent.set()
        self._room.set()
        self._wake()

    async def _close(self, reason: str) -> None:
        self._unsent.set()
        with suppress(TimeoutError, TreatyError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                if self._sender is not None and self._over is None:
                    await self._sender
                if self._location and self._over is None:
                    reason_text = reason.encode("ascii", "replace")[:120].decode()
                    await self._attempt("DELETE", f"{self._location}?{urlencode({'reason': reason_text})}", b"")
        self._end(ConnectionLost())
        tasks = [task for task in (self._sender, self._asker) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()


_TIMEOUT = httpx.Timeout(None, connect=CONNECT_TIMEOUT)
"""The timeouts of httpx: only connecting has one, because the whole exchange has `ANSWER_TIMEOUT`."""


def _problem(body: bytes, name: str, form: re.Pattern[str]) -> str:
    """Return a member of a problem (RFC 9457) if it is a text of this form; else ""."""
    with suppress(TreatyError):
        problem = parse_json(body, limit=MAX_PROBLEM)
        value = problem.get(name) if isinstance(problem, dict) else None
        if isinstance(value, str) and form.fullmatch(value):
            return value
    return ""


def _is_untrusted(error: BaseException | None) -> bool:
    """Return whether TLS caused a failure, such as a wrong certificate."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
