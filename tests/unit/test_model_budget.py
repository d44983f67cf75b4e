"""What a language model may cost, and how parties share that."""

from __future__ import annotations

import pytest

from treaty_agent import Allowance, Budget
from treaty_agent.negotiators import spending
from treaty_agent.negotiators.negotiator import Payer
from treaty_agent.negotiators.spending import PEERS, SHARE, STRANGERS, Spending
from treaty_consensus.errors import Unavailable
from treaty_io.identity import ProvedPeer

DAY = 86_400.0


@pytest.mark.parametrize(
    ("spent", "unit"),
    [({"calls": 3}, "3 requests"), ({"tokens": 2_000_000}, "2,000,000 tokens"), ({"seconds": 9.5}, "9.5 seconds")],
)
def test_whatever_is_used_up_ends_it_for_now(spent: dict[str, float], unit: str) -> None:
    budget = Budget(Allowance(calls=3, tokens=2_000_000, seconds=9.5))
    assert budget.left() == 9.5
    budget.spend(**spent)  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match=f"budget of {unit} is used up") as caught:
        budget.left()
    assert (caught.value.code, caught.value.retryable, caught.value.retry_after) == ("model.budget", True, None)


def test_a_period_gives_all_of_it_again() -> None:
    now = 0.0
    budget = Budget(Allowance(calls=20), period=60, clock=lambda: now)
    now = 50.0
    part = budget.part(0.1)  # renewed with the whole
    budget.spend(calls=20, tokens=5)
    part.spend(calls=2)
    assert (budget.calls, budget.tokens, part.allowance.calls) == (20, 5, 2)
    now = 59.5
    for each in (budget, part):
        with pytest.raises(Unavailable) as caught:
            each.left()
        assert caught.value.retry_after == 0.5
    now = 60.0
    assert part.left() > 0
    assert budget.left() > 0
    assert (budget.calls, budget.tokens, part.calls) == (0, 0, 0)


def test_a_nested_budget_is_charged_to_the_outer_ones() -> None:
    day, share = Budget(Allowance(calls=5)), Budget(Allowance(calls=1))
    session = Budget(Allowance(), within=(day, share))
    session.spend(calls=1, tokens=7, seconds=2.0)
    assert [(each.calls, each.tokens, each.seconds) for each in (day, share)] == [(1, 7, 2.0)] * 2
    with pytest.raises(Unavailable, match="1 requests"):
        session.left()


def spend(shared: Spending, payer: Payer | None, calls: int) -> int:
    """Ask so often, and return how many requests were admitted."""
    session = Budget(Allowance(calls=10**9, tokens=10**9), within=shared.budgets(payer))
    for number in range(calls):
        try:
            session.left()
        except Unavailable:
            return number
        session.spend(calls=1)
    return calls


@pytest.mark.threat(370)
def test_many_identities_of_one_network_have_one_share() -> None:
    shared = Spending(Budget(Allowance(calls=1_000), period=DAY))
    identities = (Payer(ProvedPeer(f"did:wba:{number}.example"), "192.0.2.0/24") for number in range(500))
    assert sum(spend(shared, payer, 100) for payer in identities) == SHARE * 1_000
    assert spend(shared, Payer(None, "198.51.100.0/24"), 100) == SHARE * 1_000, "another network still has its own"


@pytest.mark.threat(371)
def test_many_networks_leave_half_for_peers_with_a_deposit() -> None:
    shared = Spending(Budget(Allowance(calls=1_000), period=DAY))
    assert sum(spend(shared, Payer(None, f"10.0.{number}.0/24"), 100) for number in range(200)) == STRANGERS * 1_000
    partner = Payer(ProvedPeer("did:wba:partner.example"), "10.0.7.0/24", has_deposit=True)
    assert spend(shared, partner, 100) == SHARE * 1_000, "although its network has used up its share"
    friends = (Payer(ProvedPeer(f"did:wba:{number}.example"), "", has_deposit=True) for number in range(50))
    assert sum(spend(shared, payer, 100) for payer in friends) == (PEERS - STRANGERS - SHARE) * 1_000
    assert spend(shared, None, 100) == 100, "no peer bounds the own application"
    assert shared.snapshot().strangers == STRANGERS * 1_000


@pytest.mark.threat(372)
def test_who_claims_a_did_gets_nothing_of_the_share_of_its_proof() -> None:
    shared = Spending(Budget(Allowance(calls=1_000), period=DAY))
    assert Payer(None, "192.0.2.0/24", has_deposit=True).keys == ("network 192.0.2.0/24",)
    assert spend(shared, Payer(None, "192.0.2.0/24"), 500) == SHARE * 1_000
    partner = Payer(ProvedPeer("did:wba:partner.example"), "192.0.2.0/24", has_deposit=True)
    assert spend(shared, partner, 500) == SHARE * 1_000


def test_the_memory_of_shares_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "MAX_PARTIES", 4)
    shared = Spending(Budget(Allowance(calls=1_000), period=DAY))
    for number in range(4):
        shared.budgets(Payer(None, f"10.0.{number}.0/24"))  # of which nothing is spent, so they make room
    for number in range(4, 8):
        assert spend(shared, Payer(None, f"10.0.{number}.0/24"), 1) == 1
    late = [spend(shared, Payer(None, f"10.0.{number}.0/24"), 100) for number in range(8, 12)]
    assert late == [SHARE * 1_000, 0, 0, 0], "those have one share together"
