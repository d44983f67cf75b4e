"""The load generator: keep-alive HTTP/1.1 requests from a process of its own.

Each connection sends a whole prepared request, waits for the whole answer, and sends the next one. Nothing is parsed but the
status and the length, so the generator takes a fraction of what any server takes for the same requests; how much of its processor
it used is part of the outcome. An answer with another status than expected fails the measurement.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import NamedTuple, cast

import uvloop

from .contest import Sample

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_PATIENCE = 120


class LoadFailed(Exception):
    """A server gave an answer that does not count, or none."""


@dataclass(frozen=True)
class Load:
    """`requests`: whole ones, sent in turn by `connections` connections. `seconds`: for so long, from the first again after the
    last; None: each once. `status`: of every answer."""

    port: int
    requests: tuple[bytes, ...]
    connections: int
    seconds: float | None = None
    status: int = 200


class Outcome(NamedTuple):
    """How many requests were answered in how many seconds, and how many seconds of processor time this process took for it.
    `slow`: the seconds within which 99 of 100 requests were answered."""

    requests: int
    seconds: float
    processor: float
    slow: float = 0.0

    @property
    def sample(self) -> Sample:
        """The rate."""
        return Sample(self.requests / self.seconds, self.processor / self.seconds)


class LoadGenerator:
    """A process that is kept for all loads of a run; made by `load_generator`."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    async def drive(self, load: Load) -> Outcome:
        """Put a load on a server of this machine. Raises `LoadFailed`."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, _drive, load)


@contextmanager
def load_generator(processors: frozenset[int] | None = None) -> Iterator[LoadGenerator]:
    """A load generator that runs on these processors, or on any; its process ends with the block."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_pin, initargs=(processors,)) as pool:
        yield LoadGenerator(pool)


def get(path: str, headers: Mapping[str, str] | None = None) -> bytes:
    """A GET request."""
    return _request("GET", path, headers or {}, b"")


def post(path: str, body: bytes, media_type: str) -> bytes:
    """A POST request."""
    return _request("POST", path, {"Content-Type": media_type, "Content-Length": str(len(body))}, body)


def _request(method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def _pin(processors: frozenset[int] | None) -> None:
    if processors:
        os.sched_setaffinity(0, processors)


def _drive(load: Load) -> Outcome:
    return uvloop.run(_run(load))


async def _run(load: Load) -> Outcome:
    loop = asyncio.get_running_loop()
    work = _Work(load, loop.create_future())
    connections = [_Connection(work) for _ in range(load.connections)]
    transports = []
    try:
        for connection in connections:
            transport, _ = await loop.create_connection(lambda made=connection: made, "127.0.0.1", load.port)  # type: ignore[misc]
            transports.append(transport)
        begun, spent = time.perf_counter(), time.process_time()
        for connection in connections:
            connection.send_next()
        try:
            async with asyncio.timeout(load.seconds or _PATIENCE):
                await work.finished
        except TimeoutError:
            if load.seconds is None:
                raise LoadFailed(f"port {load.port} did not answer everything within {_PATIENCE} s") from None
        seconds, processor = time.perf_counter() - begun, time.process_time() - spent
        return Outcome(work.answered, seconds, processor, work.slow)
    finally:
        for transport in transports:
            transport.abort()


class _Work:
    """One load under way. `finished`: every request was answered, or one was not as it should be."""

    def __init__(self, load: Load, finished: asyncio.Future[None]) -> None:
        self.finished = finished
        self.waits: list[float] = []
        self._requests = iter(load.requests) if load.seconds is None else itertools.cycle(load.requests)
        self._status = b"HTTP/1.1 %d " % load.status
        self._sending = load.connections

    @property
    def answered(self) -> int:
        """How many whole answers came."""
        return len(self.waits)

    @property
    def slow(self) -> float:
        """The seconds within which 99 of 100 answers came."""
        return sorted(self.waits)[len(self.waits) * 99 // 100] if self.waits else 0.0

    def take(self) -> bytes | None:
        """The next request; None when there is none, which the caller says once."""
        request = next(self._requests, None)
        if request is None:
            self._sending -= 1
            if not self._sending and not self.finished.done():
                self.finished.set_result(None)
        return request

    def count(self, answer: bytes, wait: float) -> None:
        """A whole answer came, so many seconds after its request was sent."""
        if not answer.startswith(self._status):
            self.fail(f"unexpected answer: {answer[:300]!r}")
        self.waits.append(wait)

    def fail(self, why: str) -> None:
        """The measurement is worth nothing."""
        if not self.finished.done():
            self.finished.set_exception(LoadFailed(why))


class _Connection(asyncio.Protocol):
    """One keep-alive connection, with at most one request under way."""

    def __init__(self, work: _Work) -> None:
        self._work = work
        self._received = b""
        self._waiting = False
        self._sent = 0.0
        self._transport: asyncio.Transport | None = None

    def send_next(self) -> None:
        """Send the next request, if there is one."""
        assert self._transport is not None
        request = self._work.take()
        self._waiting = request is not None
        if request is not None:
            self._sent = time.perf_counter()
            self._transport.write(request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        received = self._received + data if self._received else data
        end = received.find(b"\r\n\r\n")
        if end >= 0:
            length = _LENGTH.search(received, 0, end + 2)
            if length is None:
                self._work.fail(f"an answer without a length: {received[:300]!r}")
            elif len(received) == end + 4 + int(length[1]):
                self._received = b""
                self._work.count(received, time.perf_counter() - self._sent)
                self.send_next()
                return
        self._received = received

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        if self._waiting:
            self._work.fail("the server hung up")
