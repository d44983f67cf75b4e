"""The negotiation engine, both sides, message by message: seven phases, five errors, shortcuts, changes of running sessions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flow_peers import (
    DELEGATION,
    GRAPH,
    INFO_1,
    INFO_2,
    SHARING,
    FlowWire,
    at,
    delegation,
    digest_of,
    payloads,
    registry,
    sharing,
    unsent,
    wrap,
)

from treaty_agent.sessions.flow_manager import MetaProtocolManager
from treaty_anp.flow_profile.actions import (
    Agreed,
    DeliverData,
    Evaluate,
    Host,
    LoadProtocol,
    NegotiationEnded,
    PeerChanged,
    Ready,
    RenegotiationFailed,
    SendMessage,
    Shortcut,
)
from treaty_anp.flow_profile.capabilities import CapabilityManager, FlowRequest, ProtocolOffer, ProtocolRegistry
from treaty_anp.flow_profile.commands import Loaded, Renegotiate, SendData, TellContext, Unverified
from treaty_anp.flow_profile.machine import MAX_MESSAGES, PROTOCOL_HASH, NegotiationEngine
from treaty_anp.flow_profile.messages import FlowMessage, format_time
from treaty_anp.flow_profile.parameters import Choice, Fixed, Range
from treaty_anp.flow_profile.payloads import (
    Accepted,
    CapabilitiesExchange,
    ConfirmationAcknowledgment,
    ContextInfo,
    ErrorReport,
    Initialize,
    ParameterNegotiation,
    ParameterResponse,
    Payload,
    Proposed,
    ProtocolConfirmation,
    ProtocolEvaluation,
    ProtocolProposal,
    ProtocolResponse,
)
from treaty_anp.flow_profile.processor import MessageProcessor
from treaty_anp.flow_profile.sessions import SessionManager
from treaty_anp.flow_profile.states import FlowLimits, FlowState, FlowTimeouts
from treaty_anp.flow_profile.strategy import StrategyEngine
from treaty_consensus.errors import NotFound, TooLarge, TreatyError, Unauthorized

FULL = [
    "initialize",
    "capabilities-exchange",
    "capabilities-exchange",
    "protocol-evaluation",
    "protocol-proposal",
    "protocol-response",
    "parameter-negotiation",
    "parameter-response",
    "protocol-confirmation",
    "confirmation-acknowledgment",
]
WANTED = {
    "maxMessageSize": Range(1024, 1_048_576),
    "compressionFormat": Choice(("gzip", "none")),
    "chunkSize": Range(1024, 65_536),
    "responseTimeout": Range(1000, 60_000, 30_000),
}
GRANTED = {**WANTED, "chunkSize": Range(512, 32_768), "responseTimeout": Range(45_000, 90_000)}


def joined(**options: Any) -> FlowWire:
    """Both sides speak data-sharing, each one more."""
    return FlowWire.join(
        registry(sharing(parameters=WANTED), ProtocolOffer(GRAPH)), registry(sharing(parameters=GRANTED), delegation()), **options
    )


def running(**options: Any) -> FlowWire:
    wire = joined(**options).settle()
    assert wire.initiator.state is wire.responder.state is FlowState.RUNNING
    return wire


def session_of(wire: FlowWire) -> str:
    (ready,) = wire.of("initiator", Ready)
    return str(ready.session_id)


def only(wire: FlowWire, action: str) -> Any:
    (payload,) = payloads(wire.sent, action)
    return payload


def inject(wire: FlowWire, who: str, payload: Payload, **fields: Any) -> None:
    """A message to `who` that the other side's engine did not send."""
    other = wire.engine("responder" if who == "initiator" else "initiator")
    sent = unsent(other, payload)
    wire.perform(who, wire.engine(who).receive(replace(sent, timestamp=at(wire.now).unix, **fields), at(wire.now)))


def ended(wire: FlowWire, who: str) -> TreatyError:
    (over,) = wire.of(who, NegotiationEnded)
    assert isinstance(over.error, TreatyError)
    assert wire.engine(who).is_final
    return over.error


# The seven phases


def test_001_01_02_03_04_05_and_06_phases_come_in_order() -> None:
    wire = running()
    assert wire.actions() == FULL
    (mine,), (theirs,) = wire.of("initiator", Ready), wire.of("responder", Ready)
    assert mine == theirs
    assert mine.agreed.protocol == SHARING


def test_001_01_initialize_says_the_purpose() -> None:
    wire = running(goal=FlowRequest("data-exchange"))
    assert only(wire, "initialize") == Initialize(purpose="data-exchange", request_capabilities=True)
    assert wire.responder.purpose == "data-exchange"


def test_001_02_the_responder_tells_its_capabilities_first() -> None:
    contexts = ContextInfo("medium", "intermittent"), ContextInfo("high", "stable")
    wire = running(goal=FlowRequest("data-exchange", requirements={"dataVolume": "large"}), contexts=contexts)
    first, second = payloads(wire.sent, "capabilities-exchange")
    assert isinstance(first, CapabilitiesExchange)
    assert isinstance(second, CapabilitiesExchange)
    assert [entry.id for entry in first.supported_protocols] == [SHARING, DELEGATION]
    assert [entry.id for entry in second.supported_protocols] == [SHARING, GRAPH]
    assert (first.context_info, second.context_info) == contexts[::-1]
    assert (first.task_requirements, second.task_requirements) == (None, {"dataVolume": "large"})
    replies = [message.reply_to for _, message in wire.sent[:3]]
    assert replies == [None, wire.sent[0][1].message_id, wire.sent[1][1].message_id]
    assert wire.responder.peer_capabilities.requirements == {"dataVolume": "large"}


def test_001_03_the_initiator_ranks_the_common_protocols() -> None:
    both = (sharing(), delegation(), ProtocolOffer(GRAPH))
    wire = FlowWire.join(registry(*both), registry(*both[:2])).settle()
    evaluation = only(wire, "protocol-evaluation")
    assert [entry.id for entry in evaluation.matched_protocols] == [SHARING, DELEGATION]
    scores = [entry.compatibility_score for entry in evaluation.matched_protocols]
    assert scores == sorted(scores, reverse=True)
    assert evaluation.matched_protocols[0].capabilities == ("batch", "query", "stream")
    assert wire.responder.evaluation == evaluation
    assert evaluation.evaluation_metrics is not None
    assert evaluation.matched_protocols[0].rationale == "capability 1, task 1, performance 0.8333, preference 0.9, context 0.6667"


