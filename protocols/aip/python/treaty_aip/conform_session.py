"""A channel of gRPC's form in a session of the Hello profile: a frame for each message of a call (`treaty conform aip ws://…`)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from treaty_agent.transport.foreign_session import ForeignSession, foreign_socket
from treaty_io.conformance import Foreign
from treaty_io.extras import naming_extras

from .handler.frames import Frame, pack, unpack

with naming_extras("aip"):
    import grpc

_MAX_WAITING = 100
"""Answers that wait for an item: a peer that floods fills nothing."""


class SessionChannel:
    """The calls of this side in one session. It has the methods of `grpc.aio.Channel` that the items use."""

    def __init__(self, session: ForeignSession) -> None:
        self._session = session
        self._calls: dict[str, SessionCall] = {}
        self._numbers = itertools.count(1)

    def stream_stream(self, path: str, write: Callable[[Any], bytes], read: Callable[[bytes], Any]) -> Callable[[], SessionCall]:
        """Return the function that begins a call with streams in both directions."""
        return lambda: self._begin(path, write, read)

    def unary_unary(self, path: str, write: Callable[[Any], bytes], read: Callable[[bytes], Any]) -> Callable[[Any], Any]:
        """Return the function that makes a call with one answer, to be awaited."""

        async def ask(request: Any) -> Any:
            call = self._begin(path, write, read)
            await call.write(request)
            answer = await call.read()
            if answer is grpc.aio.EOF:
                none = grpc.aio.Metadata()
                raise grpc.aio.AioRpcError(await call.code(), none, none, details=call.text)
            return answer

        return ask

    def _begin(self, path: str, write: Callable[[Any], bytes], read: Callable[[bytes], Any]) -> SessionCall:
        name = f"call-{next(self._numbers)}"
        call = self._calls[name] = SessionCall(self._session, path.rpartition("/")[2], name, write, read)
        return call

    async def receive(self) -> None:
        """Give the frames of the peer to their calls, until the session ends. Those that do not parse are ignored."""
        try:
            while True:
                data = await self._session.hear_bytes()
                with suppress(ValueError, KeyError):
                    frame = unpack(data)
                    self._calls[frame.call].take(frame)
        except Exception:  # the end of the session, in any form
            for call in self._calls.values():
                call.take(Frame("STATUS", call.method, call.name, code="UNAVAILABLE"))


class SessionCall:
    """A call in a session. `text`: of its status."""

    def __init__(
        self,
        session: ForeignSession,
        method: str,
        name: str,
        write: Callable[[Any], bytes],
        read: Callable[[bytes], Any],
    ) -> None:
        self._session, self.method, self.name, self._write, self._read = session, method, name, write, read
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._code = asyncio.Event()
        self._status = grpc.StatusCode.OK
        self._cancelling: asyncio.Task[None] | None = None
        self.text = ""

    def take(self, frame: Frame) -> None:
        """Take a frame of the peer. Raises ValueError."""
        if self._code.is_set():
            return
        if frame.kind == "STATUS":
            self._status, self.text = grpc.StatusCode[frame.code], frame.text
            self._code.set()
            self._answers.put_nowait(grpc.aio.EOF)
        elif frame.kind == "RESPONSE" and self._answers.qsize() < _MAX_WAITING:
            self._answers.put_nowait(self._read(frame.message))

    async def write(self, message: Any) -> None:
        """Send a message."""
        if not self._code.is_set():
            await self._say(Frame("REQUEST", self.method, self.name, self._write(message)))

    async def done_writing(self) -> None:
        """End the messages of this side."""
        await self._say(Frame("END", self.method, self.name))

    async def read(self) -> Any:
        """Return the next answer, or EOF after the last one."""
        return grpc.aio.EOF if self._code.is_set() and self._answers.empty() else await self._answers.get()

    async def code(self) -> grpc.StatusCode:
        """Wait for the status of the call."""
        await self._code.wait()
        return self._status

    def cancel(self) -> None:
        """Give the call up, unless it has ended."""
        if not self._code.is_set():
            self._cancelling = asyncio.ensure_future(self._say(Frame("CANCEL", self.method, self.name)))

    async def _say(self, frame: Frame) -> None:
        with suppress(Exception):  # the session has ended, which the status tells
            await self._session.send_bytes(pack(frame))


@asynccontextmanager
async def session_channel(url: str, uri: str) -> AsyncIterator[SessionChannel]:
    """Open a session with a foreign peer, in the role `peer`, and yield the channel in it."""
    async with foreign_socket(url) as socket:
        session = ForeignSession(Foreign(), socket)
        await session.greet(uri, "peer")
        channel = SessionChannel(session)
        receiving = asyncio.create_task(channel.receive())
        try:
            yield channel
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
