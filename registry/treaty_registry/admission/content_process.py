"""One process that checks contents (`content_worker`), and the registry's end of its socket."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import structlog

from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_consensus.kinds import Handler, Publish

from .content_worker import EXHAUSTED, HEADER, MAX_VERDICT, Rejected, decode_verdict, encode_job

_BOOT = "import sys; sys.path[:] = sys.argv[4:]; from treaty_registry.admission.content_worker import main; main()"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ContentLimits:
    """What checking one statement's contents may cost.

    `processor`: seconds of processor time. The costliest wheel within its caps takes about half a second, so a machine four times
    as slow still reads everything. `patience`: seconds in all, the start of the process included; that only ends what a starved
    machine cannot do. `memory`: bytes of private memory. An interpreter has 20 MiB; a wheel unpacks to 8 MiB, and to four times
    that as text.
    """

    processor: float = 2.0
    patience: float = 10.0
    memory: int = 256 * 1024 * 1024


class ContentProcess:
    """A running process. One event loop uses it, for one job at a time; `close` it in the end."""

    def __init__(self, limits: ContentLimits, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        self._limits = limits
        self._process = process
        self._ours = ours
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._closing: asyncio.Task[int] | None = None

    @classmethod
    def start(cls, limits: ContentLimits) -> ContentProcess:
        """Start a process; it need not be ready for its first job. Raises `Unavailable` (`content.unchecked`)."""
        arguments = [str(limits.processor), str(limits.patience), str(limits.memory)]
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # Isolated, without site: no code of the environment or of the working directory runs. It sees the packages that
                # this process sees. A session of its own keeps a terminal's Ctrl-C from it, which is for the parent to handle.
                process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-I", "-S", "-c", _BOOT, *arguments, *filter(None, sys.path)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={},
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise unchecked() from error
        return cls(limits, process, ours)

    @property
    def alive(self) -> bool:
        """Whether it could take a job."""
        return self._closing is None and self._process.poll() is None

    async def check(self, body: Publish | Handler, contents: Mapping[str, bytes]) -> None:
        """`contents.check_contents`, in the process. It must be `alive`, and is not afterwards if there was no verdict.

        Raises what that raises; `Refused` (`content.too-costly`) when the check used up its processor time or memory, and
        `Unavailable` (`content.unchecked`) when the process ended or was late for another reason.
        """
        try:
            async with asyncio.timeout(self._limits.patience):
                verdict = await self._ask(encode_job(body, dict(contents)))
        except (OSError, EOFError, ValueError, msgspec.DecodeError) as error:  # a TimeoutError is an OSError
            raise await self._failure(error) from error
        except BaseException:  # what it would say next answers a job that nobody waits for
            await self.close()
            raise
        if isinstance(verdict, Rejected):
            raise verdict.error

    async def close(self) -> int:
        """End the process at once, whatever it does, and wait until it is gone; its status, negative for a signal."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._end())
        return await asyncio.shield(self._closing)

    async def _ask(self, frame: bytes) -> object:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(sock=self._ours)
        reader, writer = self._streams
        writer.write(frame)
        size = int.from_bytes(await reader.readexactly(HEADER), "big")
        if size > MAX_VERDICT:
            raise ValueError(f"a verdict of {size} bytes")
        return decode_verdict(await reader.readexactly(size))

    async def _failure(self, error: Exception) -> TreatyError:
        closed = self._closing is not None  # by a stop, which is no news
        status = await self.close()
        if status in (EXHAUSTED, -signal.SIGPROF):
            return Refused(
                "content.too-costly",
                "Checking what this statement names takes more time or memory than anything honest does.",
                fix="Build the package anew with `treaty publish`.",
            )
        if not closed:
            _log.warning("contents not checked", error=repr(error), status=status)
        return unchecked()

    async def _end(self) -> int:
        self._process.kill()
        if self._streams is not None:
            self._streams[1].transport.abort()
        else:
            self._ours.close()
        return await asyncio.to_thread(self._process.wait)


def unchecked() -> Unavailable:
    """The error for contents that nothing is wrong with as far as is known."""
    return Unavailable("content.unchecked", "What this statement names could not be checked just now.", fix="Send it again.")
