"""Quotas: what is refused, what refills, and that one sender's flood is not everybody's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from treaty_consensus.errors import Unavailable
from treaty_registry.admission import quota
from treaty_registry.admission.quota import Quota
from treaty_registry.settings import Quotas, Rate


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(take: object, *arguments: object) -> str:
    with pytest.raises(Unavailable) as error:
        take(*arguments)  # type: ignore[operator]
    return error.value.code


def make(clock: Clock, principal: float = 3, prefix: float = 5, total: float = 8) -> Quota:
    return Quota(Quotas(Rate(1, principal), Rate(1, prefix), Rate(1, total)), clock)


def test_a_bucket_empties_and_refills() -> None:
    clock = Clock()
    limits = make(clock)
    for _ in range(3):
        limits.take_of("shop.example")
    assert refused(limits.take_of, "shop.example") == "quota.principal"
    limits.take_of("other.example")
    clock.now += 1
    limits.take_of("shop.example")
    assert refused(limits.take_of, "shop.example") == "quota.principal"


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    clock = Clock()
    limits = make(clock)
    clock.now += 1_000_000
    for _ in range(3):
        limits.take_of("shop.example")
    assert refused(limits.take_of, "shop.example") == "quota.principal"


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("192.0.2.1", "192.0.2.200", True),
        ("192.0.2.1", "192.0.3.1", False),
        ("2001:db8:1::1", "2001:db8:1:ffff::2", True),
        ("2001:db8:1::1", "2001:db8:2::1", False),
        ("192.0.2.1", "::ffff:192.0.2.9", True),
    ],
)
def test_a_network_shares_one_bucket(first: str, second: str, shared: bool) -> None:
    limits = make(Clock())
    limits.take_from(first, 5)
    if shared:
        assert refused(limits.take_from, second) == "quota.prefix"
    else:
        limits.take_from(second)


def test_a_flood_from_one_network_leaves_the_rest_to_others() -> None:
    limits = make(Clock())
    limits.take_from("192.0.2.1", 5)
    for _ in range(100):
        assert refused(limits.take_from, "192.0.2.1") == "quota.prefix"
    limits.take_from("198.51.100.1", 3)
    assert refused(limits.take_from, "198.51.100.1") == "quota.total"


def test_this_process_asks_nobody() -> None:
    limits = make(Clock(), total=0, prefix=0)
    limits.take_from(None, 1_000)
    assert refused(limits.take_from, "127.0.0.1") == "quota.prefix"


def test_memory_is_bounded_and_full_buckets_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "MAX_BUCKETS", 4)
    clock = Clock()
    limits = make(clock)
    for number in range(4):
        limits.take_of(f"did:{number}")
    assert refused(limits.take_of, "did:one-too-many") == "quota.principal"
    limits.take_of("did:0")  # those who are known go on
    clock.now += 3
    limits.take_of("did:one-too-many")


def test_a_factor_multiplies_every_quota() -> None:
    quotas = Quotas(Rate(1, 2), Rate(3, 4), Rate(5, 6)).times(10)
    assert quotas == Quotas(Rate(10, 20), Rate(30, 40), Rate(50, 60))
