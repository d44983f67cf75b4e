"""Encrypt a connection with the E2EE profile: a `Connection` over another one.

docs/specification/e2ee-profile.md has the format. The handshake uses the messages that pass: an outgoing Hello is signed, and an
incoming Hello is verified before `receive` returns it. Messages that are sent before the keys exist wait for them, also early
data. So a session needs no change to use it. `treaty_anp.e2ee.channel` lists the guarantees of each state.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from treaty_anp.e2ee.accepted_hellos import AcceptedHellos
from treaty_anp.e2ee.channel import Action, ChannelState, Resolve, SecureChannel, SendRecord
from treaty_anp.e2ee.keys import HelloSigner
from treaty_anp.e2ee.records import Close, ReceivedMessage
from treaty_consensus.errors import TreatyError, Unauthorized
from treaty_io.codes import SecureCode, SessionCode
from treaty_io.errors import PeerUnavailable

from .connection import Connection, ConnectionLost

Resolver: TypeAlias = Callable[[str, str], Awaitable[Mapping[str, Any]]]
"""A function that returns the parsed document of a DID. Arguments: the DID, and the id of a key that a cached document must list.
It raises `TreatyError`. It is never called for a did:key."""

_T = TypeVar("_T")

# Two round trips and one fetch of a DID document, which has 3 seconds and may wait for its turn.
TIMEOUT = 10.0
# As in the other transports: the peer may be gone.
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
        """Use `source` or `destination` instead. `clock`: Unix seconds. `timeout`: seconds from the first `receive` on."""
        self._inner, self._channel = connection, channel
        self._resolve, self._clock, self._timeout = resolve, clock, timeout
        self._deadline: float | None = None
        self._sending = asyncio.Lock()  # records are numbered, so they must reach the wire in the order of their encryption
        # Application messages wait for the keys; only the own Hello may be sent before.
        self._may_send = asyncio.Event()
        self._arrived: deque[str | bytes] = deque()
        self._replies: deque[str] = deque()
        self._claimed: Resolve | None = None
        self._ended: ConnectionLost | None = None
        self._closed = self._said_so = self._torn = False

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

    async def send(self, message: str | bytes) -> None:
        if isinstance(message, bytes) and self._channel.may_say_hello:
            return  # the last word about a Hello that this side refuses; without an answer there will be no keys for it
        if not (isinstance(message, str) and self._channel.may_say_hello):
            await self._may_send.wait()
        async with self._sending:
            if self._closed or self._ended is not None:
                raise ConnectionLost(self._ended.reason if self._ended else "")
            await self._put(self._channel.send(message, self._clock()))
        self._note()

    async def receive(self) -> str | bytes:
        while not self._arrived:
            if self._ended is not None:
                raise ConnectionLost(self._ended.reason)
            try:
                await self._advance()
            except TreatyError as error:
                if not isinstance(error, ConnectionLost):
                    self._channel.fail(error)
                raise
            finally:
                self._note()
        return self._arrived.popleft()

    async def close(self, reason: str = "") -> None:
        self._closed = True
        self._note()
        with suppress(TreatyError, TimeoutError):
            # The lock is inside the timeout: a `send` that never ends may hold it.
            async with asyncio.timeout(CLOSE_TIMEOUT), self._sending:
                last = [] if self._torn else self._channel.close(reason, self._clock())
                self._said_so = self._said_so or bool(last)
                await self._put(last)
        await self._inner.close("" if self._said_so else reason)

    async def _advance(self) -> None:
        """Process the resolver's answer or one message from the wire, and send the replies."""
        self._channel.check_whole()
        if self._claimed:
            document = await self._in_time(self._document(self._claimed))
            self._claimed = None
            self._act(self._channel.resolved(document, self._clock()))
        else:
            try:
                message = await self._in_time(self._inner.receive())
            except ConnectionLost as lost:
                self._ended = ConnectionLost(TRUNCATED) if self._channel.expects_close and not self._closed else lost
                raise ConnectionLost(self._ended.reason) from lost
            self._act(self._channel.receive(message, self._clock()))
        while self._replies:
            with suppress(ConnectionLost):  # messages that the peer sent before it left can still be read
                async with self._sending:
                    await self._put([self._replies.popleft()])

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case SendRecord(text):
                    self._replies.append(text)
                case Resolve() as claimed:
                    self._claimed = claimed
                case ReceivedMessage(content):
                    self._check_peer()
                    self._arrived.append(content)
                case Close(reason):
                    self._ended = ConnectionLost(reason)

    def _check_peer(self) -> None:
        """Check that transport and handshake proved the same DID. Raises `Unauthorized` (`secure.identity`)."""
        proved, inner_peer = self._channel.peer, self._inner.peer
        # Over HTTP the requests are signed, too. Two identities in one session mean that a third party relays.
        if proved and inner_peer and proved != inner_peer:
            raise Unauthorized(SecureCode.IDENTITY, f"The transport proved {inner_peer}, the handshake {proved[:120]}.")

    async def _document(self, claimed: Resolve) -> Mapping[str, Any]:
        try:
            return await self._resolve(*claimed)
        except TreatyError as error:
            text = f"The document of {claimed.did[:120]} cannot be fetched: {error.message}"
            raise Unauthorized(SecureCode.IDENTITY, text) from error

    async def _in_time(self, work: Awaitable[_T]) -> _T:
        """Await `work`; during the handshake at most until its deadline. Raises `Unavailable` (`session.reply-timeout`)."""
        if self._channel.state in (ChannelState.OPEN, ChannelState.PLAIN):
            return await work
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._timeout
        try:
            async with asyncio.timeout_at(self._deadline):
                return await work
        except TimeoutError as error:
            raise PeerUnavailable(
                SessionCode.REPLY_TIMEOUT, f"The handshake of the E2EE profile was not over after {self._timeout:g} seconds."
            ) from error

    async def _put(self, messages: Sequence[str | bytes]) -> None:
        """Send messages. If one send fails, mark this end as torn: a gap would make all later records unreadable."""
        # Set before the first await: a cancelled send leaves a gap in the numbers, too.
        torn, self._torn = self._torn, bool(messages)
        for message in messages:
            await self._inner.send(message)
        self._torn = torn

    def _note(self) -> None:
        if self._channel.may_send or self._channel.state is ChannelState.BROKEN or self._closed or self._ended is not None:
            self._may_send.set()
