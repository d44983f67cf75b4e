"""Test an application's agents without a registry, a network or a sandbox, in milliseconds.

    from treaty_agent.testing import PeerDouble, Simulation, run

`Simulation` has the agents, a registry in memory and the faults; `PeerDouble` is an agent with answers that a test sets; `run`
runs a test in virtual time. docs/guides/testing.md shows a whole test.
"""

from __future__ import annotations

from .memory_registry import MemoryRegistry
from .peer_double import PeerDouble, ReceivedCall
from .simulation import Link, Simulation
from .virtual_time import run

__all__ = ["Link", "MemoryRegistry", "PeerDouble", "ReceivedCall", "Simulation", "run"]
