"""A session with a foreign peer under test: the Hello profile over WebSockets, without a handler (`treaty conform`)."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import suppress
from typing import Any

from websockets.asyncio.client import connect

from treaty_anp.frame import MAX_FRAME
from treaty_io.conformance import PeerUnderTest
from treaty_io.identity import Identity

QUIET = 0.5
"""Seconds in which a message that must not come would come."""
# A peer that does not end its connection, or reads nothing, does not hold up the run.
SOCKET: dict[str, Any] = {"max_size": MAX_FRAME, "compression": None, "close_timeout": 0.5}
_META, _APPLICATION = b"\x00", b"\x40"
_GENERATED = _META + json.dumps({"action": "codeGeneration", "status": "generated"}).encode()


def _hello(kind: str, session: str, **agreed: Any) -> str:
    name = uuid.uuid4().hex
    # A shared session tells its members apart by the DIDs that they claim.
    ids = {"messageId": name, "random": name, "sessionId": session, "sourceDid": Identity.create().did}
    meta = {"version": "1.0", "supportedCapabilities": [], **agreed}
    return json.dumps({"version": "1.0", "type": kind, **ids, "metaProtocol": meta})


def _object(data: str | bytes) -> dict[str, Any]:
    """Return the object of a Hello or a frame; {} for anything else."""
    with suppress(ValueError, RecursionError):
        value = json.loads(data[1:] if isinstance(data, bytes) and not data.startswith(b"{") else data)
        return value if isinstance(value, dict) else {}
    return {}


def foreign_socket(url: str) -> Any:
    """Return the context manager of a WebSocket to a peer."""
    return connect(url, **SOCKET)


def new_name() -> str:
    """Return a name that no one has."""
    return f"conform-{uuid.uuid4().hex[:12]}"


class ForeignSession:
    """A session with a foreign peer: JSON messages in frames of the application."""

    def __init__(self, peer: PeerUnderTest, socket: Any) -> None:
        self._peer, self._socket = peer, socket
        self.heard: list[dict[str, Any]] = []
        self.rounds: list[int] = []
        self.is_idle = True

    async def greet(self, uri: str, role: str) -> None:
        """Be the source of a session for a protocol. Raises `Broken` where the peer does not agree."""
        await self._socket.send(_hello("sourceHello", new_name(), candidateProtocols=[uri], candidateRoles={uri: role}))
        agreed = _object(await self._socket.recv()).get("metaProtocol")
        self._peer.expect(isinstance(agreed, dict) and agreed.get("selectedProtocol") == uri, f"The peer does not select {uri}.")
        await self._generated()

    async def welcome(self, role: str) -> None:
        """Be the destination of a session: agree on the first protocol, or the hash, that the peer offers."""
        hello = _object(await self._socket.recv())
        offered: Any = hello.get("metaProtocol", {})
        (uri, *_) = offered.get("candidateProtocols") or [""]
        peer_role = offered.get("candidateRoles", {}).get(uri, "")
        choice = {"selectedProtocol": uri} if uri else {"usedProtocolHash": offered.get("usedProtocolHash")}
        agreed = {**choice, "role": role, **({"peerRole": peer_role} if peer_role else {})}
        await self._socket.send(_hello("destinationHello", str(hello.get("sessionId") or new_name()), **agreed))
        if uri:
            await self._generated()

    async def _generated(self) -> None:
        await self._socket.send(_GENERATED)
        while _object(await self._socket.recv()).get("action") != "codeGeneration":
            pass

    async def say(self, message: Any) -> None:
        """Send a message; bytes as they are."""
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self._peer.sent = f"{self._peer.sent}{data.decode(errors='replace')}\n"[-4_000:]
        await self.send_bytes(data)

    async def send_bytes(self, data: bytes) -> None:
        """Send the bytes of a message, without evidence."""
        await self._socket.send(_APPLICATION + data)

    async def hear_bytes(self) -> bytes:
        """Return the bytes of the next message of the application."""
        while isinstance(data := await self._socket.recv(), str) or data[:1] != _APPLICATION:
            pass
        return bytes(data[1:])

    async def hear(self) -> dict[str, Any]:
        """Return the next message. A round is answered, unless this side is not idle."""
        data = await self.hear_bytes()
        message = _object(data)
        self._peer.came = f"{self._peer.came}{data.decode(errors='replace')}\n"[-4_000:]
        self.heard = [*self.heard, message][-1_000:]
        if message.get("type") == "run":
            self.rounds.append(message.get("round", 0))
            if self.is_idle:
                await self.say({"type": "state", "round": message.get("round", 0), "idle": True, "error": ""})
        return message

    async def request(self, **request: Any) -> dict[str, Any]:
        """Send a request with an id, and return its answer."""
        name = new_name()
        await self.say({"id": name, **request})
        while (answer := await self.hear()).get("id") != name:
            pass
        return answer

    async def close(self) -> None:
        """End the session."""
        await self._socket.close()

    async def quiet(self) -> list[dict[str, Any]]:
        """Return all that comes until nothing comes for a while."""
        before = len(self.heard)
        with suppress(TimeoutError):
            while True:
                await asyncio.wait_for(self.hear(), QUIET)
        return self.heard[before:]

    async def given(self, name: str) -> bool:
        """Whether the message with this id came."""
        await self.quiet()
        return any(each.get("type") == "message" and each["message"].get("id") == name for each in self.heard)
