"""Define the interface of a language model, which answers a prompt with a JSON value of a given schema, and its budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from treaty_consensus.errors import Refused
from treaty_io.codes import ModelCode


@dataclass(frozen=True)
class Allowance:
    """Limits for requests, tokens, and seconds of waiting. The default is for one negotiation, which usually needs about six
    answers."""

    # Six answers are usual; the rest is for counter-proposals, repairs and test cases of one negotiation.
    calls: int = 60
    tokens: int = 2_000_000
    seconds: float = 1_800.0


# A second limit, because strangers decide how many negotiations there are.
PER_DAY = Allowance(calls=5_000, tokens=100_000_000, seconds=86_400.0)


class Budget:
    """Count the use of an allowance. For one event loop.

    A request is allowed while a part of every limit is left. So the last request may exceed the tokens by its own.
    """

    def __init__(self, allowance: Allowance, *, period: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with the whole allowance. `period`: seconds until the allowance is renewed; None: never. `clock`: monotonic
        seconds."""
        self._allowance, self._period, self._clock = allowance, period, clock
        self._begin()

    @property
    def calls(self) -> int:
        """The number of requests."""
        return self._calls

    @property
    def tokens(self) -> int:
        """The number of tokens in prompts and answers."""
        return self._tokens

    def left(self) -> float:
        """Return the seconds that may still be waited. Raises `Refused` (`model.budget`) when any limit is reached."""
        if self._period is not None and self._clock() - self._since >= self._period:
            self._begin()
        allowed = self._allowance
        # Checked before a request, so the last one may exceed its share.
        for spent, limit, unit in (
            (self._calls, allowed.calls, "requests"),
            (self._tokens, allowed.tokens, "tokens"),
            (self._seconds, allowed.seconds, "seconds"),
        ):
            if spent >= limit:
                raise Refused(
                    ModelCode.BUDGET,
                    f"The language model's budget of {limit:g} {unit} is used up.",
                    fix="Raise the budget, or publish negotiated protocols: then the next session needs no model.",
                )
        return allowed.seconds - self._seconds

    def spend(self, *, calls: int = 0, tokens: int = 0, seconds: float = 0.0) -> None:
        """Add to the counts."""
        self._calls += calls
        self._tokens += tokens
        self._seconds += seconds

    def _begin(self) -> None:
        # A monotonic clock: a change of the system time must not renew the allowance.
        self._since = self._clock()
        self._calls, self._tokens, self._seconds = 0, 0, 0.0


T = TypeVar("T")


@dataclass(frozen=True)
class Prompt(Generic[T]):
    """One request to a language model.

    `name`: the kind of the request: letters, digits and `_`.
    `system`: a reviewed text of `prompts`, the same for every request of the kind.
    `user`: the data of this request; foreign text in it is marked.
    `schema`: the schema of the answer, an object whose properties are all required.
    `read`: convert an answer of that schema. Raises `TreatyError` for a wrong answer; the model receives its message.
    """

    name: str
    system: str
    user: str
    schema: Mapping[str, Any]
    read: Callable[[Any], T]


class LanguageModel(Protocol):
    """A language model. Safe for concurrent use on one event loop."""

    async def complete(self, prompt: Prompt[T], budget: Budget | None = None) -> T:
        """Return the result of `prompt.read` for an answer that satisfies `prompt.schema`. `budget`: charged beside the
        model's own.

        Raises `Unavailable` (`model.unavailable`) when the model cannot be asked, and `TooLarge`
        (`model.answer`). Raises `Refused`: `model.budget` when a budget is used up, `model.answer` when the
        model refuses, `model.answer` when no attempt gave a usable answer.
        """

    async def aclose(self) -> None:
        """Close all connections."""
