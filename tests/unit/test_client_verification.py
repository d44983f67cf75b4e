"""The ten steps over bytes: what a good bundle proves, and the cases that are no attack."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import msgspec
import pytest
from signers import Signer, domain_signer, identity_body, key_signer, signed
from simulated_registry import ALICE, BOB, CLOCK_KEY, LOG_KEY, NAME, OPERATOR, TOPIC, SimulatedRegistry, uri_of, with_echo

from treaty_client.policy import Policy
from treaty_client.protocols.topics import ranked
from treaty_client.protocols.verification import steps
from treaty_client.protocols.verification.checkpoint import missing_proof
from treaty_client.protocols.verification.records import Evidence, ProvenProtocol
from treaty_client.protocols.verification.steps import Step, VerificationFailed, taking
from treaty_client.protocols.verification.ten_steps import examine, prove, read_bundle, verify_bundle, verify_handler
from treaty_client.protocols.verification.topic import TopicView, view_topic
from treaty_client.registries.bundle import BundledLeaf, parse_bundle
from treaty_client.registries.trust import TrustedRegistry
from treaty_consensus import canonical, kinds
from treaty_consensus.errors import Refused
from treaty_consensus.log import merkle
from treaty_consensus.log.note import SignerKey
from treaty_consensus.protocol import parse_protocol_uri

POLICY = Policy([ALICE.did])
ECHO = parse_protocol_uri(uri_of())
TRUSTED = TrustedRegistry(NAME, None)


def proven(registry: SimulatedRegistry, policy: Policy = POLICY) -> ProvenProtocol:
    bundle = read_bundle(registry.bundle(uri_of()), uri=uri_of())
    return verify_bundle(bundle, ECHO, TRUSTED, policy, now=registry.now)


def examined(registry: SimulatedRegistry, uri: str = uri_of()) -> Evidence:
    return examine(parse_bundle(registry.bundle(uri)), TRUSTED, now=registry.now, max_age=60)


def test_a_good_protocol_passes_all_steps() -> None:
    registry = with_echo()
    data = registry.bundle(uri_of())
    before = proven(registry)
    wheel = registry.blobs[before.handler.body.wheel.sha256]
    verified = verify_handler(before, wheel, POLICY, bundle=data)
    assert verified.uri == uri_of()
    assert verified.hash == registry.document_of(uri_of()).sha256
    assert verified.document == registry.blobs[verified.hash]
    assert (verified.author, verified.publisher, verified.tenure) == (ALICE.did, ALICE.did, 1)
    assert (verified.signer.identity, verified.signer.issuer) == (ALICE.did, "https://registry.example/sigstore")
    assert verified.package.manifest.protocol_uri == uri_of()
    assert (verified.card and verified.card.title, verified.topic, verified.election, verified.warnings) == (
        "Echo 1.0",
        TOPIC,
        None,
        (),
    )
    assert (verified.bundle, verified.wheel, verified.trusted_root) == (data, wheel, registry.trusted_root)
    assert verified.age(registry.now + 7) == 7


def test_steps_have_the_numbers_of_the_documentation() -> None:
    listed = re.findall(r"^ +([0-9]+) ([a-z]+) ", steps.__doc__ or "", re.MULTILINE)
    assert [(str(step.value), step.title) for step in Step] == listed


def test_a_failure_keeps_code_fix_and_cause() -> None:
    cause = Refused("a.b", "It is so.", fix="Do that.")
    with pytest.raises(VerificationFailed) as failure, taking(Step.WHEEL), taking(Step.STATUS):
        raise cause
    assert failure.value.step == 9, "the innermost step counts"
    assert (failure.value.code, failure.value.fix, failure.value.__cause__) == ("a.b", "Do that.", cause)
    assert str(failure.value) == "Step 9 (status): It is so. Do that."


def test_another_protocols_bundle_is_not_this_ones() -> None:
    registry = with_echo()
    registry.publish("2.0")
    with pytest.raises(VerificationFailed) as failure:
        read_bundle(registry.bundle(uri_of("2.0")), uri=uri_of())
    assert (failure.value.step, failure.value.code) == (1, "bundle.other")


def test_a_bundle_that_only_says_it_is_this_protocols_is_not() -> None:
    registry = with_echo()
    registry.publish("2.0")
    other = replace(parse_bundle(registry.bundle(uri_of("2.0"))), uri=uri_of())
    with pytest.raises(VerificationFailed) as failure:
        verify_bundle(other, ECHO, TRUSTED, POLICY, now=registry.now)
    assert (failure.value.step, failure.value.code) == (4, "bundle.form")


def test_a_registry_that_the_policy_does_not_admit_is_not_asked() -> None:
    registry = with_echo()
    with pytest.raises(VerificationFailed) as failure:
        proven(registry, Policy([ALICE.did], registries=["other.example"]))
    assert (failure.value.step, failure.value.code) == (1, "policy.refused")


def test_offline_any_age_will_do() -> None:
    registry = with_echo()
    bundle = read_bundle(registry.bundle(uri_of()), uri=uri_of())
    assert verify_bundle(bundle, ECHO, TRUSTED, POLICY, now=None).handler.publisher == ALICE.did
    with pytest.raises(VerificationFailed):
        verify_bundle(bundle, ECHO, TRUSTED, POLICY, now=registry.now + 3601)


def test_a_withdrawn_card_costs_only_the_card() -> None:
    registry = with_echo()
    statement = next(statement.body for _, statement in registry.statements() if isinstance(statement.body, kinds.Publish))
    registry.withdrawn.add(statement.card.sha256)
    assert proven(registry).card is None


@pytest.mark.parametrize("document", [b"\xff", b" ", b"\xef\xbb\xbf# Echo", b"# E\0cho"])
def test_a_signed_document_that_is_no_text_is_refused(document: bytes) -> None:
    registry = with_echo()
    registry.publish("2.0", document=document)
    uri = parse_protocol_uri(uri_of("2.0"))
    with pytest.raises(VerificationFailed) as failure:
        verify_bundle(read_bundle(registry.bundle(str(uri)), uri=str(uri)), uri, TRUSTED, POLICY, now=registry.now)
    assert (failure.value.step, failure.value.code.split(".")[0]) == (5, "document")


def test_a_did_key_publishes_in_its_namespace() -> None:
    registry = with_echo()
    carol = key_signer("carol")
    registry.publish(signer=carol)
    evidence = examined(registry, uri_of(signer=carol))
    published = evidence.published(uri_of(signer=carol))
    assert (published.statement.author.text, published.tenure) == (carol.did, 1)


def test_a_handler_of_a_deprecated_protocol_warns_with_both() -> None:
    registry = with_echo()
    wheel = proven(registry).handler.body.wheel
    registry.add(kinds.Status(uri_of(), "deprecated", successor=uri_of("2.0")), ALICE)
    registry.add(kinds.Status(uri_of(), "deprecated", wheel=wheel.sha256), ALICE)
    verified = verify_handler(proven(registry), registry.blobs[wheel.sha256], POLICY, bundle=b"")
    assert len(verified.warnings) == 2
    assert uri_of("2.0") in verified.warnings[0]


def test_a_status_of_one_handler_is_not_one_of_the_protocol() -> None:
    registry = with_echo()
    registry.attach(signer=BOB, release="2")
    wheel = next(
        statement.body.wheel
        for _, statement in registry.statements()
        if isinstance(statement.body, kinds.Handler) and statement.author.text == BOB.did
    )
    registry.add(kinds.Status(uri_of(), "revoked", wheel=wheel.sha256), BOB)
    assert proven(registry).status is None
    assert proven(registry).handler.status is None
    with pytest.raises(VerificationFailed) as failure:
        proof = proven(registry, Policy([BOB.did]))
        verify_handler(proof, registry.blobs[wheel.sha256], POLICY, bundle=b"")
    assert failure.value.step == 9


def test_a_strangers_status_of_a_wheel_does_not_count() -> None:
    registry = with_echo()
    wheel = proven(registry).handler.body.wheel.sha256
    registry.force(signed(kinds.Status(uri_of(), "revoked", wheel=wheel), BOB, issued=registry.now).leaf)
    with pytest.raises(VerificationFailed) as failure:
        proven(registry)
    assert (failure.value.step, failure.value.code) == (4, "statement.no-target")


def test_who_attached_the_same_wheel_speaks_for_themselves() -> None:
    registry = with_echo()
    wheel = proven(registry).handler.body.wheel.sha256
    registry.attach(signer=BOB)
    registry.add(kinds.Status(uri_of(), "revoked", wheel=wheel), BOB)
    assert not proven(registry).handler.is_negative
    assert proven(registry, Policy([BOB.did])).handler.is_negative


def test_statements_that_prove_nothing_are_not_carried() -> None:
    registry = with_echo()
    ballot = kinds.Ballot(TOPIC, 0, (), registry.checkpoint().decode())
    index = registry.submit(signed(ballot, ALICE, issued=registry.now).leaf)
    honest = parse_bundle(registry.bundle(uri_of()))
    leaf = replace(honest.leaves[-1], index=index, leaf=registry.leaves[index], proof=registry.inclusion(index))
    with pytest.raises(VerificationFailed) as failure:
        examine(replace(honest, leaves=(*honest.leaves, leaf)), TRUSTED, now=registry.now, max_age=60)
    assert (failure.value.step, failure.value.code) == (4, "bundle.form")


@pytest.mark.parametrize("origin, key", [(NAME.origin, CLOCK_KEY), ("other.example", LOG_KEY)])
def test_a_genesis_of_another_key_or_origin_is_refused(origin: str, key: SignerKey) -> None:
    registry = with_echo()
    genesis = kinds.Genesis(origin, str(key.verifier), str(CLOCK_KEY.verifier), OPERATOR.did, "0" * 64)
    fork = registry.rewritten(0, signed(genesis, OPERATOR, log=origin, issued=registry.now).leaf)
    with pytest.raises(VerificationFailed) as failure:
        examined(fork)
    assert (failure.value.step, failure.value.code) == (2, "log.other")


def decided() -> SimulatedRegistry:
    """A log with two epochs closed in two topics."""
    registry = with_echo()
    registry.publish("2.0")
    carol, document = domain_signer("carol.example"), registry.document_of(uri_of())
    registry.add(identity_body(carol), OPERATOR)
    registry.add(kinds.Publish(uri_of(name="other"), "zzz", document, document, "negotiated"), ALICE)
    for topic, pair in product((TOPIC, "zzz"), combinations((ALICE, BOB, carol), 2)):
        nid = canonical.hex_digest(f"{topic} {pair[0].did} {pair[1].did}".encode())
        registry.add(kinds.Report(topic, nid, document.sha256, "agreed", 0, registry.checkpoint().decode()), *pair)
    assert len(registry.decide()) == 2
    registry.add(kinds.Status(uri_of("2.0"), "deprecated"), ALICE)
    assert len(registry.decide()) == 2
    return registry


def test_a_decision_of_any_epoch_is_taken_on_the_operators_word() -> None:
    registry = decided()
    decision = examined(registry).decision(TOPIC)
    assert isinstance(decision, kinds.Decision) and decision.previous is not None
    assert (decision.epoch, decision.topic, decision.remaining) == (1, TOPIC, 1)


def test_a_decision_of_another_topic_says_nothing_of_this_one() -> None:
    registry = decided()
    honest = parse_bundle(registry.bundle(uri_of()))
    other = next(i for i, m in reversed(registry.statements()) if isinstance(m.body, kinds.Decision) and m.body.topic == "zzz")
    leaves = (*honest.leaves, BundledLeaf(other, registry.leaves[other], registry.inclusion(other)))
    evidence = examine(replace(honest, leaves=leaves), TRUSTED, now=registry.now, max_age=60)
    assert evidence.decision(TOPIC) == examined(registry).decision(TOPIC)
    assert evidence.decision("zzz") is not None
    assert evidence.decision("nothing") is None


def test_the_documents_state_in_its_topic_is_told() -> None:
    registry = redecided(decided(), states=((with_echo().document_of(uri_of()).sha256, "consensus"),))
    before = proven(registry)
    verified = verify_handler(before, registry.blobs[before.handler.body.wheel.sha256], POLICY, bundle=b"")
    assert verified.election == "consensus"


def test_statements_after_a_decision_are_judged_by_earlier_facts() -> None:
    registry = decided()
    registry.add(kinds.Status(uri_of(), "deprecated"), ALICE)
    assert proven(registry).status == kinds.Status(uri_of(), "deprecated")


def redecided(registry: SimulatedRegistry, signer: Signer = OPERATOR, **changes: Any) -> SimulatedRegistry:
    """A fork in which the topic's newest decision says something else."""
    index, body = next(
        (index, statement.body)
        for index, statement in reversed(registry.statements())
        if isinstance(statement.body, kinds.Decision) and statement.body.topic == TOPIC
    )
    return registry.rewritten(index, signed(msgspec.structs.replace(body, **changes), signer, issued=registry.now).leaf)


