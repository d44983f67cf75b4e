"""Run PostgreSQL from a wheel: a server below the data directory, reached by a Unix socket inside it.

Several processes may use one data directory (a running registry and `treaty-registry audit`), also from namespaces of their own
(units of systemd, containers), where they do not see each other's processes. So locks decide, and never a process id alone:

    DATA/postgres.lock        shared: this process uses the server; exclusive: it was the last user, and stops the server
    DATA/postgres.starting    exclusive: this process keeps the server: no other one starts it while the lock is held
    DATA/postgres.running     exclusive: the server itself, with all its processes, which inherit the lock (`cluster`)

The first user keeps the server, and starts it again when it ends, with pauses that double while that fails. The other users wait
for that. When the keeper ends, the next of them takes its place. The kernel frees the locks of a killed process: a server whose
users were all killed runs on, and the next user finds it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from treaty_consensus.errors import Refused, TreatyError

from ..codes import SettingsCode
from .cluster import FIRST_START, EmbeddedCluster, installed_programs

_MAX_DIRECTORY = 107 - len("/.s.PGSQL.5432")  # a Unix socket's path has at most 107 bytes, unix(7)
_RESTART = 5
"""Seconds to wait at a restart. A slower server continues to start, and the waiting process can still end."""
_LOOK = 0.5
"""Seconds between two checks that the server runs."""
_LONGEST_PAUSE = 15.0  # seconds between two tries to start it again

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def embedded_postgres(data: Path) -> AsyncIterator[str]:
    """Run PostgreSQL in `data`/postgres. Both folders are created on the first start. Yields its URL. Does not block the loop.

    PostgreSQL refuses to run as root. A new cluster that root makes belongs to the user `pgserver`, who is created if needed; the
    directories above it become traversable. The owner of a cluster that exists is never changed. Raises `Unavailable` when the
    wheel is not installed or the server does not start, and `Refused` when the path of `data` is too long, or when the cluster
    belongs to a user that this process cannot be.
    """
    directory = await asyncio.to_thread((data / "postgres").resolve)
    if len(os.fsencode(directory)) > _MAX_DIRECTORY:
        raise Refused(
            SettingsCode.VALUE,
            f"{directory} is too long a path for a Unix socket.",
            fix=f"Choose a data directory whose path has at most {_MAX_DIRECTORY - len('/postgres')} bytes.",
        )
    cluster = EmbeddedCluster(directory, installed_programs())
    cluster.check_owner()
    lock, keeping = _opened(data / "postgres.lock"), _opened(data / "postgres.starting")
    leaving = asyncio.Event()
    try:
        # Shared: this process uses the server. It waits here while another process stops it. The kernel frees the
        # lock of a killed process; the server then runs until its next user ends.
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_SH)
        await _finished(asyncio.to_thread(cluster.bring_up, keeping, FIRST_START))
        keeper = asyncio.create_task(_keep(cluster, keeping, leaving))
        try:
            yield f"postgresql://postgres@/postgres?host={directory}"
        finally:
            # Not cancelled: the thread that starts the server cannot be cancelled, and would start it again after `_leave`.
            leaving.set()
            await keeper
    finally:
        # Also after a failed start: the server may be starting still.
        await asyncio.to_thread(_leave, cluster, lock)
        os.close(keeping)
        os.close(lock)


def is_cluster(data: Path) -> bool:
    """Whether the embedded PostgreSQL of a data directory was made. It is made by the first `embedded_postgres`."""
    return (data / "postgres" / "PG_VERSION").exists()


def _opened(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Never deleted: a process could hold the lock of the deleted file while another one locks a new file of this name.
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


async def _finished(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end, also when this is cancelled."""
    # A thread cannot be cancelled: it would start the server after `_leave` found none to stop.
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _keep(cluster: EmbeddedCluster, keeping: int, leaving: asyncio.Event) -> None:
    """Have the server started whenever it has ended, until `leaving` is set."""
    pause = _LOOK
    while not leaving.is_set():
        # A pause that ends at once when the block does.
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await leaving.wait()
        if leaving.is_set() or cluster.runs():
            pause = _LOOK
            continue
        try:
            await asyncio.to_thread(cluster.bring_up, keeping, _RESTART)
            _log.error("the embedded PostgreSQL had ended and was started again", directory=str(cluster.directory))
        except (TreatyError, OSError, subprocess.SubprocessError) as error:
            pause = min(2 * pause, _LONGEST_PAUSE)
            _log.critical("the embedded PostgreSQL has ended and does not start", error=str(error), again_in=pause)


def _leave(cluster: EmbeddedCluster, lock: int) -> None:
    try:
        # Exclusive: only the last user gets it. A process that arrives now waits until the server has stopped.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # others still use it
    cluster.stop()
