"""An agent that was written from the second source document alone: its own keys, JSON, WebSocket and negotiation, both roles.

It knows the printed messages and fields, and nothing else of Treaty. It passes over extensions, members and parameters that the
document does not show.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

HEADER = base64.urlsafe_b64encode(b'{"alg":"EdDSA","b64":false,"crit":["b64"]}').rstrip(b"=").decode()
SHARING, TRANSFER = "anp:protocol:data-sharing:1.0", "anp:protocol:basic-transfer:1.1"
PARAMETERS = {
    "maxMessageSize": 1048576,
    "compressionFormat": "gzip",
    "encryptionLevel": "AES-256-GCM",
    "streamingMode": "chunked",
    "chunkSize": 65536,
    "responseTimeout": 30000,
}
EXTENSIONS = {"priorityLevels": True, "deliveryGuarantee": "at-least-once"}
KNOWN = ("compressionFormat", "streamingMode", "chunkSize", "responseTimeout", "maxMessageSize")
QUERY = {"query": "SELECT * FROM dataset WHERE category='AI' LIMIT 100", "format": "json", "priority": "normal"}
CONTEXT = {"resourceAvailability": "medium", "connectionType": "intermittent", "preferences": ["accuracy", "completeness"]}
TASK = {"dataVolume": "large", "timeConstraint": "relaxed", "securityLevel": "standard"}
PATIENCE = 30.0
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Ended(Exception):
    """The other side closed the connection, with this reason."""


class WebSocket:
    """RFC 6455 over a stream, text alone. `masks`: the client's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, masks: bool) -> None:
        self._reader, self._writer, self._masks = reader, writer, masks

    async def send(self, text: str) -> None:
        await self._frame(0x1, text.encode())

    async def receive(self) -> str:
        """The next text. Raises `Ended`."""
        whole = b""
        while True:
            try:
                async with asyncio.timeout(PATIENCE):
                    final, kind, data = await self._read()
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise Ended("cut") from error
            if kind == 0x8:
                raise Ended(data[2:].decode())
            if kind == 0x9:
                await self._frame(0xA, data)
            if kind in (0x0, 0x1):
                whole += data
                if final:
                    return whole.decode()

    def cut(self) -> None:
        """End the connection without a word."""
        self._writer.transport.abort()

    async def close(self) -> None:
        if not self._writer.is_closing():
            await self._frame(0x8, (1000).to_bytes(2))
        self._writer.close()

    async def _frame(self, kind: int, data: bytes) -> None:
        size = len(data)
        length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2)
        assert size < 65536, "this peer writes short messages"
        mask = os.urandom(4) if self._masks else b""
        head = bytes([0x80 | kind, length[0] | (0x80 if mask else 0)]) + length[1:] + mask
        self._writer.write(head + (_masked(data, mask) if mask else data))
        await self._writer.drain()

    async def _read(self) -> tuple[bool, int, bytes]:
        first, second = await self._reader.readexactly(2)
        size = second & 0x7F
        if size > 125:
            size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8))
        mask = await self._reader.readexactly(4) if second & 0x80 else b""
        data = await self._reader.readexactly(size)
        return bool(first & 0x80), first & 0x0F, _masked(data, mask) if mask else data


def _masked(data: bytes, mask: bytes) -> bytes:
    return bytes(byte ^ key for byte, key in zip(data, itertools.cycle(mask), strict=False))


async def connect(port: int) -> WebSocket:
    """A WebSocket to a port of this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    key = base64.b64encode(os.urandom(16)).decode()
    lines = ("GET / HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade")
    writer.write("\r\n".join((*lines, f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", "")).encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 101"), answer
    return WebSocket(reader, writer, masks=True)


async def listen(serve: Callable[[WebSocket], Awaitable[None]]) -> asyncio.Server:
    """A server of WebSockets on a free port of this machine."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        pairs = (line.split(": ", 1) for line in request.split("\r\n")[1:] if ": " in line)
        headers = {name.lower(): value for name, value in pairs}
        assert headers["upgrade"] == "websocket"
        proof = base64.b64encode(hashlib.sha1((headers["sec-websocket-key"] + _GUID).encode()).digest()).decode()
        lines = ("HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade")
        writer.write("\r\n".join((*lines, f"Sec-WebSocket-Accept: {proof}", "", "")).encode())
        await serve(WebSocket(reader, writer, masks=False))

    return await asyncio.start_server(accept, "127.0.0.1", 0)


