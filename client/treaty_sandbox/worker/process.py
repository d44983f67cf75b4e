"""Isolation `process`: a worker without namespaces, which has no system call that takes a path.

    template    reads the snapshot, changes to uid 65534 if it is root, and imports from memory from there on
      └ worker  in a session of its own; ends with the template, and restricts itself

A worker sees no file, descriptor or process: its filter has no call that names one (`seccomp`). Landlock refuses the same things
once more, on kernels that have it, and keeps signals inside. A crash leaves no core, not even to a program that collects them.
"""

from __future__ import annotations

import _socket
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from . import landlock, seccomp
from .confinement import ForkedConfinement, answer, be_worker
from .kernel import PR_CAPBSET_DROP, drop_capabilities, prctl
from .library import Library

_LIBRARY = "/proc/self/cwd/library"
_UNPRIVILEGED = 65534
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_MAX_CAPABILITY = 63  # the kernel knows 41 today, and refuses the numbers beyond


class Pathless(ForkedConfinement):
    """A filter without paths."""

    def prepare(self) -> None:
        os.setsid()
        if os.getuid() == 0:
            _leave_root()
        drop_capabilities()  # an ordinary user may have some too, such as for a port below 1024
        prctl(_PR_SET_NO_NEW_PRIVS, 1)  # Landlock asks for it
        # After the change of uid, which resets both. Other processes of this uid, such as other agents' workers, may not read
        # the memory of one that is not dumpable.
        prctl(_PR_SET_DUMPABLE, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        Library.open(_LIBRARY).install()
        os.chdir("/")  # the folder of the snapshot is not kept busy, and its path is not told

    def restrict(self) -> None:
        # The filter denies forks too. Not for root, for whom the limit does not hold, and who is never here.
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        landlock.restrict()
        seccomp.install(self._machine, files=False)

    def fork(self, control: _socket.socket, pipe: int, serve: Callable[[], None]) -> None:
        # A child of the template itself: the kernel tells the end of a parent to its children, not to theirs.
        template = os.getpid()
        worker = os.fork()
        if worker == 0:
            be_worker(partial(_end_with, template), pipe, serve)
        answer(control, worker)


def _end_with(template: int) -> None:
    """End when this process's parent ends."""
    os.setsid()
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != template:  # it ended before the line above
        raise ProcessLookupError("the template has ended")


def _leave_root() -> None:
    """Become a user without rights, for good. Raises `OSError`."""
    for capability in range(_MAX_CAPABILITY + 1):
        with suppress(OSError):  # without CAP_SETPCAP the bound stays; no program that is started gets a right in any case
            prctl(PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setresgid(_UNPRIVILEGED, _UNPRIVILEGED, _UNPRIVILEGED)
    os.setresuid(_UNPRIVILEGED, _UNPRIVILEGED, _UNPRIVILEGED)
