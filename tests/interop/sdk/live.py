"""Runs inside the environment of the official SDK: an agent of the SDK that meets another one over a real network.

The SDK's `MetaProtocol` negotiates, and writes and announces its code; it has no transport, no Hello and no loader of the code
that it wrote. `Bridge` adds these three and nothing else, from the text of the ANP meta-protocol:

    a transport    WebSocket messages, or the bodies of the HTTP binding; over HTTP the SDK itself signs and verifies requests
    the Hello      one message each way, with the mandatory fields and no capability
    frames         PT 00 goes to `MetaProtocol`, PT 01 to the class that the SDK wrote; others are dropped

In, a line each: a call of `request`, `provide` or `outcome`. Out: one answer each.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import secrets
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import aiohttp  # type: ignore[import-not-found]
from aiohttp import web
from anp.authentication import DIDWbaAuthHeader, did_wba_verifier  # type: ignore[import-not-found]
from anp.meta_protocol import MetaProtocol  # type: ignore[import-not-found]

sys.path.insert(0, str(Path(__file__).parent))
from authentication import VERIFIER
from negotiation import OUT, ScriptedModel, capability

logging.disable(logging.CRITICAL)
MEDIA_TYPE = "application/vnd.treaty.messages.v1"
SESSIONS = "/anp/v1/sessions"
Message = str | bytes


class Link(Protocol):
    """A connection that carries whole messages."""

    async def send(self, message: Message) -> None: ...
    async def receive(self) -> Message: ...


class WebSocketLink:
    """A WebSocket, of a client or of a server."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    async def send(self, message: Message) -> None:
        """Send a text or binary message."""
        await (self._socket.send_str(message) if isinstance(message, str) else self._socket.send_bytes(message))

    async def receive(self) -> Message:
        """The next message. Raises ConnectionError at the end, with the reason that the peer gave."""
        event = await self._socket.receive()
        if event.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            raise ConnectionError(str(event.extra or event.data))
        data: Message = event.data
        return data


class HttpLink:
    """The source's end of the HTTP binding: one request sends while another is held for what comes. The SDK signs both."""

    def __init__(self, client: aiohttp.ClientSession, base: str, auth: DIDWbaAuthHeader) -> None:
        self._client, self._base, self._auth = client, base, auth
        self._url, self._sent, self._received = "", 0, 0
        self._inbox: list[Message] = []
        self._sending = asyncio.Lock()

    async def send(self, message: Message) -> None:
        """Send a message; what the answer brings waits for `receive`."""
        async with self._sending:
            await self._exchange(encode([message]), 1)

    async def receive(self) -> Message:
        """The next message. Raises ConnectionError at the end."""
        while not self._inbox:
            await self._exchange(b"", 0)
            await asyncio.sleep(0.01)
        return self._inbox.pop(0)

    async def _exchange(self, body: bytes, count: int) -> None:
        url = f"{self._base}{SESSIONS}?key={secrets.token_urlsafe(24)}"
        if self._url:
            url = f"{self._url}?sequence={self._sent}&acknowledge={self._received}"
        headers = self._auth.get_auth_header(url, method="POST", body=body) | {"Content-Type": MEDIA_TYPE}
        self._sent += count
        async with self._client.post(url, data=body, headers=headers) as answer:
            data = await answer.read()
            if answer.status not in (200, 201):
                raise ConnectionError(f"{answer.status} {data.decode()}")
            self._url = self._url or self._base + answer.headers["Location"]
            messages = decode(data)[self._received - int(answer.headers["Anp-Sequence"]) :]
            self._received += len(messages)
            self._inbox += messages


