"""The limits of one worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The limits of one worker.

    `memory`: bytes of address space. `reply`: bytes of one reply. Seconds of the worker's processor time: `cpu` over its life,
    `load` for compiling a package, or importing it and opening its first session, `event` for one event or other request. Seconds
    of wall time, of which a pause of the host counts a part at most: `start` for the start of the sandbox, `wall` for one request
    of any kind.
    """

    memory: int = 256 * 1024 * 1024
    reply: int = 4 * 1024 * 1024
    cpu: int = 60
    start: float = 20.0
    load: float = 10.0
    event: float = 2.0
    # Ends a worker that waits for something. Ten times the processor time of an event, for a machine that is busy.
    wall: float = 20.0