def test_001_03_a_match_has_the_capabilities_of_both() -> None:
    mine, theirs = sharing(capabilities=("query", "stream", "sort")), sharing(capabilities=("batch", "stream", "query"))
    (match,) = only(FlowWire.join(registry(mine), registry(theirs)).settle(), "protocol-evaluation").matched_protocols
    assert match.capabilities == ("query", "stream")


def test_001_04_the_best_is_proposed_with_a_fallback() -> None:
    both = (sharing(), delegation())
    wire = FlowWire.join(registry(*both), registry(*both), FlowRequest("x", required=())).settle()
    proposal, response = only(wire, "protocol-proposal"), only(wire, "protocol-response")
    assert (proposal.proposed_protocol.id, proposal.fallback_protocol.id) == (SHARING, DELEGATION)
    assert response.response == "accept"
    assert set(response.accepted_protocol.provided_capabilities) == {"query", "stream", "batch"}


def test_001_04_the_fallback_is_something_both_advertised() -> None:
    assert only(running(), "protocol-proposal").fallback_protocol is None


def test_001_04_a_responder_may_take_the_fallback() -> None:
    both = (sharing(), delegation())
    wire = FlowWire.join(registry(*both), registry(*both))
    while not wire.of("responder", LoadProtocol) and not payloads(wire.sent, "protocol-proposal"):
        wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
    wire.responder.capabilities.registry.remove(SHARING)
    wire.settle()
    assert only(wire, "protocol-response").accepted_protocol.id == DELEGATION
    assert [ready.agreed.protocol for ready in wire.of("responder", Ready) + wire.of("initiator", Ready)] == [DELEGATION] * 2


def test_001_04_a_missing_capability_leads_to_the_fallback() -> None:
    best, next_best = Proposed(SHARING, "1.0", ("query", "sort")), Proposed(DELEGATION, "2.1", ("assign",))
    unfit = Proposed(DELEGATION, "2.1", ("assign", "report"))
    for proposal, response, accepted in (
        (ProtocolProposal(proposed_protocol=best, fallback_protocol=next_best), "accept", DELEGATION),
        (ProtocolProposal(proposed_protocol=best, fallback_protocol=unfit), "reject", ""),
        (ProtocolProposal(proposed_protocol=Proposed(SHARING, "1.0", ("query",))), "accept", SHARING),
    ):
        wire = FlowWire.join(registry(sharing(), delegation()), registry(sharing(), delegation()))
        while wire.responder.evaluation is None:
            wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
        inject(wire, "responder", proposal)
        answer = only(wire, "protocol-response")
        assert (answer.response, answer.accepted_protocol.id if answer.accepted_protocol else "") == (response, accepted)
        assert list(wire.responder.tracks) == [accepted] * bool(accepted)


def test_001_04_a_rejected_protocol_gives_way_to_the_next() -> None:
    both = (sharing(), delegation(), ProtocolOffer(GRAPH))
    wire = FlowWire.join(registry(*both), registry(*both))
    while not payloads(wire.sent, "protocol-proposal"):
        wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
    first = only(wire, "protocol-proposal")
    for id in (first.proposed_protocol.id, first.fallback_protocol.id):
        wire.responder.capabilities.registry.remove(id)
    wire.settle()
    responses = [
        response.response for response in payloads(wire.sent, "protocol-response") if isinstance(response, ProtocolResponse)
    ]
    assert responses == ["accept"]
    assert only(wire, "error").error_code == "NO_COMMON_PROTOCOL"
    # The former fallback is proposed next, with the third protocol as fallback.
    assert len(payloads(wire.sent, "protocol-proposal")) == 2
    assert wire.initiator.state is FlowState.RUNNING


def test_001_04_when_all_is_rejected_both_end_as_rejected() -> None:
    wire = joined()
    while not payloads(wire.sent, "protocol-proposal"):
        wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
    wire.responder.capabilities.registry.remove(SHARING)
    wire.settle()
    assert (wire.initiator.state, wire.responder.state) == (FlowState.REJECTED, FlowState.REJECTED)
    assert ended(wire, "initiator").code == ended(wire, "responder").code == "session.no-common-protocol"
    assert not wire.of("initiator", Ready) + wire.of("responder", Ready)


def test_001_04_a_foreign_acceptance_ends_the_negotiation() -> None:
    wire = joined()
    while not payloads(wire.sent, "protocol-proposal"):
        wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
    proposal = wire.sent[-1][1]
    accepted = Accepted(DELEGATION, "2.1", ())
    inject(wire, "initiator", ProtocolResponse(response="accept", accepted_protocol=accepted), reply_to=proposal.message_id)
    assert ended(wire, "initiator").code == "flow.message"


def test_001_04_an_insufficient_acceptance_ends_it() -> None:
    for provided, state in ((("query", "stream"), FlowState.SELECTION), (("stream",), FlowState.ERROR)):
        wire = joined(goal=FlowRequest("x", required=("query",)))
        while not payloads(wire.sent, "protocol-proposal"):
            wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
        accepted = Accepted(SHARING, "1.0", provided)
        response = ProtocolResponse(response="accept", accepted_protocol=accepted)
        inject(wire, "initiator", response, reply_to=wire.sent[-1][1].message_id)
        assert wire.initiator.state is state
        assert (state is FlowState.SELECTION) or ended(wire, "initiator").code == "flow.message"


def test_001_05_modified_parameters_are_accepted() -> None:
    wire = running()
    request, answered = only(wire, "parameter-negotiation"), only(wire, "parameter-response")
    assert request.parameters == {
        "maxMessageSize": 1_048_576,
        "compressionFormat": "gzip",
        "chunkSize": 65_536,
        "responseTimeout": 30_000,
    }
    assert answered.accepted_parameters == {**request.parameters, "chunkSize": 32_768, "responseTimeout": 45_000}
    (ready,) = wire.of("initiator", Ready)
    assert ready.agreed.parameters == answered.accepted_parameters