@dataclass
class SourcePeer:
    """One agent of the document. `theirs`: the other side's DID and key. `seen`: messages of both sides, `>` sent, `<` received.

    `protocols`: as in `supportedProtocols`. `refuses`: answers each parameter-negotiation by this payload of an error, if set.
    """

    their_did: str
    their_key: bytes
    protocols: list[dict[str, Any]] = field(default_factory=lambda: [describe(SHARING)])
    parameters: Mapping[str, Any] = field(default_factory=lambda: dict(PARAMETERS))
    refuses: dict[str, Any] | None = None
    did: str = ""
    clock: Callable[[datetime], str] = lambda moment: moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    queries: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        self._numbers = itertools.count(int(time.time()))
        self.did = self.did or did_key(self.public_key)

    @property
    def public_key(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    # Messages

    def message(self, action: str, payload: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        """A message without a signature, its members as the document prints them."""
        return {
            "type": "meta-protocol",
            "action": action,
            "messageId": f"msg-{next(self._numbers)}-abcde",
            "sender": self.did,
            "recipient": self.their_did,
            "timestamp": self.time(),
            "payload": dict(payload) if "type" in fields else {"version": "1.0", **payload},
            **fields,
        }

    def time(self, seconds: float = 0) -> str:
        return self.clock(datetime.now(UTC) + timedelta(seconds=seconds))

    def sealed(self, message: Mapping[str, Any]) -> str:
        """The text of a message with its signature."""
        signature = base64.urlsafe_b64encode(self._key.sign(_signed_part(message))).rstrip(b"=").decode()
        return json.dumps({**message, "signature": f"{HEADER}..{signature}"}, ensure_ascii=False, indent=2)

    async def send(self, socket: WebSocket, message: dict[str, Any]) -> dict[str, Any]:
        await socket.send(self.sealed(message))
        self.seen.append((">", message))
        return message

    async def say(self, socket: WebSocket, action: str, payload: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        return await self.send(socket, self.message(action, payload, **fields))

    async def hear(self, socket: WebSocket, action: str = "") -> dict[str, Any]:
        """The next message, verified. Raises `Ended`."""
        message: dict[str, Any] = json.loads(await socket.receive())
        header, _, signature = message["signature"].partition("..")
        assert header == HEADER
        content = _signed_part({name: value for name, value in message.items() if name != "signature"})
        Ed25519PublicKey.from_public_bytes(self.their_key).verify(base64.urlsafe_b64decode(signature + "=="), content)
        assert (message["sender"], message["recipient"]) == (self.their_did, self.did)
        self.seen.append(("<", message))
        assert action in ("", message["action"]), message
        return message

    def actions(self) -> list[str]:
        """What was said: direction and action, or type."""
        return [
            way + (message["action"] if message["type"] == "meta-protocol" else message["type"]) for way, message in self.seen
        ]

    # The initiator

    async def initialize(self, socket: WebSocket, **payload: Any) -> dict[str, Any]:
        return await self.say(socket, "initialize", {"purpose": "data-exchange", "requestCapabilities": True, **payload})

    async def full(self, socket: WebSocket) -> str:
        """Phases 1 to 6 for the best protocol. Returns the session's id."""
        first = await self.initialize(socket)
        messages = await self.hear(socket, "capabilities-exchange")
        assert messages["replyTo"] == first["messageId"]
        exchange = {"supportedProtocols": self.protocols, "contextInfo": CONTEXT, "taskRequirements": TASK}
        await self.say(socket, "capabilities-exchange", exchange, replyTo=messages["messageId"])
        own = {entry["id"] for entry in self.protocols}
        common = [entry for entry in messages["payload"]["supportedProtocols"] if entry["id"] in own]
        matched = [
            {
                "id": entry["id"],
                "compatibilityScore": 0.85,
                "capabilities": ["query", "stream"],
                "suitabilityForTask": 0.9,
                "rationale": "Both parties support data sharing with high throughput",
            }
            for entry in common
        ]
        metrics = {"taskAlignment": 0.88, "performanceEstimate": 0.82, "resourceEfficiency": 0.75}
        await self.say(socket, "protocol-evaluation", {"matchedProtocols": matched, "evaluationMetrics": metrics})
        await self.propose(socket, common[0]["id"])
        answer = await self.hear(socket, "protocol-response")
        assert answer["payload"]["acceptedProtocol"]["id"] == common[0]["id"]
        return await self.agree(socket, common[0]["id"])

    async def propose(self, socket: WebSocket, id: str, **fields: Any) -> dict[str, Any]:
        proposal = {
            "id": id,
            "version": id.rpartition(":")[2],
            "requiredCapabilities": ["query", "stream"],
            "optionalCapabilities": ["batch"],
            "rationale": "Best match for current data exchange requirements",
        }
        fallback = {
            "id": TRANSFER,
            "version": "1.1",
            "requiredCapabilities": ["send", "receive"],
            "rationale": "Fallback for minimal functionality",
        }
        return await self.say(socket, "protocol-proposal", {"proposedProtocol": proposal, "fallbackProtocol": fallback}, **fields)

    async def offer(self, socket: WebSocket, id: str, **fields: Any) -> dict[str, Any]:
        payload = {"protocol": id, "parameters": dict(self.parameters), "extensions": EXTENSIONS}
        return await self.say(socket, "parameter-negotiation", payload, **fields)

    async def agree(self, socket: WebSocket, id: str, session: str = "", **fields: Any) -> str:
        """Phases 5 and 6. Returns the session's id."""
        offered = await self.offer(socket, id, **fields)
        answer = await self.hear(socket, "parameter-response")
        assert answer["replyTo"] == offered["messageId"]
        return await self.confirm(socket, answer["payload"], session, **fields)

    async def confirm(self, socket: WebSocket, accepted: Mapping[str, Any], session: str = "", **fields: Any) -> str:
        session = session or f"session-xyz-{next(self._numbers)}"
        final = {
            "protocol": accepted["protocol"],
            "finalParameters": accepted["acceptedParameters"],
            "extensions": accepted.get("extensions", {}),
            "sessionId": session,
            "expiresAt": self.time(600),
        }
        confirmed = await self.say(socket, "protocol-confirmation", final, **fields)
        ready = await self.hear(socket, "confirmation-acknowledgment")
        assert (ready["payload"]["status"], ready["payload"]["sessionId"]) == ("ready", session)
        assert ready["replyTo"] == confirmed["messageId"]
        return session

    async def query(self, socket: WebSocket, session: str, type: str = "data-sharing") -> dict[str, Any]:
        """Phase 7: the printed message, and its answer's payload."""
        message = self.message("query", QUERY, type=type, sessionId=session)
        await self.send(socket, {**message, "messageId": f"ds-{next(self._numbers)}-abcde"})
        answer = await self.hear(socket)
        assert (answer["type"], answer["sessionId"]) == (type, session)
        payload: dict[str, Any] = answer["payload"]
        return payload

    # The responder

    async def serve(self, socket: WebSocket) -> None:
        """Answer until the other side ends."""
        try:
            while True:
                await self._answer(socket, await self.hear(socket))
        except Ended:
            pass

    async def _answer(self, socket: WebSocket, message: dict[str, Any]) -> None:
        payload, reply = message["payload"], {"replyTo": message["messageId"]}
        match message["action"]:
            case "initialize" if payload["requestCapabilities"]:
                capabilities = {"supportedProtocols": self.protocols, "contextInfo": CONTEXT}
                await self.say(socket, "capabilities-exchange", capabilities, **reply)
            case "protocol-proposal":
                proposal = payload["proposedProtocol"]
                accepted = {"id": proposal["id"], "version": proposal["version"]}
                accepted["providedCapabilities"] = ["query", "stream", "batch"]
                accepted["comments"] = "Can provide batch capability as optional enhancement"
                await self.say(socket, "protocol-response", {"response": "accept", "acceptedProtocol": accepted}, **reply)
            case "parameter-negotiation" if self.refuses is not None:
                await self.say(socket, "error", self.refuses, **reply)
            case "parameter-negotiation":
                parameters = {name: value for name, value in payload["parameters"].items() if name in KNOWN}
                parameters |= {name: 32768 for name in parameters if name == "chunkSize"}
                shared = {name: value for name, value in payload.get("extensions", {}).items() if name in EXTENSIONS}
                answer = {"protocol": payload["protocol"], "acceptedParameters": parameters, "extensions": shared}
                answer["comments"] = "Modified chunk size due to resource constraints and increased timeout"
                await self.say(socket, "parameter-response", answer, **reply)
            case "protocol-confirmation":
                ready = {"protocol": payload["protocol"], "status": "ready", "sessionId": payload["sessionId"]}
                await self.say(socket, "confirmation-acknowledgment", {**ready, "readyAt": self.time()}, **reply)
            case _ if message["type"] != "meta-protocol":
                self.queries.append(message)
                rows = {"rows": [{"category": "AI"}], "format": "json"}
                text = self.message(message["action"], rows, type=message["type"], sessionId=message["sessionId"])
                await self.send(socket, text)


def describe(id: str) -> dict[str, Any]:
    """An entry of `supportedProtocols`, as the document prints it."""
    return {
        "id": id,
        "version": id.rpartition(":")[2],
        "capabilities": ["query", "stream", "transform"],
        "preferenceScore": 0.8,
        "metrics": {"latency": "medium", "throughput": "high", "reliability": "high"},
    }


def did_key(key: bytes) -> str:
    """The did:key of a raw Ed25519 key."""
    number, text = int.from_bytes(b"\xed\x01" + key), ""
    while number:
        number, digit = divmod(number, 58)
        text = _ALPHABET[digit] + text
    return f"did:key:z{text}"


def _signed_part(message: Mapping[str, Any]) -> bytes:
    """HEADER "." and the message with sorted names and without spaces."""
    return f"{HEADER}.{json.dumps(message, sort_keys=True, separators=(',', ':'), ensure_ascii=False)}".encode()
