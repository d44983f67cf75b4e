"""Run histories: `python -m simulation SEED` prints one; `python -m simulation FIRST END` runs a range until one breaks a rule.

From the folder `tests`, with `tests/support` on the path.
"""

from __future__ import annotations

import sys
import time

from .history import run
from .seams import simulated

_PROGRESS = 1_000
"""Histories between two lines about the progress."""


def main(arguments: list[str]) -> int:
    """Return 0 when no rule was broken, otherwise 1."""
    first, *rest = map(int, arguments)
    with simulated():
        if not rest:
            history = run(first)
            print(history)
            return int(bool(history.findings))
        began = time.perf_counter()
        for seed in range(first, rest[0]):
            history = run(seed)
            if history.findings:
                print(history)
                print(f"found after {seed - first + 1} seeds, {time.perf_counter() - began:.1f} s")
                return 1
            if seed % _PROGRESS == _PROGRESS - 1:
                # A run that is stopped can be continued at the next seed.
                print(f"{first} to {seed}: no rule broken, {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        print(f"{rest[0] - first} histories, {(rest[0] - first) / (time.perf_counter() - began):.0f} a second")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
