"""How often another agent may begin a negotiation that leads to nothing."""

from __future__ import annotations

import pytest

from treaty_agent.negotiators.negotiator import Payer
from treaty_agent.sessions import stranger_negotiations
from treaty_agent.sessions.stranger_negotiations import FREE, MAX_PAUSE, PAUSE, StrangerNegotiations
from treaty_consensus.errors import Unavailable
from treaty_io.identity import ProvedPeer

STRANGER = Payer(None, "192.0.2.0/24")
NEIGHBOUR = Payer(ProvedPeer("did:wba:new.example"), "192.0.2.0/24")
PARTNER = Payer(ProvedPeer("did:wba:partner.example"), "192.0.2.0/24", has_deposit=True)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def fail(negotiations: StrangerNegotiations, payer: Payer, *, failed: bool | None = True) -> None:
    negotiations.begin(payer)
    negotiations.end(payer, failed=failed)


def refused(negotiations: StrangerNegotiations, payer: Payer) -> float | None:
    count = negotiations.taken
    with pytest.raises(Unavailable) as refusal:
        negotiations.begin(payer)
    assert (refusal.value.code, negotiations.taken) == ("session.busy", count)
    return refusal.value.retry_after


@pytest.mark.threat(370)
def test_failures_delay_a_network_under_every_name() -> None:
    clock = Clock()
    negotiations = StrangerNegotiations(8, clock=clock)
    for _ in range(FREE):
        fail(negotiations, STRANGER)
    fail(negotiations, NEIGHBOUR)
    for pause in (PAUSE, 2 * PAUSE, 4 * PAUSE):
        assert refused(negotiations, STRANGER) == refused(negotiations, NEIGHBOUR) == pause
        fail(negotiations, PARTNER, failed=False)  # which has a deposit, and so a memory of its own
        clock.now += pause
        fail(negotiations, STRANGER)
    for _ in range(12):
        clock.now += MAX_PAUSE
        fail(negotiations, STRANGER)
    assert refused(negotiations, STRANGER) == MAX_PAUSE
    clock.now += MAX_PAUSE
    fail(negotiations, STRANGER, failed=False)
    fail(negotiations, STRANGER)
    fail(negotiations, STRANGER)


def test_a_fault_of_this_side_is_not_remembered() -> None:
    negotiations = StrangerNegotiations(8)
    for _ in range(20):
        fail(negotiations, STRANGER, failed=None)
    negotiations.begin(STRANGER)  # no pause
    assert negotiations.taken == 1
    negotiations.end(STRANGER, failed=None)
    for _ in range(FREE):
        fail(negotiations, STRANGER)
    fail(negotiations, STRANGER, failed=None)
    fail(negotiations, STRANGER)
    assert refused(negotiations, STRANGER) is not None, "nor does it forgive failures"


def test_places_and_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stranger_negotiations, "MAX_PARTIES", 2)
    negotiations = StrangerNegotiations(1, clock=Clock())
    negotiations.begin(STRANGER)
    assert refused(negotiations, PARTNER) is None
    negotiations.end(STRANGER, failed=True)
    for network in ("a", "b", "c"):
        for _ in range(FREE + 1):
            fail(negotiations, Payer(None, network))
    assert refused(negotiations, Payer(None, "c")) == PAUSE
    fail(negotiations, Payer(None, "a"))  # the oldest was forgotten