def test_001_05_an_insufficient_answer_gets_a_counter_offer() -> None:
    mine = registry(sharing(parameters={"chunkSize": Range(16_000, 64_000), "compressionFormat": Choice(("gzip", "none"))}))
    theirs = registry(sharing(parameters={"chunkSize": Range(1_000, 20_000), "compressionFormat": Choice(("deflate", "none"))}))
    wire = FlowWire.join(mine, theirs).settle()
    offers = [
        offer.parameters for offer in payloads(wire.sent, "parameter-negotiation") if isinstance(offer, ParameterNegotiation)
    ]
    assert offers == [
        {"chunkSize": 64_000, "compressionFormat": "gzip"},
        {"chunkSize": 64_000, "compressionFormat": "none"},
    ]
    (ready,) = wire.of("responder", Ready)
    assert ready.agreed.parameters == {"chunkSize": 20_000, "compressionFormat": "none"}


def test_001_05_unknown_optional_parameters_are_left_out() -> None:
    for required in (False, True):
        mine = registry(sharing(parameters={"streamingMode": Fixed("chunked", required=required)}))
        wire = FlowWire.join(mine, registry(sharing())).settle()
        if not required:
            (ready,) = wire.of("initiator", Ready)
            assert ready.agreed.parameters == {}
        else:
            assert ended(wire, "initiator").code == "flow.parameters"


@pytest.mark.parametrize(("values", "agrees"), [(("AES-128-GCM",), False), (("AES-128-GCM", "none"), True)])
def test_001_16_a_dropped_encryption_ends_the_negotiation(values: tuple[str, ...], agrees: bool) -> None:
    mine = sharing(parameters={"encryptionLevel": Choice(values), "chunkSize": Range(512, 4096)})
    theirs = sharing(parameters={"chunkSize": Range(512, 4096)})  # the whole connection is encrypted, and it drops the word
    wire = FlowWire.join(registry(mine), registry(theirs), encrypted=True).settle()
    if agrees:
        assert [ready.agreed.parameters for ready in wire.of("initiator", Ready)] == [{"chunkSize": 4096}]
        return
    assert ended(wire, "initiator").code == "flow.parameters"
    error = only(wire, "error")
    assert (error.error_code, error.details["parameter"]) == ("PARAM_NEGOTIATION_FAILED", "encryptionLevel")
    assert wire.of("initiator", Ready) == wire.of("responder", Ready) == []
    assert payloads(wire.sent, "protocol-confirmation") == []


def test_001_16_a_refused_encryption_ends_the_negotiation() -> None:
    mine = sharing(parameters={"encryptionLevel": Choice(("AES-128-GCM",))})
    wire = FlowWire.join(registry(mine), registry(sharing(parameters={"encryptionLevel": Choice(("none",))})), encrypted=True)
    wire.settle()
    assert ended(wire, "initiator").code == "flow.parameters"
    assert wire.of("responder", Ready) == []


def test_001_05_extensions_are_negotiated_like_parameters() -> None:
    mine = sharing(extensions={"priorityLevels": Fixed(True), "deliveryGuarantee": Choice(("at-least-once",)), "odd": Fixed(1)})
    theirs = sharing(extensions={"priorityLevels": Fixed(True), "deliveryGuarantee": Choice(("exactly-once", "at-least-once"))})
    wire = FlowWire.join(registry(mine), registry(theirs)).settle()
    (ready,) = wire.of("responder", Ready)
    own = {"byteForm": True, PROTOCOL_HASH: digest_of(SHARING)}
    expected = {"priorityLevels": True, "deliveryGuarantee": "at-least-once", **own}
    assert ready.agreed.extensions == expected


def test_001_05_offers_do_not_go_on_for_ever() -> None:
    mine = registry(sharing(parameters={"a": Range(10, 20), "b": Range(10, 20)}))
    theirs = registry(sharing(parameters={"a": Range(1, 5), "b": Range(30, 40)}))
    wire = FlowWire.join(mine, theirs).settle()
    assert len(payloads(wire.sent, "parameter-negotiation")) <= FlowLimits().rounds
    assert ended(wire, "initiator").code == "flow.rounds"
    assert wire.responder.is_final


def test_001_05_an_insistent_initiator_is_stopped() -> None:
    wire = joined()
    while not payloads(wire.sent, "parameter-response"):
        wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
    for size in range(2000, 2000 + FlowLimits().rounds):
        inject(wire, "responder", ParameterNegotiation(protocol=SHARING, parameters={"chunkSize": size}))
    assert ended(wire, "responder").code == "flow.rounds"
    error = only(wire, "error")
    assert (error.error_code, error.suggested_action) == ("PARAM_NEGOTIATION_FAILED", "abort")
    assert error.details == {"reason": "flow.rounds"}
    assert wire.sent[-1][1].reply_to is not None


def test_001_05_only_the_first_answer_counts() -> None:
    wire = joined()
    while not payloads(wire.sent, "protocol-confirmation"):
        wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
    request_id = next(message.message_id for _, message in wire.sent if message.action == "parameter-negotiation")
    before = len(wire.sent)
    for parameters in ({}, {"chunkSize": 4096}):
        inject(wire, "initiator", ParameterResponse(protocol=SHARING, accepted_parameters=parameters), reply_to=request_id)
    assert len(wire.sent) == before
    wire.settle()
    assert wire.of("initiator", Ready) == wire.of("responder", Ready)
    assert wire.of("initiator", Ready)[0].agreed.parameters["chunkSize"] == 32_768


def test_001_06_a_confirmation_repeats_the_acceptance() -> None:
    wire = running()
    answered, confirmed = only(wire, "parameter-response"), only(wire, "protocol-confirmation")
    ready = only(wire, "confirmation-acknowledgment")
    assert confirmed.final_parameters == answered.accepted_parameters
    assert confirmed.extensions == answered.extensions
    assert confirmed.session_id == ready.session_id == session_of(wire)
    assert confirmed.expires_at == format_time(at(FlowLimits().lifetime).unix)
    assert ready.status == "ready"
    assert ready.ready_at == format_time(at(0).unix)