def test_a_decision_that_its_operator_did_not_sign_is_refused() -> None:
    with pytest.raises(VerificationFailed) as failure:
        examined(redecided(decided(), ALICE))
    assert (failure.value.step, failure.value.code) == (4, "statement.not-operator")


def test_a_decision_over_leaves_to_come_is_refused() -> None:
    registry = decided()
    with pytest.raises(VerificationFailed) as failure:
        examined(redecided(registry, input=kinds.Input(registry.size, "0" * 64)))
    assert (failure.value.step, failure.value.code) == (4, "decision.rule")


def test_consistency_is_proved_from_the_newest_seen_head() -> None:
    registry = with_echo()
    sizes = range(1, len(registry.leaves) + 1)
    for seen_size in sizes:
        registry.served = seen_size
        seen = TrustedRegistry(NAME, registry.checkpoint())
        registry.served = None
        bundle = parse_bundle(registry.bundle(uri_of(), seen_size))
        assert missing_proof(bundle, seen) is None
        assert examine(bundle, seen, now=registry.now, max_age=60).checkpoint.checkpoint.size == registry.size
        if seen_size < registry.size:
            for proof in (None, (), (bundle.consistency or ())[:-1], (*(bundle.consistency or ()), b"\0" * 32)):
                with pytest.raises(VerificationFailed) as failure:
                    examine(replace(bundle, consistency=proof), seen, now=registry.now, max_age=60)
                assert failure.value.step == 2 and len(failure.value.evidence) == 2


