"""Parse and encode the payloads of the flow profile: the member `payload` of a message, by `action`.

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
    report-cosignature           {version, status: "proposed", payload: B64, keyid: DID-URL, signature: B64}
                                 {version, status: "signed", keyid: DID-URL, signature: B64}
                                 {version, status: "refused", reason}
    error                        {version, errorCode, errorMessage, details?, suggestedAction?, retryAfter?}

    SUPPORTED   {id, version, capabilities?, preferenceScore?, metrics?: {latency?, throughput?, reliability?, security?}}
    MATCHED     {id, compatibilityScore, capabilities?, suitabilityForTask?, rationale?}
    PROPOSED    {id, version, requiredCapabilities?, optionalCapabilities?, rationale?}
    ACCEPTED    {id, version, providedCapabilities?, comments?}

`version` is "1.0". Scores are JSON numbers from 0 to 1; inside they are whole ten-thousandths, and four decimals at most are
written (`0.85`). Metrics are `low`, `medium` or `high`. Parameters and extensions are objects of any JSON values. Empty
optional members are left out, so that messages are small. Other members are ignored, but signed. `tolerated` reads entries
of another form.

Beyond the source: `capabilityDetail: "summary"` asks for ids first, and `requestDetails` for the rest of the ids that matter; the
metric `security`; `report-cosignature`, only after both sides agreed on the extension `reportCosignature`.

Protocol ids of this profile: `anp:protocol:NAME:VERSION`.

NAME is lower-case words joined by `-`, at most 64 characters, VERSION a PEP 440 version in its normal form. An id names no
bytes and belongs to nobody: what it means is for `names` to say.

A peer may know more, or write more loosely, than this profile: its odd entries are passed over. An optional member with another
value is left out, as if it were absent. An entry of a list or of an object with another form is left out, and so are those
beyond the cap. A required member stays, so that the parser reports it. For example, in `supportedProtocols` a protocol with
`"preferenceScore": 1.5` loses the score, and one without `version` is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, Union, get_args, get_origin

import msgspec

from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_consensus.protocol import is_name, parse_version
from treaty_io.codes import FlowCode

from ..hello_profile.messages import ReportCosignature, parse_report, report_fields

PREFIX = "anp:protocol:"
MAX_ID = len(PREFIX) + 64 + 1 + 64


class ProtocolId(NamedTuple):
    """The parts of an id. `str()` is the id."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{PREFIX}{self.name}:{self.version}"


def parse_protocol_id(text: str) -> ProtocolId:
    """Parse an id in its one spelling. Raises `Malformed` (`flow.offer`, `protocol.name`)."""
    name, separator, version = text.removeprefix(PREFIX).partition(":")
    if not text.startswith(PREFIX) or not separator or not is_name(name) or len(text) > MAX_ID:
        raise Malformed(FlowCode.OFFER, f"Not a protocol id ({PREFIX}NAME:VERSION): {text[:80]!r}.")
    return ProtocolId(name, parse_version(version))


VERSION = "1.0"
UNIT = 10_000
"""A score of 1, in ten-thousandths."""
# A peer evaluates each, and looks each up in its registries.
MAX_PROTOCOLS = 64
# Offers are kept and compared for each round.
MAX_PARAMETERS = 64

Level: TypeAlias = Literal["low", "medium", "high"]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
Id: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_ID)]
Identifier: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._:-]{8,128}\Z")]
Word: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,64}\Z")]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=500)]
Time: TypeAlias = Annotated[str, msgspec.Meta(max_length=40)]
Words: TypeAlias = Annotated[tuple[Word, ...], msgspec.Meta(max_length=64)]
Terms: TypeAlias = Annotated[dict[Word, Any], msgspec.Meta(max_length=MAX_PARAMETERS)]


