"""Encrypt a connection with the E2EE profile: a `Connection` over another one.

docs/specification/e2ee-profile.md has the format. The handshake uses the messages that pass: an outgoing Hello is signed, and an
incoming Hello is verified before `receive` returns it. Messages that are sent before the keys exist wait for them, also early
data. So a session needs no change to use it. `treaty_anp.e2ee.channel` lists the guarantees of each state.

`receive` takes a message of the other connection, lets the channel process it, and sends the replies, all in one call. Only the
document of a DID is fetched by a task.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeAlias

from treaty_anp.e2ee.accepted_hellos import AcceptedHellos
from treaty_anp.e2ee.channel import Action, ChannelState, Resolve, SecureChannel, SendRecord
from treaty_anp.e2ee.keys import HelloSigner
from treaty_anp.e2ee.records import Close, ReceivedMessage
from treaty_anp.frame import MAX_FRAME
from treaty_consensus.errors import TooLarge, TreatyError, Unauthorized, Unavailable
from treaty_io.codes import FrameCode, SecureCode, SessionCode
from treaty_io.errors import PeerUnavailable

from .connection import Connection, ConnectionLost, unwatched

Resolver: TypeAlias = Callable[[str, str], Awaitable[Mapping[str, Any]]]
"""A function that returns the parsed document of a DID. Arguments: the DID, and the id of a key that a cached document must list.
It raises `TreatyError`, `Unavailable` if the document may be had later. It is never called for a did:key."""

# Two round trips and one fetch of a DID document, which has 3 seconds and may wait for its turn.
TIMEOUT = 10.0
# A resolver that does not end when it is cancelled must not delay the end of a session.
CLOSE_TIMEOUT = 3.0
TRUNCATED = SecureCode.TRUNCATED
"""The reason of a `ConnectionLost` without the peer's authenticated close: an attacker or the network cut the connection."""


