"""Admission: every rule, and that a refusal changes nothing."""

from __future__ import annotations

import msgspec
import pytest
from admission_log import ALICE, BLOB, BOB, DAY, GENESIS, NEW_OWNER, OPERATOR, OTHER, Log, publish, taken_over
from signers import NOW, Signer, domain_signer, identity_body, key_signer, signed
from simulated_log import ANCHORS, SUFFIX_LIST

from treaty_consensus import facts, kinds
from treaty_consensus.election.defaults import open_parameters


@pytest.fixture
def log() -> Log:
    log = Log()
    log.add(GENESIS, OPERATOR)
    log.add(identity_body(ALICE), OPERATOR)
    log.add(identity_body(BOB), OPERATOR)
    return log


def handler(document: str = BLOB.sha256, wheel: kinds.Blob = BLOB) -> kinds.Handler:
    return kinds.Handler(publish().uri, document, "treaty_handler_x-1.0-py3-none-any.whl", wheel, "x:handler", BLOB)


def report(epoch: int = 0, document: str = BLOB.sha256, nid: str = "ef" * 32) -> kinds.Report:
    return kinds.Report("commerce/product-info", nid, document, "agreed", epoch, "note")


def ballot(seq: int) -> kinds.Ballot:
    return kinds.Ballot("commerce/product-info", seq, ((BLOB.sha256,),), "note")


def test_reads_are_all_that_admit_looks_at(log: Log) -> None:
    """`Log.add` gives `admit` nothing but `reads(statement)`; these would be refused if a key were missing from it."""
    log.add(publish(), ALICE)
    log.add(handler(), BOB)
    log.add(kinds.Status(publish().uri, "deprecated", wheel=BLOB.sha256), BOB)
    log.add(report(), ALICE, BOB)
    log.add(ballot(0), ALICE)
    assert log.size == 8


def test_nothing_comes_before_the_genesis() -> None:
    assert Log().refuses(publish(), ALICE) == "log.no-genesis"


def test_a_log_has_one_genesis_signed_by_its_operator(log: Log) -> None:
    assert log.refuses(GENESIS, OPERATOR) == "log.exists"
    assert Log().refuses(GENESIS, key_signer("somebody")) == "statement.form"
    assert Log().refuses(GENESIS, OPERATOR, log="other.example") == "statement.form"
    late = Log(size=1)
    assert late.refuses(GENESIS, OPERATOR) == "log.exists"


@pytest.mark.threat(34)
def test_a_statement_for_another_log_does_not_replay_here(log: Log) -> None:
    assert log.refuses(publish(), ALICE, log="other.example") == "statement.other-log"


def test_keys_are_judged_under_the_newest_identity(log: Log) -> None:
    stranger = domain_signer("stranger.example")
    assert log.refuses(publish(namespace="stranger.example"), stranger) == "statement.unknown-key"
    impostor = Signer(ALICE.did, ALICE.key_id, BOB.private_key)
    assert log.refuses(publish(), impostor) == "statement.unknown-key"


def test_only_the_operator_testifies(log: Log) -> None:
    body = identity_body(domain_signer("carol.example"))
    assert log.refuses(body, ALICE) == "statement.not-operator"
    assert log.refuses(kinds.Withdrawal(BLOB.sha256, "illegal"), ALICE) == "statement.not-operator"
    log.add(kinds.Withdrawal(BLOB.sha256, "illegal"), OPERATOR)


def test_an_identity_follows_the_newest_one(log: Log) -> None:
    first = log.facts["identity/did:wba:alice.example"]
    assert isinstance(first, facts.IdentityFact)
    changed = taken_over(first)
    assert log.refuses(identity_body(ALICE, document="new"), OPERATOR) == "statement.previous"
    assert log.refuses(identity_body(ALICE, previous=first.statement), OPERATOR) == "statement.exists"
    assert log.refuses(changed, OPERATOR, BOB) == "statement.signatures"
    assert log.refuses(msgspec.structs.replace(changed, tenure=1), OPERATOR) == "identity.form"
    log.add(changed, OPERATOR)
    second = log.facts["identity/did:wba:alice.example"]
    assert isinstance(second, facts.IdentityFact)
    assert (first.tenure, second.tenure) == (1, 2)


def test_a_cosigned_rotation_keeps_the_tenure(log: Log) -> None:
    first = log.facts["identity/did:wba:alice.example"]
    assert isinstance(first, facts.IdentityFact)
    rotated = msgspec.structs.replace(taken_over(first), tenure=1)
    log.add(rotated, OPERATOR, ALICE, issued=NOW + 5)
    second = log.facts["identity/did:wba:alice.example"]
    assert isinstance(second, facts.IdentityFact)
    assert (second.tenure, second.since) == (1, first.since)


