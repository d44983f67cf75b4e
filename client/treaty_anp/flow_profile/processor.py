"""Sign the messages of one connection, and check received messages before they are used (the message processor).

docs/specification/flow-profile.md, section 1, "Accepted messages", has the checks in their order: size, form, sender and
recipient, time, novelty, signature. For example, a message of 121 seconds ago is refused with `flow.stale`.

A time may lie at most two seconds before that of an earlier message, whose ids are remembered, so messages cannot be replayed on
their connection. Ids of negotiation messages are remembered for all connections while their time is valid, so they cannot be
replayed on another one. Messages of a protocol name a session, which exists on one connection only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from treaty_consensus.errors import TreatyError, Unauthorized, Unavailable
from treaty_io.codes import FlowCode
from treaty_io.errors import PeerUnavailable
from treaty_io.identity import Identity

from .messages import TYPE, FlowMessage, encode, parse, verify

MAX_REMEMBERED = 65_536
MAX_OF_SENDER = 1_024
"""The caps of remembered messages: in all, for the memory of this agent, and of one sender, so that it cannot fill all of it."""
BACK = 2000
"""Milliseconds that a time may lie before that of an earlier message: clocks are corrected, and some peers write whole
seconds."""
MAX_RECENT = 4096
"""Messages of one connection that are remembered as recent. Beyond it, the oldest one is forgotten, and none before it counts."""
BUSY_TIME = 150
"""Seconds after which the messages of a busy sender are forgotten: `ReplayMemory.window` and `skew`."""
KEYS_AGE = 300.0
"""Seconds after which a sender's keys are fetched again, so that a removed key does not sign a long session."""

Keys = Callable[[str], Awaitable[Sequence[bytes]]]
"""A function from a DID to the raw Ed25519 keys that it lists for authentication now. It raises `TreatyError`."""


class _Heard(NamedTuple):
    at: int
    time: int
    sender: str
    id: str


class Now(NamedTuple):
    """The time: seconds of a monotonic clock, for deadlines, and milliseconds since 1970, for timestamps."""

    seconds: float
    unix: int


@dataclass
class ReplayMemory:
    """The ids of messages whose time is still valid. One object, in memory, serves all connections of an agent.

    Messages from before `since` are refused: after a restart, because no id is remembered, and after a flood, because ids were
    dropped early. A flood does not affect current messages, unless `MAX_REMEMBERED` messages arrive within `skew` seconds.
    """

    window: float = 120.0
    skew: float = 30.0
    since: int = 0
    known: dict[str, set[str]] = field(default_factory=dict)
    order: deque[_Heard] = field(default_factory=deque)

    def check_time(self, message: FlowMessage, now: Now) -> None:
        """Check the time of a message. Raises `Unauthorized` (`flow.stale`)."""
        age = now.unix - message.timestamp
        if message.timestamp < self.since:
            raise Unauthorized(FlowCode.STALE, "A message is older than what this agent remembers.", fix="Begin again.")
        if not -self.skew * 1000 <= age <= self.window * 1000:
            raise Unauthorized(
                FlowCode.STALE,
                f"A message's time is {age / 1000:g} seconds ago; between {-self.skew:g} and {self.window:g} would do.",
                fix="Set the clocks of both sides.",
            )

    def check_new(self, message: FlowMessage) -> None:
        """Check that a message is new. Raises `Unauthorized` (`flow.verification`)."""
        if message.message_id in self.known.get(message.sender, ()):
            raise Unauthorized(FlowCode.VERIFICATION, "A message came twice.")

    def remember(self, message: FlowMessage, now: Now) -> None:
        """Remember an accepted message. Raises `Unavailable` (`flow.busy`) beyond the cap of its sender."""
        # A message is acceptable for the window after its time, which may be ahead by the skew.
        outlived = now.unix - (self.window + self.skew) * 1000
        while self.order and self.order[0].at < outlived:
            self._forget()
        # One sender must not fill the memory that all others share.
        if len(self.known.get(message.sender, ())) >= MAX_OF_SENDER:
            raise Unavailable(FlowCode.BUSY, "This sender negotiates too much.", fix="Try again in two minutes.")
        # Many senders may fill it. A forgotten message could be replayed, so nothing as old as it is accepted.
        while len(self.order) >= MAX_REMEMBERED:
            self.since = max(self.since, self._forget().time + 1)
        self.known.setdefault(message.sender, set()).add(message.message_id)
        self.order.append(_Heard(now.unix, message.timestamp, message.sender, message.message_id))

    def _forget(self) -> _Heard:
        """Forget the oldest message, and return it."""
        oldest = self.order.popleft()
        ids = self.known[oldest.sender]
        ids.remove(oldest.id)
        if not ids:
            del self.known[oldest.sender]
        return oldest


