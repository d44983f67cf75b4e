"""Start processes: a template or a worker, with all that is below it.

`Process` is what a starter returns. A start that fails or is cancelled leaves no process behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from typing import Protocol

import msgspec

from .levels.level import Command, Level
from .limits import SandboxLimits
from .processor_clock import ProcessorClock

_REAP_SECONDS = 5.0  # for bubblewrap to name its child, and again to end; afterwards it is killed itself


class Process(Protocol):
    """A process that can be ended."""

    @property
    def clock(self) -> ProcessorClock:
        """Return the clock of the worker, which is ready."""

    def kill(self) -> None:
        """End it and all its children at once. May be called at any time and repeatedly, from the loop's thread."""

    async def reap(self) -> None:
        """Wait until the operating system has removed it. Call it after `kill`; may be called repeatedly."""

    def said(self) -> str:
        """Return its error output so far."""


class Starter(Protocol):
    """Start workers of one level."""

    @property
    def level(self) -> Level:
        """Return the level of its workers."""

    async def start(self, pipe: socket.socket) -> Process:
        """Start a worker that speaks over this socket. Raises `Unavailable` (`sandbox.unavailable`)."""

    async def close(self) -> None:
        """End what belongs to no worker. The workers end with it, or have ended before."""


class Program:
    """A program that this process started. Implements `Process`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        # The first child of bubblewrap; if it is killed, all processes of the sandbox end. It is held as a pidfd, because the
        # kernel may give the number of an ended process to another one. None without bubblewrap.
        self._first_child = asyncio.create_task(asyncio.to_thread(_first_child, process))
        self._reaper: asyncio.Task[None] | None = None
        self._is_gone = False
        self._said = ""

    @classmethod
    async def start(cls, command: Command, pipe: socket.socket) -> Program:
        """Start a command with this socket as its descriptor 0. Raises `OSError`."""
        # Start it in the loop's thread: a sandbox ends when the thread that started it ends.
        process = subprocess.Popen(  # noqa: S603, ASYNC220
            command.line,
            stdin=pipe.fileno(),
            stdout=subprocess.PIPE if command.names_child else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=command.environment,
            cwd=command.folder,
        )
        return cls(process)

    @property
    def clock(self) -> ProcessorClock:
        if self._process.stdout is None:
            return ProcessorClock(self._process.pid)
        # The first child is the worker, because of --as-pid-1. That of root is the outer bubblewrap's init, which only waits.
        child = self._first_child.result() if self._first_child.done() and os.getuid() != 0 else None
        return ProcessorClock.of_pidfd(child) if child is not None else ProcessorClock(None)

    def kill(self) -> None:
        # Without the child's number `reap` ends it.
        if self._first_child.done() and not self._is_gone:
            self._end(self._first_child.result())

    async def reap(self) -> None:
        if self._reaper is None:
            self._reaper = asyncio.create_task(self._reap())
        await asyncio.shield(self._reaper)

    async def _reap(self) -> None:
        # bubblewrap writes its child's number before the child runs. If bubblewrap is killed before that, the child waits for
        # ever.
        named, _ = await asyncio.wait({self._first_child}, timeout=_REAP_SECONDS)
        if not named:
            self._process.kill()
        first_child = await self._first_child
        self._end(first_child)
        try:
            await asyncio.to_thread(self._process.wait, _REAP_SECONDS)
        except subprocess.TimeoutExpired:  # bubblewrap hangs; SIGKILL ends it, and its children end with it
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        self._is_gone = True
        if first_child is not None:
            # If the worker ended by itself, bubblewrap may end before its init does. The system's process 1 collects that
            # orphan; in a container, process 1 may be this process, so wait for it here.
            with contextlib.suppress(ChildProcessError):
                await asyncio.to_thread(os.waitid, os.P_PIDFD, first_child, os.WEXITED)
            os.close(first_child)
        assert self._process.stderr is not None
        self._said = self.said()
        self._process.stderr.close()

    def said(self) -> str:
        stream = self._process.stderr
        assert stream is not None
        if not stream.closed:
            # Without waiting for the end: a child of a dead process may still hold it open.
            os.set_blocking(stream.fileno(), False)
            self._said += (stream.read() or b"").decode("utf-8", "replace")
        return self._said

    def _end(self, first_child: int | None) -> None:
        if first_child is None:
            self._process.kill()
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(first_child, signal.SIGKILL)


class DirectStarter:
    """Start each worker as a program of its own. Implements `Starter`."""

    def __init__(self, level: Level, limits: SandboxLimits) -> None:
        """Start nothing."""
        self.level, self._limits = level, limits

    async def start(self, pipe: socket.socket) -> Process:
        # In a thread: the first call copies the interpreter.
        command = await asyncio.to_thread(self.level.command, "worker", self._limits)
        try:
            return await Program.start(command, pipe)
        except OSError as error:
            raise self.level.unavailable(str(error)) from error

    async def close(self) -> None:
        pass


class _Status(msgspec.Struct, rename="kebab"):
    """The JSON object that bubblewrap writes to its `--info-fd`."""

    child_pid: int


def _first_child(process: subprocess.Popen[bytes]) -> int | None:
    """Wait for the number of bubblewrap's child and open a pidfd of it. Return None if bubblewrap ended before that."""
    if process.stdout is None:
        return None
    with process.stdout as stream:
        children = stream.read()
    try:
        return os.pidfd_open(msgspec.json.decode(children, type=_Status).child_pid)
    except (OSError, msgspec.DecodeError):  # includes empty output
        return None