def test_a_transferred_domain_waits_thirty_logged_days(log: Log) -> None:
    first = log.facts["identity/did:wba:alice.example"]
    assert isinstance(first, facts.IdentityFact)
    log.add(publish("0.9"), ALICE)
    log.add(taken_over(first), OPERATOR)
    assert log.refuses(publish(), NEW_OWNER, issued=NOW + 60 * DAY) == "identity.new-tenure"
    old = msgspec.structs.replace(handler(), uri=publish("0.9").uri)
    assert log.refuses(old, NEW_OWNER) == "identity.new-tenure"
    log.add(kinds.Withdrawal(OTHER.sha256, "illegal"), OPERATOR, issued=NOW + 30 * DAY - 1)
    assert log.refuses(publish(), NEW_OWNER) == "identity.new-tenure"
    log.add(kinds.Withdrawal(OTHER.sha256, "illegal"), OPERATOR, issued=NOW + 30 * DAY)
    log.add(old, NEW_OWNER)
    log.add(publish(), NEW_OWNER)


@pytest.mark.threat(28)
def test_a_changed_document_with_no_new_key_keeps_the_tenure(log: Log) -> None:
    """Otherwise a stranger's nonsense, which makes the registry look again, would cost an owner thirty days."""
    first = log.facts["identity/did:wba:alice.example"]
    assert isinstance(first, facts.IdentityFact)
    same_keys = identity_body(ALICE, tenure=2, previous=first.statement, document="a service was added")
    assert log.refuses(same_keys, OPERATOR) == "identity.form"
    log.add(identity_body(ALICE, previous=first.statement, document="a service was added"), OPERATOR)
    log.add(publish(), ALICE)


@pytest.mark.threat(28)
def test_an_old_key_beside_a_new_one_keeps_no_tenure(log: Log) -> None:
    first = log.facts["identity/did:wba:alice.example"]
    assert isinstance(first, facts.IdentityFact)
    body = taken_over(first)
    both = kinds.Identity(body.did, body.document, (*identity_body(ALICE).keys, *body.keys), 1, first.statement)
    assert log.refuses(both, OPERATOR) == "identity.form"


def test_only_the_operator_moves_the_logs_clock(log: Log) -> None:
    log.add(publish(), ALICE, issued=NOW + 10**6)
    assert facts.log_of(log.facts).time == NOW
    log.add(kinds.Withdrawal(OTHER.sha256, "illegal"), OPERATOR, issued=NOW + 1)
    log.add(kinds.Withdrawal(OTHER.sha256, "illegal"), OPERATOR, issued=NOW - 1)
    assert (facts.log_of(log.facts).time, facts.log_of(log.facts).time_index) == (NOW + 1, 4)


def test_a_namespace_is_its_owners(log: Log) -> None:
    assert log.refuses(publish(), BOB) == "publish.not-entitled"
    assert log.refuses(kinds.Grant("alice.example", BOB.did), BOB) == "publish.not-entitled"
    log.add(kinds.Grant("alice.example", BOB.did), ALICE)
    log.add(publish(), BOB)


def test_did_web_and_did_wba_of_a_domain_own_the_same_namespace(log: Log) -> None:
    web = domain_signer("alice.example", "web")
    log.add(identity_body(web), OPERATOR)
    log.add(publish(), web)


def test_paths_and_ports_do_not_own_the_domain(log: Log) -> None:
    for text in ("alice.example:users:alice", "alice.example%3A8443"):
        signer = domain_signer(text)
        log.add(identity_body(signer), OPERATOR)
        assert log.refuses(publish(), signer) == "publish.not-entitled"


def test_a_did_key_owns_itself(log: Log) -> None:
    key = key_signer("anyone")
    log.add(publish(namespace=key.did), key)
    assert log.refuses(publish(), key) == "publish.not-entitled"


def test_a_version_is_immutable(log: Log) -> None:
    log.add(publish(), ALICE)
    assert log.refuses(publish(), ALICE, issued=NOW + 1) == "publish.version-exists"
    log.add(publish("1.1"), ALICE)


def test_a_protocol_is_published_below_this_logs_origin(log: Log) -> None:
    foreign = kinds.Publish("https://other.example/protocols/alice.example/x/1.0", "a/b", BLOB, BLOB, "negotiated")
    assert log.refuses(foreign, ALICE) == "statement.other-log"