def test_a_smaller_checkpoint_needs_a_bridge() -> None:
    registry = with_echo()
    seen = TrustedRegistry(NAME, registry.checkpoint())
    whole = len(registry.leaves)
    registry.add(kinds.Status(uri_of(), "deprecated"), ALICE)
    larger = TrustedRegistry(NAME, registry.checkpoint())
    registry.served = whole
    bundle = parse_bundle(registry.bundle(uri_of()))
    assert missing_proof(bundle, seen) is None
    assert missing_proof(bundle, larger) == (whole, whole + 1)
    bridge = merkle.consistency_proof(whole, whole + 1, registry.nodes)
    assert examine(bundle, larger, now=registry.now, max_age=60, bridge=bridge).checkpoint.checkpoint.size == whole
    for wrong in (None, (), [b"\0" * 32]):
        with pytest.raises(VerificationFailed) as failure:
            examine(bundle, larger, now=registry.now, max_age=60, bridge=wrong)
        assert failure.value.step == 2


def test_a_topic_lists_the_consensus_and_nothing_withdrawn() -> None:
    registry = with_echo()
    for version in ("2.0", "3.0", "4.0"):
        registry.publish(version)
    registry.add(kinds.Status(uri_of("4.0"), "yanked"), ALICE)
    view = topic_of(registry)
    assert [protocol.uri for protocol in view.protocols] == [uri_of("3.0"), uri_of("2.0"), uri_of()]
    assert (view.consensus, view.epoch) == (None, None)
    assert {protocol.state for protocol in view.protocols} == {"published"}


