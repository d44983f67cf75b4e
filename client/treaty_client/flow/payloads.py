"""What the messages of the negotiation flow profile carry: the member `payload`, by `action`.

    initialize                   {version, purpose, requestCapabilities, capabilityDetail?}
    capabilities-exchange        {version, supportedProtocols: [SUPPORTED], contextInfo?, taskRequirements?, requestDetails?}
    protocol-evaluation          {version, matchedProtocols: [MATCHED], evaluationMetrics?}
    protocol-proposal            {version, proposedProtocol: PROPOSED, fallbackProtocol?: PROPOSED}
    protocol-response            {version, response: "accept", acceptedProtocol: ACCEPTED}
                                 {version, response: "reject", comments?}
    parameter-negotiation        {version, protocol: ID, parameters, extensions?}
    parameter-response           {version, protocol: ID, acceptedParameters, extensions?, comments?}
    protocol-confirmation        {version, protocol: ID, finalParameters, extensions?, sessionId, expiresAt: TIME}
    confirmation-acknowledgment  {version, protocol: ID, status: "ready", sessionId, readyAt: TIME}
    error                        {version, errorCode, errorMessage, details?, suggestedAction?, retryAfter?}

    SUPPORTED   {id, version, capabilities?, preferenceScore?, metrics?: {latency?, throughput?, reliability?, security?}}
    MATCHED     {id, compatibilityScore, capabilities?, suitabilityForTask?, rationale?}
    PROPOSED    {id, version, requiredCapabilities?, optionalCapabilities?, rationale?}
    ACCEPTED    {id, version, providedCapabilities?, comments?}

`version` is "1.0". Scores are JSON numbers from 0 to 1; inside they are whole ten-thousandths, and four decimals at most are
written (`0.85`). Metrics are `low`, `medium` or `high`. Parameters and extensions are objects of any JSON values. What may be
absent and is empty is left out: messages are small. Names that a payload does not have here are ignored; they are signed all
the same.

Beyond the source: `capabilityDetail: "summary"` asks for ids first, and `requestDetails` for the rest of those that matter; the
metric
`security`.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec

from treaty_consensus.errors import Malformed, Refused

from .identifiers import MAX_ID, parse_protocol_id

VERSION = "1.0"
UNIT = 10_000
"""A score of 1, in ten-thousandths."""
MAX_PROTOCOLS = 64
MAX_PARAMETERS = 64

Level: TypeAlias = Literal["low", "medium", "high"]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
Id: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_ID)]
Identifier: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._:-]{8,128}\Z")]
Word: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,64}\Z")]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=500)]
Time: TypeAlias = Annotated[str, msgspec.Meta(max_length=24)]
Words: TypeAlias = Annotated[tuple[Word, ...], msgspec.Meta(max_length=64)]
Terms: TypeAlias = Annotated[dict[Word, Any], msgspec.Meta(max_length=MAX_PARAMETERS)]


class Payload(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What all payloads have in common. `ACTION`: whose payload it is; `IS_REPLY`: whether the message must name what it
    answers."""

    ACTION: ClassVar[str]
    IS_REPLY: ClassVar[bool] = False


