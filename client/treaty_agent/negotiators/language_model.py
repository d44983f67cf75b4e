"""Define the interface of a language model, which answers a prompt with a JSON value of a given schema, and its budget.

model = OpenAIModel(…, budget=Budget(Allowance(calls=1_000), period=86_400))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from treaty_consensus.errors import Unavailable
from treaty_io.codes import ModelCode


@dataclass(frozen=True)
class Allowance:
    """Limits for requests, tokens, and seconds of waiting. The default is for one negotiation, which usually needs about six
    answers. Immutable; each is at least 1."""

    # Six answers are usual; the rest is for counter-proposals, repairs and test cases of one negotiation.
    calls: int = 60
    tokens: int = 2_000_000
    seconds: float = 1_800.0

    def part(self, share: float) -> Allowance:
        """Return a share of each limit, from 0 to 1, but at least 1."""
        return Allowance(max(1, int(self.calls * share)), max(1, int(self.tokens * share)), max(1.0, self.seconds * share))


# A second limit, because strangers decide how many negotiations there are.
PER_DAY = Allowance(calls=5_000, tokens=100_000_000, seconds=86_400.0)


class Budget:
    """Count the use of an allowance. For one event loop.

    A request is allowed while a part of every limit is left. So the last request may exceed the tokens by its own.
    """

    def __init__(
        self,
        allowance: Allowance,
        *,
        period: float | None = None,
        within: Sequence[Budget] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the whole allowance. `period`: seconds until the allowance is renewed; None: never. `within`: budgets that
        bound this one, and are charged with it. `clock`: monotonic seconds."""
        self.allowance, self._period, self._within, self._clock = allowance, period, tuple(within), clock
        self._since = clock()
        self._calls, self._tokens, self._seconds = 0, 0, 0.0

    @property
    def calls(self) -> int:
        """The number of requests in this period."""
        self._renew()
        return self._calls

    @property
    def tokens(self) -> int:
        """The number of tokens in prompts and answers of this period."""
        self._renew()
        return self._tokens

    @property
    def seconds(self) -> float:
        """The seconds that were waited in this period."""
        self._renew()
        return self._seconds

    @property
    def renewed_in(self) -> float | None:
        """The seconds until the allowance is renewed; None: never."""
        self._renew()
        return None if self._period is None else self._since + self._period - self._clock()

    def part(self, share: float) -> Budget:
        """Return an unused budget of a share of this one's allowance, renewed at the same times."""
        self._renew()
        part = Budget(self.allowance.part(share), period=self._period, clock=self._clock)
        part._since = self._since
        return part

    def left(self) -> float:
        """Return the seconds that may still be waited. Raises `Unavailable` (`model.budget`) when any limit is reached;
        `retry_after` is then the time until it is renewed."""
        self._renew()
        allowed = self.allowance
        # Checked before a request, so the last one may exceed its share.
        for spent, limit, unit in (
            (self._calls, allowed.calls, "requests"),
            (self._tokens, allowed.tokens, "tokens"),
            (self._seconds, allowed.seconds, "seconds"),
        ):
            if spent >= limit:
                error = Unavailable(
                    ModelCode.BUDGET,
                    f"The language model's budget of {limit:,.10g} {unit} is used up.",
                    fix="Raise the budget, or publish negotiated protocols: then the next session needs no model.",
                )
                error.retry_after = self.renewed_in
                raise error
        return min([allowed.seconds - self._seconds, *(budget.left() for budget in self._within)])

    def spend(self, *, calls: int = 0, tokens: int = 0, seconds: float = 0.0) -> None:
        """Add to the counts."""
        self._renew()
        self._calls += calls
        self._tokens += tokens
        self._seconds += seconds
        for budget in self._within:
            budget.spend(calls=calls, tokens=tokens, seconds=seconds)

    def _renew(self) -> None:
        # A monotonic clock: a change of the system time must not renew the allowance. Whole periods: all parts of a budget are
        # renewed with it, whichever is asked first.
        if self._period is not None and (passed := self._clock() - self._since) >= self._period:
            self._since += passed // self._period * self._period
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
    """A language model. Safe for concurrent use on one event loop. `budget`: for all its requests."""

    budget: Budget

    async def complete(self, prompt: Prompt[T], budget: Budget | None = None) -> T:
        """Return the result of `prompt.read` for an answer that satisfies `prompt.schema`. `budget`: charged beside the
        model's own.

        Raises `Unavailable`: `model.budget` when a budget is used up, `model.unavailable` when the model cannot be asked. Raises
        `TooLarge` (`model.answer`), and `Refused` (`model.answer`) when the model refuses, or no attempt gave a usable answer.
        """

    async def aclose(self) -> None:
        """Close all connections."""
