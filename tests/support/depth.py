"""How much a test searches: a fifth by default, all of it with TREATY_DEPTH=full (`make test-deep`).

`TREATY_SEED` repeats the choices of a test that prints its seed. They are read once: no process that a test starts gets them,
because the product refuses a variable that it does not know (`conftest`).
"""

from __future__ import annotations

import os

OF_TESTS = ("TREATY_DEPTH", "TREATY_SEED", "TREATY_SAMPLE")
FULL = os.environ.get("TREATY_DEPTH") == "full"
SEED = os.environ.get("TREATY_SEED")


def examples(full: int) -> int:
    """How many of `full` examples to try; 10 at least."""
    return full if FULL else min(full, max(10, full // 5))