@pytest.mark.parametrize("what", ["parameters", "extensions", "missing"])
def test_001_06_another_confirmation_begins_no_session(what: str) -> None:
    wire = joined()
    while not payloads(wire.sent, "protocol-confirmation"):
        wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
    good = only(wire, "protocol-confirmation")
    changed: dict[str, Any] = {
        "parameters": {"final_parameters": {**good.final_parameters, "chunkSize": 1}},
        "extensions": {"extensions": {}},
        "missing": {"final_parameters": {}},
    }
    fields = {name: getattr(good, name) for name in good.__struct_fields__}
    inject(wire, "responder", ProtocolConfirmation(**{**fields, **changed[what]}))
    error = only(wire, "error")
    assert error.error_code == "PARAM_NEGOTIATION_FAILED"
    assert not wire.of("responder", Ready)
    assert not wire.of("responder", Host)
    assert not len(wire.responder.sessions)


@pytest.mark.parametrize("expires", [-1, 0, FlowLimits().lifetime + 61])
def test_001_06_a_session_that_is_over_or_too_long_is_refused(expires: int) -> None:
    wire = joined()
    while not payloads(wire.sent, "protocol-confirmation"):
        wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
    good = only(wire, "protocol-confirmation")
    fields = {name: getattr(good, name) for name in good.__struct_fields__}
    inject(wire, "responder", ProtocolConfirmation(**{**fields, "expires_at": format_time(at(expires).unix)}))
    assert ended(wire, "responder").code == "flow.lifetime"
    assert not len(wire.responder.sessions)


def test_001_06_an_acknowledgment_may_delay_the_start_a_little() -> None:
    for seconds in (5, FlowLimits().ready + 1):
        wire = joined()
        while not payloads(wire.sent, "protocol-confirmation"):
            wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
        confirmation = wire.sent[-1][1]
        assert isinstance(confirmation.payload, ProtocolConfirmation)
        later = ConfirmationAcknowledgment(
            protocol=SHARING, status="ready", session_id=confirmation.payload.session_id, ready_at=format_time(at(seconds).unix)
        )
        inject(wire, "initiator", later, reply_to=confirmation.message_id)
        if seconds > FlowLimits().ready:
            assert ended(wire, "initiator").code == "flow.lifetime"
            continue
        assert not wire.of("initiator", Ready)
        assert wire.initiator.deadline == pytest.approx(5, abs=0.1)
        wire.wait(5.1)
        assert len(wire.of("initiator", Ready)) == 1


def test_001_07_both_sides_speak_once_ready_and_not_before() -> None:
    wire = joined()
    wire.perform("responder", wire.responder.receive(spoken(wire, "session-12345678"), at(0)))
    assert ended(wire, "responder").code == "flow.message"
    wire = running()
    session = session_of(wire)
    for who, other in (("initiator", "responder"), ("responder", "initiator")):
        wire.perform(who, wire.engine(who).apply(SendData(session, who.encode()), at(1)))
        message = wire.sent[-1][1]
        assert (message.type, message.session_id) == ("data-sharing", session)
        wire.settle()
        assert wire.of(other, DeliverData) == [DeliverData(session, who.encode())]


def spoken(wire: FlowWire, session: str, name: str = "data-sharing", data: bytes = b"x") -> FlowMessage:
    """A message of a protocol to the responder."""
    message = unsent(wire.initiator, Initialize(purpose="x", request_capabilities=False))
    return replace(message, type=name, action="message", session_id=session, payload=wrap(data))


@pytest.mark.parametrize(
    ("name", "session", "code"), [("other", "", "flow.session"), ("data-sharing", "session-elsewhere", "flow.session")]
)
def test_001_07_a_foreign_message_ends_the_connection(name: str, session: str, code: str) -> None:
    wire = running()
    wire.perform("responder", wire.responder.receive(spoken(wire, session or session_of(wire), name), at(1)))
    assert ended(wire, "responder").code == code
    assert not wire.of("responder", DeliverData)


def test_001_07_messages_keep_to_the_agreed_size() -> None:
    rules = {"maxMessageSize": Range(10, 100)}
    wire = FlowWire.join(registry(sharing(parameters=rules)), registry(sharing(parameters=rules))).settle()
    session = session_of(wire)
    wire.perform("initiator", wire.initiator.apply(SendData(session, bytes(100)), at(1)))
    with pytest.raises(TooLarge):
        wire.initiator.apply(SendData(session, bytes(101)), at(1))
    wire.perform("responder", wire.responder.receive(spoken(wire, session, data=bytes(101)), at(1)))
    assert ended(wire, "responder").code == "flow.too-large"


def test_001_07_a_session_expires() -> None:
    wire = running(limits=FlowLimits(lifetime=60))
    session = session_of(wire)
    wire.wait(59)
    assert not wire.initiator.is_final
    wire.wait(1.1)
    assert (wire.initiator.state, wire.responder.state) == (FlowState.CLOSED, FlowState.CLOSED)
    assert ended(wire, "initiator").code == ended(wire, "responder").code == "flow.expired"
    assert wire.initiator.apply(SendData(session, b"x"), at(61)) == []


# Errors


def test_001_13_nothing_in_common_is_told_and_rejected() -> None:
    wire = FlowWire.join(registry(ProtocolOffer(GRAPH)), registry(sharing())).settle()
    assert only(wire, "error").error_code == "NO_COMMON_PROTOCOL"
    assert only(wire, "error").suggested_action == "abort"
    assert (wire.initiator.state, wire.responder.state) == (FlowState.REJECTED, FlowState.REJECTED)
    assert wire.sent[-1][1].reply_to == wire.sent[1][1].message_id


def test_001_13_what_is_unfit_for_the_task_is_not_in_common() -> None:
    wire = joined(goal=FlowRequest("x", required=("transform",))).settle()
    assert only(wire, "error").error_code == "NO_COMMON_PROTOCOL"
    assert not payloads(wire.sent, "protocol-proposal")


@pytest.mark.parametrize("deliveries", range(9))
def test_001_14_a_missing_answer_ends_the_negotiation(deliveries: int) -> None:
    wire = joined()
    for _ in range(deliveries):
        wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
    for messages in wire.on_its_way.values():
        messages.clear()
    wire.wait(29)
    assert not wire.initiator.is_final
    wire.wait(2)
    assert wire.initiator.state is FlowState.TIMEOUT
    assert ended(wire, "initiator").code == "session.reply-timeout"
    late = [message for _, message in wire.sent if message.action == "error"]
    assert {message.payload.error_code for message in late if isinstance(message.payload, ErrorReport)} == {"NEGOTIATION_TIMEOUT"}
    assert all(message.payload.details["seconds"] == 30 for message in late if isinstance(message.payload, ErrorReport))
    wire.settle()
    assert wire.responder.state is FlowState.TIMEOUT


