"""How much may be asked of a language model: requests, tokens, and seconds of waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from treaty_consensus.errors import Refused


@dataclass(frozen=True)
class Allowance:
    """The default is for one negotiation: half a dozen answers in the usual case."""

    calls: int = 60
    tokens: int = 2_000_000
    seconds: float = 1_800.0


PER_DAY = Allowance(calls=5_000, tokens=100_000_000, seconds=86_400.0)


class Budget:
    """Counts what was spent of an allowance. For one event loop.

    A request is admitted as long as something is left of everything, so the last one may overdraw the tokens by its own.
    """

    def __init__(self, allowance: Allowance, *, period: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`period`: seconds after which the whole allowance is there again; None: never. `clock`: monotonic seconds."""
        self._allowance, self._period, self._clock = allowance, period, clock
        self._begin()

    @property
    def calls(self) -> int:
        """Requests made."""
        return self._calls

    @property
    def tokens(self) -> int:
        """Tokens of prompts and answers."""
        return self._tokens

    def left(self) -> float:
        """Seconds that may still be waited. Raises `Refused` (`model.budget`) when any part of the allowance is used up."""
        if self._period is not None and self._clock() - self._since >= self._period:
            self._begin()
        allowed = self._allowance
        for spent, limit, unit in (
            (self._calls, allowed.calls, "requests"),
            (self._tokens, allowed.tokens, "tokens"),
            (self._seconds, allowed.seconds, "seconds"),
        ):
            if spent >= limit:
                raise Refused(
                    "model.budget",
                    f"The language model's budget of {limit:g} {unit} is used up.",
                    fix="Allow more, or negotiate less: a protocol that is published needs no model the next time.",
                )
        return allowed.seconds - self._seconds

    def spend(self, *, calls: int = 0, tokens: int = 0, seconds: float = 0.0) -> None:
        """Count what was used."""
        self._calls += calls
        self._tokens += tokens
        self._seconds += seconds

    def _begin(self) -> None:
        self._since = self._clock()
        self._calls, self._tokens, self._seconds = 0, 0, 0.0