def test_a_base_is_pinned(log: Log) -> None:
    base = kinds.Base(publish().uri, BLOB.sha256)
    assert log.refuses(publish("1.1", base=base), ALICE) == "protocol.unknown"
    log.add(publish(), ALICE)
    assert log.refuses(publish("1.1", base=kinds.Base(publish().uri, OTHER.sha256)), ALICE) == "publish.base"
    log.add(publish("1.1", base=base), ALICE)


def test_anyone_attaches_a_handler_to_the_document_it_is_for(log: Log) -> None:
    assert log.refuses(handler(), BOB) == "protocol.unknown"
    log.add(publish(), ALICE)
    assert log.refuses(handler(document=OTHER.sha256), BOB) == "handler.mismatch"
    log.add(handler(), BOB)
    assert log.refuses(handler(), BOB, issued=NOW + 1) == "statement.exists"
    log.add(handler(), ALICE)


def test_a_status_is_its_publishers(log: Log) -> None:
    assert log.refuses(kinds.Status(publish().uri, "yanked"), ALICE) == "protocol.unknown"
    log.add(publish(), ALICE)
    log.add(handler(), BOB)
    assert log.refuses(kinds.Status(publish().uri, "yanked"), BOB) == "publish.not-entitled"
    assert log.refuses(kinds.Status(publish().uri, "revoked", wheel=BLOB.sha256), ALICE) == "statement.no-target"
    log.add(kinds.Status(publish().uri, "deprecated", successor=publish("2.0").uri), ALICE)
    log.add(kinds.Status(publish().uri, "revoked", wheel=BLOB.sha256), BOB)


def test_a_report_has_two_parties_in_the_open_epoch(log: Log) -> None:
    assert log.refuses(report(), ALICE) == "report.other"
    second_key = Signer(ALICE.did, f"{ALICE.did}#key-2", ALICE.private_key)
    assert log.refuses(report(), ALICE, second_key) in ("report.other", "statement.unknown-key")
    assert log.refuses(report(epoch=1), ALICE, BOB) == "report.epoch"
    log.add(report(), ALICE, BOB)


def test_another_hash_for_a_reported_negotiation_equivocates(log: Log) -> None:
    log.add(report(), ALICE, BOB)
    assert log.refuses(report(), ALICE, BOB, issued=NOW + 1) == "report.exists"
    log.add(report(document=OTHER.sha256), ALICE, BOB)
    fact = log.facts[facts.report_key(signed(report(), ALICE, BOB).authors, "ef" * 32)]
    assert isinstance(fact, facts.ReportFact)
    assert fact.equivocated
    assert log.refuses(report(document="11" * 32), ALICE, BOB) == "report.exists"


def test_only_a_report_or_an_identity_has_two_authors(log: Log) -> None:
    assert log.refuses(publish(), ALICE, BOB) == "statement.signatures"


def test_vouches_are_numbered_without_gaps_whoever_they_are_for(log: Log) -> None:
    assert log.refuses(kinds.Vouch(BOB.did, 1), ALICE) == "statement.previous"
    log.add(kinds.Vouch(BOB.did, 0), ALICE)
    assert log.refuses(kinds.Vouch("did:wba:carol.example", 0), ALICE) == "statement.previous"
    assert log.refuses(kinds.Vouch(BOB.did, 0, withdrawn=True), ALICE) == "statement.previous"
    log.add(kinds.Vouch("did:wba:carol.example", 1), ALICE)
    log.add(kinds.Vouch(ALICE.did, 0), BOB)


def test_nobody_vouches_for_itself(log: Log) -> None:
    assert log.refuses(kinds.Vouch(ALICE.did, 0), ALICE) == "electorate.one-principal"


def test_ballots_are_numbered_without_gaps(log: Log) -> None:
    assert log.refuses(ballot(1), ALICE) == "statement.previous"
    log.add(ballot(0), ALICE)
    assert log.refuses(ballot(0), ALICE, issued=NOW + 1) == "statement.previous"
    assert log.refuses(ballot(2), ALICE) == "statement.previous"
    log.add(ballot(1), ALICE)
    log.add(ballot(0), BOB)


def test_a_suffix_list_that_decisions_need_is_not_withdrawn(log: Log) -> None:
    log.add(open_parameters(ANCHORS, SUFFIX_LIST), OPERATOR)
    assert log.refuses(kinds.Withdrawal(SUFFIX_LIST.sha256, "personal"), OPERATOR) == "withdrawal.needed"
    log.add(kinds.Withdrawal(BLOB.sha256, "personal"), OPERATOR)