class SecureConnection:
    """One encrypted end; see `Connection` for the contract.

    In addition, `receive` and `send` raise `TreatyError` (`secure.*`, `canonical.*`) when the peer or an attacker breaks the
    profile. All later calls raise it too.
    """

    def __init__(
        self,
        connection: Connection,
        channel: SecureChannel,
        *,
        resolve: Resolver,
        clock: Callable[[], float] = time.time,
        timeout: float = TIMEOUT,
    ) -> None:
        """Use `source` or `destination` instead. `clock`: Unix seconds. `timeout`: seconds from the first `receive` or `watch`.

        `resolve` runs in the context in which this is made, because that names the host for which documents are fetched.
        """
        self._inner, self._channel = connection, channel
        self._resolve, self._clock, self._timeout = resolve, clock, timeout
        self._context = copy_context()
        self._wake: Callable[[], None] = unwatched
        self._deadline: asyncio.TimerHandle | None = None
        # Application messages wait for the keys; only the own Hello may be sent before.
        self._waiting: list[str | bytes] = []
        self._waiting_size = 0
        self._resolving: asyncio.Task[Mapping[str, Any]] | None = None
        self._ended: ConnectionLost | None = None
        self._torn: Exception | None = None
        self._opened = self._closed = self._said_so = False

    @classmethod
    def source(
        cls,
        connection: Connection,
        signer: HelloSigner,
        *,
        resolve: Resolver,
        required: bool = True,
        clock: Callable[[], float] = time.time,
        timeout: float = TIMEOUT,
    ) -> SecureConnection:
        """Make the end of the side that connected. `required`: refuse a peer that answers in the plain profile."""
        channel = SecureChannel(signer, is_initiator=True, draw=secrets.token_bytes, required=required)
        return cls(connection, channel, resolve=resolve, clock=clock, timeout=timeout)

    @classmethod
    def destination(
        cls,
        connection: Connection,
        signer: HelloSigner,
        *,
        resolve: Resolver,
        required: bool = True,
        accepted: AcceptedHellos | None = None,
        clock: Callable[[], float] = time.time,
        timeout: float = TIMEOUT,
    ) -> SecureConnection:
        """Make the end of the side that was connected to.

        `required`: refuse a peer that asks in the plain profile. `accepted`: the Hellos that this agent accepted.
        """
        channel = SecureChannel(signer, is_initiator=False, draw=secrets.token_bytes, required=required, accepted=accepted)
        return cls(connection, channel, resolve=resolve, clock=clock, timeout=timeout)

    @property
    def address(self) -> str:
        return self._inner.address

    @property
    def peer(self) -> str:
        return self._channel.peer or self._inner.peer

    @property
    def is_encrypted(self) -> bool:
        """Return whether both sides have the keys, so that every further message is encrypted."""
        return self._channel.state in (ChannelState.KEYED, ChannelState.OPEN)

    @property
    def backlog(self) -> int:
        return self._waiting_size + self._inner.backlog

    def watch(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._inner.watch(wake)
        self._limit_time()

    def send(self, message: str | bytes) -> None:
        if self._closed or self._ended is not None:
            raise ConnectionLost(self._ended.reason if self._ended else "")
        self._channel.check_whole()
        if self._channel.may_say_hello:
            if isinstance(message, bytes):
                return  # the last word about a Hello that this side refuses; without an answer there will be no keys for it
        elif not self._channel.may_send:
            self._keep(message)
            return
        self._put(self._channel.send(message, self._clock()))
        if not self._opened:  # a destination may send as soon as it has answered
            self._go_on()

    def receive(self) -> str | bytes | None:
        self._limit_time()
        try:
            while (actions := self._next()) is not None:
                if (message := self._perform(actions)) is not None:
                    return message
        except TreatyError as error:
            if not isinstance(error, ConnectionLost):
                self._channel.fail(error)
            self._stop()
            raise
        return None

    async def close(self, reason: str = "") -> None:
        self._closed = True
        if not self._opened:  # a handshake cannot be completed any more
            self._ended = self._ended or ConnectionLost()
        self._stop()
        if self._torn is None:
            with suppress(TreatyError):
                last = self._channel.close(reason, self._clock())
                self._said_so = self._said_so or bool(last)
                self._put(last)
        await self._inner.close("" if self._said_so else reason)
        self._wake()
        if self._resolving is not None:
            await asyncio.wait([self._resolving], timeout=CLOSE_TIMEOUT)

    # In

    def _next(self) -> list[Action] | None:
        """Process the resolver's answer or one message from the wire. Return the actions, or None if neither is there."""
        self._channel.check_whole()
        if self._ended is not None:
            raise ConnectionLost(self._ended.reason)
        if self._resolving is not None:
            # Nothing is taken from the wire meanwhile. Whoever cancelled the task ends this connection, too.
            if not self._resolving.done() or self._resolving.cancelled():
                return None
            document, self._resolving = self._resolving.result(), None
            return self._channel.resolved(document, self._clock())
        try:
            message = self._inner.receive()
        except ConnectionLost as lost:
            self._ended = ConnectionLost(TRUNCATED) if self._channel.expects_close and not self._closed else lost
            raise ConnectionLost(self._ended.reason) from lost
        return None if message is None else self._channel.receive(message, self._clock())

    def _perform(self, actions: list[Action]) -> str | bytes | None:
        """Perform the actions. Return the message for the owner, of which there is at most one."""
        arrived: str | bytes | None = None
        for action in actions:
            match action:
                case SendRecord(text):
                    with suppress(ConnectionLost):  # messages that the peer sent before it left can still be read
                        self._put([text])
                case Resolve() as claimed:
                    self._resolving = asyncio.create_task(self._document(claimed), context=self._context)
                    self._resolving.add_done_callback(self._resolved)
                case ReceivedMessage(content):
                    self._check_peer()
                    arrived = content
                case Close(reason):
                    self._ended = ConnectionLost(reason)
        if not self._opened:
            with suppress(ConnectionLost):
                self._go_on()
        return arrived

    def _check_peer(self) -> None:
        """Check that transport and handshake proved the same DID. Raises `Unauthorized` (`secure.identity`)."""
        proved, inner_peer = self._channel.peer, self._inner.peer
        # Over HTTP the requests are signed, too. Two identities in one session mean that a third party relays.
        if proved and inner_peer and proved != inner_peer:
            raise Unauthorized(SecureCode.IDENTITY, f"The transport proved {inner_peer}, the handshake {proved[:120]}.")

    async def _document(self, claimed: Resolve) -> Mapping[str, Any]:
        try:
            return await self._resolve(*claimed)
        except Unavailable as error:
            # No refusal: the document may be there the next moment.
            text = f"The document of {claimed.did[:120]} cannot be fetched now: {error.message}"
            raise PeerUnavailable(error.code, text, fix=error.fix) from error
        except TreatyError as error:
            text = f"The document of {claimed.did[:120]} cannot be fetched: {error.message}"
            raise Unauthorized(SecureCode.IDENTITY, text) from error

    def _resolved(self, _: object) -> None:
        self._wake()

    # Out

    def _keep(self, message: str | bytes) -> None:
        """Keep a message until the keys exist. Raises `TooLarge` (`frame.too-large`)."""
        size = len(message if isinstance(message, bytes) else message.encode())
        # Now, because later nobody could be told.
        if size > MAX_FRAME:
            raise TooLarge(FrameCode.TOO_LARGE, f"A message has at most {MAX_FRAME} bytes.")
        self._waiting.append(message)
        self._waiting_size += size

    def _put(self, messages: Sequence[str | bytes]) -> None:
        """Send messages. After a failure nothing follows: a gap in the numbers would make all later records unreadable."""
        if self._torn is not None:
            raise self._torn
        try:
            for message in messages:
                self._inner.send(message)
        except Exception as error:
            # Without encryption nothing is numbered.
            self._torn = None if self._channel.state is ChannelState.PLAIN else error
            raise

    # The handshake

    def _limit_time(self) -> None:
        """Start the deadline of the handshake, once."""
        if self._deadline is None and not self._closed:
            self._deadline = asyncio.get_running_loop().call_later(self._timeout, self._expire)

    def _expire(self) -> None:
        text = f"The handshake of the E2EE profile was not over after {self._timeout:g} seconds."
        self._channel.fail(PeerUnavailable(SessionCode.REPLY_TIMEOUT, text))
        self._wake()

    def _go_on(self) -> None:
        """Send the messages that waited for the keys if they exist, and end the deadline if the handshake is over."""
        self._opened = self._channel.state in (ChannelState.OPEN, ChannelState.PLAIN)
        if self._opened and self._deadline is not None:
            self._deadline.cancel()
        if not self._waiting or not self._channel.may_send:
            return
        messages = self._waiting
        self._forget()
        try:
            for message in messages:
                self._put(self._channel.send(message, self._clock()))
        except TreatyError as error:
            # They were accepted, so the session cannot go on without them.
            if not isinstance(error, ConnectionLost):
                self._channel.fail(error)
            raise
        finally:
            self._wake()

    def _stop(self) -> None:
        """End what the handshake has begun; it will not be completed."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._resolving is not None:
            self._resolving.cancel()  # one that failed is not logged then
        self._forget()

    def _forget(self) -> None:
        self._waiting, self._waiting_size = [], 0