def test_001_15_another_version_of_a_protocol_is_a_conflict() -> None:
    wire = FlowWire.join(
        registry(ProtocolOffer(INFO_1), ProtocolOffer(GRAPH)), registry(ProtocolOffer(INFO_2), sharing())
    ).settle()
    assert only(wire, "error").error_code == "VERSION_CONFLICT"
    assert ended(wire, "initiator").code == ended(wire, "responder").code == "flow.version-conflict"
    assert wire.initiator.state is FlowState.REJECTED


def test_001_16_and_18_a_disputed_parameter_lists_its_values() -> None:
    mine = registry(sharing(parameters={"deliveryGuarantee": Fixed("exactly-once", required=True)}))
    supported = ("AES-128-GCM", "ChaCha20-Poly1305")
    wire = FlowWire.join(mine, registry(sharing(parameters={"deliveryGuarantee": Choice(supported)}))).settle()
    error = payloads(wire.sent, "error")[0]
    assert isinstance(error, ErrorReport)
    assert (error.error_code, error.suggested_action, error.retry_after) == ("PARAM_NEGOTIATION_FAILED", "renegotiate", 0)
    assert error.details == {"parameter": "deliveryGuarantee", "requested": "exactly-once", "supported": list(supported)}
    reply = next(message.reply_to for _, message in wire.sent if message.payload is error)
    assert reply == next(message.message_id for _, message in wire.sent if message.action == "parameter-negotiation")
    assert ended(wire, "initiator").code == "flow.parameters"
    assert not wire.of("responder", Ready)


def test_001_16_a_refusal_leads_to_a_supported_value() -> None:
    mine = registry(sharing(parameters={"deliveryGuarantee": Choice(("exactly-once", "at-least-once"), required=True)}))
    theirs = registry(sharing(parameters={"deliveryGuarantee": Choice(("at-most-once", "at-least-once"))}))
    wire = FlowWire.join(mine, theirs).settle()
    (ready,) = wire.of("initiator", Ready)
    assert ready.agreed.parameters == {"deliveryGuarantee": "at-least-once"}


def test_001_17_an_unverified_message_ends_everything() -> None:
    wire = running()
    wire.perform("responder", wire.responder.apply(Unverified(Unauthorized("flow.verification", "No key made it.")), at(1)))
    assert only(wire, "error").error_code == "VERIFICATION_FAILED"
    assert ended(wire, "responder").code == "flow.verification"
    wire.settle()
    assert ended(wire, "initiator").code == "flow.verification"


@pytest.mark.parametrize(
    "payload",
    [
        ProtocolEvaluation(matched_protocols=()),
        ProtocolProposal(proposed_protocol=Proposed(SHARING, "1.0")),
        ParameterNegotiation(protocol=SHARING, parameters={}),
        ProtocolConfirmation(
            protocol=SHARING, final_parameters={}, session_id="session-12345678", expires_at="2026-01-01T00:00:00Z"
        ),
    ],
    ids=lambda payload: payload.ACTION,
)
def test_001_28_what_is_not_expected_ends_the_machine(payload: Payload) -> None:
    for who in ("initiator", "responder"):
        wire = joined()
        inject(wire, who, payload)
        assert ended(wire, who).code == "flow.message"
        assert wire.engine(who).tick(at(1000)) == wire.engine(who).close() == wire.engine(who).lost() == []


def test_001_28_a_reply_to_nothing_ends_the_machine() -> None:
    wire = running()
    answer = ParameterResponse(protocol=SHARING, accepted_parameters={})
    inject(wire, "initiator", answer, reply_to="msg-nowhere")
    assert ended(wire, "initiator").code == "flow.message"


def test_001_28_negotiating_without_end_ends() -> None:
    wire = joined()
    for _ in range(MAX_MESSAGES + 1):
        inject(wire, "responder", Initialize(purpose="again", request_capabilities=True))
    assert ended(wire, "responder").code == "flow.endless"


def test_the_connection_may_be_lost_at_any_time() -> None:
    wire = joined()
    wire.perform("initiator", wire.initiator.lost("flow.busy"))
    assert ended(wire, "initiator").code == "session.peer-lost"
    assert wire.initiator.state is FlowState.ERROR
    wire = running()
    wire.perform("initiator", wire.initiator.lost())
    assert wire.of("initiator", NegotiationEnded) == [NegotiationEnded(None)]
    wire = running()
    wire.perform("initiator", wire.initiator.lost("flow.expired"))
    assert ended(wire, "initiator").code == "flow.expired"
    session = session_of(wire)
    assert wire.initiator.apply(Renegotiate(session), at(1)) == wire.initiator.apply(SendData(session, b"x"), at(1)) == []


# Code


def test_an_absent_protocol_gives_way_to_the_next() -> None:
    both = (sharing(), delegation())
    wire = FlowWire.join(registry(*both), registry(*both), refuses={"initiator": {SHARING}}).settle()
    assert [ready.agreed.protocol for ready in wire.of("initiator", Ready)] == [DELEGATION]


def test_a_document_the_responder_lacks_gives_way_to_the_next() -> None:
    both = (sharing(), delegation())
    wire = FlowWire.join(registry(*both), registry(*both), refuses={"responder": {SHARING}}).settle()
    error = payloads(wire.sent, "error")[0]
    assert isinstance(error, ErrorReport)
    refused = {"parameter": PROTOCOL_HASH, "requested": digest_of(SHARING), "supported": [], "reason": "resolve.unknown"}
    assert error.details == refused
    assert [ready.agreed.protocol for ready in wire.of("responder", Ready)] == [DELEGATION]