class Payload(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The common part of all payloads. `ACTION`: the action of the message. `IS_REPLY`: whether the message must have
    `replyTo`."""

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
    """The situation of a side."""

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
    """A protocol to speak, and its required capabilities."""

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
    """The protocols of the sender, or the details that it was asked for."""

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
    """The agreement, and the session that it holds for."""

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


class ReportMessage(Payload, frozen=True, kw_only=True):
    """A message about the co-signed report on a session; its members are those of the Hello profile's reportCosignature."""

    ACTION: ClassVar[str] = "report-cosignature"
    status: Literal["proposed", "signed", "refused"]
    payload: Annotated[str, msgspec.Meta(max_length=64_000)] = ""
    keyid: Annotated[str, msgspec.Meta(max_length=512)] = ""
    signature: Annotated[str, msgspec.Meta(max_length=88)] = ""
    reason: Annotated[str, msgspec.Meta(max_length=64)] = ""

    @classmethod
    def of(cls, message: ReportCosignature) -> ReportMessage:
        """The payload that carries a message."""
        return msgspec.convert(report_fields(message), cls)

    def message(self) -> ReportCosignature:
        """The message in it. Raises `msgspec.ValidationError`, `Malformed` or `TooLarge`."""
        return parse_report({name: value for name, value in msgspec.structs.asdict(self).items() if value})


class ErrorReport(Payload, frozen=True, kw_only=True):
    """Something cannot be done. `retry_after`: in seconds."""

    ACTION: ClassVar[str] = "error"
    # Any word: codes of other makes are shown, not refused.
    error_code: Word
    error_message: Text = ""
    details: dict[str, Any] = {}
    suggested_action: Annotated[str, msgspec.Meta(max_length=64)] = ""
    retry_after: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0


_Entry = TypeVar("_Entry", Supported, Matched)
PAYLOADS: Mapping[str, type[Payload]] = {
    kind.ACTION: kind
    for kind in (
        *(Initialize, CapabilitiesExchange, ProtocolEvaluation, ProtocolProposal, ProtocolResponse),
        *(ParameterNegotiation, ParameterResponse, ProtocolConfirmation, ConfirmationAcknowledgment, ReportMessage, ErrorReport),
    )
}


class _Versioned(msgspec.Struct):
    version: str


def parse_payload(action: str, value: object) -> Payload:
    """The payload of an action from its JSON value, without odd entries (`tolerated`). Raises `Malformed`
    (`flow.message`) or `Refused` (`flow.version`)."""
    kind = PAYLOADS.get(action)
    # A new action may need an answer that this side cannot give, so it is no odd entry to pass over.
    if kind is None:
        raise Malformed(FlowCode.MESSAGE, f"There is no action {ascii(action)[:40]} in the negotiation flow.")
    try:
        version = msgspec.convert(value, _Versioned).version
        # Checked before the form: another version may have other members.
        if version != VERSION:
            raise Refused(
                FlowCode.VERSION, f"Version {ascii(version)[:16]} of the negotiation flow; this agent speaks {VERSION}."
            )
        try:
            payload = msgspec.convert(value, kind)
        except msgspec.ValidationError:  # slower, so only for payloads that need it
            payload = msgspec.convert(tolerated(value, kind), kind)
        if isinstance(payload, ReportMessage):
            payload.message()
    except msgspec.ValidationError as error:
        raise Malformed(FlowCode.MESSAGE, f"Not the payload of {action}: {error}.") from error
    return _check(payload)


def encode_payload(payload: Payload) -> dict[str, Any]:
    """The JSON value of a payload; the inverse of `parse_payload`."""
    value: dict[str, Any] = {"version": VERSION, **msgspec.to_builtins(payload)}
    if isinstance(payload, ErrorReport):
        value["retryAfter"] = payload.retry_after
    return value


def ratio(share: float) -> int:
    """Convert a score between 0 and 1 to ten-thousandths, halves to even. Numbers of at most four decimals are exact."""
    # By the decimal text, because 0.29 * 10000 is not 2900 as a float.
    return int((Decimal(repr(share)) * UNIT).to_integral_value(ROUND_HALF_EVEN))


def share(ratio: int) -> float:
    """Convert a score in ten-thousandths to the written number, of at most four decimals."""
    return ratio / UNIT


def _check(payload: Payload) -> Payload:
    """Return a payload without the entries whose ids have another form, and without repetitions. Raises `Malformed`."""
    match payload:
        case CapabilitiesExchange():
            listed = _distinct([entry for entry in payload.supported_protocols if _is_id(entry.id, entry.version)])
            requested_ids = tuple(dict.fromkeys(id for id in payload.request_details if _is_id(id)))
            return msgspec.structs.replace(payload, supported_protocols=listed, request_details=requested_ids)
        case ProtocolEvaluation():
            matched = _distinct([entry for entry in payload.matched_protocols if _is_id(entry.id)])
            return msgspec.structs.replace(payload, matched_protocols=matched)
        case ProtocolResponse() if (payload.response == "accept") != (payload.accepted_protocol is not None):
            raise Malformed(FlowCode.MESSAGE, "acceptedProtocol belongs to an acceptance, and to nothing else.")
    return payload


def _distinct(entries: list[_Entry]) -> tuple[_Entry, ...]:
    """Return the first entry of each id."""
    entries_by_id: dict[str, _Entry] = {}
    for entry in entries:
        entries_by_id.setdefault(entry.id, entry)
    return tuple(entries_by_id.values())


def _is_id(text: str, version: str = "") -> bool:
    """Return whether a text is an id, with this version in it."""
    try:
        parsed = parse_protocol_id(text)
    except TreatyError:
        return False
    return version in ("", parsed.version)


_ODD = object()


def tolerated(value: Any, kind: type[msgspec.Struct]) -> Any:
    """Return the JSON value of a payload without the entries that `kind` does not admit. Costs one conversion for each entry."""
    if not isinstance(value, dict):
        return value
    members = {}
    for struct_field in msgspec.structs.fields(kind):
        if struct_field.encode_name not in value:
            continue
        member = value[struct_field.encode_name]
        fitted = _fit(member, struct_field.type)
        if fitted is not _ODD:
            members[struct_field.encode_name] = fitted
        elif struct_field.required:
            # Kept as it is, so that the parser names it in its error.
            members[struct_field.encode_name] = member
    return members


def _fit(value: Any, hint: Any) -> Any:
    """Return the value as far as it has a type, or `_ODD`."""
    kind, cap = _bare(hint)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _checked(tolerated(value, kind), kind)
    if get_origin(kind) is tuple and isinstance(value, list):
        item = get_args(kind)[0]
        # The cap goes first, so that a long list costs no more than a full one.
        return [fitted for one in value[:cap] if (fitted := _fit(one, item)) is not _ODD]
    if get_origin(kind) is dict and isinstance(value, dict):
        name, item = get_args(kind)
        pairs = list(value.items())[:cap]
        return {key: one for key, one in pairs if _checked(key, name) is not _ODD and _checked(one, item) is not _ODD}
    return _checked(value, hint)


def _bare(hint: Any) -> tuple[Any, int | None]:
    """Return a type without `Annotated` and `None`, and the cap of its entries."""
    cap = None
    while get_origin(hint) in (Annotated, Union, UnionType):
        if get_origin(hint) is Annotated:
            cap = next((meta.max_length for meta in hint.__metadata__ if isinstance(meta, msgspec.Meta)), None)
            hint = get_args(hint)[0]
        else:
            members = [member for member in get_args(hint) if member is not NoneType]
            if len(members) != 1:
                break
            hint = members[0]
    return hint, cap


def _checked(value: Any, hint: Any) -> Any:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return _ODD
    return value