class Metrics(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a protocol performs with its speaker; None counts as `medium`."""

    latency: Level | None = None
    throughput: Level | None = None
    reliability: Level | None = None
    security: Level | None = None


class Supported(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One protocol that its sender speaks. `capabilities` is None in a summary, whose details can be asked for."""

    id: Id
    version: Word
    capabilities: Words | None = None
    preference_score: Share = 0.5
    metrics: Metrics | None = None


class ContextInfo(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """In what situation a side is."""

    resource_availability: Level | None = None
    connection_type: Word | None = None
    preferences: Words = ()


class Matched(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One evaluated protocol."""

    id: Id
    compatibility_score: Share
    capabilities: Words = ()
    suitability_for_task: Share | None = None
    rationale: Text = ""


class EvaluationMetrics(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The sub-scores of the best protocol."""

    task_alignment: Share | None = None
    performance_estimate: Share | None = None
    resource_efficiency: Share | None = None


class Proposed(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A protocol to speak, and what it has to be able to do."""

    id: Id
    version: Word
    required_capabilities: Words = ()
    optional_capabilities: Words = ()
    rationale: Text = ""


class Accepted(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The protocol that will be spoken."""

    id: Id
    version: Word
    provided_capabilities: Words = ()
    comments: Text = ""


class Initialize(Payload, frozen=True, kw_only=True):
    """The first message."""

    ACTION: ClassVar[str] = "initialize"
    purpose: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    request_capabilities: bool
    capability_detail: Literal["full", "summary"] = "full"


class CapabilitiesExchange(Payload, frozen=True, kw_only=True):
    """What the sender speaks; or more of it, when it was asked for details."""

    ACTION: ClassVar[str] = "capabilities-exchange"
    supported_protocols: Annotated[tuple[Supported, ...], msgspec.Meta(max_length=MAX_PROTOCOLS)]
    context_info: ContextInfo | None = None
    task_requirements: Annotated[dict[Word, Word], msgspec.Meta(max_length=16)] | None = None
    request_details: Annotated[tuple[Id, ...], msgspec.Meta(max_length=MAX_PROTOCOLS)] = ()


class ProtocolEvaluation(Payload, frozen=True, kw_only=True):
    """The initiator's judgement, the best first."""

    ACTION: ClassVar[str] = "protocol-evaluation"
    matched_protocols: Annotated[tuple[Matched, ...], msgspec.Meta(max_length=MAX_PROTOCOLS)]
    evaluation_metrics: EvaluationMetrics | None = None


class ProtocolProposal(Payload, frozen=True, kw_only=True):
    """The protocol that the initiator would speak."""

    ACTION: ClassVar[str] = "protocol-proposal"
    proposed_protocol: Proposed
    fallback_protocol: Proposed | None = None


class ProtocolResponse(Payload, frozen=True, kw_only=True):
    """The answer to a proposal; an accepted protocol is the proposed one or the fallback."""

    ACTION: ClassVar[str] = "protocol-response"
    IS_REPLY: ClassVar[bool] = True
    response: Literal["accept", "reject"]
    accepted_protocol: Accepted | None = None
    comments: Text = ""


class ParameterNegotiation(Payload, frozen=True, kw_only=True):
    """The parameters that the initiator would have."""

    ACTION: ClassVar[str] = "parameter-negotiation"
    protocol: Id
    parameters: Terms
    extensions: Terms = {}


class ParameterResponse(Payload, frozen=True, kw_only=True):
    """The parameters that the responder would have instead."""

    ACTION: ClassVar[str] = "parameter-response"
    IS_REPLY: ClassVar[bool] = True
    protocol: Id
    accepted_parameters: Terms
    extensions: Terms = {}
    comments: Text = ""


class ProtocolConfirmation(Payload, frozen=True, kw_only=True):
    """What was agreed on, with the session that it holds for."""

    ACTION: ClassVar[str] = "protocol-confirmation"
    protocol: Id
    final_parameters: Terms
    extensions: Terms = {}
    session_id: Identifier
    expires_at: Time


class ConfirmationAcknowledgment(Payload, frozen=True, kw_only=True):
    """The responder is ready, or will be at `ready_at`."""

    ACTION: ClassVar[str] = "confirmation-acknowledgment"
    IS_REPLY: ClassVar[bool] = True
    protocol: Id
    status: Literal["ready"]
    session_id: Identifier
    ready_at: Time


class ErrorReport(Payload, frozen=True, kw_only=True):
    """Something cannot be done. `retry_after`: in seconds."""

    ACTION: ClassVar[str] = "error"
    error_code: Annotated[str, msgspec.Meta(pattern=r"\A[A-Z][A-Z0-9_]{0,63}\Z")]
    error_message: Text
    details: dict[str, Any] = {}
    suggested_action: Annotated[str, msgspec.Meta(max_length=64)] = ""
    retry_after: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0


PAYLOADS: Mapping[str, type[Payload]] = {
    kind.ACTION: kind
    for kind in (
        *(Initialize, CapabilitiesExchange, ProtocolEvaluation, ProtocolProposal, ProtocolResponse),
        *(ParameterNegotiation, ParameterResponse, ProtocolConfirmation, ConfirmationAcknowledgment, ErrorReport),
    )
}


class _Versioned(msgspec.Struct):
    version: str


def parse_payload(action: str, value: object) -> Payload:
    """The payload of an action from its JSON value. Raises `Malformed` (`flow.action`, `flow.payload`, `flow.id`) or `Refused`
    (`flow.version`)."""
    kind = PAYLOADS.get(action)
    if kind is None:
        raise Malformed("flow.action", f"There is no action {ascii(action)[:40]} in the negotiation flow.")
    try:
        version = msgspec.convert(value, _Versioned).version
        if version != VERSION:
            raise Refused("flow.version", f"Version {ascii(version)[:16]} of the negotiation flow; this agent speaks {VERSION}.")
        payload = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Malformed("flow.payload", f"Not the payload of {action}: {error}.") from error
    _check_ids(payload)
    return payload


def encode_payload(payload: Payload) -> dict[str, Any]:
    """The JSON value of a payload; the inverse of `parse_payload`."""
    value: dict[str, Any] = {"version": VERSION, **msgspec.to_builtins(payload)}
    if isinstance(payload, ErrorReport):
        value["retryAfter"] = payload.retry_after
    return value


def ratio(share: float) -> int:
    """A score between 0 and 1 in ten-thousandths, halves to even. Exact for what has at most four decimals."""
    return int((Decimal(repr(share)) * UNIT).to_integral_value(ROUND_HALF_EVEN))


def share(ratio: int) -> float:
    """What is written for a score in ten-thousandths: the number of at most four decimals."""
    return ratio / UNIT


def _check_ids(payload: Payload) -> None:
    """Every id has the form of one, its `version` is the one in it, and no list names one twice."""
    match payload:
        case CapabilitiesExchange(supported_protocols=listed):
            entries: tuple[Supported | Proposed | Accepted, ...] = listed
            _check_distinct([entry.id for entry in listed])
            _check_distinct(payload.request_details)
        case ProtocolProposal(proposed_protocol=proposed, fallback_protocol=fallback):
            entries = (proposed, fallback) if fallback else (proposed,)
        case ProtocolResponse(accepted_protocol=accepted):
            entries = (accepted,) if accepted else ()
            if (payload.response == "accept") != (accepted is not None):
                raise Malformed("flow.payload", "acceptedProtocol belongs to an acceptance, and to nothing else.")
        case ProtocolEvaluation(matched_protocols=matched):
            entries = ()
            _check_distinct([entry.id for entry in matched])
        case ParameterNegotiation() | ParameterResponse() | ProtocolConfirmation() | ConfirmationAcknowledgment():
            entries = ()
            parse_protocol_id(payload.protocol)
        case _:
            entries = ()
    for entry in entries:
        if parse_protocol_id(entry.id).version != entry.version:
            raise Malformed("flow.payload", f"{entry.id} is not version {entry.version}.")


def _check_distinct(ids: tuple[str, ...] | list[str]) -> None:
    for text in ids:
        parse_protocol_id(text)
    if len(set(ids)) != len(ids):
        raise Malformed("flow.payload", "An id is listed twice.")