def test_a_document_of_another_hash_is_not_spoken() -> None:
    wire = joined()
    while not wire.of("responder", LoadProtocol):
        wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
    assert wire.of("responder", LoadProtocol) == [LoadProtocol(SHARING, digest_of(SHARING))]
    agreed = wire.responder.tracks[SHARING]
    agreed.state = type(agreed.state).LOADING
    wire.perform("responder", wire.responder.apply(Loaded(SHARING, "https://r.example/x", "ab" * 32), at(0)))
    assert only(wire, "error").details["parameter"] == PROTOCOL_HASH
    assert not wire.of("responder", Ready)


# Shortcuts


def cached(wire: FlowWire) -> Shortcut:
    """What a negotiation that succeeded is remembered as."""
    (ready,) = wire.of("initiator", Ready)
    return Shortcut(ready.agreed, confirmed=True)


def test_001_19_a_cached_negotiation_takes_one_round_trip() -> None:
    wire = joined(shortcut=cached(running()))
    assert wire.actions() == ["initialize", "protocol-proposal", "parameter-negotiation", "protocol-confirmation"]
    assert len(wire.on_its_way["responder"]) == 4
    wire.settle()
    assert wire.actions()[4:] == ["protocol-response", "parameter-response", "confirmation-acknowledgment"]
    assert wire.of("initiator", Ready)[0].agreed == wire.of("responder", Ready)[0].agreed
    assert not payloads(wire.sent, "error")


def test_001_19_a_cached_negotiation_offers_all_extensions() -> None:
    agreed = cached(running()).agreed
    wire = joined(shortcut=Shortcut(replace(agreed, extensions={}), confirmed=True))
    assert only(wire, "parameter-negotiation").extensions == agreed.extensions
    assert only(wire, "protocol-confirmation").extensions == {}
    wire.settle()
    # This peer knows them, and takes them now.
    last: Any = payloads(wire.sent, "protocol-confirmation")[-1]
    assert last.extensions == agreed.extensions
    assert wire.of("initiator", Ready) == wire.of("responder", Ready)


def test_001_19_changed_terms_cost_a_cached_round_more() -> None:
    before = cached(running())
    theirs = {**GRANTED, "chunkSize": Range(512, 2048)}
    wire = FlowWire.join(registry(sharing(parameters=WANTED)), registry(sharing(parameters=theirs)), shortcut=before).settle()
    (mine,), (other,) = wire.of("initiator", Ready), wire.of("responder", Ready)
    assert mine == other
    assert mine.agreed.parameters["chunkSize"] == 2048
    assert len(payloads(wire.sent, "initialize")) == 1


def test_001_19_a_dropped_cached_protocol_is_renegotiated() -> None:
    both = (sharing(), delegation())
    wire = FlowWire.join(
        registry(*both), registry(delegation()), shortcut=Shortcut(Agreed(SHARING, {}, {}, "", digest_of(SHARING)), True)
    )
    wire.settle()
    assert len(payloads(wire.sent, "initialize")) == 2
    assert wire.initiator.shortcut is None
    assert [ready.agreed.protocol for ready in wire.of("initiator", Ready)] == [DELEGATION]
    assert wire.of("initiator", Ready) == wire.of("responder", Ready)


def test_001_21_a_simplified_negotiation_skips_two_phases() -> None:
    wire = joined(shortcut=Shortcut(Agreed(SHARING, {"chunkSize": 4096}, digest=digest_of(SHARING)), confirmed=False)).settle()
    assert wire.actions() == [
        *("initialize", "protocol-proposal", "parameter-negotiation", "protocol-response", "parameter-response"),
        *("protocol-confirmation", "confirmation-acknowledgment"),
    ]
    assert only(wire, "initialize").request_capabilities is False
    assert wire.of("initiator", Ready) == wire.of("responder", Ready)


def test_001_21_parameters_wait_for_an_unknown_document() -> None:
    wire = joined(shortcut=Shortcut(Agreed(SHARING, {"chunkSize": 4096}), confirmed=False))
    assert wire.actions() == ["initialize", "protocol-proposal"]
    wire.settle()
    offered = only(wire, "parameter-negotiation")
    assert offered.parameters == {"chunkSize": 4096}
    assert offered.extensions == {"byteForm": True, PROTOCOL_HASH: digest_of(SHARING)}
    assert wire.of("initiator", Ready) == wire.of("responder", Ready)


def test_001_28_proposals_without_end_end() -> None:
    wire = joined()
    unknown = ProtocolProposal(proposed_protocol=Proposed("anp:protocol:unknown:1.0", "1.0"))
    begun = unsent(wire.initiator, Initialize(purpose="x", request_capabilities=False))
    wire.perform("responder", wire.responder.receive(begun, at(0)))
    for _ in range(FlowLimits().proposals):
        wire.perform("responder", wire.responder.receive(unsent(wire.initiator, unknown), at(0)))
    assert not wire.responder.is_final
    wire.perform("responder", wire.responder.receive(unsent(wire.initiator, unknown), at(0)))
    assert ended(wire, "responder").code == "flow.endless"


def test_001_22_protocols_are_negotiated_together() -> None:
    both = (sharing(parameters=WANTED), delegation(), ProtocolOffer(GRAPH))
    wire = FlowWire.join(registry(*both), registry(*both), count=3)
    while not payloads(wire.sent, "protocol-proposal"):
        wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
    assert [message.action for _, message in wire.sent[-3:]] == ["protocol-proposal"] * 3
    wire.settle()
    ready = {one.agreed.protocol: one.session_id for one in wire.of("initiator", Ready)}
    assert set(ready) == {SHARING, DELEGATION, GRAPH}
    assert len(set(ready.values())) == 3
    assert {one.agreed.protocol for one in wire.of("responder", Ready)} == set(ready)
    wire.perform("initiator", wire.initiator.apply(SendData(ready[DELEGATION], b"x"), at(1)))
    assert wire.sent[-1][1].type == "task-delegation"
    wire.settle()
    assert wire.of("responder", DeliverData) == [DeliverData(ready[DELEGATION], b"x")]


def test_001_22_of_a_batch_those_that_can_be_agreed_on_are() -> None:
    both = (sharing(), delegation())
    wire = FlowWire.join(registry(*both), registry(*both), count=2, refuses={"initiator": {SHARING}}).settle()
    assert [one.agreed.protocol for one in wire.of("initiator", Ready)] == [DELEGATION]
    assert wire.initiator.state is FlowState.RUNNING


