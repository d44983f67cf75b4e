"""One worker process and the host's end of its pipe.

A request gets its reply, or the process is dead and the caller has an error. Whatever goes wrong (a deadline, a reply that is
too large or not asked for, a caller that was cancelled half-way) kills the process, because after it nobody knows what the
next reply would answer. The exceptions are a message that the handler refuses to encode or decode, which it may do by its
interface, and a session that it has no snapshot of, which stays where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import IO

import msgspec

from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unavailable
from treaty_consensus.printable import printable

from ..abandonable import abandonable
from .sandbox import Isolation, Limits, command, unavailable
from .worker import framing

_REAP_SECONDS = 5.0
_DIED = "The handler's worker died: it crashed, was killed, or used up its memory or time."


class WorkerProcess:
    """A running worker.

    Requests are made one at a time; `kill` may come at any time, and more than once, from the loop's thread.
    """

    def __init__(self, process: subprocess.Popen[bytes], pipe: _Pipe) -> None:
        self._process = process
        self._pipe = pipe
        pipe.on_hang_up = self.kill  # a worker that misbehaves between requests is ended then, not when somebody asks it again
        # Its first child, whose end is the end of all, as a pidfd: a number could be another's by the time it is used. None
        # where there is no bubblewrap around the worker.
        self._first_child = asyncio.create_task(asyncio.to_thread(_first_child, process))
        self._reaper: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, isolation: Isolation, limits: Limits) -> WorkerProcess:
        """Start a worker and wait until it is ready.

        Raises `Unavailable` (`sandbox.unavailable`); then nothing is left running.
        """
        line = await asyncio.to_thread(command, isolation, limits)  # the first time, this copies the interpreter
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # In the loop's own thread: --die-with-parent ends a worker when the thread that started it ends.
                process = subprocess.Popen(  # noqa: S603, ASYNC220
                    line,
                    stdin=theirs.fileno(),
                    stdout=subprocess.PIPE if isolation == "bubblewrap" else subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env={},
                    cwd="/",
                )
            except OSError as error:
                ours.close()
                raise unavailable(str(error)) from error
            except BaseException:
                ours.close()
                raise
        assert process.stderr is not None
        pipe = _Pipe(limits.reply)
        worker = cls(process, pipe)
        with process.stderr:
            try:
                ready = pipe.expect()
                await asyncio.get_running_loop().create_unix_connection(lambda: pipe, sock=ours)
                async with asyncio.timeout(limits.start):
                    await ready
                    await asyncio.shield(worker._first_child)
            except (TreatyError, TimeoutError, OSError) as error:
                await worker.close()
                raise unavailable(_said(process.stderr)) from error
            except BaseException:
                await worker.close()
                raise
        return worker

    async def request(self, *parts: object, seconds: float) -> framing.Message:
        """Send one request and return its reply, which is not `failed`.

        Raises `Unavailable` (`sandbox.timeout`, `sandbox.died`, `sandbox.memory`), `Refused` (`handler.…`), or `Malformed`
        (`handler.rejected`); after this one and `session.snapshot` the worker still lives.
        """
        try:
            frame = framing.encode_frame(*parts)
        except ValueError as error:
            raise TooLarge("handler.too-large", f"A worker is sent at most {framing.MAX_FRAME} bytes at once.") from error
        due = self._pipe.expect()
        self._pipe.send(frame)
        try:
            async with asyncio.timeout(seconds):
                reply = framing.decode_reply(await due)
        except TimeoutError as error:
            late = Unavailable("sandbox.timeout", f"The handler took longer than {seconds:g} s and was ended.")
            self.kill(late)
            raise late from error
        except ValueError as error:
            offence = Refused("handler.reply", "The handler's reply is no frame, or has too many values.")
            self.kill(offence)
            raise offence from error
        except BaseException:
            self.kill()
            raise
        if reply.kind == "failed":
            failure = _failure(reply)
            if failure.code not in ("handler.rejected", "session.snapshot"):
                self.kill(failure)
            raise failure
        return reply

    @property
    def alive(self) -> bool:
        """Whether a request could still be answered."""
        return self._reaper is None and self._pipe.offence is None

    def kill(self, reason: TreatyError | None = None) -> None:
        """End the process and all it started, at once; later requests raise the reason. `close` waits until they are gone."""
        if self._reaper is not None:
            return
        self._reaper = asyncio.create_task(self._reap())
        self._pipe.hang_up(reason or Unavailable("sandbox.died", _DIED))
        if self._first_child.done():
            self._end(self._first_child.result())

    async def close(self) -> None:
        """Kill, and wait until the operating system has nothing left of the process."""
        self.kill()
        assert self._reaper is not None
        await asyncio.shield(self._reaper)

    def _end(self, first_child: int | None) -> None:
        if first_child is None:
            self._process.kill()
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(first_child, signal.SIGKILL)

    async def _reap(self) -> None:
        # bubblewrap names its child before it lets it run. Killed earlier, it would leave a child that waits for it for ever.
        named, _ = await asyncio.wait({self._first_child}, timeout=_REAP_SECONDS)
        if not named:
            self._process.kill()
        first_child = await self._first_child
        self._end(first_child)
        try:
            await asyncio.to_thread(self._process.wait, _REAP_SECONDS)
        except subprocess.TimeoutExpired:  # bubblewrap itself hangs; it cannot ignore this, nor can what it started survive it
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        if first_child is not None:
            # A worker that ended by itself lets bubblewrap end before its init. The orphan is for the system's process 1 to
            # collect, which in a container may be this very process.
            with contextlib.suppress(ChildProcessError):
                await asyncio.to_thread(os.waitid, os.P_PIDFD, first_child, os.WEXITED)
            os.close(first_child)


class _Pipe(asyncio.Protocol):
    """Collects the one reply that is due.

    Anything else the worker writes is an offence, and the first offence is the last word.
    """

    def __init__(self, limit: int) -> None:
        self.offence: TreatyError | None = None
        self.on_hang_up: Callable[[], None] | None = None
        self._limit = limit
        self._buffer = bytearray()
        self._due: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def expect(self) -> asyncio.Future[bytes]:
        """The payload of the next frame. Raises the offence if there was one."""
        if self.offence is not None:
            raise self.offence
        assert self._due is None, "one request at a time"
        self._due = abandonable()
        return self._due

    def send(self, frame: bytes) -> None:
        """Write a frame, buffering what the worker does not read yet."""
        assert self._transport is not None
        self._transport.write(frame)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the loop with what the worker wrote."""
        self._buffer += data
        if self._due is None:
            self.hang_up(Refused("handler.reply", "The handler wrote to the pipe without being asked."))
            return
        if len(self._buffer) < framing.HEADER:
            return
        end = framing.HEADER + int.from_bytes(self._buffer[: framing.HEADER], "big")
        if end > self._limit:
            self.hang_up(Refused("handler.reply", f"The handler's reply has {end} bytes; at most {self._limit} are read."))
        elif len(self._buffer) > end:
            self.hang_up(Refused("handler.reply", "The handler wrote more than one reply."))
        elif len(self._buffer) == end:
            payload, due = bytes(self._buffer[framing.HEADER :]), self._due
            self._buffer.clear()
            self._due = None
            if not due.done():
                due.set_result(payload)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop when the worker is gone."""
        self.hang_up(Unavailable("sandbox.died", _DIED))

    def hang_up(self, error: TreatyError) -> None:
        """Hang up without waiting for anything. Whatever is due, or asked later, fails with the first error given here."""
        self.offence = self.offence or error
        self._buffer.clear()
        due, self._due = self._due, None
        if due is not None and not due.done():
            due.set_exception(self.offence)
        if self._transport is not None:
            self._transport.abort()
        if self.on_hang_up is not None:
            self.on_hang_up()


class _Status(msgspec.Struct, rename="kebab"):
    """What bubblewrap writes to its `--info-fd`."""

    child_pid: int


def _first_child(process: subprocess.Popen[bytes]) -> int | None:
    """Wait for what bubblewrap says of its child, and open a pidfd of it. None when it ended before there was one."""
    if process.stdout is None:
        return None
    with process.stdout as stream:
        said = stream.read()
    try:
        return os.pidfd_open(msgspec.json.decode(said, type=_Status).child_pid)
    except (OSError, msgspec.DecodeError):  # also of nothing said
        return None


def _said(stream: IO[bytes]) -> str:
    """What is readable right now: the process is dead, but somebody it started may still hold the other end."""
    os.set_blocking(stream.fileno(), False)
    return (stream.read() or b"").decode("utf-8", "replace")


def _failure(reply: framing.Message) -> TreatyError:
    """The error for a `failed` reply."""
    try:
        reason, text = (framing.decode_any(field) for field in reply.fields)
    except ValueError:
        reason, text = "", ""
    detail = printable(text if isinstance(text, str) else "", 600)
    match reason:
        case "memory":
            return Unavailable("sandbox.memory", "The handler used up its memory and was ended.")
        case "syntax":
            return Refused("handler.syntax", f"The handler does not compile: {detail}.")
        case "code":
            return Refused("handler.code", "The cached code of the handler is not readable.")
        case "rejected":
            return Malformed("handler.rejected", f"The handler's protocol has no such message: {detail}.")
        case "unmovable":
            return Refused("session.snapshot", f"The handler has no snapshot of this session that could be kept: {detail}.")
        case "type":
            return Refused("handler.type", f"The handler broke its interface: {detail}.")
        case _:
            return Refused("handler.raised", f"The handler raised {detail}.")
