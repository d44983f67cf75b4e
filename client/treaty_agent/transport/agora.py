"""Answer Agora's conversations: an HTTP request with the hash of a protocol and one message, and no Hello.

    POST /                   {"protocolHash": SHA-1 in base64, "protocolSources": [URL], "body": TEXT, "multiround": true}
                             → {"status": "success", "body": TEXT, "conversationId": ID}
    POST /conversations/ID   {"body": TEXT} → {"status": "success", "body": TEXT}
    DELETE /conversations/ID

A conversation is a session of the Hello profile whose source is in this process: it offers the one protocol, and carries each
body to the agent and the next message back. So policy, capacity and the bounds of a session are those of every peer. The caller
is an unproved key that was made for it, unless its request proves a DID. The SHA-1 chooses among the protocols that this agent
serves, and proves nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from treaty_anp import frame
from treaty_anp.frame import ProtocolType
from treaty_anp.hello_profile import hello
from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused, TreatyError
from treaty_io.codes import ConnectionCode
from treaty_io.identity import Identity
from treaty_io.task_set import TaskSet

from . import memory
from .connection import Connection, ConnectionLost, next_message
from .http_server import HttpResponse

if TYPE_CHECKING:
    from .application import Application

CONVERSATIONS = "/conversations"
EXPIRY = 60
"""Seconds without a request after which a conversation is over."""
PATIENCE = 60
"""Seconds for the agent's next message."""
_GENERATED = b'{"action":"codeGeneration","status":"generated"}'


class AgoraProtocol(NamedTuple):
    """A protocol that is served. `role`: the caller's."""

    uri: str
    role: str


class _Request(msgspec.Struct, frozen=True, rename="camel"):
    # Sources are not fetched: an address that a peer names is none of ours.
    body: str
    protocol_hash: str | None = None
    multiround: bool = False


class _Conversation:
    """An open conversation. `busy`: a request is under way."""

    def __init__(self, connection: Connection, peer: str) -> None:
        self.connection, self.peer, self.busy = connection, peer, False
        self.expiry: asyncio.TimerHandle | None = None

    async def begin(self, protocol: AgoraProtocol) -> None:
        """Agree on the protocol. Raises `Refused` (`connection.refused`), `ConnectionLost`, and for a Hello that is none."""
        self.connection.send(
            hello.Hello(
                type="sourceHello",
                message_id=secrets.token_hex(16),
                session_id=secrets.token_hex(16),
                source_did=self.peer or Identity.create().did,
                destination_did="",
                random=secrets.token_hex(16),
                candidate_protocols=(protocol.uri,),
                candidate_roles={protocol.uri: protocol.role},
            ).format()
        )
        answer = await next_message(self.connection)
        if not isinstance(answer, str) or hello.parse(answer, "destinationHello").selected_protocol != protocol.uri:
            raise Refused(ConnectionCode.REFUSED, "The agent does not speak this protocol with you.")
        self.connection.send(frame.encode(ProtocolType.META, _GENERATED))

    async def exchange(self, body: bytes) -> str:
        """Say a message, and return the agent's next one. Raises `ConnectionLost`, `TooLarge`, `TimeoutError`."""
        async with asyncio.timeout(PATIENCE):
            self.connection.send(frame.encode(ProtocolType.APPLICATION, body))
            while True:
                message = await next_message(self.connection)
                if isinstance(message, bytes) and (heard := frame.decode(message)).type is ProtocolType.APPLICATION:
                    return heard.payload.decode(errors="replace")