def test_001_26_capabilities_come_in_relevant_steps() -> None:
    many = [ProtocolOffer(f"anp:protocol:other-{n}:1.0", tuple(f"capability-{i}" for i in range(20))) for n in range(30)]
    mine, theirs = registry(sharing(), ProtocolOffer(GRAPH)), registry(*many, sharing())
    sizes = {}
    for summary in (False, True):
        wire = FlowWire.join(mine, theirs, FlowRequest("x", summary=summary)).settle()
        exchanges = payloads(wire.sent, "capabilities-exchange")
        sizes[summary] = sum(len(str(one)) for one in exchanges)
        assert wire.initiator.state is FlowState.RUNNING
    first, second, third = (one for one in exchanges if isinstance(one, CapabilitiesExchange))
    assert all(entry.capabilities is None and entry.metrics is None for entry in first.supported_protocols)
    assert second.request_details == (SHARING,)
    assert [entry.id for entry in second.supported_protocols] == [SHARING]
    assert [(entry.id, entry.capabilities) for entry in third.supported_protocols] == [(SHARING, ("query", "stream", "batch"))]
    assert only(wire, "protocol-evaluation").matched_protocols[0].capabilities == ("batch", "query", "stream")
    assert sizes[True] < sizes[False] / 2


def test_001_26_capabilities_may_come_all_at_once() -> None:
    wire = joined(goal=FlowRequest("x", summary=True))
    wire.on_its_way["responder"][0] = replace(
        wire.on_its_way["responder"][0], payload=Initialize(purpose="x", request_capabilities=True)
    )
    wire.settle()
    assert len(payloads(wire.sent, "capabilities-exchange")) == 2
    assert wire.initiator.state is FlowState.RUNNING


# Changes of a running session


def test_001_11_parameters_change_while_the_session_goes_on() -> None:
    wire = running()
    session = session_of(wire)
    before = len(wire.sent)
    wire.perform("initiator", wire.initiator.apply(Renegotiate(session, parameters={"chunkSize": 2048}), at(1)))
    wire.perform("initiator", wire.initiator.apply(SendData(session, b"meanwhile"), at(1)))
    wire.settle()
    messages = wire.sent[before:]
    assert [message.action for _, message in messages] == [
        *("parameter-negotiation", "message", "parameter-response", "protocol-confirmation", "confirmation-acknowledgment")
    ]
    assert {message.session_id for _, message in messages} == {session}
    for who in ("initiator", "responder"):
        first, second = wire.of(who, Ready)
        assert second.session_id == first.session_id == session
        assert (second.agreed.parameters, second.replaces) == ({"chunkSize": 2048}, False)
        assert second.agreed.protocol == first.agreed.protocol
        assert len(wire.of(who, Host)) == 1
    assert wire.of("responder", DeliverData) == [DeliverData(session, b"meanwhile")]


def test_001_06_a_session_is_renewed_by_negotiating_again() -> None:
    wire = running(limits=FlowLimits(lifetime=60))
    session = session_of(wire)
    wire.wait(50)
    wire.perform("initiator", wire.initiator.apply(Renegotiate(session), at(50)))
    wire.settle()
    wire.wait(30)
    assert not wire.initiator.is_final
    assert not wire.responder.is_final
    assert wire.responder.sessions.get(session).expires_at == at(110).unix


def test_001_06_a_session_renews_itself_before_its_end() -> None:
    wire = running(limits=FlowLimits(lifetime=600, renegotiations=2), timeouts=FlowTimeouts(renew=60, idle=100_000))
    session = session_of(wire)
    for round in range(1, 5):
        wire.wait(541)  # the tick is due 60 seconds before the end
        wire.settle()
        assert wire.responder.sessions.get(session).expires_at == at(wire.now + 600).unix, round
    assert wire.initiator.sessions.get(session).agreed == wire.responder.sessions.get(session).agreed
    assert wire.initiator.sessions.get(session).renegotiations == 0
    wire.check_transcripts()


def test_001_06_a_failed_renewal_is_retried_until_the_end() -> None:
    wire = running(limits=FlowLimits(lifetime=600), timeouts=FlowTimeouts(renew=120, reply=10, idle=100_000))
    while not wire.initiator.is_final and wire.now < 700:
        wire.wait(1)
        wire.on_its_way["responder"].clear()  # nothing arrives
    offers = [message for who, message in wire.sent if message.action == "parameter-negotiation" and message.session_id]
    assert 3 <= len(offers) <= 10
    assert ended(wire, "initiator").code == ended(wire, "responder").code == "flow.expired"


def test_001_12_the_protocol_changes_and_the_session_is_the_same() -> None:
    both = (sharing(), delegation())
    wire = FlowWire.join(registry(*both), registry(*both)).settle()
    session = session_of(wire)
    wire.perform("initiator", wire.initiator.apply(Renegotiate(session, protocol=DELEGATION), at(1)))
    wire.settle()
    for who in ("initiator", "responder"):
        first, second = wire.of(who, Ready)
        assert (second.session_id, second.agreed.protocol, second.replaces) == (session, DELEGATION, True)
        assert wire.of(who, Host)[-1].changes
        assert len(wire.engine(who).sessions) == 1
        assert first.agreed.protocol == SHARING
    wire.perform("responder", wire.responder.apply(SendData(session, b"x"), at(2)))
    assert wire.sent[-1][1].type == "task-delegation"


def test_001_12_a_pending_change_is_silent() -> None:
    both = (sharing(), delegation())
    for protocol in ("", DELEGATION):
        wire = FlowWire.join(registry(*both), registry(*both)).settle()
        session = session_of(wire)
        wire.perform("initiator", wire.initiator.apply(Renegotiate(session, protocol=protocol), at(1)))
        while len(payloads(wire.sent, "protocol-confirmation")) < 2:
            wire.deliver("responder" if wire.on_its_way["responder"] else "initiator")
        assert wire.initiator.apply(SendData(session, b"kept"), at(1)) == []
        wire.settle()
        # what the former handler said is for the former protocol; by new parameters it is sent on
        assert wire.of("responder", DeliverData) == ([] if protocol else [DeliverData(session, b"kept")])


