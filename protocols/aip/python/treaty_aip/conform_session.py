"""A channel of gRPC's form in a session of the Hello profile: a frame for each message of a call (`treaty conform aip ws://…`)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

from treaty_agent.transport.foreign_session import ForeignSession, foreign_socket
from treaty_io.conformance import PeerUnderTest
from treaty_io.extras import naming_extras
from treaty_io.task_set import TaskSet

from .handler.frames import Frame, pack, unpack

with naming_extras("aip"):
    import grpc

_MAX_WAITING = 100
"""Answers that wait for an item: a peer that floods fills nothing."""


class SessionChannel:
    """The calls of this side in one session. It has the methods of `grpc.aio.Channel` that the items use."""

    def __init__(self, url: str, uri: str, stack: AsyncExitStack) -> None:
        """Open nothing: the first call opens the session, in the role `peer`, so that a peer that refuses it fails there."""
        self._url, self._uri, self._stack = url, uri, stack
        self._opening = asyncio.Lock()
        self._session: ForeignSession | None = None
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
        call = self._calls[name] = SessionCall(self, path.rpartition("/")[2], name, write, read)
        return call

    async def send(self, frame: Frame) -> None:
        """Send a frame. The end of the session ends all calls."""
        try:
            async with self._opening:
                session = self._session = self._session or await self._open()
            await session.send_bytes(pack(frame))
        except Exception as error:  # of the connection, in any form
            self._end(str(error))

    async def _open(self) -> ForeignSession:
        session = ForeignSession(PeerUnderTest(), await self._stack.enter_async_context(foreign_socket(self._url)))
        await session.greet(self._uri, "peer")
        tasks = TaskSet[None]()
        self._stack.push_async_callback(tasks.cancel)
        tasks.start(self._receive(session))
        return session

    async def _receive(self, session: ForeignSession) -> None:
        """Give the frames of the peer to their calls. Those that do not parse are ignored."""
        try:
            while True:
                data = await session.hear_bytes()
                with suppress(ValueError, KeyError):
                    frame = unpack(data)
                    self._calls[frame.call].take(frame)
        except Exception as error:  # of the connection, in any form
            self._end(str(error))

    def _end(self, text: str) -> None:
        for call in self._calls.values():
            call.take(Frame("STATUS", call.method, call.name, code="UNAVAILABLE", text=text))


class SessionCall:
    """A call in a session. `text`: of its status."""

    def __init__(
        self, channel: SessionChannel, method: str, name: str, write: Callable[[Any], bytes], read: Callable[[bytes], Any]
    ) -> None:
        self._channel, self.method, self.name, self._write, self._read = channel, method, name, write, read
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
            await self._channel.send(Frame("REQUEST", self.method, self.name, self._write(message)))

    async def done_writing(self) -> None:
        """End the messages of this side."""
        await self._channel.send(Frame("END", self.method, self.name))

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
            self._cancelling = asyncio.create_task(self._channel.send(Frame("CANCEL", self.method, self.name)))
