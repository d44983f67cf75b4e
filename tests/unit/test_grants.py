"""Grants in the log: who makes and takes them back, when they end, and that their order in the log decides."""

from __future__ import annotations

import pytest
from admission_log import ALICE, BOB, DAY, GENESIS, NEW_OWNER, OPERATOR, OTHER, Log, publish, taken_over
from signers import NOW, Signer, domain_signer, identity_body, key_signer

from treaty_consensus import facts, kinds
from treaty_consensus.did import encode_multikey

CAROL = domain_signer("carol.example")
GRANT, TAKEN_BACK = kinds.Grant("alice.example", BOB.did), kinds.Grant("alice.example", BOB.did, withdrawn=True)


@pytest.fixture
def log() -> Log:
    log = Log()
    log.add(GENESIS, OPERATOR)
    for signer in (ALICE, BOB, CAROL):
        log.add(identity_body(signer), OPERATOR)
    return log


def change_hands(log: Log, signer: Signer = ALICE) -> None:
    """The operator sees a domain with another key."""
    before = log.facts[f"identity/{signer.did}"]
    assert isinstance(before, facts.IdentityFact)
    if signer is ALICE:
        log.add(taken_over(before), OPERATOR)
        return
    key = kinds.Key(f"{signer.did}#new", encode_multikey(key_signer("another").public_key))
    log.add(kinds.Identity(signer.did, OTHER, (key,), before.tenure + 1, before.statement), OPERATOR)


def pass_days(log: Log, days: int) -> None:
    log.add(kinds.Withdrawal(OTHER.sha256, "illegal"), OPERATOR, issued=NOW + days * DAY)


def test_a_grant_that_is_taken_back_entitles_no_longer(log: Log) -> None:
    log.add(GRANT, ALICE)
    log.add(publish("1.0"), BOB)
    log.add(TAKEN_BACK, ALICE, issued=NOW + 1)
    assert log.refuses(publish("1.1"), BOB) == "publish.not-entitled"
    log.add(GRANT, ALICE, issued=NOW + 2)
    log.add(publish("1.1"), BOB)


def test_a_grant_may_be_renewed_and_taken_back_twice(log: Log) -> None:
    for number, body in enumerate((GRANT, GRANT, TAKEN_BACK, TAKEN_BACK)):
        log.add(body, ALICE, issued=NOW + number)
    assert log.refuses(publish(), BOB) == "publish.not-entitled"


def test_only_the_owner_takes_a_grant_back(log: Log) -> None:
    log.add(GRANT, ALICE)
    for stranger in (BOB, CAROL, key_signer("anyone")):
        assert log.refuses(TAKEN_BACK, stranger) == "publish.not-entitled"
    log.add(publish(), BOB)


def test_both_methods_of_a_domain_withdraw_each_others_grants(log: Log) -> None:
    web = domain_signer("alice.example", "web")
    log.add(identity_body(web), OPERATOR)
    log.add(GRANT, ALICE)
    log.add(TAKEN_BACK, web)
    assert log.refuses(publish(), BOB) == "publish.not-entitled"


def test_a_guest_passes_nothing_on(log: Log) -> None:
    log.add(GRANT, ALICE)
    assert log.refuses(kinds.Grant("alice.example", CAROL.did), BOB) == "publish.not-entitled"
    log.add(kinds.Grant("bob.example", CAROL.did), BOB)
    assert log.refuses(publish(), CAROL) == "publish.not-entitled"


def test_a_grant_ends_with_the_tenure_of_its_owner(log: Log) -> None:
    log.add(GRANT, ALICE)
    change_hands(log)
    pass_days(log, 40)
    assert log.refuses(publish(), BOB) == "publish.not-entitled"
    log.add(GRANT, NEW_OWNER, issued=NOW + 1)
    log.add(publish(), BOB)


def test_a_grant_ends_with_the_tenure_of_the_guest(log: Log) -> None:
    log.add(GRANT, ALICE)
    change_hands(log, BOB)
    pass_days(log, 40)
    heir = Signer(BOB.did, f"{BOB.did}#new", key_signer("another").private_key)
    assert log.refuses(publish(), heir) == "publish.not-entitled"


def test_a_grant_lasts_through_an_identity_in_the_same_tenure(log: Log) -> None:
    log.add(GRANT, ALICE)
    before = log.facts[f"identity/{ALICE.did}"]
    assert isinstance(before, facts.IdentityFact)
    key = kinds.Key(f"{ALICE.did}#renamed", encode_multikey(ALICE.public_key))
    log.add(kinds.Identity(ALICE.did, OTHER, (key,), 1, before.statement), OPERATOR)
    log.add(publish(), BOB)


def test_a_grant_before_the_first_identity_of_the_guest_lasts(log: Log) -> None:
    dave = domain_signer("dave.example")
    log.add(kinds.Grant("alice.example", dave.did), ALICE)
    log.add(identity_body(dave), OPERATOR)
    log.add(publish(), dave)


@pytest.mark.threat(28)
def test_a_new_owner_publishes_by_a_guest_after_thirty_days(log: Log) -> None:
    """A did:key has no tenure, so the wait of the owner must hold for it."""
    guest = key_signer("guest")
    change_hands(log)
    log.add(kinds.Grant("alice.example", guest.did), NEW_OWNER)
    assert log.refuses(publish(), guest) == "identity.new-tenure"
    pass_days(log, 31)
    log.add(publish(), guest)