class HttpSession:
    """The destination's end of one session of the HTTP binding."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.taken, self.first = 0, 0
        self.outbox: list[Message] = []
        self.changed = asyncio.Event()

    async def send(self, message: Message) -> None:
        """Keep a message for the answer to a request."""
        self.outbox.append(message)
        self.changed.set()

    async def receive(self) -> Message:
        """The next message."""
        return await self.inbox.get()

    async def answer(self, sequence: int, acknowledged: int, messages: list[Message]) -> web.Response:
        """Take the new messages, and answer with what is to be sent; wait a second for it."""
        for number, message in enumerate(messages, start=sequence):
            if number == self.taken:
                self.taken += 1
                self.inbox.put_nowait(message)
        del self.outbox[: max(0, acknowledged - self.first)]
        self.first = max(self.first, acknowledged)
        if not self.outbox:
            self.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), 1)
        headers = {"Anp-Sequence": str(self.first), "Anp-Acknowledge": str(self.taken), "Content-Type": MEDIA_TYPE}
        return web.Response(body=encode(self.outbox), headers=headers)


class Bridge:
    """One negotiation of the SDK over a link, and then the protocol that was agreed on."""

    def __init__(self, link: Link, did: str, answers: list[dict[str, Any]]) -> None:
        self._link, self._did = link, did
        self._protocol = MetaProtocol(self._meta, capability, ScriptedModel(answers), tempfile.mkdtemp())
        self._spoken: Any = None
        self.seen: list[Any] = []

    async def request(self, product: str) -> dict[str, Any]:
        """Be the source: negotiate, and call once by the SDK's own code."""
        await self._link.send(self._hello("sourceHello", secrets.token_hex(16), ""))
        json.loads(await self._link.receive())
        began = time.monotonic()
        pump = asyncio.create_task(self._pump())
        agreed, module = await self._protocol.negotiate_protocol("Get a product by its id.", "a product id", "the product")
        outcome: dict[str, Any] = {"agreed": agreed, "seconds": time.monotonic() - began, "result": None}
        if agreed:
            self._spoken = load(module, "requester").ProductRequester()
            self._spoken.set_send_callback(self._application)
            await self._protocol.notify_code_generation()
            outcome["peer_generated"] = await self._protocol.wait_for_code_generation()
            outcome["result"] = await asyncio.wait_for(self._spoken.send_request({"productId": product}), 20)
        pump.cancel()
        return outcome | {"seen": self.seen}

    async def provide(self, product: dict[str, Any]) -> dict[str, Any]:
        """Be the destination: wait for proposals, and answer calls by the SDK's own code until the peer leaves."""
        self._product = product
        hello = json.loads(await self._link.receive())
        await self._link.send(self._hello("destinationHello", hello["sessionId"], hello["sourceDid"]))
        began = time.monotonic()
        waiting = asyncio.create_task(self._protocol.wait_remote_negotiation())
        await asyncio.sleep(0)  # until it waits: it drops what came before
        pump = asyncio.create_task(self._pump())
        agreed, module = await waiting
        outcome: dict[str, Any] = {"agreed": agreed, "seconds": time.monotonic() - began}
        if agreed:
            self._spoken = load(module, "provider").ProductProvider()
            self._spoken.set_send_callback(self._application)
            self._spoken.set_protocol_callback(self._look_up)
            await self._protocol.notify_code_generation()
            outcome["peer_generated"] = await self._protocol.wait_for_code_generation()
            await asyncio.wait([pump], timeout=20)
        pump.cancel()
        return outcome | {"seen": self.seen}

    def _hello(self, kind: str, session: str, to: str) -> str:
        meta = {"version": "1.0", "supportedCapabilities": []}
        ids = {"messageId": secrets.token_hex(16), "sessionId": session, "sourceDid": self._did, "destinationDid": to}
        return json.dumps({"version": "1.0", "type": kind, **ids, "random": secrets.token_hex(16), "metaProtocol": meta})

    async def _look_up(self, request: dict[str, Any]) -> dict[str, Any]:
        """The provider's business."""
        if request["productId"] != self._product["productId"]:
            return {"code": 404, "message": "There is no such product."}
        return {"code": 200, "message": "Success", "productInfo": self._product}

    async def _meta(self, data: bytes) -> None:
        """Send a frame of the SDK's. It answers a rejection by another one, when the session may be over."""
        with contextlib.suppress(ConnectionError):
            await self._link.send(data)

    async def _application(self, data: bytes) -> None:
        await self._link.send(b"\x40" + data)

    async def _pump(self) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                frame = await self._link.receive()
                assert isinstance(frame, bytes)
                if frame[0] >> 6 == 0:
                    data = json.loads(frame[1:])
                    self.seen.append([data["action"], data.get("status"), data.get("modificationSummary", "")])
                    self._protocol.handle_meta_data(frame)
                elif frame[0] >> 6 == 1:
                    await self._spoken.handle_message(frame[1:])


def load(module: str, name: str) -> Any:
    """The file that the SDK wrote, as a module; the SDK has no loader."""
    spec = importlib.util.spec_from_file_location(f"written_{name}", Path(module) / f"{name}.py")
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def encode(messages: list[Message]) -> bytes:
    """A body of the HTTP binding."""
    body = b""
    for message in messages:
        data = message.encode() if isinstance(message, str) else message
        body += (len(data) | (isinstance(message, str) << 31)).to_bytes(4, "big") + data
    return body


