"""Start, use and end one worker process.

A request returns its reply, or the process is dead and the caller gets an error. Every failure kills the process: a deadline, a
reply that is too large or without a request, a cancelled caller. After such a failure, the next reply could belong to an earlier
request. Two failures leave the process alive: the handler rejects a message (`handler.rejected`), or has no snapshot of a session
(`session.snapshot`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from treaty_consensus.codes import HandlerCode
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unavailable
from treaty_consensus.printable import printable
from treaty_io.abandonable import abandonable
from treaty_io.awake_timeout import AwakeTimeout
from treaty_io.codes import ClientHandlerCode, SandboxCode, SessionCode

from .launch import Process, Starter
from .limits import SandboxLimits
from .processor_clock import ProcessorClock
from .request_timeout import RequestTimeout
from .worker import framing

_DIED = "The handler's worker died: it crashed, was killed, or used up its memory or time."


class WorkerProcess:
    """A running worker.

    Make one request at a time. `kill` may be called at any time and repeatedly, from the loop's thread.
    """

    def __init__(self, process: Process, pipe: _Pipe, wall: float) -> None:
        self._process = process
        self._pipe = pipe
        self._wall = wall
        self._clock = ProcessorClock(None)  # the worker's, when it is ready
        pipe.on_hang_up = self.kill  # ends a worker that misbehaves between two requests at once
        self._reaper: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, starter: Starter, limits: SandboxLimits) -> WorkerProcess:
        """Start a worker and wait until it is ready.

        Raises `Unavailable` (`sandbox.unavailable`), after the process has ended.
        """
        # A socket has both directions in one descriptor, so the worker can close all others.
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await starter.start(theirs)
            except BaseException:
                ours.close()
                raise
        pipe = _Pipe(limits.reply)
        worker = cls(process, pipe, limits.wall)
        try:
            # Before the pipe is connected: the worker may answer at once, and bytes that are not expected are an offence.
            ready = pipe.expect()
            await asyncio.get_running_loop().create_unix_connection(lambda: pipe, sock=ours)
            async with AwakeTimeout(limits.start):
                await ready
            worker._clock = process.clock
        except (TreatyError, TimeoutError, OSError) as error:
            await worker.close()
            raise starter.level.unavailable(process.said()) from error
        except BaseException:
            await worker.close()
            raise
        return worker

    async def request(self, *parts: object, seconds: float) -> framing.WorkerMessage:
        """Send one request and return its reply. `seconds`: of the worker's processor (`RequestTimeout`).

        Raises `Unavailable` (`sandbox.limit`, `sandbox.died`), `Refused` (`handler.…`, `session.snapshot`),
        `Malformed` (`handler.rejected`) or `TooLarge` (`handler.package`). The worker is still alive after `handler.rejected`,
        `session.snapshot` and `handler.package`.
        """
        try:
            frame = framing.encode_frame(*parts)
        except ValueError as error:
            raise TooLarge(HandlerCode.PACKAGE, f"A worker is sent at most {framing.MAX_FRAME} bytes at once.") from error
        due = self._pipe.expect()
        # Before the request is sent: its time begins here.
        timeout = RequestTimeout(self._clock, seconds, self._wall)
        self._pipe.send(frame)
        try:
            async with timeout:
                reply = framing.decode_reply(await due)
        # The worker may still send the late reply. The next request would take it for its own, so the worker ends.
        except TimeoutError as error:
            limit = f"{seconds:g} s of its processor" if timeout.left > 0 else f"{max(seconds, self._wall):g} s"
            late = Unavailable(SandboxCode.LIMIT, f"The handler took longer than {limit} and was ended.")
            self.kill(late)
            raise late from error
        except ValueError as error:
            offence = Refused(ClientHandlerCode.FAILED, "The handler's reply is no frame, or has too many values.")
            self.kill(offence)
            raise offence from error
        # Also when the caller is cancelled, for the same reason.
        except BaseException:
            self.kill()
            raise
        return self._succeeded(reply)

    async def batch(self, *requests: Sequence[object], seconds: float) -> list[framing.WorkerMessage]:
        """Send several requests at once and return their replies. The worker stops at the first that fails, whose error is
        raised as by `request`. `seconds`: for all of them."""
        reply = await self.request("batch", *requests, seconds=seconds)
        try:
            if reply.kind != "batch":
                raise ValueError("another kind")
            replies = [framing.decode_payload(field) for field in reply.fields]
            succeeded = [self._succeeded(one) for one in replies]
            if len(succeeded) != len(requests):
                raise ValueError("another number")
        except ValueError as error:
            offence = Refused(
                ClientHandlerCode.FAILED, "The handler's reply does not answer the requests that were sent at once."
            )
            self.kill(offence)
            raise offence from error
        return succeeded

    def _succeeded(self, reply: framing.WorkerMessage) -> framing.WorkerMessage:
        """Return a reply that reports no failure. Raises the error of one that does; the worker ends after most of them."""
        if reply.kind == "failed":
            failure = _failure(reply)
            if failure.code not in (ClientHandlerCode.REJECTED, SessionCode.SNAPSHOT):
                self.kill(failure)
            raise failure
        return reply

    @property
    def alive(self) -> bool:
        """Return whether the worker can still answer a request."""
        return self._reaper is None and self._pipe.offence is None

    def kill(self, reason: TreatyError | None = None) -> None:
        """End the process and all its children at once. Later requests raise `reason`. `close` waits until they are gone."""
        if self._reaper is not None:
            return
        # First, because closing the pipe calls `kill` again.
        self._reaper = asyncio.create_task(self._process.reap())
        self._pipe.close(reason or Unavailable(SandboxCode.DIED, _DIED))
        self._process.kill()

    async def close(self) -> None:
        """End the process, and wait until the operating system has removed it."""
        self.kill()
        assert self._reaper is not None
        # A cancelled caller must not leave a process behind: the reaper goes on.
        await asyncio.shield(self._reaper)


class _Pipe(asyncio.Protocol):
    """Collect the reply to the current request.

    Any other output of the worker is an offence. The first offence closes the pipe and is the error of all later requests.
    """

    def __init__(self, limit: int) -> None:
        self.offence: TreatyError | None = None
        self.on_hang_up: Callable[[], None] | None = None
        self._limit = limit
        self._buffer = bytearray()
        self._due: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def expect(self) -> asyncio.Future[bytes]:
        """Return a future of the next frame's payload. Raises the offence, if there was one."""
        if self.offence is not None:
            raise self.offence
        assert self._due is None, "one request at a time"
        self._due = abandonable()
        return self._due

    def send(self, frame: bytes) -> None:
        """Write a frame. Bytes that the worker has not read yet are buffered."""
        assert self._transport is not None
        self._transport.write(frame)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the loop with bytes from the worker."""
        self._buffer += data
        if self._due is None:
            self.close(Refused(ClientHandlerCode.FAILED, "The handler wrote to the pipe without being asked."))
            return
        if len(self._buffer) < framing.HEADER:
            return
        end = framing.HEADER + int.from_bytes(self._buffer[: framing.HEADER], "big")
        # Judged by the header, before the bytes are collected: a handler cannot fill the host's memory.
        if end > self._limit:
            self.close(Refused(ClientHandlerCode.FAILED, f"The handler's reply has {end} bytes; at most {self._limit} are read."))
        elif len(self._buffer) > end:
            self.close(Refused(ClientHandlerCode.FAILED, "The handler wrote more than one reply."))
        elif len(self._buffer) == end:
            payload, due = bytes(self._buffer[framing.HEADER :]), self._due
            self._buffer.clear()
            self._due = None
            if not due.done():
                due.set_result(payload)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop when the worker has closed the pipe."""
        self.close(Unavailable(SandboxCode.DIED, _DIED))

    def close(self, error: TreatyError) -> None:
        """Close the pipe at once. The current request and all later ones fail with the first error given here."""
        self.offence = self.offence or error
        self._buffer.clear()
        due, self._due = self._due, None
        if due is not None and not due.done():
            due.set_exception(self.offence)
        if self._transport is not None:
            # Not `close`, which would first write the rest of a request to a worker that may read nothing.
            self._transport.abort()
        if self.on_hang_up is not None:
            self.on_hang_up()


def _failure(reply: framing.WorkerMessage) -> TreatyError:
    """Return the error for a `failed` reply."""
    try:
        # A handler can write this frame itself. Unknown reasons count as `raised`; the text is capped and made printable.
        reason, text = (framing.decode_any(field) for field in reply.fields)
    except ValueError:
        reason, text = "", ""
    detail = printable(text if isinstance(text, str) else "", 600)
    match reason:
        case "memory":
            return Unavailable(SandboxCode.LIMIT, "The handler used up its memory and was ended.")
        case "syntax":
            return Refused(ClientHandlerCode.FAILED, f"The handler does not compile: {detail}.")
        case "code":
            return Refused(ClientHandlerCode.CODE, "The cached code of the handler is not readable.")
        case "rejected":
            return Malformed(ClientHandlerCode.REJECTED, f"The handler's protocol has no such message: {detail}.")
        case "unmovable":
            return Refused(SessionCode.SNAPSHOT, f"The handler has no snapshot of this session that could be kept: {detail}.")
        case "type":
            return Refused(ClientHandlerCode.FAILED, f"The handler broke its interface: {detail}.")
        case _:
            return Refused(ClientHandlerCode.FAILED, f"The handler raised {detail}.")