def test_001_12_a_change_that_fails_leaves_the_session_as_it_was() -> None:
    def spoken_with(*formats: str) -> ProtocolOffer:
        return sharing(parameters={"deliveryMode": Choice(formats, required=True)})

    wire = FlowWire.join(registry(spoken_with("gzip")), registry(spoken_with("gzip"))).settle()
    session = session_of(wire)
    before = wire.initiator.sessions.get(session).agreed
    wire.responder.capabilities.registry.remove(SHARING)
    wire.responder.capabilities.registry.add(spoken_with("zip"))
    wire.perform("initiator", wire.initiator.apply(Renegotiate(session), at(1)))
    wire.settle()
    (failed,) = wire.of("initiator", RenegotiationFailed)
    assert (failed.session_id, failed.error.code) == (session, "flow.parameters")
    assert wire.initiator.sessions.get(session).agreed == before
    wire.perform("initiator", wire.initiator.apply(SendData(session, b"still here"), at(2)))
    wire.settle()
    assert wire.of("responder", DeliverData) == [DeliverData(session, b"still here")]
    wire.wait(60)  # the responder forgets the change that came to nothing
    assert not wire.responder.is_final
    assert not wire.responder.tracks


def test_001_12_an_abandoned_change_keeps_the_session() -> None:
    def sized(low: int, high: int) -> ProtocolOffer:
        return sharing(parameters={"chunkSize": Range(low, high)})

    wire = FlowWire.join(registry(sized(2000, 4000)), registry(sized(1000, 3000))).settle()
    session = session_of(wire)
    before = wire.responder.sessions.get(session).agreed
    wire.responder.capabilities.registry.remove(SHARING)
    wire.responder.capabilities.registry.add(sized(600, 900))
    wire.perform("initiator", wire.initiator.apply(Renegotiate(session), at(1)))
    wire.settle()
    error = next(message for who, message in wire.sent if message.action == "error")
    assert (error.session_id, isinstance(error.payload, ErrorReport)) == (session, True)
    for who in ("initiator", "responder"):
        (failed,) = wire.of(who, RenegotiationFailed)
        assert failed.session_id == session
        assert wire.engine(who).sessions.get(session).agreed == before
        assert wire.engine(who).tracks == {}
    wire.check_transcripts()


def test_001_12_a_change_without_answer_keeps_the_session() -> None:
    wire = running()
    session = session_of(wire)
    wire.perform("initiator", wire.initiator.apply(Renegotiate(session, parameters={"chunkSize": 2048}), at(1)))
    wire.on_its_way["responder"].clear()
    wire.wait(40)
    (failed,) = wire.of("initiator", RenegotiationFailed)
    assert failed.error.code == "session.reply-timeout"
    assert not wire.initiator.is_final


def test_001_12_one_change_at_a_time_of_running_sessions() -> None:
    wire = running()
    session = session_of(wire)
    with pytest.raises(NotFound):
        wire.initiator.apply(Renegotiate("session-nowhere"), at(1))
    with pytest.raises(NotFound):
        wire.initiator.apply(Renegotiate(session, protocol=INFO_1), at(1))
    wire.perform("initiator", wire.initiator.apply(Renegotiate(session), at(1)))
    with pytest.raises(TreatyError) as failure:
        wire.initiator.apply(Renegotiate(session), at(1))
    assert failure.value.code == "flow.changing"


def test_001_12_a_session_may_be_changed_often_and_not_for_ever() -> None:
    wire = running()
    session = session_of(wire)
    for n in range(FlowLimits().renegotiations):
        wire.perform("initiator", wire.initiator.apply(Renegotiate(session, parameters={"chunkSize": 2000 + n}), at(1)))
        wire.settle()
    assert wire.responder.sessions.get(session).agreed.parameters == {"chunkSize": 2063}
    with pytest.raises(TooLarge):
        wire.initiator.apply(Renegotiate(session), at(1))
    inject(wire, "responder", ParameterNegotiation(protocol=SHARING, parameters={}), session_id=session)
    assert ended(wire, "responder").code == "flow.renegotiations"


def test_001_29_a_session_id_is_used_once() -> None:
    wire = running()
    inject(wire, "responder", ProtocolProposal(proposed_protocol=Proposed(DELEGATION, "2.1")))
    inject(wire, "responder", ParameterNegotiation(protocol=DELEGATION, parameters={}))
    expires = format_time(at(100).unix)
    confirmation = ProtocolConfirmation(protocol=DELEGATION, final_parameters={}, session_id=session_of(wire), expires_at=expires)
    inject(wire, "responder", confirmation)
    assert ended(wire, "responder").code == "flow.session"
    assert len(wire.of("responder", Host)) == 1


def test_001_09_a_responder_tells_when_its_situation_changes() -> None:
    wire = running()
    wire.responder.capabilities.context = ContextInfo("low", "intermittent")
    wire.perform("responder", wire.responder.apply(TellContext(), at(1)))
    wire.settle()
    assert wire.of("initiator", PeerChanged) == [PeerChanged()]
    assert wire.initiator.peer_capabilities.context == ContextInfo("low", "intermittent")


def test_actions_of_the_engine_come_in_the_order_of_the_wire() -> None:
    wire = joined()
    kinds = [type(action) for action in wire.settle().done["initiator"]]
    assert kinds.index(Evaluate) < kinds.index(LoadProtocol) < kinds.index(Host) < kinds.index(Ready)
    assert kinds[0] is SendMessage


# The components

COMPONENTS: dict[Callable[..., object], str] = {
    ProtocolRegistry: "capabilities",
    NegotiationEngine: "machine",
    SessionManager: "sessions",
    CapabilityManager: "capabilities",
    MessageProcessor: "processor",
    StrategyEngine: "strategy",
}
"""The components of the source's architecture, in the order of the checklist, each with its module."""


def test_001_27_28_29_30_31_and_32_each_component_is_a_class() -> None:
    for component, module in COMPONENTS.items():
        assert component.__module__ == f"treaty_anp.flow_profile.{module}"
        source = Path(inspect.getfile(component)).read_text()
        assert not re.search(r"^(from|import) .*\b(manager|driver|asyncio|transport)\b", source, re.MULTILINE), module
    assert MetaProtocolManager.__module__ == "treaty_agent.sessions.flow_manager"