@dataclass
class MessageProcessor:
    """Sign and check the messages of one connection. For one task at a time.

    `peer`: the DID of the other side; "" until its first message. `peer_key`: the key that signed the last message.
    """

    identity: Identity
    keys: Keys
    memory: ReplayMemory
    peer: str = ""
    peer_key: bytes | None = None
    _sent: int = 0
    _newest: int = 0
    _earliest: int = 0
    _recent: dict[str, int] = field(default_factory=dict)
    _peer_keys: tuple[str, float, Sequence[bytes]] | None = None

    def seal(self, message: FlowMessage, now: Now) -> str:
        """Set the time of a message, sign it, and return its text. The times never decrease, also if the clock is set back."""
        # A peer may insist on the order of times, also when this clock is set back.
        self._sent = max(self._sent, now.unix)
        return encode(FlowMessage(**{**vars(message), "timestamp": self._sent}), self.identity)

    async def open(self, text: str, now: Now, *, limit: int) -> FlowMessage:
        """Check a text and return its message.

        Raises `TreatyError`; `Unauthorized` for a message that only a forger or a wrong clock sends. Then nothing has changed.
        """
        signed = parse(text, limit=limit)
        message = signed.message
        if self.peer not in ("", message.sender):
            raise Unauthorized(FlowCode.PEER, f"A message of {message.sender}, where {self.peer} speaks.")
        if message.recipient != self.identity.did:
            raise Unauthorized(FlowCode.PEER, f"A message for {message.recipient}, and not for this agent.")
        # Cheap checks go first: keys may be fetched from a host that the sender chooses.
        self.memory.check_time(message, now)
        self._check_order(message)
        if message.type == TYPE:
            self.memory.check_new(message)
        key = verify(signed.content, signed.signature, await self._keys_of(message.sender, now), message.sender)
        if message.type == TYPE:  # again: another connection may have used this id during the fetch of the keys
            self.memory.check_time(message, now)
            self.memory.check_new(message)
            self.memory.remember(message, now)
        self.peer, self.peer_key = message.sender, key
        self._note(message)
        return message

    def _check_order(self, message: FlowMessage) -> None:
        if message.timestamp < self._earliest:
            raise Unauthorized(FlowCode.VERIFICATION, "A message is much older than one before it.")
        if message.message_id in self._recent:
            raise Unauthorized(FlowCode.VERIFICATION, "A message came twice.")

    def _note(self, message: FlowMessage) -> None:
        """Remember a message, and forget those that are too old to be accepted again."""
        self._recent[message.message_id] = message.timestamp
        self._newest = max(self._newest, message.timestamp)
        self._earliest = max(self._earliest, self._newest - BACK)
        while self._recent:
            oldest = next(iter(self._recent))
            time = self._recent[oldest]
            if time >= self._earliest and len(self._recent) <= MAX_RECENT:
                break
            # A forgotten message could be replayed, so nothing as old as it is accepted any more.
            del self._recent[oldest]
            self._earliest = max(self._earliest, time + 1)

    async def _keys_of(self, did: str, now: Now) -> Sequence[bytes]:
        keys = self._peer_keys
        if keys is None or keys[0] != did or now.seconds - keys[1] > KEYS_AGE:
            try:
                keys = self._peer_keys = (did, now.seconds, await self.keys(did))
            except Unavailable as error:
                # No refusal: the keys may be had the next moment.
                raise PeerUnavailable(error.code, f"The keys of {did} cannot be had now: {error.message}") from error
            except TreatyError as error:
                raise Unauthorized(FlowCode.VERIFICATION, f"The keys of {did} cannot be had: {error.message}") from error
        return keys[2]