def test_a_copy_of_a_withdrawn_consensus_is_not_the_consensus() -> None:
    """Its publisher took it back after the decision, and a stranger publishes the same bytes."""
    registry = decided()
    registry = redecided(registry, states=((registry.document_of(uri_of()).sha256, "consensus"),))
    assert topic_of(registry).protocols[0].uri == uri_of()
    registry.publish(signer=BOB, document=registry.blobs[registry.document_of(uri_of()).sha256])
    registry.add(kinds.Status(uri_of(), "yanked", successor=uri_of("2.0")), ALICE)
    view = topic_of(registry)
    assert [protocol.uri for protocol in view.taken_back] == [uri_of()]
    assert {protocol.state for protocol in view.protocols} == {"published"}


def topic_of(registry: SimulatedRegistry) -> TopicView:
    bundle = read_bundle(registry.topic_bundle(TOPIC), topic=TOPIC)
    return view_topic(bundle, TOPIC, prove(bundle, TRUSTED, POLICY, now=registry.now))


def test_a_withdrawn_handler_leaves_its_protocol() -> None:
    registry = with_echo()
    registry.add(kinds.Status(uri_of(), "yanked", wheel=proven(registry).handler.body.wheel.sha256), ALICE)
    assert [protocol.uri for protocol in topic_of(registry).protocols] == [uri_of()]


