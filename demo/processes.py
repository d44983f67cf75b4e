"""Start the processes of the demo and of `make run`, wait until they are ready, and end them.

A process that was started here is in a session of its own: Ctrl-C reaches the starting process alone, which then ends the others.
They get SIGTERM when it dies, also by SIGKILL (Linux, prctl(2) PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parent.parent
_PR_SET_PDEATHSIG = 1
_STOP = 30  # seconds for a registry to stop with its database; then it is killed
_POLL = 0.02  # seconds between two looks whether a process is ready
_REMIND = 15  # seconds after which a wait says that it goes on
_LAST_LINES = 15

_ports = iter(random.sample(range(10_000, 20_000), 1_000))
# Loaded here: between fork and exec a child must not load libraries.
_libc = ctypes.CDLL(None)


class DemoFailed(Exception):
    """A step did not end as it must."""


def build_wheels(folder: Path) -> None:
    """Build Treaty and its runtime for the registry's own package index. Raises `DemoFailed`."""
    for project in (ROOT, ROOT / "client" / "treaty_handler"):
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder.resolve())]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DemoFailed(f"No wheel was built: {done.stderr[-2_000:]}")


@dataclass(frozen=True)
class Actor:
    """A process with a name. `log`: the file that has its output and errors; None where it prints to the terminal."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path | None = None

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        log: Path | None = None,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Actor:
        """Start `command` in `folder`, with `environment` beside this process's own.

        Call it in the main thread: the kernel ends a child with the thread that started it.
        """
        parent = os.getpid()

        def end_with_parent() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before the line above, so no signal will come
                os._exit(1)

        output = log.open("ab") if log else None
        try:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
                # A registry stops its database at the first signal, and a second one would end it before that.
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 (two system calls)
            )
        finally:
            if output:
                output.close()
        return cls(name, process, log)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready` is true, as long as the process lives. Raises `DemoFailed` with the end of its log when it ends."""
        # No limit: a first start on a busy machine may take minutes. A reminder says which log shows the reason.
        remind = time.monotonic() + _REMIND
        while not ready():
            # Asked once more: the process may have become ready and ended since.
            if self.process.poll() is not None and not ready():
                raise DemoFailed(f"{self.name} ended with status {self.process.returncode}{self._last_lines()}")
            if time.monotonic() > remind:
                where = f" Its log is {self.log}." if self.log else ""
                print(f"  … still waiting for {self.name}, process {self.process.pid}.{where}", file=sys.stderr, flush=True)
                remind += _REMIND
            time.sleep(_POLL)

    def listens(self, port: int) -> None:
        """Wait until `port` of loopback accepts connections. Raises as `wait_until`."""
        self.wait_until(lambda: accepts(port))

    def succeeds(self) -> None:
        """Wait until the process has ended. Raises `DemoFailed` with the end of its log when its status is not 0."""
        self.wait_until(lambda: self.process.poll() == 0)

    def terminate(self) -> None:
        """Ask the process to end; `end` waits for it."""
        self.process.terminate()

    def end(self) -> None:
        """Wait for the end of a process that was asked to end, and kill it when it takes too long."""
        try:
            self.process.wait(timeout=_STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def printed(self) -> list[str]:
        """Return the whole lines of the log."""
        assert self.log is not None, "without a log the output is on the terminal"
        return self.log.read_text(errors="replace").rpartition("\n")[0].splitlines()

    def _last_lines(self) -> str:
        if self.log is None:
            return "; its last lines are above."
        return "; the end of its log:\n" + "\n".join(f"    {line}" for line in self.printed()[-_LAST_LINES:])


def accepts(port: int) -> bool:
    """Whether `port` of loopback accepts connections."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def is_free(port: int) -> bool:
    """Whether `port` of loopback can be listened on."""
    with socket.socket() as probe:
        # As the servers do: connections of a server that has just ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """Return a port on loopback that is not in use now, out of those that the system gives to no client: it stays free while its
    server is started, or started again."""
    # No port is drawn twice in a process, so that those which are only planned stay apart.
    return next(port for port in _ports if is_free(port))
