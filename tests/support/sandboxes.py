"""A probe inside a sandbox: code goes in, what it returns comes out. And a census of processes, to see that none is left."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from handler_packages import LOCAL, PEER, package

from treaty_handler import Call, Effect, Opened, Return
from treaty_sandbox import HandlerSession, SandboxLimits, SandboxPool, Worker
from treaty_sandbox.interpreter import executable

LEVELS = ["bubblewrap", pytest.param("process", marks=pytest.mark.deep)]
"""The levels of a test that holds at each, for the fixture `level`."""
_QUICK = SandboxLimits(event=20.0)


class Probe:
    """A worker with the probe handler and one session in it."""

    def __init__(self, worker: Worker, session: HandlerSession) -> None:
        self.worker = worker
        self.session = session
        self._calls = 0

    async def effects(self, code: str) -> list[Effect]:
        """Run the code inside; its effects, the Return last."""
        self._calls += 1
        return await self.session.handle(Call(call=str(self._calls), operation="ask", arguments={"code": code}))

    async def run(self, code: str) -> Any:
        """Run the code inside; what it assigned to `value`."""
        effect = (await self.effects(code))[-1]
        assert isinstance(effect, Return)
        return effect.value

    async def attempt(self, code: str) -> str:
        """Run the code inside; the name of the exception it ended with, or "it worked"."""
        body = "\n".join(f"    {line}" for line in code.splitlines())
        result = await self.run(
            f"try:\n{body}\nexcept BaseException as e:\n    value = type(e).__name__\nelse:\n    value = 'it worked'"
        )
        return str(result)


@asynccontextmanager
async def probe(limits: SandboxLimits = _QUICK, **kind: Any) -> AsyncIterator[Probe]:
    """A fresh worker, gone afterwards."""
    async with SandboxPool(size=0, limits=limits) as pool:
        worker = await pool.load_code(package(**kind), local=LOCAL, peers=[PEER])
        session = await worker.open("client")
        await session.handle(Opened())
        yield Probe(worker, session)


def open_descriptors() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def descendants() -> set[int]:
    """Every process below this one, by number, zombies included; but for the tracker of multiprocessing, which stays until the
    end once there was a pool. Servers that several tests share are among them, so compare with those before."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    pids = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids |= more
    return {pid for pid in pids - {os.getpid()} if not _is_resource_tracker(pid)}


def _is_resource_tracker(pid: int) -> bool:
    return b"multiprocessing.resource_tracker" in _command(pid)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it ended meanwhile
        return b""


def sandboxed() -> set[int]:
    """Every process below this one that has restricted itself: the sandboxed workers, without bubblewrap and the template."""
    ours = _filters(os.getpid())  # a container has one
    return {pid for pid in descendants() if _filters(pid) > ours}


def _filters(pid: int) -> int:
    return int(status_of(pid).get("Seccomp_filters", 0))


def template() -> int:
    """The one interpreter of a snapshot below this process that has not restricted itself; a fork that is on its way to a worker
    passes. Registries that several tests share have workers too, with the interpreter of the host."""
    deadline = time.monotonic() + 10
    while True:
        pids = [pid for pid in descendants() - sandboxed() if _command(pid).partition(b"\0")[0].endswith(executable().encode())]
        if len(pids) == 1:
            return pids[0]
        assert time.monotonic() < deadline, pids
        time.sleep(0.01)


def status_of(pid: int | str) -> dict[str, str]:
    """The fields of /proc/PID/status; none if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def left(pids: set[int]) -> set[int]:
    """Which of these processes exist in any form."""
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


def _left(pid: int) -> bool:
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return False
    return state != "Z" or int(parent) == os.getpid()


def gone(pids: set[int], seconds: float = 10.0) -> bool:
    """Whether all these processes disappear and leave no zombie of ours; an orphan's is for the system's process 1 to collect."""
    deadline = time.monotonic() + seconds
    while any(_left(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
