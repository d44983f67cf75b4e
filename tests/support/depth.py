"""How much a test searches: a fifth by default, all of it with TREATY_DEPTH=full (`make test-deep`)."""

from __future__ import annotations

import os

FULL = os.environ.get("TREATY_DEPTH") == "full"


def examples(full: int) -> int:
    """How many of `full` examples to try; 10 at least."""
    return full if FULL else min(full, max(10, full // 5))
