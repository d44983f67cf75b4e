"""The E2EE profile over any transport: a `Connection` that encrypts what another one carries.

The handshake is made of the messages that pass: the Hello that goes out is signed, the Hello that comes in is verified before
it is handed on, and whatever is sent before the keys exist waits for them, early data too. So the session that uses it does not
know of it; see `meta.secure.channel` for what is promised when.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from treaty_consensus.errors import TreatyError, Unauthorized, Unavailable

from ..meta.secure.channel import Action, Resolve, SecureChannel, Send, State
from ..meta.secure.keys import Signer
from ..meta.secure.records import Close, Message
from .connection import Connection, ConnectionLost

Resolver: TypeAlias = Callable[[str, str], Awaitable[Mapping[str, Any]]]
"""Gets the document of a DID, as parsed JSON, one that lists this key if there is one by now, or raises `TreatyError`. Never
asked for a did:key."""

_T = TypeVar("_T")

TIMEOUT = 10.0
CLOSE_TIMEOUT = 3.0
TRUNCATED = "secure.truncated"
"""The reason of a `ConnectionLost` that the peer did not announce: somebody cut the connection, or the network did."""


class SecureConnection:
    """One encrypted end; see `Connection` for the contract. Besides, `receive` raises `TreatyError` (`secure.*`, `canonical.*`)
    when the other side, or somebody in between, breaks the profile, and from then on always; `send` raises it too."""

    def __init__(
        self,
        connection: Connection,
        channel: SecureChannel,
        *,
        resolve: Resolver,
        clock: Callable[[], float] = time.time,
        timeout: float = TIMEOUT,
    ) -> None:
        """`clock`: Unix seconds. `timeout`: seconds for the handshake, from the first `receive` on."""
        self._inner, self._channel = connection, channel
        self._resolve, self._clock, self._timeout = resolve, clock, timeout
        self._deadline: float | None = None
        self._sending = asyncio.Lock()
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
        signer: Signer,
        *,
        resolve: Resolver,
        required: bool = True,
        clock: Callable[[], float] = time.time,
        timeout: float = TIMEOUT,
    ) -> SecureConnection:
        """The side that connected. `required`: refuse a peer that answers in the plain profile."""
        channel = SecureChannel(signer, is_source=True, draw=secrets.token_bytes, required=required)
        return cls(connection, channel, resolve=resolve, clock=clock, timeout=timeout)

    @classmethod
    def destination(
        cls,
        connection: Connection,
        signer: Signer,
        *,
        resolve: Resolver,
        required: bool = True,
        clock: Callable[[], float] = time.time,
        timeout: float = TIMEOUT,
    ) -> SecureConnection:
        """The side that was connected to. `required`: refuse a peer that asks in the plain profile."""
        channel = SecureChannel(signer, is_source=False, draw=secrets.token_bytes, required=required)
        return cls(connection, channel, resolve=resolve, clock=clock, timeout=timeout)

    @property
    def address(self) -> str:
        return self._inner.address

    @property
    def peer(self) -> str:
        return self._channel.peer or self._inner.peer

    async def send(self, message: str | bytes) -> None:
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
            async with asyncio.timeout(CLOSE_TIMEOUT), self._sending:
                last = [] if self._torn else self._channel.close(reason, self._clock())
                self._said_so = self._said_so or bool(last)
                await self._put(last)
        await self._inner.close("" if self._said_so else reason)

    async def _advance(self) -> None:
        """Take one step: the answer of the resolver, or a message from the wire; then send what answers it."""
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
            with suppress(ConnectionLost):  # what the peer said before it left can be read yet
                async with self._sending:
                    await self._put([self._replies.popleft()])

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(text):
                    self._replies.append(text)
                case Resolve() as claimed:
                    self._claimed = claimed
                case Message(content):
                    self._check_peer()
                    self._arrived.append(content)
                case Close(reason):
                    self._ended = ConnectionLost(reason)

    def _check_peer(self) -> None:
        """What the transport proved and what the handshake proved has to be the same."""
        proved, known = self._channel.peer, self._inner.peer
        if proved and known and proved != known:
            raise Unauthorized("secure.identity", f"The transport proved {known}, the handshake {proved[:120]}.")

    async def _document(self, claimed: Resolve) -> Mapping[str, Any]:
        try:
            return await self._resolve(*claimed)
        except TreatyError as error:
            text = f"The document of {claimed.did[:120]} cannot be had: {error.message}"
            raise Unauthorized("secure.unresolved", text) from error

    async def _in_time(self, work: Awaitable[_T]) -> _T:
        """Bounded by the time for the handshake, until that is over."""
        if self._channel.state in (State.OPEN, State.PLAIN):
            return await work
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._timeout
        try:
            async with asyncio.timeout_at(self._deadline):
                return await work
        except TimeoutError as error:
            raise Unavailable(
                "secure.timeout", f"The handshake of the E2EE profile was not over after {self._timeout:g} seconds."
            ) from error

    async def _put(self, messages: Sequence[str | bytes]) -> None:
        """Onto the wire, all or nothing: after a part, the rest of what this side says could not be read."""
        torn, self._torn = self._torn, bool(messages)
        for message in messages:
            await self._inner.send(message)
        self._torn = torn

    def _note(self) -> None:
        if self._channel.may_send or self._channel.state is State.BROKEN or self._closed or self._ended is not None:
            self._may_send.set()
