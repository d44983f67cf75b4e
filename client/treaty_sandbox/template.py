"""Start sandboxed workers from a template: one process that forks them (`worker.template` has the protocol).

The template starts with the first worker and ends with the pool. All workers end with it: in bubblewrap it is process 1 of the
namespace around theirs, without namespaces the kernel signals its end to them. If it does not start, or the kernel refuses it the
namespaces of a worker, as some AppArmor profiles do, each worker is started by itself: the same isolation, and 60 milliseconds
more.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from pathlib import Path

from treaty_consensus.errors import Unavailable
from treaty_io.abandonable import abandonable
from treaty_io.awake_timeout import AwakeTimeout
from treaty_io.codes import SandboxCode
from treaty_io.task_set import TaskSet

from . import interpreter
from .launch import DirectStarter, Process, Program, Starter
from .levels.level import Level
from .limits import SandboxLimits
from .processor_clock import ProcessorClock

_REFUSED = (errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS)
"""The errors of `unshare` under a policy, and in a kernel without one of the namespaces."""
_log = logging.getLogger(__name__)


def starter(level: Level, limits: SandboxLimits) -> Starter:
    """Return the starter of a level. It starts nothing yet."""
    return TemplateStarter(level, limits) if level.forks else DirectStarter(level, limits)


class TemplateStarter:
    """Fork sandboxed workers from a template. Implements `Starter`. For one event loop."""

    def __init__(self, level: Level, limits: SandboxLimits) -> None:
        """Start nothing."""
        self.level, self._limits = level, limits
        self._turn = asyncio.Lock()  # a template answers one request at a time
        self._templates: list[Template] = []  # the last one forks, the others keep their workers
        self._direct = DirectStarter(level, limits)
        self._is_refused = self._is_closed = False
        self._starting = TaskSet[Process]()
        self._reaping = TaskSet[None]()

    async def start(self, pipe: socket.socket) -> Process:
        # A task of its own, with a copy of the socket: if the caller is cancelled, the template's answer must still be read.
        # Otherwise it would be taken for the next one.
        starting = self._starting.start(self._start(pipe.dup()))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._abandon)
            raise

    async def close(self) -> None:
        self._is_closed = True
        for template in self._templates:
            template.kill()  # a start that is under way fails now
        await self._starting.finish()
        while self._templates:
            await self._templates.pop().end()
        await asyncio.gather(*self._reaping)

    async def _start(self, pipe: socket.socket) -> Process:
        with pipe:
            if not self._is_refused:
                async with self._turn:
                    try:
                        return await self._fork(pipe)
                    except PermissionError as error:
                        if self._is_closed:  # `close` ended a template that was starting
                            raise _closed() from error
                        _log.info("Workers are not forked here (%s): each is started by itself.", error)
                        self._is_refused = True
            return await self._direct.start(pipe)

    async def _fork(self, pipe: socket.socket) -> Process:
        template = await self._running()
        try:
            return await template.fork(pipe)
        except Unavailable:
            # It died since its last worker, by the hand of a person or of the kernel. A new one gets one chance.
            return await (await self._running()).fork(pipe)

    async def _running(self) -> Template:
        """Return the template that forks. Start one if there is none, or if it has died or lost its files."""
        root = interpreter.known_snapshot()
        if root is None:
            root = await asyncio.to_thread(interpreter.snapshot)  # the first call takes seconds
        for template in list(self._templates):
            if not template.is_alive:
                self._templates.remove(template)
                await template.end()
        if self._is_closed:
            raise _closed()
        if not (self._templates and self._templates[-1].shows(root)):
            self._templates.append(await Template.start(self.level, root, self._limits))
            await self._templates[-1].ready()
        return self._templates[-1]

    def _abandon(self, starting: asyncio.Task[Process]) -> None:
        """End a worker whose caller gave up."""
        if starting.cancelled() or starting.exception() is not None:
            return
        process = starting.result()
        process.kill()
        self._reaping.start(process.reap())


class Template:
    """A running template."""

    def __init__(self, level: Level, program: Program, control: socket.socket, root: Path, limits: SandboxLimits) -> None:
        self._level, self._program, self._control, self._limits = level, program, control, limits
        self._root = _identity(root)

    @classmethod
    async def start(cls, level: Level, root: Path, limits: SandboxLimits) -> Template:
        """Start a template; wait until it is `ready`. `root`: the snapshot of the interpreter. Raises `Unavailable`."""
        command = await asyncio.to_thread(level.command, "template", limits)
        control, theirs = socket.socketpair()
        control.setblocking(False)
        with theirs:
            try:
                return cls(level, await Program.start(command, theirs), control, root, limits)
            except OSError as error:
                control.close()
                raise level.unavailable(str(error)) from error
            except BaseException:
                control.close()
                raise

    @property
    def is_alive(self) -> bool:
        """Return whether it can still answer. Ask between two requests."""
        try:
            self._control.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def shows(self, root: Path) -> bool:
        """Return whether its files are those of this folder: a snapshot that was removed is made anew under the same name."""
        return self._root == _identity(root)

    async def ready(self) -> None:
        """Wait until it forks. Raises `PermissionError` if it ended, and `Unavailable` (`sandbox.unavailable`) if it took too
        long and was ended."""
        try:
            await self._answer()
        except Unavailable as error:
            if isinstance(error.__cause__, TimeoutError):
                raise
            raise PermissionError(error.message) from error

    async def fork(self, pipe: socket.socket) -> ForkedProcess:
        """Return a new worker. Raises `PermissionError` if the kernel refuses its namespaces, and `Unavailable`
        (`sandbox.unavailable`) after the template has ended."""
        try:
            socket.send_fds(self._control, [b"w"], [pipe.fileno()])
        except OSError as error:
            raise await self._failure(error) from error
        code, handles = await self._answer()
        if code in _REFUSED:
            raise PermissionError(code, os.strerror(code))
        if code:
            raise self._level.unavailable(os.strerror(code))
        return ForkedProcess(handles[0], self._program)

    def kill(self) -> None:
        """End it at once, with all that it forked."""
        self._program.kill()

    async def end(self) -> None:
        """End it, and wait until it is gone with all that it forked."""
        self.kill()
        await self._program.reap()
        self._control.close()

    async def _answer(self) -> tuple[int, list[int]]:
        """Return the number of an error or 0, and descriptors."""
        try:
            async with AwakeTimeout(self._limits.start):
                await _readable(self._control.fileno())
            answer, handles, *_ = socket.recv_fds(self._control, 16, 1, socket.MSG_CMSG_CLOEXEC)
            if not answer:
                raise ConnectionResetError("it ended")
        except asyncio.CancelledError:
            self.kill()  # its answer would be taken for the next one
            raise
        except (OSError, TimeoutError) as error:
            raise await self._failure(error) from error
        return int(answer[1:] or 0), list(handles)

    async def _failure(self, error: Exception) -> Unavailable:
        """End it, and return the error of a start."""
        self.kill()
        await self._program.reap()
        return self._level.unavailable(self._program.said() or str(error))


class ForkedProcess:
    """A worker that a template forked. Implements `Process`."""

    def __init__(self, handle: int, template: Program) -> None:
        """`handle`: a pidfd. The kernel may give the number of an ended process to another one, but not its pidfd."""
        self._handle, self._template = handle, template
        self._reaper: asyncio.Task[None] | None = None
        self._is_gone = False

    @property
    def clock(self) -> ProcessorClock:
        return ProcessorClock.of_pidfd(self._handle)

    def kill(self) -> None:
        if not self._is_gone:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    async def reap(self) -> None:
        if self._reaper is None:
            self._reaper = asyncio.create_task(self._reap())
        await asyncio.shield(self._reaper)

    async def _reap(self) -> None:
        # A pidfd can be read when its process has ended. The template leaves the rest to the kernel.
        await _readable(self._handle)
        self._is_gone = True
        # A template that ended first leaves an orphan. In a container this process may be the one that collects it.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._handle, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222  # it does not wait
        os.close(self._handle)

    def said(self) -> str:
        return self._template.said()


def _closed() -> Unavailable:
    return Unavailable(SandboxCode.CLOSED, "The pool of workers is closed.")


def _identity(root: Path) -> tuple[int, int, int]:
    status = root.stat()
    return status.st_dev, status.st_ino, status.st_ctime_ns


async def _readable(descriptor: int) -> None:
    loop, waiting = asyncio.get_running_loop(), abandonable()

    def ready() -> None:
        if not waiting.done():
            waiting.set_result(None)

    loop.add_reader(descriptor, ready)
    try:
        await waiting
    finally:
        loop.remove_reader(descriptor)
