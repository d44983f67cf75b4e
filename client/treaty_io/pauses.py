"""Keep the pauses of a serving process short: those of the garbage collection, and the waits of threads for the interpreter.

A full collection visits every object that is left, while nothing else runs: a tenth of a second for the modules of a server, more
for a thousand sessions. Python begins one after some 70,000 new objects. A stranger makes as many by two thousand connections.
"""

from __future__ import annotations

import gc
import sys

_FULL = 100
"""Collections of the middle generation before a full one: 700,000 new objects. Cycles that grew old stay in memory until then, at
most some 70 MB of them."""
# Seconds. A thread that waits for the interpreter's lock, as the event loop after each system call, gets it after this time.
_SWITCH = 0.0005


def shorten_pauses() -> None:
    """Call this once, when a process that only serves is ready: it affects all of the process.

    Modules and all other objects of now are never visited again. One that becomes a cycle of garbage stays in memory.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL)
    sys.setswitchinterval(_SWITCH)
