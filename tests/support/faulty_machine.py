"""A PostgreSQL and a registry, processes of their own, whose disk, clock and connections fail when a test says so.

The system calls fail by a library (`faulty_calls.c`), which the machine's C compiler builds once. The connections go through a
relay (`database_relay`), which also names the steps of a write.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import pwd
import signal
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from build_cache import kept
from database_relay import Relay
from ports import free_port
from registry_process import Server

from treaty_registry.storage.embedded import embedded_postgres
from treaty_registry.storage.postgres import connect

_SOURCE = Path(__file__).with_name("faulty_calls.c")
_FORM = struct.Struct("=iiiiq")
_NAMES = ("write_error", "sync_error", "slow", "hold", "ahead")
HELD = 3
"""The value of `hold` while a process waits at its record."""


def _library() -> Path:
    def build(folder: Path) -> None:
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", folder / "faulty.so", _SOURCE, "-ldl"], check=True)

    return kept(Path(__file__).parents[2] / ".pytest_cache" / "d" / "faulty_calls", build) / "faulty.so"


def _running_program(pid_file: Path) -> Path:
    """Return the program of the PostgreSQL that runs."""
    return Path(f"/proc/{pid_file.read_text().split()[0]}/exe").readlink()


class Calls:
    """The system calls of some processes. Every value is 0 as long as nothing fails."""

    def __init__(self, folder: Path, name: str) -> None:
        """Make the file through which the processes are told. They may run as another user."""
        self._library = folder / "faulty.so"
        if not self._library.exists():
            self._library.write_bytes(_library().read_bytes())
            self._library.chmod(0o755)
        self._path = folder / f"{name}.faults"
        self._path.write_bytes(bytes(_FORM.size))
        self._path.chmod(0o666)
        with self._path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FORM.size)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process whose calls these are."""
        return {"LD_PRELOAD": str(self._library), "FAULTY_CALLS": str(self._path)}

    def set(self, **values: int) -> None:
        """Make calls fail, or work again: `write_error`, `sync_error` (an errno), `slow` (ms), `hold` (1, 2), `ahead` (s)."""
        for name, value in values.items():
            offset, size = (16, 8) if name == "ahead" else (4 * _NAMES.index(name), 4)
            self._map[offset : offset + size] = value.to_bytes(size, "little", signed=True)

    def get(self, name: str) -> int:
        """Return a value."""
        return int(_FORM.unpack(self._map[: _FORM.size])[_NAMES.index(name)])


class Database:
    """A PostgreSQL server of the test's own, whose system calls may fail."""

    def __init__(self, folder: Path, program: Path, calls: Calls) -> None:
        self._directory = folder / "postgres"
        self._program = program
        self.calls = calls
        self._process: subprocess.Popen[bytes] | None = None
        self.suspended = False

    @property
    def socket(self) -> Path:
        """The socket on which it listens."""
        return self._directory / ".s.PGSQL.5432"

    async def start(self) -> None:
        """Start it unless it runs, and wait until it answers."""
        await asyncio.to_thread(self._launch)
        async with asyncio.timeout(60):
            while True:
                with suppress(Exception):
                    async with connect(f"postgresql://postgres@/postgres?host={self._directory}") as connection:
                        await connection.execute("select 1")
                        return
                await asyncio.sleep(0.1)

    def _launch(self) -> None:
        if self._process is None or self._process.poll() is not None:
            user = pwd.getpwuid(self._directory.stat().st_uid)
            drop = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
            with (self._directory.parent / "server.log").open("ab") as output:
                self._process = subprocess.Popen(
                    [self._program, "-D", self._directory, "-h", "", "-k", self._directory],
                    cwd=self._directory,
                    env={"PATH": os.environ["PATH"], **self.calls.environment},
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    **drop,  # type: ignore[call-overload]
                )

    def kill(self) -> None:
        """End it at once, with all that it forked."""
        assert self._process is not None
        self._tell_all(signal.SIGKILL)
        self._process.wait()
        (self._directory / "postmaster.pid").unlink(missing_ok=True)

    def suspend(self) -> None:
        """Let all of it stand still."""
        self.suspended = True
        self._tell_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.suspended = False
        self._tell_all(signal.SIGCONT)

    def _tell_all(self, number: signal.Signals) -> None:
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                if process.name.isdecimal() and (process / "cwd").samefile(self._directory):
                    os.kill(int(process.name), number)


@contextmanager
def preloaded(calls: Calls) -> Iterator[None]:
    """Let the processes that start in this block have these calls."""
    before = {name: os.environ.get(name) for name in calls.environment}
    os.environ.update(calls.environment)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class FaultyMachine:
    """The registry, its database, and the relay between them. `calls`: the registry's system calls."""

    def __init__(self, server: Server, calls: Calls, database: Database, relay: Relay) -> None:
        self.server = server
        self.calls = calls
        self.database = database
        self.relay = relay

    async def start(self) -> None:
        """Start the registry until it listens."""
        async with asyncio.timeout(60):
            while True:
                with preloaded(self.calls):
                    await self.server.start()
                if await self.server.ready():
                    return

    @property
    def pid(self) -> int:
        """The registry's process."""
        assert self.server.process is not None
        return self.server.process.pid

    async def heal(self) -> None:
        """End every fault, and start again what has ended."""
        # PostgreSQL restarts itself after a failed fsync. When its recovery fails in the same way, release 18 can wait for
        # ever for its I/O workers. Its operator ends it then.
        if self.database.calls.get("sync_error"):
            await asyncio.to_thread(self.database.kill)
        for calls in (self.calls, self.database.calls):
            calls.set(write_error=0, sync_error=0, slow=0, hold=0, ahead=0)
        if self.database.suspended:
            self.database.resume()
        await self.database.start()
        assert self.server.process is not None
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        if self.server.process.returncode is not None:
            await self.start()


@asynccontextmanager
async def faulty_machine(folder: Path, *options: str) -> AsyncIterator[FaultyMachine]:
    """Run a registry with a new log; nothing of it runs on after the block. `folder`: another user may traverse it."""
    async with embedded_postgres(folder):
        program = await asyncio.to_thread(_running_program, folder / "postgres" / "postmaster.pid")
    calls = Calls(folder, "registry")
    database = Database(folder, program, Calls(folder, "database"))
    await database.start()
    async with Relay.listening(folder / "relay", database.socket) as relay:
        server = Server(folder / "registry", free_port(), options=("--database", relay.url, *options))
        machine = FaultyMachine(server, calls, database, relay)
        try:
            await machine.start()
            yield machine
        finally:
            if database.suspended:
                database.resume()
            if server.process is not None and server.process.returncode is None:
                await server.kill()
            database.kill()
