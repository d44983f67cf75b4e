"""Isolation `process`: a worker without namespaces, for machines that deny them, as most containers do.

A handler does no input or output, so its worker needs no view of files. A template starts as a new program, because a fork would
hold the agent's keys in its memory. It reads the snapshot of `interpreter`, imports the rest from a mapped file
(`worker.library`), and forks the workers (`worker.process`). A worker has no system call that takes a path, opens a descriptor,
or names another process.

The template finds its files below /proc/self/cwd, which is the snapshot's folder. So neither its arguments nor its environment,
modules or shared libraries name a path of the host. As root it changes to uid 65534 before it reads a request.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from .. import interpreter
from ..limits import SandboxLimits
from .level import Command, Level, Role, python

_ROOT = "/proc/self/cwd/root"
# By which root becomes another user, and ends processes of another user.
_RIGHTS = {"KILL": 5, "SETGID": 6, "SETUID": 7}


class BareProcess(Level):
    """A process without paths."""

    name = "process"
    fix = (
        "This level needs /proc, seccomp filters, and a cache folder that programs may be started from. Root also needs the "
        "capabilities KILL, SETGID and SETUID: give them, or run the agent as an ordinary user."
    )

    def command(self, role: Role, limits: SandboxLimits) -> Command:
        folder = interpreter.snapshot().parent
        if os.getuid() == 0 and (missing := _missing_rights()):
            raise self.unavailable(f"root has no capability {', '.join(missing)} here")
        return Command(
            python(f"{_ROOT}{interpreter.executable()}", "process", role, limits, f"{_ROOT}/treaty"),
            # Without TZ, C reads the host's time zone. In a namespace there is none.
            environment={"LD_LIBRARY_PATH": f"{_ROOT}/python/lib", "TZ": "UTC0"},
            folder=str(folder),
        )


def _missing_rights() -> list[str]:
    """Return the capabilities that this process needs as root and does not have, as in a container without any."""
    held = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return [name for name, number in _RIGHTS.items() if held is None or not int(held[1], 16) >> number & 1]
