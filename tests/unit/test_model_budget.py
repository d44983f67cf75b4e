"""What a language model may cost."""

from __future__ import annotations

import pytest

from treaty_agent.negotiators.language_model import Allowance, Budget
from treaty_consensus.errors import Refused


@pytest.mark.parametrize("spent", [{"calls": 3}, {"tokens": 1_000}, {"seconds": 9.5}])
def test_whatever_is_used_up_ends_it(spent: dict[str, float]) -> None:
    budget = Budget(Allowance(calls=3, tokens=1_000, seconds=9.5))
    assert budget.left() == 9.5
    budget.spend(**spent)  # type: ignore[arg-type]
    with pytest.raises(Refused) as caught:
        budget.left()
    assert caught.value.code == "model.budget"


def test_a_period_gives_all_of_it_again() -> None:
    now = 0.0
    budget = Budget(Allowance(calls=1), period=60, clock=lambda: now)
    budget.spend(calls=1, tokens=5)
    assert (budget.calls, budget.tokens) == (1, 5)
    now = 59.9
    with pytest.raises(Refused):
        budget.left()
    now = 60.0
    assert budget.left() > 0
    assert (budget.calls, budget.tokens) == (0, 0)
