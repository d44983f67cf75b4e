"""Present an agent as an ASGI 3 application: WebSockets at any path, the HTTP binding, documents as `/.well-known/…`, and doors.

`listener` serves it on its own port. It can also be mounted in another application, below any path, with or without lifespan
events. It enforces its own limits under every server (docs/specification/transports.md, section 4). A request with an `Origin`
header opens no session: only browsers send it, and a web page must not use an agent of its user.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from email.utils import formatdate
from types import MappingProxyType
from typing import ClassVar, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, quote

import msgspec

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Conflict, Gone, Malformed, NotFound, Refused, TooLarge, TreatyError, Unauthorized, Unavailable
from treaty_io import tracing
from treaty_io.admission.byte_room import ByteRoom
from treaty_io.admission.message_turns import MessageTurns
from treaty_io.admission.rounds import Rounds
from treaty_io.asgi import Receive, Scope, Send
from treaty_io.codes import ConnectionCode, SessionCode
from treaty_io.line_limit import limited_logger
from treaty_io.network.turns import asker_at, asking_for

from .agora import CONVERSATIONS, Agora, AgoraProtocol
from .asgi_websocket import AsgiWebSocket
from .connection import Connection
from .http import MAX_BODY, MEDIA_TYPE, SESSIONS
from .http_server import HttpResponse, ServedSession, SessionGone, Sessions
from .memory import MemoryConnection
from .websocket import WebSocketConnection

# 2 MiB at 70 KiB/s. A body that drips holds memory, so it needs an end of its own.
BODY_TIMEOUT = 30
"""Seconds for a request's body to arrive."""
MAX_READING = 256 * 1024 * 1024
"""Bytes of all bodies of unfinished requests and answers together, a quarter of them for one network. Beyond it a request gets
503."""
ANY_NETWORK = 64
"""Connections that one network may have even if fewer places are left."""
PIECE = 64 * 1024
"""Bytes of an answer that the server gets in one event. It takes the next ones when the peer has read."""
MAX_QUERY = 512

_STATUSES: tuple[tuple[type[TreatyError], int, str], ...] = (
    (Malformed, 400, "Malformed input"),
    (TooLarge, 413, "Too large"),
    (Unauthorized, 401, "Not authentic"),
    (Conflict, 409, "In conflict with what stands"),
    (Refused, 403, "Refused by a rule"),
    (NotFound, 404, "Not found"),
    (Gone, 410, "Over"),
    (Unavailable, 503, "Unavailable for now"),
)
_log = limited_logger(__name__)

_Served: TypeAlias = WebSocketConnection | AsgiWebSocket | ServedSession | MemoryConnection

Authenticate = Callable[[str, str, Mapping[str, str], bytes], Awaitable[str]]
"""A function of method, target URI, headers (names in lower case) and body. It returns the proved DID, or "" for an accepted
request without a proof. It raises `TreatyError`, which is answered with 503 for `Unavailable` and with 401 otherwise."""


class StaticDocument(NamedTuple):
    """The answer to GET at a path. `cache_control`: for caches; readers then ask again with the ETag."""

    content_type: str
    body: bytes
    cache_control: str = "no-cache"

    @property
    def etag(self) -> str:
        """The strong entity tag: a hash of the body."""
        return f'"{hex_digest(self.body)[:32]}"'


class Intake:
    """Whether an agent takes new sessions, at all of its ports and applications. For one event loop. `is_closed`: for good."""

    def __init__(self) -> None:
        self.is_closed = False
        self._stops: list[Callable[[], None]] = []

    def open(self, stop: Callable[[], None]) -> None:
        """Note a port. `stop`: closes it, so that it accepts no further connections."""
        self._stops.append(stop)

    def forget(self, stop: Callable[[], None]) -> None:
        """Forget a port that is closed."""
        self._stops = [other for other in self._stops if other != stop]

    def close(self) -> None:
        """Take no further sessions. Open ones go on."""
        self.is_closed = True
        for stop in self._stops:
            stop()
        self._stops.clear()


