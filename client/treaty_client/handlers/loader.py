"""From a handler package to sessions: the pool of workers, one worker a counterpart, many sessions a worker.

    async with SandboxPool() as pool:
        worker = await pool.load(package, local="did:key:…", peers=["did:wba:shop.example"], code_cache=cache)
        session = await worker.open("requester")
        await session.handle(Opened())
        effects = await session.handle(Call(call="1", operation="getProductInfo", arguments={"productId": "P12345"}))
        …
        await worker.close()

A worker serves one (handler digest, local identity, peers) and nobody else, so whatever one counterpart's messages do to it,
no other counterpart meets. It is never handed back: the pool keeps a few that have not seen a handler yet, and starts the
next when one is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from types import TracebackType

from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.handler import HandlerPackage

from .code_cache import CodeCache
from .process import WorkerProcess
from .sandbox import Isolation, Limits
from .session import Worker
from .validation import Operations
from .worker import framing

MAX_COMPILED = 64
"""Packages whose compiled schemas are kept; those used longest ago are compiled anew."""
_REFILL_SECONDS = 0.05


class SandboxPool:
    """Starts workers, and keeps `size` of them ready. For one event loop; leave it (or `close` it) to end what it started."""

    def __init__(self, *, size: int = 2, isolation: Isolation = "bubblewrap", limits: Limits | None = None) -> None:
        """Nothing starts before `warm` or the first `load`. `size` 0 starts each worker when it is asked for."""
        self._size = size
        self._isolation: Isolation = isolation
        self._limits = limits or Limits()
        self._ready: list[asyncio.Task[WorkerProcess]] = []
        self._workers: set[Worker] = set()
        self._compiled: OrderedDict[str, Operations] = OrderedDict()
        self._closed = False

    async def __aenter__(self) -> SandboxPool:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def warm(self) -> None:
        """Wait until `size` workers are ready.

        Raises `Unavailable` (`sandbox.unavailable`): the time to learn it is at the start.
        """
        self._refill()
        await asyncio.gather(*self._ready)

    async def load(
        self, package: HandlerPackage, *, local: str, peers: Sequence[str], code_cache: CodeCache | None = None
    ) -> Worker:
        """A worker that has imported the package, for this local identity and these peers (the first is *the* peer).

        Raises `Unavailable` (`sandbox.…`) or `Refused` (`handler.…`); then nothing of it is left running.
        """
        operations = self._operations(package)
        cached = code_cache.get(package.digest) if code_cache is not None else None
        if code_cache is not None and cached is not None:
            try:
                return await self._import(package, cached, operations, local, peers)
            except TreatyError as error:
                # The bytes may be another interpreter's, or somebody's; compiling anew tells a bad cache from a bad handler.
                if error.code not in ("handler.code", "sandbox.died"):
                    raise
                code_cache.discard(package.digest)
        return await self._import(package, None, operations, local, peers, code_cache)

    async def close(self) -> None:
        """End every worker, ready or loaded, and wait until they are gone."""
        self._closed = True
        waiting, self._ready = self._ready, []
        for task in waiting:
            task.cancel()
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(outcome, WorkerProcess):
                await outcome.close()
        for worker in list(self._workers):
            await worker.close()

    def _operations(self, package: HandlerPackage) -> Operations:
        """The package's operations; compiling foreign schemas takes some time, so it is not done anew for each session."""
        operations = self._compiled.pop(package.digest, None) or Operations(package.manifest)
        self._compiled[package.digest] = operations
        if len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        return operations

    async def _import(
        self,
        package: HandlerPackage,
        code: bytes | None,
        operations: Operations,
        local: str,
        peers: Sequence[str],
        code_cache: CodeCache | None = None,
    ) -> Worker:
        process = await self._take()
        try:
            if code is None:
                code = await _compile(process, package, self._limits)
                if code_cache is not None:
                    with contextlib.suppress(OSError):  # a full disk costs the next start some time, not this one its handler
                        code_cache.put(package.digest, code)
            data = {path: content for path, content in package.files.items() if not path.endswith(".py")}
            entry = package.entry_point
            await process.request("load", code, data, entry.module, entry.attribute, seconds=self._limits.load)
        except BaseException:
            await process.close()
            raise
        finally:
            # Not at once: starting a process would compete with the first messages of the session this one was taken for.
            asyncio.get_running_loop().call_later(_REFILL_SECONDS, self._refill)
        worker = Worker(process, package, operations, self._limits, local, peers, self._workers.discard)
        self._workers.add(worker)
        return worker

    async def _take(self) -> WorkerProcess:
        """A worker that has not seen a handler: the longest ready, else a new one."""
        while self._ready and not self._closed:
            with contextlib.suppress(Unavailable):  # what failed in the background is told if it fails again now
                process = await self._ready.pop(0)
                if process.alive:
                    return process
                await process.close()
        if self._closed:
            raise Unavailable("sandbox.closed", "The pool of workers is closed.")
        return await WorkerProcess.start(self._isolation, self._limits)

    def _refill(self) -> None:
        while len(self._ready) < self._size and not self._closed:
            self._ready.append(asyncio.create_task(WorkerProcess.start(self._isolation, self._limits)))


async def _compile(process: WorkerProcess, package: HandlerPackage, limits: Limits) -> bytes:
    """The package's code, compiled by a worker that has seen nothing of it yet; opaque to this process."""
    sources = {path: content for path, content in package.files.items() if path.endswith(".py")}
    reply = await process.request("compile", sources, seconds=limits.load)
    code = framing.decode_any(reply.fields[0])
    assert reply.kind == "code"
    assert isinstance(code, bytes)  # nothing of the handler has run: the worker is still ours
    return code
