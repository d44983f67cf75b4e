"""The processes of a scene: started on loopback, on the processors they are to have, ended with the scene."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from .raw_asgi import Answers

REPOSITORY = Path(__file__).parent.parent
_BIN = Path(sys.executable).parent
_START = 60
_STOP = 20
_OF_THE_SERVER = (b"date", b"server")


class SceneFailed(Exception):
    """A process of the scene did not do what it must."""


@dataclass(frozen=True)
class Processors:
    """Which processors a server and its load run on, so that neither takes the other's time. None: on any."""

    server: frozenset[int] | None
    load: frozenset[int] | None

    @classmethod
    def divided(cls) -> Processors:
        """The first one for a server, with its database; the rest for the load. No division where there is only one."""
        first, *rest = sorted(os.sched_getaffinity(0))
        return cls(frozenset({first}), frozenset(rest)) if rest else cls(None, None)


@dataclass(frozen=True)
class Registry:
    """A running registry. `name`: BASE_URL#VKEY, for clients; `data`: its data directory; `process`: its main one."""

    port: int
    name: str
    data: Path
    process: int = 0

    @property
    def origin(self) -> str:
        """The log's."""
        return f"{self.port}.localhost"

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def workspace() -> Iterator[Path]:
    """A temporary folder that PostgreSQL's own user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="treaty-bench-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(command: Sequence[str], log: Path, processors: frozenset[int] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the repository's folder, what it prints in `log`. Terminated at the end, with SIGKILL if it does not go."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            if processors is not None:
                os.sched_setaffinity(process.pid, processors)  # before it has threads or children, which inherit it
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@asynccontextmanager
async def registry(
    folder: Path,
    processors: frozenset[int] | None = None,
    *,
    prepare: Callable[[Path, str], Awaitable[None]] | None = None,
    quota: float = 100_000,
    port: int | None = None,
) -> AsyncIterator[Registry]:
    """A registry with a new log and the embedded PostgreSQL below `folder`, both on `processors`; by default with quotas out of
    the way.

    `prepare`: is given the data directory and the origin before the server starts. `port`: of a log that is there already.
    """
    port, data, log = port or free_port(), folder / "registry", folder / "registry.log"
    if prepare is not None:
        await prepare(data, f"{port}.localhost")
    command = [str(_BIN / "treaty-registry"), "serve", "--data", str(data), "--port", str(port), "--quota", str(quota), "--json"]
    if not (data / "keys").exists():
        command.append("--new")
    with running(command, log, processors) as process:
        await ready(process, log, lambda: bool(_announcement(log)))
        yield Registry(port, json.loads(_announcement(log))["name"], data, process.pid)


@asynccontextmanager
async def raw_asgi(folder: Path, answers: Answers, processors: frozenset[int] | None = None) -> AsyncIterator[int]:
    """The baseline server with these answers; yields its port."""
    port, recorded, log = free_port(), folder / "answers.pickle", folder / "raw.log"
    recorded.write_bytes(pickle.dumps(answers))
    command = [sys.executable, "-m", "bench.raw_asgi", "--port", str(port), str(recorded)]
    with running(command, log, processors) as process:
        await ready(process, log, lambda: listens(port))
        yield port


async def record(client: httpx.AsyncClient, targets: Sequence[str], accept: str = "*/*") -> Answers:
    """What a server answers to GETs of these targets. Raises `SceneFailed` unless all are 200."""
    answers: Answers = {}
    for target in targets:
        response = await client.get(target, headers={"Accept": accept, "Accept-Encoding": "identity"})
        if response.status_code != 200:
            raise SceneFailed(f"{target}: {response.status_code} {response.text[:300]}")
        headers = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in _OF_THE_SERVER]
        answers[response.url.path, response.url.query] = (headers, response.content)
    return answers


async def ready(process: subprocess.Popen[bytes], log: Path, is_ready: Callable[[], bool]) -> None:
    """Wait until `is_ready`. Raises `SceneFailed` when the process ends before, or takes too long."""
    deadline = time.monotonic() + _START
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SceneFailed(f"{process.args!r} did not start; it said:\n{_tail(log)}")
        await asyncio.sleep(0.05)


def listens(port: int) -> bool:
    """Whether somebody takes connections on a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def processor_seconds(process: int) -> float:
    """The processor time that a process has taken, in the kernel too, without that of its children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _announcement(log: Path) -> str:
    """The line in which a registry says that it takes connections, and who it is; among those of its own log."""
    lines = log.read_text().split("\n")[:-1]
    return next((line for line in lines if line.startswith('{"origin"')), "")
