"""Run a command, and end with it every process that it started: how `make` runs all that starts servers.

    python tools/supervise.py [--tmpdir [--keep-failed]] -- COMMAND [ARGUMENT ...]

1. The command starts in a session of its own, so that Ctrl-C reaches this process and not the command. With `--tmpdir` it has a
   new folder for its temporary files, which is its $TMPDIR and replaces `{tmpdir}` in its arguments.
2. The first signal is passed on to the command, which then has 60 seconds to end by itself. A second signal ends this time.
3. When the command has ended or its time is over, every process that is left gets SIGTERM, and after 5 seconds SIGKILL. Then the
   folder is removed. With `--keep-failed` it stays when the command failed and no signal came.
4. The exit status is that of the command: 128 + N where signal N ended it or was passed on in vain, 127 where it cannot start.

Linux makes this process the parent of each orphan among its descendants (prctl(2), PR_SET_CHILD_SUBREAPER), whichever session the
orphan is in. Only the standard library is used.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PATIENCE = 60  # seconds for the command to end: `make run` gives its registry 30 of them
_GRACE = 5  # seconds from SIGTERM to SIGKILL, and then until a process that cannot be killed is given up
_ECHO = (
    0.3  # seconds in which a second signal is the first one again: `make`, `timeout` and shells send what the terminal sends too
)
_POLL = 0.05  # seconds between two looks at the processes that are left
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Loaded here: between fork and exec a child must not load libraries.
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Run the command of the arguments, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tmpdir", action="store_true", help="give the command a folder for its temporary files")
    parser.add_argument("--keep-failed", action="store_true", help="keep the folder of a command that failed without a signal")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    # A signal that was ignored from the start stays so: a shell lets its background processes ignore SIGINT, and nohup SIGHUP.
    heard = {number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN}
    # Blocked until the end, and only taken where this process waits: no signal can prevent the end of the processes.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*heard, signal.SIGCHLD})
    if not given.tmpdir:
        return _supervise(given.command, heard, mask)[0]
    folder = Path(tempfile.mkdtemp(prefix="treaty-"))
    folder.chmod(0o711)  # a PostgreSQL that root starts runs as another user, and must reach its data
    os.environ["TMPDIR"] = str(folder)
    command = [argument.replace("{tmpdir}", str(folder)) for argument in given.command]
    status, interrupted = _supervise(command, heard, mask)
    if not (given.keep_failed and status and not interrupted):
        _remove(folder)
    return status


def _supervise(command: Sequence[str], heard: set[signal.Signals], mask: set[signal.Signals | int]) -> tuple[int, bool]:
    """Run a command, and end all that it leaves. Return the exit status, and whether a signal came."""
    parent = os.getpid()

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # where this process is killed, nothing else ends the command
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    try:
        # Not only a process group of its own: Linux would stop it when it reads from the terminal. A command in another session
        # than that of the terminal may read and write there.
        process = subprocess.Popen(command, start_new_session=True, preexec_fn=prepare)  # noqa: PLW1509 (three system calls)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127, False
    first, deadline = 0, math.inf
    while (status := _reap(process.pid)) is None and (left := deadline - time.monotonic()) > 0:
        arrived = signal.sigtimedwait({*heard, signal.SIGCHLD}, min(left, _PATIENCE))
        if arrived is None or arrived.si_signo == signal.SIGCHLD:
            continue
        if not first:
            first, deadline = arrived.si_signo, time.monotonic() + _PATIENCE
            os.kill(process.pid, first)
        elif time.monotonic() > deadline - _PATIENCE + _ECHO:
            break
    _end_descendants()
    return 128 + first if status is None else status, bool(first)


def _reap(command: int = 0) -> int | None:
    """Take the children that have ended, orphans too. Return the exit status of the command if it is among them."""
    status = None
    with suppress(ChildProcessError):  # there are no children
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
            if ended.si_pid == command:
                status = ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status
    return status


def _end_descendants() -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _GRACE
        told: set[int] = set()
        while (living := _descendants()) and time.monotonic() < deadline:
            for pid in living - told:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
                    os.kill(pid, signal.SIGCONT)  # one that is stopped would not end
            told = living
            signal.sigtimedwait({signal.SIGCHLD}, _POLL)


def _descendants() -> set[int]:
    """Return the children of this process that have not ended, their children, and so on."""
    _reap()
    children: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # The parent is the second field after the name, which may have any characters. See proc(5).
            parent = int(file.read_bytes().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(file.parent.name))
    found = list(children.get(os.getpid(), ()))
    for pid in found:  # the list grows meanwhile
        found += children.get(pid, ())
    return set(found)


def _remove(folder: Path) -> None:
    for path, folders, _ in os.walk(folder):
        for name in folders:
            with suppress(OSError):
                if not (inner := Path(path, name)).is_symlink():
                    inner.chmod(0o700)  # a test may have left one that cannot be read
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