class Door(ABC):
    """Answers POST requests at one path. `path`: below the root of the application. `card`, `description`: the members of its
    interface in the agent card and in the agent description, beside `url`; none without a place there."""

    path: ClassVar[str]
    card: ClassVar[Mapping[str, str]] = {}
    description: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    async def answer(self, application: Application, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Answer a request whose body is read. The application has counted it, and refused web pages. Raises `TreatyError` before
        the answer has begun."""

    @abstractmethod
    async def aclose(self) -> None:
        """End the work of earlier requests. Called when the application ends; safe to repeat."""


class Application:
    """The ASGI application of an agent. For one event loop. End it by `aclose`, or by the server's lifespan events."""

    def __init__(
        self,
        accept: Callable[[Connection], Awaitable[None]],
        *,
        max_connections: int,
        documents: Mapping[str, StaticDocument] = MappingProxyType({}),
        agora: Mapping[str, AgoraProtocol] = MappingProxyType({}),
        authenticate: Authenticate | None = None,
        challenge: Callable[[], Mapping[str, str]] = dict,
        intake: Intake | None = None,
        drain: Callable[[], Awaitable[None]] | None = None,
        doors: Sequence[Door] = (),
    ) -> None:
        """Start with no connection.

        `accept`: called for each connection, which is closed when it returns. `max_connections`: further ones get 503. So do
        those of a network that has as many as are left, so that one network gets at most half. `documents`: by path, and
        `agora`, the protocols by SHA-1 in base64: looked up anew for each request. `authenticate`: proves the sender of a
        request; without it, all requests are accepted unproved. `challenge`: returns the headers of a 401 answer. `intake`:
        when it is closed, new sessions get 503. `drain`: called before the end by the server's lifespan events.
        `doors`: other protocols, which are closed with the application.
        """
        self._doors = {door.path: door for door in doors}
        self._intake, self._drain = intake or Intake(), drain
        self._accept, self._max, self._documents, self._authenticate = accept, max_connections, documents, authenticate
        self._challenge = challenge
        self._connections: dict[_Served, asyncio.Future[None]] = {}
        self._of_network = Counter[str]()
        # A message is read in one iteration of the loop, handled in the next, and its effects may need another one.
        self._rounds = Rounds(iterations=3)
        self.sessions = Sessions(self)
        self.agora = Agora(self, agora)
        self._room = ByteRoom(MAX_READING)
        self._closed = False

    @property
    def reading(self) -> int:
        """The bytes of bodies and answers under way."""
        return self._room.held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        match scope["type"]:
            case "websocket":
                await self._websocket(scope, receive, send)
            case "http":
                await self._http(scope, receive, send)
            case "lifespan":
                await receive()
                await send({"type": "lifespan.startup.complete"})
                await receive()
                if self._drain is not None:
                    await self._drain()
                await self.aclose()
                await send({"type": "lifespan.shutdown.complete"})

    async def aclose(self) -> None:
        """Close all connections (1001) and wait until `accept` has returned for each. Later ones get 503. Sources over HTTP get
        a moment to fetch their last messages."""
        self._closed = True  # first: no connection may be accepted while the others close
        # Copies: each connection removes itself while the others close.
        over = list(self._connections.values())
        await asyncio.gather(*(connection.leave() for connection in list(self._connections)))
        if over:
            await asyncio.wait(over)  # which cancels none of them with its caller
        await self.sessions.deliver()
        await asyncio.gather(*(door.aclose() for door in self._doors.values()))

    def refusal(self, address: str | None) -> Unavailable | None:
        """Return the answer to a new session from an IP address, or None if it may open. None for the address: from any."""
        if self._closed or self._intake.is_closed:
            return Unavailable(ConnectionCode.BUSY, "This agent stops; try again in a moment.")
        free = self._max - len(self._connections)
        network = asker_at(address)
        # Without an address, as behind a Unix socket, nothing tells the peers apart.
        if free <= 0 or (network and self._of_network[network] >= max(free, ANY_NETWORK)):
            return Unavailable(ConnectionCode.BUSY, "This agent is busy; try again later.")
        return None

    def turns(self, address: str | None) -> MessageTurns:
        """Return the turns of the messages from an IP address."""
        return MessageTurns(self._rounds, asker_at(address))

    async def _serve(self, connection: _Served) -> None:
        if self._closed:  # `aclose` ran after the connection was made
            return await connection.leave()
        over = self._connections[connection] = asyncio.get_running_loop().create_future()
        network = asker_at(connection.address.rpartition(":")[0])
        self._of_network[network] += 1
        try:
            await self._accept(connection)
            await connection.close()
        except Exception:
            _log.exception("Serving %s failed", connection.address)
            await connection.close(SessionCode.INTERNAL)
        finally:
            del self._connections[connection]
            self._of_network[network] -= 1
            if not self._of_network[network]:
                del self._of_network[network]  # strangers choose their networks
            over.set_result(None)

    def refuse(self, headers: Mapping[str, str], address: str) -> HttpResponse | None:
        """Return the answer that refuses a WebSocket, or None. `headers`: by lower-case name. `address`: the peer's, or ""."""
        if "origin" in headers:
            return HttpResponse(403, {}, b"")
        refusal = self.refusal(address)
        if refusal is None:
            return None
        sayings = {"Content-Type": "text/plain; charset=utf-8", "Retry-After": "1"}
        return HttpResponse(503, sayings, f"{refusal.message}\n".encode())

    async def serve(self, connection: _Served, traceparent: str) -> None:
        """Serve a connection that was not refused, and close it. `traceparent`: of the request that opened it, or ""."""
        # The peer's trace is a claim. It decides nothing.
        with tracing.joined(traceparent):
            await self._serve(connection)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        address, headers = (scope.get("client") or ("", 0))[0], _headers(scope)
        turns = self.turns(address)
        await turns.take(0)
        refusal = self.refuse(headers, address)
        if refusal is None:
            await send({"type": "websocket.accept"})
            connection = AsgiWebSocket(scope, receive, send, turns)
            async with connection.pumping():
                await self.serve(connection, headers.get("traceparent", ""))
        elif refusal.status != 403 and "websocket.http.response" in (scope.get("extensions") or {}):
            raw = [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
            await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": raw})
            await send({"type": "websocket.http.response.body", "body": refusal.body})
        else:
            await send({"type": "websocket.close"})  # before it is accepted: 403

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Before any work for the request: with pipelining, each connection can bring one into every iteration.
        address = (scope.get("client") or ("", 0))[0]
        await self.turns(address).take(0)
        network = asker_at(address)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        with ExitStack() as admission:
            try:
                if (door := self._doors.get(path)) is not None and scope["method"] == "POST":
                    await self._enter(door, scope, receive, send, admission)
                    return
                reply = await self._answer(scope, path, receive, admission)
                # Answers count as well: peers that read slowly keep them in memory.
                self._hold(network, len(reply.body))
                admission.callback(self._room.give_back, network, len(reply.body))
            except TreatyError as error:
                reply = _refusal(error)
                if reply.status == 401:
                    reply = reply._replace(headers={**reply.headers, **self._challenge()})
            with suppress(OSError):  # the peer is gone
                await _say(reply, send, head=scope["method"] == "HEAD")

    def _hold(self, network: str, size: int) -> None:
        if not self._room.take(network, size):
            raise Unavailable(ConnectionCode.BUSY, "This agent is busy; try again later.")

    async def _answer(self, scope: Scope, path: str, receive: Receive, admission: ExitStack) -> HttpResponse:
        """Return the answer to a request. `admission` ends when the answer is sent."""
        method = scope["method"]
        if path == SESSIONS or path.startswith(f"{SESSIONS}/"):
            if method not in (("POST",) if path == SESSIONS else ("POST", "DELETE")):
                return _method_not_allowed("POST" if path == SESSIONS else "POST, DELETE")
            return await self._speak(scope, path, receive, admission)
        is_conversation = path.startswith(f"{CONVERSATIONS}/")
        if (path == "/" and method == "POST") or (is_conversation and method in ("POST", "DELETE")):
            return await self._converse(scope, path, receive)
        if is_conversation:
            return _method_not_allowed("POST, DELETE")
        if path in self._doors:
            return _method_not_allowed("POST")
        document = self._documents.get(path)
        if document is None:
            raise NotFound(ConnectionCode.PATH, "Nothing is served at this path.")
        if method not in ("GET", "HEAD"):
            return _method_not_allowed("GET, HEAD")
        headers = {"ETag": document.etag, "Cache-Control": document.cache_control}
        if _names(_headers(scope).get("if-none-match", ""), document.etag):
            return HttpResponse(304, headers, b"")
        return HttpResponse(200, {"Content-Type": document.content_type, **headers}, document.body)

    async def _enter(self, door: Door, scope: Scope, receive: Receive, send: Send, admission: ExitStack) -> None:
        """Let a door answer a request. `admission` ends after its answer."""
        if "origin" in _headers(scope):
            raise Refused(ConnectionCode.ORIGIN, "An agent accepts no requests from web pages.")
        address = (scope.get("client") or ("", 0))[0]
        network = asker_at(address)
        # Before the body: it costs memory.
        if (refusal := self.refusal(address)) is not None:
            raise refusal
        body = await self._read(receive, network)
        admission.callback(self._room.give_back, network, len(body))
        await self.turns(address).take(len(body))
        with suppress(OSError):  # the peer is gone
            await door.answer(self, scope, body, receive, send)

    async def _speak(self, scope: Scope, path: str, receive: Receive, admission: ExitStack) -> HttpResponse:
        """Answer a request of the HTTP binding."""
        headers = _own_headers(scope, MEDIA_TYPE)
        parameters = _parameters(scope)
        # Before the body: a request of a session that has too many costs no memory.
        admission.enter_context(self.sessions.admit(path, parameters))
        client = scope.get("client") or ("?", 0)
        network = asker_at(client[0])
        body = await self._read(receive, network)
        try:
            # The body is here already; only its signature and its messages wait. A signature costs as much as a heavy message.
            await self.turns(client[0]).take(len(body))
            # After the body, because the signature covers its digest.
            peer = await self._prove(scope, headers, body)
            address = f"{client[0]}:{client[1]}"
            reply = await self.sessions.answer(scope["method"], path, parameters, body, address=address, peer=peer)
        finally:
            self._room.give_back(network, len(body))
        if "Location" in reply.headers:
            return reply._replace(headers={**reply.headers, "Location": scope.get("root_path", "") + reply.headers["Location"]})
        return reply

    async def _converse(self, scope: Scope, path: str, receive: Receive) -> HttpResponse:
        """Answer a request of Agora."""
        headers = _own_headers(scope, "application/json")
        client = scope.get("client") or ("?", 0)
        network = asker_at(client[0])
        # Before the body: a request of a network that has its sessions costs no memory.
        if path == "/" and (refusal := self.refusal(client[0])) is not None:
            raise refusal
        body = await self._read(receive, network)
        try:
            await self.turns(client[0]).take(len(body))
            # Agora has no proofs. A caller without one is as unproved as the source of a Hello over a WebSocket.
            is_signed = "signature" in headers or "authorization" in headers
            peer = await self._prove(scope, headers, body) if is_signed else ""
            return await self.agora.answer(scope["method"], path, body, address=f"{client[0]}:{client[1]}", peer=peer)
        finally:
            self._room.give_back(network, len(body))

    async def _read(self, receive: Receive, network: str) -> bytes:
        """Read the body of a request from a network. The caller gives its room back later.

        Raises `TooLarge` (`connection.too-large`), `Unavailable` (`connection.busy`); then no room is left to
        give back.
        """
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                while True:
                    event = await receive()
                    if event["type"] != "http.request":
                        raise Unavailable(ConnectionCode.BUSY, "The request was given up.")
                    self._hold(network, len(event.get("body", b"")))
                    body += event.get("body", b"")
                    if len(body) > MAX_BODY:
                        raise TooLarge(ConnectionCode.TOO_LARGE, f"A body has at most {MAX_BODY} bytes.")
                    if not event.get("more_body", False):
                        return bytes(body)
        except TimeoutError as error:
            self._room.give_back(network, len(body))
            raise Unavailable(ConnectionCode.BUSY, f"The request took longer than {BODY_TIMEOUT} s to arrive.") from error
        except BaseException:
            self._room.give_back(network, len(body))
            raise

    async def _prove(self, scope: Scope, headers: Mapping[str, str], body: bytes) -> str:
        if self._authenticate is None:
            return ""
        try:
            target = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("ascii")
            query = scope["query_string"].decode("ascii")
        except UnicodeDecodeError as error:
            raise Malformed(ConnectionCode.REQUEST, "The target of a request is ASCII.") from error
        uri = f"{scope['scheme']}://{headers.get('host', '')}{target}{'?' if query else ''}{query}"
        try:
            with asking_for((scope.get("client") or (None, 0))[0]):  # the check may fetch a document, at the client's expense
                return await self._authenticate(scope["method"], uri, headers, body)
        except (Unavailable, Unauthorized):
            raise
        except TreatyError as error:
            raise Unauthorized(error.code, error.message, fix=error.fix) from error


async def _say(reply: HttpResponse, send: Send, *, head: bool) -> None:
    """Send an answer, or only its head, in pieces, as fast as the peer reads it."""
    headers = {**reply.headers, "Content-Length": str(len(reply.body)), "X-Content-Type-Options": "nosniff"}
    if reply.status in (204, 304):  # these have no body, and a length would be that of another answer (RFC 9110 section 8.6)
        del headers["Content-Length"]
    raw = [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": raw})
    body = b"" if head else reply.body
    for start in range(0, max(len(body), 1), PIECE):
        more = start + PIECE < len(body)
        await send({"type": "http.response.body", "body": body[start : start + PIECE], "more_body": more})


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers, with those of one name joined (RFC 9110 section 5.3)."""
    joined: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def _own_headers(scope: Scope, media_type: str) -> dict[str, str]:
    """Return the headers of a request whose body has this type. Raises `Refused` for one of a web page, and `Malformed`."""
    headers = _headers(scope)
    if "origin" in headers:
        raise Refused(ConnectionCode.ORIGIN, "An agent accepts no requests from web pages.")
    # A web page can send other types without a question of its browser.
    if scope["method"] == "POST" and headers.get("content-type", "").partition(";")[0].strip() != media_type:
        raise Malformed(ConnectionCode.REQUEST, f"The Content-Type of the body must be {media_type}.")
    return headers


def _names(if_none_match: str, etag: str) -> bool:
    """Return whether an If-None-Match header names a tag. The comparison is the weak one (RFC 9110 section 13.1.2)."""
    return if_none_match.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in if_none_match.split(","))


def _parameters(scope: Scope) -> dict[str, str]:
    raw = scope["query_string"]
    # The server bounds the head alone; parsing a query of 16 KiB costs more than all the rest.
    if len(raw) > MAX_QUERY:
        raise TooLarge(ConnectionCode.TOO_LARGE, f"A query has at most {MAX_QUERY} bytes.")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=4) if raw else []
    except ValueError as error:
        raise Malformed(ConnectionCode.REQUEST, "The query of the request does not parse.") from error
    if len(dict(pairs)) != len(pairs):
        raise Malformed(ConnectionCode.REQUEST, "A parameter of the request occurs twice.")
    return dict(pairs)


def _refusal(error: TreatyError) -> HttpResponse:
    status, title = next((status, title) for family, status, title in _STATUSES if isinstance(error, family))
    problem: dict[str, object] = {
        "type": f"urn:treaty:problem:{error.code}",
        "title": title,
        "status": status,
        "code": error.code,
        "detail": error.message,
        "family": error.family,
        "retryable": error.retryable,
    }
    problem |= {"fix": error.fix} if error.fix else {}
    problem |= {"reason": error.reason} if isinstance(error, SessionGone) else {}
    headers = {"Content-Type": "application/problem+json", "Cache-Control": "no-store"}
    headers |= {"Retry-After": "1"} if status == 503 else {}
    # By it the client measures how far its clock is off: most refused signatures are too old or too new.
    headers |= {"Date": formatdate(usegmt=True)} if status == 401 else {}
    return HttpResponse(status, headers, msgspec.json.encode(problem))


def _method_not_allowed(allowed: str) -> HttpResponse:
    return HttpResponse(405, {"Allow": allowed}, b"")
