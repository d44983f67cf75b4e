"""The levels of isolation, the strongest first.

    bubblewrap   a worker in namespaces of its own, which sees a snapshot of the interpreter and nothing else
    process      a worker without namespaces, which has no system call that takes a path
    unconfined   `none`: a plain process of the agent's user

Each is an object that gives the command of a worker, and of a template that forks workers.
"""

from __future__ import annotations

from ..isolation import Isolation
from .bare_process import BareProcess
from .bubblewrap import Bubblewrap
from .level import Level
from .unconfined import Unconfined


def level_of(isolation: Isolation) -> Level:
    """Return the level of this name."""
    levels: dict[Isolation, type[Level]] = {"bubblewrap": Bubblewrap, "process": BareProcess, "none": Unconfined}
    return levels[isolation]()