class Agora:
    """The conversations of an agent. For one event loop."""

    def __init__(self, application: Application, protocols: Mapping[str, AgoraProtocol]) -> None:
        """Start with no conversation. `application`: serves each. `protocols`: by SHA-1 in base64; looked up anew for each
        request."""
        self._application, self._protocols = application, protocols
        self._open: dict[str, _Conversation] = {}
        self._tasks = TaskSet[None]()

    def __len__(self) -> int:
        """How many conversations are open."""
        return len(self._open)

    async def answer(self, method: str, path: str, body: bytes, *, address: str, peer: str) -> HttpResponse:
        """Answer a request. `address`: IP address and port. `peer`: the DID that it proves, or "". Raises `TreatyError`."""
        if path == "/":
            return await self._begin(_parse(body), address, peer)
        name = path.removeprefix(f"{CONVERSATIONS}/")
        conversation = self._open.get(name)
        if conversation is None:
            raise NotFound(ConnectionCode.SESSION, "There is no such conversation, or no longer.", fix="Begin another one.")
        # The name travels in a URL, which logs keep. A reader of logs must not take the conversation over.
        if conversation.peer != peer:
            raise Refused(ConnectionCode.SESSION, "Another DID began this conversation.")
        if conversation.busy:
            raise Conflict(ConnectionCode.SESSION, "This conversation has a request already; wait for its answer.")
        if method == "DELETE":
            await self._end(name)
            return _said({"status": "success"})
        return await self._say(name, conversation, _parse(body).body, {})

    async def _begin(self, request: _Request, address: str, peer: str) -> HttpResponse:
        protocol = self._protocols.get(request.protocol_hash or "")
        if protocol is None:
            raise NotFound(ConnectionCode.PATH, "This agent serves no protocol with that hash.", fix="Read its description.")
        if (refusal := self._application.refusal(address.rpartition(":")[0])) is not None:
            raise refusal
        here, there = memory.pair(source=peer, address=address)
        name, conversation = secrets.token_urlsafe(16), _Conversation(here, peer)
        self._open[name] = conversation
        self._tasks.start(self._application.serve(there, ""))
        try:
            conversation.busy = True
            async with asyncio.timeout(PATIENCE):
                await conversation.begin(protocol)
        except BaseException as error:
            await self._end(name)
            if isinstance(error, ConnectionLost | TimeoutError | TreatyError):
                return _failed(error)
            raise
        reply = await self._say(name, conversation, request.body, {"conversationId": name} if request.multiround else {})
        if not request.multiround:
            await self._end(name)
        return reply

    async def _say(self, name: str, conversation: _Conversation, body: str, more: Mapping[str, str]) -> HttpResponse:
        conversation.busy = True
        try:
            heard = await conversation.exchange(body.encode())
        except BaseException as error:
            # After a lost answer the next one would be taken for it.
            await self._end(name)
            if isinstance(error, ConnectionLost | TimeoutError | TreatyError):
                return _failed(error)
            raise
        finally:
            conversation.busy = False
            self._renew(name)
        return _said({"status": "success", "body": heard, **more})

    def _renew(self, name: str) -> None:
        conversation = self._open.get(name)
        if conversation is None:
            return
        if conversation.expiry is not None:
            conversation.expiry.cancel()
        loop = asyncio.get_running_loop()
        conversation.expiry = loop.call_later(EXPIRY, lambda: self._tasks.start(self._expire(name)))

    async def _expire(self, name: str) -> None:
        conversation = self._open.get(name)
        # A request that is under way renews it.
        if conversation is not None and not conversation.busy:
            await self._end(name)

    async def _end(self, name: str) -> None:
        conversation = self._open.pop(name, None)
        if conversation is not None:
            if conversation.expiry is not None:
                conversation.expiry.cancel()
            await conversation.connection.close()


def _parse(body: bytes) -> _Request:
    try:
        return msgspec.json.decode(body, type=_Request)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(ConnectionCode.REQUEST, "The body is no request of Agora: JSON with a text as `body`.") from error


def _said(value: Mapping[str, str]) -> HttpResponse:
    return HttpResponse(200, {"Content-Type": "application/json", "Cache-Control": "no-store"}, msgspec.json.encode(value))


def _failed(error: BaseException) -> HttpResponse:
    # Agora has one word for each failure after the request was understood.
    if isinstance(error, TreatyError):
        said = f"{error.code}: {error.message}"
    else:
        said = f"No message came within {PATIENCE} seconds." if isinstance(error, TimeoutError) else f"The session ended: {error}"
    return _said({"status": "error", "body": said})
