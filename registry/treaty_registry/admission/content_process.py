"""Run one process that checks contents (`content_worker`) and talk to it over a socket."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import structlog

from treaty_consensus.codes import RegistryCode
from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_consensus.kinds import Handler, Publish

from ..catalogue.handler_facts import HandlerFacts
from ..codes import ContentCode
from .content_worker import (
    EXHAUSTED,
    HEADER,
    MAX_READING,
    MAX_VERDICT,
    AcceptedContent,
    Check,
    Read,
    ReadContent,
    Rejected,
    check_job,
    decode_verdict,
    encode_job,
)

_BOOT = "import sys; sys.path[:] = sys.argv[4:]; from treaty_registry.admission.content_worker import main; main()"
_log = structlog.get_logger(__name__)
_V = TypeVar("_V", AcceptedContent, ReadContent)


@dataclass(frozen=True)
class ContentLimits:
    """Limits for checking the contents of one statement.

    `processor`: seconds of processor time. The most expensive wheel within its caps takes about 0.5 seconds, so a machine four
    times slower still succeeds. `patience`: seconds of real time, including the start of the process; it ends checks that an
    overloaded machine cannot finish. `memory`: bytes of private memory. An interpreter uses 20 MiB; a wheel unpacks to 8 MiB,
    and takes up to four times that as text.
    """

    processor: float = 2.0
    patience: float = 10.0
    memory: int = 256 * 1024 * 1024


class ContentProcess:
    """A running process. It serves one event loop and one job at a time; call `close` at the end."""

    def __init__(self, limits: ContentLimits, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        self._limits = limits
        self._process = process
        self._ours = ours
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._closing: asyncio.Task[int] | None = None

    @classmethod
    def start(cls, limits: ContentLimits) -> ContentProcess:
        """Start a process, without waiting until it is ready. Raises `Unavailable` (`registry.busy`)."""
        arguments = [str(limits.processor), str(limits.patience), str(limits.memory)]
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # Isolated and without site: no code of the environment or of the working directory runs. It imports
                # from the same paths as this process. In a session of its own it gets no Ctrl-C from the terminal:
                # the parent handles that.
                process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-I", "-S", "-c", _BOOT, *arguments, *filter(None, sys.path)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    # Parsers of foreign bytes get neither the registry's environment nor its error stream.
                    env={},
                    start_new_session=True,
                )
            # The machine cannot start a process now. That says nothing about the contents, so the sender may try
            # again.
            except OSError as error:
                ours.close()
                raise unchecked() from error
        return cls(limits, process, ours)

    @property
    def alive(self) -> bool:
        """Whether the process can take a job."""
        return self._closing is None and self._process.poll() is None

    async def check(self, body: Publish | Handler, contents: Mapping[str, bytes]) -> HandlerFacts | None:
        """Run `contents.check_contents` in the process. The process must be `alive`; without a verdict it is closed.

        Returns the facts of a handler.

        Raises the errors of `check_contents`. Raises `Refused` (`content.too-costly`) when the check used up its processor time
        or memory, and `Unavailable` (`registry.busy`) when the process ended or timed out for another reason.
        """
        return (await self._run(check_job(body, dict(contents)), AcceptedContent, MAX_VERDICT)).facts

    async def read(self, job: Read) -> bytes:
        """Run a reader in the process, and return its result, encoded as MessagePack. Raises its errors and those of `check`."""
        return bytes((await self._run(job, ReadContent, MAX_READING)).value)

    async def _run(self, job: Check | Read, expected: type[_V], limit: int) -> _V:
        try:
            # Real time as well as processor time: a process that is suspended or swapped out uses no processor time,
            # and would keep its turn.
            async with asyncio.timeout(self._limits.patience):
                verdict = await self._ask(encode_job(job), limit)
                # A worker that its input took over could answer another question.
                if not isinstance(verdict, expected | Rejected):
                    raise ValueError(f"a verdict {type(verdict).__name__}")
        except (OSError, EOFError, ValueError, msgspec.DecodeError) as error:  # a TimeoutError is an OSError
            raise await self._failure(error) from error
        except BaseException:  # cancelled: a late verdict must not answer the next job
            await self.close()
            raise
        if isinstance(verdict, Rejected):
            raise verdict.error
        return verdict

    async def close(self) -> int:
        """Kill the process, wait until it has ended, and return its exit status (negative for a signal)."""
        if self._closing is None:
            # One task for all callers, shielded: the process is reaped once, even when the caller is cancelled.
            self._closing = asyncio.create_task(self._end())
        return await asyncio.shield(self._closing)

    async def _ask(self, frame: bytes, limit: int) -> object:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(sock=self._ours)
        reader, writer = self._streams
        writer.write(frame)
        size = int.from_bytes(await reader.readexactly(HEADER), "big")
        # Before reading: a worker that its input took over could announce 4 GiB.
        if size > limit:
            raise ValueError(f"a verdict of {size} bytes")
        return decode_verdict(await reader.readexactly(size))

    async def _failure(self, error: Exception) -> TreatyError:
        closed = self._closing is not None  # by `close`, which needs no log line
        status = await self.close()
        # Only the job's own use makes it too costly. A process that was killed from outside, or was late, proves
        # nothing about the contents.
        if status in (EXHAUSTED, -signal.SIGPROF):
            return Refused(
                ContentCode.TOO_COSTLY,
                "Checking the blobs of this statement takes more time or memory than is allowed.",
                fix="Build the package anew with `treaty publish`.",
            )
        if not closed:
            _log.warning("contents not checked", error=repr(error), status=status)
        return unchecked()

    async def _end(self) -> int:
        # SIGKILL, because a worker that its input took over could ignore SIGTERM.
        self._process.kill()
        if self._streams is not None:
            # Not `close`, which would first wait to send the rest of the job to the killed process.
            self._streams[1].transport.abort()
        else:
            self._ours.close()
        # In a thread, because `wait` blocks until the kernel has ended the process.
        return await asyncio.to_thread(self._process.wait)


def unchecked() -> Unavailable:
    """Return the error for contents that could not be checked. It does not mean that the contents are wrong."""
    return Unavailable(RegistryCode.BUSY, "The blobs of this statement could not be checked now.", fix="Send it again.")
