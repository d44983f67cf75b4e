"""`make` on a terminal of its own, interrupted by Ctrl-C, and what it leaves behind."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

ROOT = Path(__file__).parents[2]
_PR_SET_CHILD_SUBREAPER = 36
_HANGS = 300  # seconds after which a command on a busy machine hangs
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Make:
    """A running `make`. `temporary`: the folder for its temporary files. `before`: the processes that this one had already."""

    temporary: Path
    before: set[int]
    process: subprocess.Popen[bytes]
    terminal: int
    _printed: bytearray = field(default_factory=bytearray)
    _closing: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        # A terminal that is not read stops those that print.
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        # It looks at times whether it must end: Linux would not close a terminal from which a thread is reading.
        with suppress(OSError):  # the terminal has no user any more
            while not self._closing.is_set():
                if select.select([self.terminal], [], [], 0.1)[0]:
                    self._printed += os.read(self.terminal, 65536)

    @property
    def printed(self) -> str:
        """All that the terminal shows."""
        return self._printed.decode(errors="replace")

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready` is true while `make` runs."""
        ends = time.monotonic() + _HANGS
        while not ready():
            assert self.process.poll() is None and time.monotonic() < ends, self.printed
            time.sleep(0.05)

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.write(self.terminal, b"\x03")

    def close_window(self) -> None:
        """Take the terminal away. A shell then tells its jobs."""
        self.release()
        os.killpg(self.process.pid, signal.SIGHUP)

    def release(self) -> None:
        """Close the terminal."""
        if not self._closing.is_set():
            self._closing.set()
            self._reader.join()
            os.close(self.terminal)

    def left(self) -> tuple[list[str], list[str]]:
        """Wait for the end of `make`. Return the commands of the processes and the names of the temporary files that are left."""
        self.process.wait(timeout=_HANGS)
        living = [pid for pid in sorted(_descendants() - self.before) if not _is_reaped(pid)]
        return [_command(pid) for pid in living], [path.name for path in self.temporary.iterdir()]


@contextmanager
def make(target: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Make]:
    """Run `make TARGET` with the interpreter of the tests, without an installation. At the end its processes are killed."""
    before = _descendants()
    command = ["make", "--old-file=.venv/runtime", "--old-file=.venv/development", target]
    command += [f"BIN={Path(sys.executable).parent}", *arguments]
    # Its tests are no part of the run of pytest that this one is in.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TREATY_", "MAKE", "MFLAGS"))}
    with tempfile.TemporaryDirectory(prefix="i-") as folder, _adopting():
        Path(folder).chmod(0o711)  # PostgreSQL, when it is started by root, runs as another user
        process, terminal = on_terminal(command, {**clean, "TMPDIR": folder, "TERM": "dumb", **(environment or {})})
        running = Make(Path(folder), before, process, terminal)
        try:
            yield running
        finally:
            while left := _descendants() - before:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    _is_reaped(pid)
                time.sleep(0.01)
            running.release()


def on_terminal(command: Sequence[str], environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command in the foreground of a new terminal. Return it, and the end of the terminal that shows and types."""
    terminal, its_end = pty.openpty()

    def take_terminal() -> None:
        # A shell that started the tests in the background lets them ignore Ctrl-C, and a child inherits that.
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        start_new_session=True,
        env=environment,
        preexec_fn=take_terminal,  # noqa: PLW1509 (two system calls)
    )
    os.close(its_end)
    return process, terminal


@contextmanager
def _adopting() -> Iterator[None]:
    """Let the kernel give orphans among the descendants of this process to it, so that none is out of sight."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _descendants() -> set[int]:
    """Return the processes that this one, or a process that it started, has started."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):  # it has ended
            parent = status.read_text().partition("\nPPid:\t")[2].partition("\n")[0]
            children.setdefault(int(parent), []).append(int(status.parent.name))
    pids = list(children.get(os.getpid(), ()))
    for pid in pids:  # which grows meanwhile
        pids += children.get(pid, ())
    return set(pids)


def _is_reaped(pid: int) -> bool:
    """Whether a process had ended and was an orphan, which this process takes over as init would do."""
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:  # a child of another one
        return False


def _command(pid: int) -> str:
    """Return the command line of a process; a zombie has none."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
