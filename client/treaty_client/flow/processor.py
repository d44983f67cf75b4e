"""The message processor: what makes a message of the peer count, before anybody acts on it.

In this order: the cap, the form, sender and recipient, the time, the message's id, the signature. A time counts when it is at
most
`window` seconds old and at most `skew` seconds ahead, and not before that of the sender's message before; so the messages of one
connection cannot be replayed or put in another order on it. Ids of negotiations are remembered over all connections for as long
as their time counts, so that none is replayed on another one. Messages of a protocol name a session, which no other connection
has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from treaty_consensus.errors import Refused, TreatyError, Unauthorized, Unavailable

from ..identity import Identity
from .messages import TYPE, Message, encode, parse
from .signatures import verify

MAX_REMEMBERED = 65_536
MAX_OF_SENDER = 1_024
"""Messages that are remembered, in all and of one sender."""
MAX_SIMULTANEOUS = 4096
"""Messages of one sender at the same time."""
KEYS_AGE = 300.0
"""Seconds after which a sender's keys are asked for again."""

Keys = Callable[[str], Awaitable[Sequence[bytes]]]
"""DID to the raw Ed25519 keys that it lists for authentication now. Raises `TreatyError`."""


class _Heard(NamedTuple):
    at: int
    time: int
    sender: str
    id: str


class Now(NamedTuple):
    """The time: seconds of a clock that never jumps, for deadlines; milliseconds since 1970, for what is written."""

    seconds: float
    unix: int


@dataclass
class ReplayMemory:
    """The ids of messages whose time still counts; one for all connections of an agent, in memory. What was sent before `since`
    does not count: after a restart, when nothing is remembered, and when strangers send so much that something has to be
    forgotten early. The latter leaves the present alone, unless `MAX_REMEMBERED` messages come within `skew` seconds."""

    window: float = 120.0
    skew: float = 30.0
    since: int = 0
    _known: dict[str, set[str]] = field(default_factory=dict)
    _order: deque[_Heard] = field(default_factory=deque)

    def check_time(self, message: Message, now: Now) -> None:
        """Raises `Unauthorized` (`flow.stale`)."""
        age = now.unix - message.timestamp
        if message.timestamp < self.since:
            raise Unauthorized("flow.stale", "A message is older than what this agent remembers.", fix="Begin again.")
        if not -self.skew * 1000 <= age <= self.window * 1000:
            raise Unauthorized(
                "flow.stale",
                f"A message's time is {age / 1000:g} seconds ago; between {-self.skew:g} and {self.window:g} would do.",
                fix="Set the clocks of both sides.",
            )

    def check_new(self, message: Message) -> None:
        """Raises `Unauthorized` (`flow.replayed`)."""
        if message.message_id in self._known.get(message.sender, ()):
            raise Unauthorized("flow.replayed", "A message came twice.")

    def remember(self, message: Message, now: Now) -> None:
        """It counted. Raises `Unavailable` (`flow.busy`) when too many of its sender do."""
        outlived = now.unix - (self.window + self.skew) * 1000
        while self._order and self._order[0].at < outlived:
            self._forget()
        if len(self._known.get(message.sender, ())) >= MAX_OF_SENDER:
            raise Unavailable("flow.busy", "This sender negotiates too much.", fix="Try again in two minutes.")
        while len(self._order) >= MAX_REMEMBERED:
            self.since = max(self.since, self._forget().time + 1)
        self._known.setdefault(message.sender, set()).add(message.message_id)
        self._order.append(_Heard(now.unix, message.timestamp, message.sender, message.message_id))

    def _forget(self) -> _Heard:
        """Forget what came first."""
        oldest = self._order.popleft()
        ids = self._known[oldest.sender]
        ids.remove(oldest.id)
        if not ids:
            del self._known[oldest.sender]
        return oldest


@dataclass
class MessageProcessor:
    """Of one connection. `peer`: the DID it must speak for; "" until the first message says it. For one task at a time."""

    identity: Identity
    keys: Keys
    memory: ReplayMemory
    peer: str = ""
    _sent: int = 0
    _received: int = 0
    _simultaneous: set[str] = field(default_factory=set)
    _peer_keys: tuple[str, float, Sequence[bytes]] | None = None

    def seal(self, message: Message, now: Now) -> str:
        """The signed text of a message, with its time: never before that of the one before, whatever the clock does."""
        self._sent = max(self._sent, now.unix)
        return encode(Message(**{**vars(message), "timestamp": self._sent}), self.identity)

    async def open(self, text: str, now: Now, *, limit: int) -> Message:
        """The message in a text, after all checks. Raises `TreatyError`: `Unauthorized` for what only a forger or a wrong clock
        sends; then nothing has changed."""
        signed = parse(text, limit=limit)
        message = signed.message
        if self.peer not in ("", message.sender):
            raise Unauthorized("flow.sender", f"A message of {message.sender}, where {self.peer} speaks.")
        if message.recipient != self.identity.did:
            raise Unauthorized("flow.recipient", f"A message for {message.recipient}, and not for this agent.")
        self.memory.check_time(message, now)
        self._check_order(message)
        if message.type == TYPE:
            self.memory.check_new(message)
        verify(signed.content, signed.signature, await self._keys_of(message.sender, now), message.sender)
        if message.type == TYPE:  # others may have come on other connections while the keys were asked for
            self.memory.check_time(message, now)
            self.memory.check_new(message)
            self.memory.remember(message, now)
        self.peer = message.sender
        if message.timestamp > self._received:
            self._received, self._simultaneous = message.timestamp, set()
        self._simultaneous.add(message.message_id)
        return message

    def _check_order(self, message: Message) -> None:
        if message.timestamp < self._received:
            raise Unauthorized("flow.order", "A message is older than the one before.")
        if message.timestamp == self._received:
            if message.message_id in self._simultaneous:
                raise Unauthorized("flow.replayed", "A message came twice.")
            if len(self._simultaneous) >= MAX_SIMULTANEOUS:
                raise Refused("flow.simultaneous", f"More than {MAX_SIMULTANEOUS} messages have the same time.")

    async def _keys_of(self, did: str, now: Now) -> Sequence[bytes]:
        known = self._peer_keys
        if known is None or known[0] != did or now.seconds - known[1] > KEYS_AGE:
            try:
                known = self._peer_keys = (did, now.seconds, await self.keys(did))
            except TreatyError as error:
                raise Unauthorized("flow.keys", f"The keys of {did} cannot be had: {error.message}") from error
        return known[2]
