"""Isolation `bubblewrap`: a worker in namespaces, whose root has nothing but a snapshot of the interpreter.

    template                     process 1 of the sandbox, with the capabilities that a new namespace needs
      └ fork                     enters new namespaces for the next one, sends its pidfd, and ends
          └ worker               process 1 of its own pid namespace; drops all capabilities, then restricts itself as any worker

So workers share nothing but the user namespace, in which they have no capability, and memory that is copied when it is written.
"""

from __future__ import annotations

import _socket
import os
from collections.abc import Callable

from . import seccomp
from .confinement import ForkedConfinement, answer, be_worker
from .kernel import LIBC, PR_CAPBSET_DROP, drop_capabilities, failure, prctl

# CLONE_NEWNS, …CGROUP, …UTS, …IPC, …PID, …NET: all but the user namespace, which --disable-userns forbids.
_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
_CAPABILITIES = (8, 21)  # CAP_SETPCAP, CAP_SYS_ADMIN: those of the template


class Namespaced(ForkedConfinement):
    """Namespaces, and a filter that lets files be read."""

    def restrict(self) -> None:
        seccomp.install(self._machine, files=True)

    def fork(self, control: _socket.socket, pipe: int, serve: Callable[[], None]) -> None:
        if os.fork() != 0:
            return
        # In a child, because the namespaces are those of a process that is made next. It answers, and ends.
        try:
            if LIBC.unshare(_NAMESPACES) != 0:
                raise failure("unshare")
            worker = os.fork()
            if worker == 0:
                be_worker(_drop_capabilities, pipe, serve)
            answer(control, worker)
        except OSError as error:
            control.send(b"-%d" % (error.errno or 0))
        finally:
            os._exit(0)


def _drop_capabilities() -> None:
    """Give up all capabilities, for this process and any program that it could run. Raises `OSError`."""
    for capability in _CAPABILITIES:
        prctl(PR_CAPBSET_DROP, capability)
    drop_capabilities()  # last: dropping from the bounding set takes CAP_SETPCAP
