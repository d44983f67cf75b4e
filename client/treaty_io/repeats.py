"""Bound the lines that repeat: the first ones of a minute are written, then their number once a minute.

A registry that is down refuses each request for the same reason. A line for each of them would let strangers fill its disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_PERIOD = 60.0  # seconds
_MAX_KEYS = 64
"""Kinds of lines that are told apart. Texts of errors may be unbounded; a further kind shares one budget with others."""
_OTHERS = "others"


@dataclass(slots=True)
class _Budget:
    since: float
    written: int = 0
    left_out: int = 0


class Repeats:
    """The lines of one place in the code, by kind. For one event loop."""

    def __init__(self, lines: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        """`lines`: so many of one kind are written each minute."""
        self._lines = lines
        self._clock = clock
        self._budgets: dict[str, _Budget] = {}

    def admit(self, kind: str) -> dict[str, int] | None:
        """Return the fields to add to a line that is to be written, or None when it is to be left out.

        `repeated`, if any: how many of its kind were left out before it.
        """
        now = self._clock()
        if kind not in self._budgets and len(self._budgets) >= _MAX_KEYS:
            self._budgets = {each: budget for each, budget in self._budgets.items() if now - budget.since < _PERIOD}
            kind = kind if len(self._budgets) < _MAX_KEYS else _OTHERS
        budget = self._budgets.setdefault(kind, _Budget(now))
        left_out = 0
        if now - budget.since >= _PERIOD:
            left_out = budget.left_out
            budget.since, budget.written, budget.left_out = now, 0, 0
        if budget.written >= self._lines:
            budget.left_out += 1
            return None
        budget.written += 1
        return {"repeated": left_out} if left_out else {}

    def end(self) -> int | None:
        """Forget all kinds: the fault has passed. Returns how many lines were left out, or None when there was no line."""
        if not self._budgets:
            return None
        left_out = sum(budget.left_out for budget in self._budgets.values())
        self._budgets.clear()
        return left_out
