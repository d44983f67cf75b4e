"""A level of isolation: the command that starts a worker, and how its absence is told."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from treaty_consensus.errors import Unavailable
from treaty_consensus.printable import printable
from treaty_io.codes import SandboxCode

from ..isolation import Isolation
from ..limits import SandboxLimits

Role = Literal["template", "worker"]
# Without `_hashlib`, hashlib uses its own implementations. Loading OpenSSL would take longer than the rest of a worker's start.
_BOOT = "import sys; sys.modules['_hashlib'] = None; sys.path += sys.argv[6:]; from worker.main import main; main()"


@dataclass(frozen=True, slots=True)
class Command:
    """A program to start. `names_child`: its descriptor 1 receives one JSON object with `child-pid`, the process to kill.

    Variables of the agent may hold credentials, so a program has those of `environment` alone.
    """

    line: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    # A program need not see the agent's folder, and does not keep it busy.
    folder: str = "/"
    names_child: bool = False


class Level(ABC):
    """A level of isolation."""

    name: ClassVar[Isolation]
    fix: ClassVar[str]
    """How to get this level on a machine without it."""
    forks: ClassVar[bool] = True
    """Whether a template forks its workers (`worker.template`)."""

    @abstractmethod
    def command(self, role: Role, limits: SandboxLimits) -> Command:
        """Return the command of a worker, or of the template. Descriptor 0 is the socket of either.

        The first call may take seconds (`interpreter.snapshot`). Raises `Unavailable` (`sandbox.unavailable`) if this level is
        not available here.
        """

    def unavailable(self, reason: str) -> Unavailable:
        """Return the error for a start that failed. `reason`: the error output of what was started."""
        reason_text = printable(reason[-600:].strip(), 600) or "it said nothing"
        return Unavailable(SandboxCode.UNAVAILABLE, f"The sandbox did not start: {reason_text}.", fix=self.fix)


def python(executable: str, level: str, role: Role, limits: SandboxLimits, *paths: str) -> tuple[str, ...]:
    """Return the command line of `worker.main`. `paths`: where its packages are."""
    # -I ignores PYTHON… variables and the user's packages, and -S skips `site`, so no code of the host runs before the worker
    # restricts itself.
    return (executable, "-I", "-S", "-c", _BOOT, level, role, os.uname().machine, str(limits.memory), str(limits.cpu), *paths)
