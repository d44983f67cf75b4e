"""An agent that was written from the text of the source specification alone. It knows nothing of Treaty.

It has its own frames, its own JSON and its own reading of each rule; its messages are those that the source prints
(`tests/vectors/hello`). A WebSocket carries them, as the source leaves the transport open. Its Hellos have only the members that
the source prints. It imports no module of Treaty.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

PRINTED = Path(__file__).parents[1] / "vectors" / "hello"
META, APPLICATION, NATURAL, VERIFICATION = 0, 1, 2, 3
PATIENCE = 20.0
"""Seconds for a message of the other side, before the test fails."""


def printed(name: str) -> str:
    """A text that the source prints."""
    return (PRINTED / name).read_text(encoding="utf-8")


def printed_json(name: str) -> dict[str, Any]:
    """A JSON object that the source prints."""
    value: dict[str, Any] = json.loads(printed(name))
    return value


def hello(name: str, *capabilities: str, **changes: Any) -> dict[str, Any]:
    """A Hello that the source prints, with these of its capabilities, and other members of `metaProtocol`."""
    value = printed_json(name)
    hello_names = ("protocolHash", "usedProtocolHash", "candidateProtocols", "selectedProtocol")
    meta = {key: item for key, item in value["metaProtocol"].items() if key not in hello_names or key in changes}
    items = [item for item in meta["supportedCapabilities"] if item in capabilities]
    return {**value, "metaProtocol": {**meta, "supportedCapabilities": items, **changes}}


def protocol_hash(text: str) -> str:
    """The hash of an agreed text, as the source computes it."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


class Closed(Exception):
    """The other side closed the connection."""


class SourcePeer:
    """One connection. Messages that are not asked for wait in their order."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._kept: list[tuple[int, bytes]] = []
        self.peers_hello: dict[str, Any] = {}

    # Out

    async def say_hello(self, value: dict[str, Any], *, binary: bool = False) -> None:
        """Send a Hello."""
        text = json.dumps(value, indent=2, ensure_ascii=False)
        await self._socket.send(text.encode() if binary else text)

    async def send(self, type: int, payload: bytes) -> None:
        """Send a message after the Hellos: one byte of header, and the data."""
        await self._socket.send(bytes([type << 6]) + payload)

    async def say(self, name: str, **fields: Any) -> None:
        """Send a meta message: a printed one, with these values in it. None leaves a member out."""
        value = {**printed_json(name), **fields}
        members = {key: item for key, item in value.items() if item is not None}
        await self.send(META, json.dumps(members, indent=4, ensure_ascii=False).encode())

    async def propose(self, number: Any, text: str, summary: str | None = None, **more: Any) -> None:
        """Propose a protocol."""
        await self.say(
            "01-protocol-negotiation.json", sequenceId=number, candidateProtocols=text, modificationSummary=summary, **more
        )

    async def verdict(self, number: int, status: str, text: str | None = None, reason: str | None = None) -> None:
        """Accept or reject a protocol."""
        await self.propose(number, text, reason, status=status)  # type: ignore[arg-type]

    async def generated(self) -> None:
        """Say that the code is ready."""
        await self.say("05-code-generation.json")

    async def request(self, message_id: str, product: str, type: int = APPLICATION) -> dict[str, Any]:
        """Send a request of the printed protocol, and return its response."""
        value = {"messageId": message_id, "type": "REQUEST", "action": "getProductInfo", "productId": product}
        await self.send(type, json.dumps(value).encode())
        answer: dict[str, Any] = json.loads(await self.expect(type))
        assert (answer["messageId"], answer["type"]) == (message_id, "RESPONSE")
        return answer

    # In

    async def receive_hello(self) -> dict[str, Any]:
        """Receive a Hello."""
        message = await self._receive()
        assert isinstance(message, str), "a Hello has no header byte"
        self.peers_hello = json.loads(message)
        return self.peers_hello

    async def expect(self, type: int) -> bytes:
        """Return the payload of the next message of a type. Raises `Closed`."""
        while True:
            for place, (kind, payload) in enumerate(self._kept):
                if kind == type:
                    del self._kept[place]
                    return payload
            message = await self._receive()
            assert isinstance(message, bytes), "after the Hellos each message has a header byte"
            self._kept.append((message[0] >> 6, message[1:]))

    async def meta(self, action: str = "") -> dict[str, Any]:
        """Return the next meta message, which must be of this action."""
        value: dict[str, Any] = json.loads(await self.expect(META))
        assert action in ("", value["action"]), value
        return value

    async def last_words(self) -> dict[str, Any]:
        """Return the last meta message before the other side closes."""
        last: dict[str, Any] = {}
        try:
            while True:
                last = await self.meta()
        except Closed:
            return last

    def forget_early(self) -> None:
        """Drop application messages that came too early: the hash that they rely on was not confirmed."""
        self._kept = [(kind, payload) for kind, payload in self._kept if kind != APPLICATION]

    async def _receive(self) -> str | bytes:
        try:
            message: str | bytes = await asyncio.wait_for(self._socket.recv(), PATIENCE)
        except ConnectionClosed as error:
            raise Closed(str(error)) from error
        return message


@asynccontextmanager
async def requester(url: str) -> AsyncIterator[SourcePeer]:
    """A peer that connects to another agent."""
    async with connect(url) as socket:
        yield SourcePeer(socket)


class Provider:
    """A peer to which others connect. `script`: what it does in each connection. `failures`: what went wrong in it."""

    def __init__(self, script: Callable[[SourcePeer], Any]) -> None:
        self._script = script
        self.failures: list[BaseException] = []
        self.done = asyncio.Event()

    async def handle(self, socket: ServerConnection) -> None:
        """Follow the script in one connection."""
        try:
            await self._script(SourcePeer(socket))
        except Closed:
            pass
        except BaseException as error:
            self.failures.append(error)
            raise
        finally:
            self.done.set()


@asynccontextmanager
async def provider(script: Callable[[SourcePeer], Any]) -> AsyncIterator[str]:
    """A peer that serves on loopback; yields its URL. Fails with the first failure of the script."""
    serving = Provider(script)
    async with serve(serving.handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"ws://127.0.0.1:{port}"
        await asyncio.wait_for(serving.done.wait(), PATIENCE)
    if serving.failures:
        raise serving.failures[0]
