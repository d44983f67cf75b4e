"""Quotas: what is refused, what refills, and that one sender's flood is not everybody's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from signers import key_signer

from treaty_consensus.did import Did, parse_did
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.errors import Unavailable
from treaty_registry.admission import quota
from treaty_registry.admission.quota import Quota
from treaty_registry.settings import Quotas, Rate, Share


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(take: object, *arguments: object) -> str:
    with pytest.raises(Unavailable) as error:
        take(*arguments)  # type: ignore[operator]
    return error.value.code


STANDING = {"did:wba:known.example": ONE // 2, "did:wba:famous.example": 100 * ONE}


def make(clock: Clock, principal: float = 3, prefix: float = 5, total: float = 8) -> Quota:
    quotas = Quotas(Share(1, principal), Share(1, prefix), Share(1, total))
    return Quota(quotas, clock, lambda did: STANDING.get(did, 0), lambda: 1)


def of(domain: str) -> Did:
    return parse_did(f"did:wba:{domain}")


def test_a_bucket_empties_and_refills() -> None:
    clock = Clock()
    limits = make(clock)
    for _ in range(3):
        limits.take_of(of("shop.example"))
    assert refused(limits.take_of, of("shop.example")) == "quota.sender"
    limits.take_of(of("other.example"))
    clock.now += 1
    limits.take_of(of("shop.example"))
    assert refused(limits.take_of, of("shop.example")) == "quota.sender"


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    clock = Clock()
    limits = make(clock)
    clock.now += 1_000_000
    for _ in range(3):
        limits.take_of(of("shop.example"))
    assert refused(limits.take_of, of("shop.example")) == "quota.sender"


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
        assert refused(limits.take_from, second) == "quota.sender"
    else:
        limits.take_from(second)


@pytest.mark.threat(81)
def test_a_flood_from_one_network_leaves_the_rest_to_others() -> None:
    limits = make(Clock())
    limits.take_from("192.0.2.1", 5)
    for _ in range(100):
        assert refused(limits.take_from, "192.0.2.1") == "quota.sender"
    assert limits.take_from("198.51.100.1")


@pytest.mark.threat(83)
def test_the_last_quarter_is_for_those_with_standing() -> None:
    clock = Clock()
    limits = make(clock, prefix=100)
    assert limits.take_from("192.0.2.1", 6)
    for _ in range(50):
        assert not limits.take_from("198.51.100.1"), "no more of it is everybody's"
        assert refused(limits.take_reserved, "did:wba:nobody.example", "did:key:z6Mk") == "quota.total"
    for _ in range(2):
        limits.take_reserved("did:wba:nobody.example", "did:wba:known.example")
    assert refused(limits.take_reserved, "did:wba:known.example") == "quota.total"
    assert refused(limits.take_from, "203.0.113.1") == "quota.total", "nothing is left, so nothing is even parsed"
    clock.now += 2
    assert not limits.take_from("203.0.113.1")
    limits.take_reserved("did:wba:known.example")
    clock.now += 2
    assert limits.take_from("203.0.113.1")


def test_a_batch_beyond_the_free_share_needs_standing() -> None:
    limits = make(Clock(), prefix=100)
    assert not limits.take_from("192.0.2.1", 7)
    assert limits.take_from("192.0.2.1", 6), "none of it was used up"


@pytest.mark.parametrize(
    ("domain", "at_once"), [("nobody.example", 3), ("known.example", 4), ("famous.example", 3 * quota.MAX_FACTOR)]
)
def test_a_bucket_grows_with_standing_up_to_a_bound(domain: str, at_once: int) -> None:
    clock = Clock()
    limits = make(clock)
    for refill in range(2):
        for _ in range(at_once):
            limits.take_of(of(domain))
        assert refused(limits.take_of, of(domain)) == "quota.sender", refill
        clock.now += 3  # the smallest bucket is full again by then, and the larger ones too


def test_the_bucket_of_a_host_is_one_whoever_of_it_sends() -> None:
    limits = make(Clock())
    for name in ("shop.example", "shop.example:agents:a", "shop.example:agents:b"):
        limits.take_of(of(name))
    assert refused(limits.take_of, of("shop.example:agents:c")) == "quota.sender"


def test_this_process_asks_nobody() -> None:
    limits = make(Clock(), total=0, prefix=0)
    assert limits.take_from(None, 1_000)
    assert refused(limits.take_from, "127.0.0.1") == "quota.sender"


def test_memory_is_bounded_and_full_buckets_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "MAX_BUCKETS", 4)
    clock = Clock()
    limits = make(clock)
    for number in range(4):
        limits.take_of(of(f"{number}.example"))
    assert refused(limits.take_of, of("one-too-many.example")) == "quota.sender"
    limits.take_of(of("0.example"))  # those who are known go on
    clock.now += 3
    limits.take_of(of("one-too-many.example"))


def test_a_factor_multiplies_every_quota() -> None:
    quotas = Quotas(Share(0.1, 2), Share(0.3, 4), Share(0.5, 6), Rate(1, 2), Rate(3, 4), Rate(5, 6), Rate(7, 8)).times(10)
    assert (quotas.principal, quotas.prefix, quotas.total) == (Share(1, 2), Share(3, 4), Share(5, 6))
    assert quotas.prefix.of(100) == Rate(300, 1200)
    assert (quotas.strangers_prefix, quotas.strangers) == (Rate(10, 20), Rate(30, 40))
    assert (quotas.services, quotas.uploads) == (Rate(50, 60), Rate(70, 80))


@pytest.mark.threat(79)
def test_a_bucket_follows_the_capacity_that_was_measured() -> None:
    capacity = 10.0
    limits = Quota(Quotas(prefix=Share(0.5, 2)), Clock(), lambda _: 0, lambda: capacity)
    assert limits.take_from("192.0.2.1", 10)
    assert refused(limits.take_from, "192.0.2.1") == "quota.sender"
    capacity = 20.0
    assert limits.take_from("192.0.2.1", 10)
    capacity = 5.0
    assert refused(limits.take_from, "192.0.2.1") == "quota.sender"


@pytest.mark.threat(79)
def test_did_keys_share_a_bucket_that_no_network_empties() -> None:
    limits = Quota(Quotas(strangers_prefix=Rate(0, 3), strangers=Rate(0, 5)), Clock(), lambda _: 0, lambda: 100)
    keys = [parse_did(key_signer(f"stranger {number}").did) for number in range(12)]
    for key in keys[:3]:
        limits.take_of(key, "192.0.2.1")
    for key in keys[3:6]:
        assert refused(limits.take_of, key, "192.0.2.9") == "quota.strangers"
    for key in keys[6:8]:
        limits.take_of(key, "198.51.100.1")
    assert refused(limits.take_of, keys[8], "198.51.100.1") == "quota.strangers"
    limits.take_of(of("shop.example"), "192.0.2.1")
    limits.take_of(keys[9], None)


@pytest.mark.threat(79)
def test_uploads_and_certificates_of_a_network_are_limited() -> None:
    limits = Quota(Quotas(uploads=Rate(0, 100), services=Rate(0, 2)), Clock(), lambda _: 0, lambda: 100)
    limits.take_upload("192.0.2.1", 60)
    assert refused(limits.take_upload, "192.0.2.2", 60) == "quota.sender"
    limits.take_upload("198.51.100.1", 60)
    limits.take_upload(None, 1_000)
    for _ in range(2):
        limits.take_service("192.0.2.1")
    assert refused(limits.take_service, "192.0.2.1") == "quota.sender"
    limits.take_service("198.51.100.1")


def test_use_at_a_high_capacity_is_no_debt_at_a_low_one() -> None:
    clock, capacity = Clock(), 4_000.0
    limits = Quota(Quotas(total=Share(1, 20), prefix=Share(10, 20)), clock, lambda _: 0, lambda: capacity)
    assert limits.take_from("192.0.2.1", 50_000)
    capacity = 100.0
    clock.now += 10
    assert limits.take_from("198.51.100.1")


def test_the_operator_raises_and_lowers_the_quota_of_one_author() -> None:
    friend, foe, other = (parse_did(key_signer(name).did) for name in ("friend", "foe", "other"))
    factors = {friend.text: 2.0, foe.text: 0.5, "did:wba:shop.example": 2.0}
    quotas = Quotas(Share(1, 3), strangers_prefix=Rate(0, 4), strangers=Rate(0, 4))
    limits = Quota(quotas, Clock(), lambda _: 0, lambda: 1, lambda author: factors.get(author.text))
    for _ in range(6):
        limits.take_of(of("shop.example"))
    assert refused(limits.take_of, of("shop.example")) == "quota.sender"
    for _ in range(2):
        limits.take_of(foe, "192.0.2.1")
    assert refused(limits.take_of, foe, "192.0.2.1") == "quota.sender"
    # A raised one takes nothing from the did:keys that share a bucket.
    for _ in range(8):
        limits.take_of(friend, "192.0.2.1")
    assert refused(limits.take_of, friend, "192.0.2.1") == "quota.sender"
    for _ in range(2):
        limits.take_of(other, "192.0.2.1")
    assert refused(limits.take_of, other, "192.0.2.1") == "quota.strangers"
    hosts, networks = limits.busiest(1)
    assert (hosts, networks) == ({"shop.example": 1.0}, {})