def decode(body: bytes) -> list[Message]:
    """The messages of a body."""
    messages: list[Message] = []
    while body:
        head = int.from_bytes(body[:4], "big")
        size = head & 0x7FFFFFFF
        data, body = body[4 : 4 + size], body[4 + size :]
        messages.append(data.decode() if head >> 31 else data)
    return messages


def signer(document: dict[str, Any], key: str, mode: str = "http_signatures") -> DIDWbaAuthHeader:
    """The SDK's signer of requests; it reads its keys from files."""
    folder = Path(tempfile.mkdtemp())
    (folder / "did.json").write_text(json.dumps(document))
    (folder / "key.pem").write_text(key)
    return DIDWbaAuthHeader(str(folder / "did.json"), str(folder / "key.pem"), auth_mode=mode)


async def request(
    url: str, document: dict[str, Any], key: str, answers: list[dict[str, Any]], product: str, mode: str = "http_signatures"
) -> dict[str, Any]:
    """Be the requester of an agent at a ws: or http: URL."""
    async with aiohttp.ClientSession() as client:
        if url.startswith("http"):
            return await Bridge(HttpLink(client, url, signer(document, key, mode)), document["id"], answers).request(product)
        async with client.ws_connect(url) as socket:
            return await Bridge(WebSocketLink(socket), document["id"], answers).request(product)


OUTCOMES: asyncio.Queue[dict[str, Any]] = asyncio.Queue()


async def provide(did: str, answers: list[dict[str, Any]], peer: dict[str, Any], product: dict[str, Any]) -> int:
    """Be a provider over WebSocket and HTTP, for one session; its port. `peer`: the DID document of the requester, which the
    SDK's verifier gets instead of fetching it. `product`: the one that it sells."""
    sessions: dict[str, HttpSession] = {}
    proved: list[str] = []

    fetched = did_wba_verifier.resolve_did_wba_document

    async def resolve(asked: str) -> dict[str, Any]:
        if asked == peer.get("id"):
            return peer
        document: dict[str, Any] = await fetched(asked)
        return document

    did_wba_verifier.resolve_did_wba_document = resolve

    async def run(link: Link) -> None:
        outcome = await Bridge(link, did, answers).provide(product)
        OUTCOMES.put_nowait(outcome | {"proved": sorted(set(proved))})

    async def upgrade(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await run(WebSocketLink(socket))
        await socket.close()
        return socket

    async def verified(request: web.Request) -> bytes:
        body: bytes = await request.read()
        try:
            result = await VERIFIER.verify_request(request.method, str(request.url), dict(request.headers), body)
        except did_wba_verifier.DidWbaVerifierError as error:
            refusal = {401: web.HTTPUnauthorized, 403: web.HTTPForbidden}.get(error.status_code, web.HTTPInternalServerError)
            raise refusal(text=str(error)) from error
        proved.append(result["did"])
        return body

    async def opened(request: web.Request) -> web.Response:
        body = await verified(request)
        session = sessions[request.query["key"]] = HttpSession()
        TASKS.append(asyncio.create_task(run(session)))
        answer = await session.answer(0, 0, decode(body))
        answer.set_status(201)
        answer.headers["Location"] = f"{SESSIONS}/{request.query['key']}"
        return answer

    async def continued(request: web.Request) -> web.Response:
        body = await verified(request)
        numbers = int(request.query["sequence"]), int(request.query["acknowledge"])
        return await sessions[request.match_info["id"]].answer(*numbers, decode(body))

    async def ended(request: web.Request) -> web.Response:
        await verified(request)
        sessions[request.match_info["id"]].inbox.put_nowait("")  # no frame: the pump ends
        return web.Response(status=204)

    application = web.Application()
    application.add_routes(
        [
            web.get("/", upgrade),
            web.post(SESSIONS, opened),
            web.post(SESSIONS + "/{id}", continued),
            web.delete(SESSIONS + "/{id}", ended),
        ]
    )
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    RUNNERS.append(runner)
    port: int = runner.addresses[0][1]
    return port


TASKS: list[asyncio.Task[None]] = []
RUNNERS: list[web.AppRunner] = []


async def outcome() -> dict[str, Any]:
    """How the session of the provider went, once it is over."""
    result = await asyncio.wait_for(OUTCOMES.get(), 90)
    while RUNNERS:
        await RUNNERS.pop().cleanup()
    return result


FUNCTIONS: dict[str, Callable[..., Awaitable[Any]]] = {function.__name__: function for function in (request, provide, outcome)}


async def main() -> None:
    """One call after the other."""
    reader = asyncio.StreamReader(limit=1 << 22)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        order = json.loads(line)
        try:
            answer = {"result": await FUNCTIONS[order["call"]](**order["arguments"])}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=OUT, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