@pytest.mark.parametrize(
    "state, place", [("consensus", 0), ("provisional", 0), ("candidate", 0), ("dormant", 2), ("superseded", 2)]
)
def test_a_topic_is_ordered_by_what_was_decided(state: kinds.State, place: int) -> None:
    registry = decided()
    registry.publish("3.0")
    view = topic_of(redecided(registry, states=((registry.document_of(uri_of("2.0")).sha256, state),)))
    assert [protocol.uri for protocol in view.protocols].index(uri_of("2.0")) == place
    assert (view.epoch, view.protocols[place].state) == (1, state)


def test_older_versions_follow_the_elected_one() -> None:
    registry = decided()
    elected, candidate = "3.2", "9.0"
    for version, base in (("3.0", None), ("3.1", "3.0"), (elected, "3.1"), (candidate, None), ("3.3", elected), ("4.0", elected)):
        on = kinds.Base(uri_of(base), registry.document_of(uri_of(base)).sha256) if base else None
        document = registry.put(f"# Echo {version}\n".encode())
        registry.add(kinds.Publish(uri_of(version), TOPIC, document, registry.put(b"{}"), "negotiated", base=on), ALICE)
    consensus = registry.document_of(uri_of(elected)).sha256
    states = ((consensus, "consensus"), (registry.document_of(uri_of(candidate)).sha256, "provisional"))
    view = topic_of(redecided(registry, states=states, consensus=consensus))
    offered = [protocol.uri for protocol in view.protocols]
    # A newer version of the line, and another major version, have no users yet.
    assert offered[:6] == [uri_of(version) for version in (elected, "3.1", "3.0", candidate, "4.0", "3.3")]
    assert list(ranked([view, view]).uris[:6]) == 2 * offered[:3]
    assert ranked([view]).consensus == {uri_of(elected)}


def test_a_repealed_document_is_not_offered() -> None:
    registry = decided()
    view = topic_of(redecided(registry, states=((registry.document_of(uri_of()).sha256, "repealed"),)))
    assert [protocol.uri for protocol in view.protocols] == [uri_of("2.0")]
