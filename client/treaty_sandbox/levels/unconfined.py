"""Isolation `none`: a plain process with the limits of a worker, for benchmarks, and for the publishers that a policy names."""

from __future__ import annotations

import sys

from .. import interpreter
from ..limits import SandboxLimits
from .level import Command, Level, Role, python


class Unconfined(Level):
    """No sandbox."""

    name = "none"
    fix = "Read the reason: a plain process did not start."
    forks = False

    def command(self, role: Role, limits: SandboxLimits) -> Command:
        if sys.platform == "win32":
            interpreter.require_platform()  # a worker's descriptor 0 is a socket, and it limits itself
        paths = (str(interpreter.package_folder(name).parent) for name in ("worker", "treaty_handler", "msgspec"))
        return Command(python(sys.executable, "none", role, limits, *paths))
