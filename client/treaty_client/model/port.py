"""What this library asks of a language model: a JSON value of a given schema, for a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from .budget import Budget

T = TypeVar("T")


@dataclass(frozen=True)
class Prompt(Generic[T]):
    """One request.

    `name`: of its kind: letters, digits and `_`. `system`: a reviewed text of `prompts`, the same for every request of the kind.
    `user`: the matter at hand, foreign text included and marked as such. `schema`: of the answer, an object all of whose
    properties are required. `read`: what an answer of that schema means; raises `TreatyError` with what is wrong with it, which
    is told to the model.
    """

    name: str
    system: str
    user: str
    schema: Mapping[str, Any]
    read: Callable[[Any], T]


class LanguageModel(Protocol):
    """Safe for concurrent use on one event loop."""

    async def complete(self, prompt: Prompt[T], budget: Budget | None = None) -> T:
        """What `prompt.read` makes of an answer that satisfies `prompt.schema`. `budget`: who pays, beside the model's own.

        Raises `Unavailable` (`model.unavailable`, `model.timeout`) when the model cannot be asked, `TooLarge` (`model.request`,
        `model.response`), `Refused`: `model.budget` when too much was asked already, `model.refusal` when it does not want to
        answer, `model.answer` when none of the allowed attempts was an answer.
        """

    async def aclose(self) -> None:
        """Close its connections."""
