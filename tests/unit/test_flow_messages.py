"""The messages of the negotiation flow: the source's own examples, their signatures, and what is refused."""

from __future__ import annotations

import base64
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from flow_peers import BUYER, SHOP, START, wrap
from joserfc import jws
from joserfc.jwk import OKPKey

from treaty_anp.flow_profile import messages, payloads
from treaty_anp.flow_profile.errors import ErrorCode, error_of, peers_error, report
from treaty_anp.flow_profile.messages import (
    HEADER,
    FlowMessage,
    Foreign,
    encode,
    format_time,
    is_flow,
    parse,
    parse_signature,
    parse_time,
    sign,
    signing_input,
    verify,
)
from treaty_anp.flow_profile.payloads import (
    CapabilitiesExchange,
    ConfirmationAcknowledgment,
    ErrorReport,
    Initialize,
    ParameterNegotiation,
    Payload,
    ProtocolConfirmation,
    ProtocolEvaluation,
    ProtocolProposal,
    encode_payload,
    parse_payload,
    ratio,
    share,
)
from treaty_anp.flow_profile.transfer import MAX_DATA, PayloadCodec
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unauthorized, Unavailable

VECTORS = sorted((Path(__file__).parents[1] / "vectors" / "flow").glob("*.json"))
SOURCE_HEADER = "eyJhbGciOiJFZERTQSIsImI2NCI6ZmFsc2UsImNyaXQiOlsiYjY0Il19"


def signed(value: dict[str, Any]) -> str:
    """A JSON message with BUYER's signature, in no canonical form."""
    return json.dumps({**value, "signature": sign(signing_input(value), BUYER)}, indent=1)


def vector(action: str) -> dict[str, Any]:
    """The first example of an action."""
    path = next(path for path in VECTORS if path.stem.endswith(action))
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def message(payload: Payload | Foreign, **fields: Any) -> FlowMessage:
    action = payload.ACTION if isinstance(payload, Payload) else "message"
    members = {
        "type": "meta-protocol",
        "action": action,
        "message_id": "msg-12345678",
        "sender": BUYER.did,
        "recipient": SHOP.did,
    }
    return FlowMessage(**{**members, "timestamp": START, "payload": payload, **fields})


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_the_sources_examples_round_trip(path: Path) -> None:
    value = json.loads(path.read_text())
    message = parse(signed(value))
    verify(message.content, message.signature, [BUYER.public_key], BUYER.did)
    again = json.loads(encode(message.message, BUYER))
    del again["signature"]
    assert again == value


def test_there_is_an_example_of_every_action_of_the_source() -> None:
    actions = {json.loads(path.read_text())["action"] for path in VECTORS}
    assert actions == {*payloads.PAYLOADS, "query"} - {payloads.ReportMessage.ACTION}  # which is ours


def test_001_01_initialize_has_a_purpose_and_a_wish() -> None:
    parsed = parse(signed(vector("initialize"))).message.payload
    assert parsed == Initialize(purpose="data-exchange", request_capabilities=True)
    for name in ("purpose", "requestCapabilities", "version"):
        value = vector("initialize")
        del value["payload"][name]
        with pytest.raises(Malformed) as failure:
            parse(signed(value))
        assert failure.value.code == "flow.message"


def test_001_02_capabilities_have_protocols_and_requirements() -> None:
    payload = parse(signed(json.loads(VECTORS[2].read_text()))).message.payload
    assert isinstance(payload, CapabilitiesExchange)
    first = payload.supported_protocols[0]
    assert (first.id, first.version, first.preference_score) == ("anp:protocol:data-sharing:1.0", "1.0", 0.8)
    assert first.capabilities == ("query", "stream", "transform")
    assert first.metrics == payloads.Metrics("medium", "high", "high")
    assert payload.context_info == payloads.ContextInfo("medium", "intermittent", ("accuracy", "completeness"))
    assert payload.task_requirements == {"dataVolume": "large", "timeConstraint": "relaxed", "securityLevel": "standard"}


@pytest.mark.parametrize(
    "change",
    [
        {"id": "https://r.example/protocols/x"},
        {"id": "anp:protocol:Data:1.0"},
        {"id": "anp:protocol:data-sharing:01.0"},
        {"version": "1.1"},
        {"version": None},
        {"id": 7},
    ],
)
def test_001_02_an_entry_of_another_form_is_ignored_alone(change: dict[str, Any]) -> None:
    value = vector("capabilities-exchange")
    value["payload"]["supportedProtocols"][0].update(change)
    payload = parse(signed(value)).message.payload
    assert isinstance(payload, CapabilitiesExchange)
    assert [entry.id for entry in payload.supported_protocols] == ["anp:protocol:task-delegation:2.1"]


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"preferenceScore": 1.5}, ("query", "stream", "batch")),
        ({"metrics": {"latency": "ultra", "throughput": "high"}}, ("query", "stream", "batch")),
        ({"metrics": "fast"}, ("query", "stream", "batch")),
        ({"capabilities": ["query", "natural language", 7, "batch"]}, ("query", "batch")),
        ({"capabilities": "query"}, None),
        ({"capabilities": [f"c{number}" for number in range(65)]}, tuple(f"c{number}" for number in range(64))),
    ],
)
def test_001_02_an_odd_member_of_an_entry_is_passed_over(change: dict[str, Any], left: tuple[str, ...] | None) -> None:
    value = vector("capabilities-exchange")
    value["payload"]["supportedProtocols"][0].update(change)
    value["payload"]["contextInfo"] = {"resourceAvailability": "plenty", "preferences": ["speed", "low cost"]}
    value["payload"]["taskRequirements"] = {"dataVolume": "large", "budget": {"max": 3}, "two words": "x"}
    payload = parse(signed(value)).message.payload
    assert isinstance(payload, CapabilitiesExchange)
    entry = payload.supported_protocols[0]
    assert entry.capabilities == left
    assert entry.preference_score == (0.5 if "preferenceScore" in change else 0.9)
    if "metrics" in change:
        assert entry.metrics in (None, payloads.Metrics(throughput="high"))
    assert payload.context_info == payloads.ContextInfo(None, None, ("speed",))
    assert payload.task_requirements == {"dataVolume": "large"}


def test_001_02_more_protocols_than_the_cap_are_passed_over() -> None:
    value = vector("capabilities-exchange")
    first = value["payload"]["supportedProtocols"][0]
    ids = [f"anp:protocol:data-{number}:1.0" for number in range(65)]
    value["payload"]["supportedProtocols"] = [{**first, "id": id} for id in ids]
    payload = parse(signed(value)).message.payload
    assert isinstance(payload, CapabilitiesExchange)
    assert [entry.id for entry in payload.supported_protocols] == ids[:64]


def test_001_03_scores_have_at_most_four_decimals() -> None:
    parsed = parse(signed(vector("protocol-evaluation"))).message.payload
    assert isinstance(parsed, ProtocolEvaluation)
    assert ratio(parsed.matched_protocols[0].compatibility_score) == 8500
    assert rfc8785.dumps(share(8500)) == b"0.85"
    assert rfc8785.dumps([share(0), share(1), share(10_000), share(3333)]) == b"[0,0.0001,1,0.3333]"
    assert all(ratio(share(score)) == score for score in range(10_001))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("protocol-response", {"response": "maybe"}),
        ("protocol-response", {"response": "accept", "acceptedProtocol": None}),
        ("protocol-response", {"response": "reject"}),
        ("confirmation-acknowledgment", {"status": "soon"}),
        ("protocol-confirmation", {"sessionId": "short"}),
        ("parameter-negotiation", {"parameters": []}),
        ("parameter-negotiation", {"protocol": 7}),
        ("error", {"errorCode": "two words"}),
    ],
)
def test_001_04_payloads_that_say_something_else_are_refused(kind: str, value: dict[str, Any]) -> None:
    value_of = vector(kind)
    value_of["payload"].update(value)
    with pytest.raises(Malformed):
        parse(signed(value_of))


@pytest.mark.parametrize("action", ["protocol-response", "parameter-response", "confirmation-acknowledgment"])
def test_001_04_a_reply_names_what_it_answers(action: str) -> None:
    value = vector(action)
    del value["replyTo"]
    with pytest.raises(Malformed) as failure:
        parse(signed(value))
    assert failure.value.code == "flow.message"


def test_001_06_times_are_read_and_written_as_in_rfc_3339() -> None:
    assert format_time(parse_time("2024-03-20T16:06:20Z")) == "2024-03-20T16:06:20Z"
    assert format_time(parse_time("2024-03-20T16:06:20.007Z")) == "2024-03-20T16:06:20.007Z"
    assert parse_time("1970-01-01T00:00:01.5Z".replace(".5", ".500")) == 1500
    for text in ("2024-03-20T16:06:20+00:00", "2024-03-20T18:06:20.000000+02:00", "2024-03-20T16:06:20.000999Z"):
        assert parse_time(text) == parse_time("2024-03-20T16:06:20Z")
    assert parse_time("1969-12-31T23:59:59.5Z") == -500
    for text in (
        "2024-03-20T16:06:20",
        "2024-03-20T16:06:20+99:00",
        "2024-03-20T16:06:20.Z",
        "2024-02-30T00:00:00Z",
        "2024-03-20 16:06:20Z",
        "",
        "٢٠٢٤",
    ):
        with pytest.raises(Malformed) as failure:
            parse_time(text)
        assert failure.value.code == "flow.message"


def test_001_07_a_protocol_message_has_its_type_and_session() -> None:
    data = bytes(range(256))
    text = encode(message(wrap(data), type="product-info", session_id="session-12345678"), BUYER)
    value = json.loads(text)
    assert (value["type"], value["action"], value["sessionId"]) == ("product-info", "message", "session-12345678")
    assert value["payload"] == {"data": base64.b64encode(data).decode()}
    parsed = parse(text).message.payload
    assert isinstance(parsed, Foreign)
    assert PayloadCodec().decode(parsed.value, "message") == (data, "")


def test_001_07_a_message_without_session_or_type_is_refused() -> None:
    for change in ({"sessionId": None}, {"type": "Data"}, {"type": ""}):
        with pytest.raises(Malformed) as failure:
            parse(signed({**vector("query"), **change}))
        assert failure.value.code == "flow.message"


def test_001_18_an_error_has_its_code_details_and_retry_time() -> None:
    parsed = parse(signed(vector("error"))).message
    assert parsed.reply_to == "msg-13579-efghi"
    assert parsed.payload == ErrorReport(
        error_code="PARAM_NEGOTIATION_FAILED",
        error_message="Cannot support requested encryption level",
        details={
            "parameter": "encryptionLevel",
            "requested": "AES-256-GCM",
            "supported": ["AES-128-GCM", "ChaCha20-Poly1305"],
        },
        suggested_action="renegotiate",
        retry_after=0,
    )
    payload = encode_payload(report(ErrorCode.NEGOTIATION_TIMEOUT, "Too late.", retry_after=2.5))
    assert payload == {
        "version": "1.0",
        "errorCode": "NEGOTIATION_TIMEOUT",
        "errorMessage": "Too late.",
        "suggestedAction": "retry",
        "retryAfter": 2.5,
    }
    assert "2.5 seconds" in peers_error(report(ErrorCode.NEGOTIATION_TIMEOUT, "Too late.", retry_after=2.5)).message


@pytest.mark.parametrize(
    ("number", "code", "own", "family"),
    [
        (13, "NO_COMMON_PROTOCOL", "session.no-common-protocol", Refused),
        (14, "NEGOTIATION_TIMEOUT", "session.reply-timeout", Unavailable),
        (15, "VERSION_CONFLICT", "flow.version-conflict", Refused),
        (16, "PARAM_NEGOTIATION_FAILED", "flow.parameters", Refused),
        (17, "VERIFICATION_FAILED", "flow.verification", Unauthorized),
        (18, "SOMETHING_ELSE", "session.peer-refused", Refused),
    ],
)
def test_001_13_14_15_16_and_17_each_error_has_a_code(number: int, code: str, own: str, family: type[TreatyError]) -> None:
    error = error_of(code, "Why.")
    assert error.code == own
    assert isinstance(error, family)
    assert (code in set(ErrorCode)) == (number != 18)


def test_an_errors_text_is_escaped() -> None:
    assert "\\x1b" in peers_error(ErrorReport(error_code="X", error_message="\x1b[2J")).message


def test_001_23_what_is_empty_is_left_out_and_nothing_is_padded() -> None:
    text = encode(message(Initialize(purpose="buy", request_capabilities=True)), BUYER)
    assert rfc8785.dumps(json.loads(text)).decode() == text
    assert json.loads(text)["payload"] == {"version": "1.0", "purpose": "buy", "requestCapabilities": True}
    assert len(text) < 500
    summary = CapabilitiesExchange(supported_protocols=(payloads.Supported("anp:protocol:a:1.0", "1.0"),))
    assert json.loads(json.dumps(encode_payload(summary))) == {
        "version": "1.0",
        "supportedProtocols": [{"id": "anp:protocol:a:1.0", "version": "1.0"}],
    }


# Signatures


def test_001_33_the_header_is_the_sources_constant() -> None:
    header = json.loads(base64.urlsafe_b64decode(SOURCE_HEADER + "=="[: -len(SOURCE_HEADER) % 4]))
    assert header == {"alg": "EdDSA", "b64": False, "crit": ["b64"]}
    text = json.loads(encode(message(Initialize(purpose="buy", request_capabilities=True)), BUYER))["signature"]
    assert text.startswith(SOURCE_HEADER + "..")
    assert SOURCE_HEADER == HEADER


def test_001_33_joserfc_makes_and_verifies_equal_signatures() -> None:
    value = vector("protocol-evaluation")
    content = signing_input(value)
    payload = content.removeprefix(HEADER.encode() + b".")
    assert payload == rfc8785.dumps(value)
    key = OKPKey.import_key(BUYER.private_key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # EdDSA as a name is deprecated by RFC 9864
        protected = {"alg": "EdDSA", "b64": False, "crit": ["b64"]}
        assert jws.serialize_compact(protected, payload, key, algorithms=["EdDSA"]) == sign(content, BUYER)
        jws.deserialize_compact(sign(content, BUYER), key, algorithms=["EdDSA"], payload=payload)


def test_001_33_numbers_are_signed_as_ecmascript_writes_them() -> None:
    value = json.loads('{"a": 0.850, "b": 1.0, "c": 1e3, "d": -0.0, "e": 1e21, "f": 5e-324}')
    assert signing_input(value) == HEADER.encode() + b'.{"a":0.85,"b":1,"c":1000,"d":0,"e":1e+21,"f":5e-324}'


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in leaves(item, (*path, key)))]


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case str():
            return value[:-1] + ("b" if value.endswith("a") else "a")
        case int() | float():
            return value / 2 if value else 1
        case list():
            return value[1:] or ["more"]
    return {**value, "more": 1}


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_001_17_any_change_breaks_a_messages_signature(path: Path) -> None:
    original = json.loads(signed(json.loads(path.read_text())))
    for place in leaves(original):
        if not place or place == ("signature",):
            continue
        value = json.loads(json.dumps(original))
        inside = value
        for key in place[:-1]:
            inside = inside[key]
        inside[place[-1]] = changed(inside[place[-1]])
        with pytest.raises(Unauthorized) as failure:
            verify(signing_input(value), parse_signature(value["signature"]), [BUYER.public_key], BUYER.did)
        assert failure.value.code == "flow.verification", place
        del inside[place[-1]]
        with pytest.raises(Unauthorized):
            verify(signing_input(value), parse_signature(value["signature"]), [BUYER.public_key], BUYER.did)


def test_001_17_members_that_nobody_knows_are_signed_too() -> None:
    value = json.loads(signed({**vector("initialize"), "note": "x", "payload": {**vector("initialize")["payload"], "extra": 1}}))
    message = parse(json.dumps(value))
    verify(message.content, message.signature, [BUYER.public_key], BUYER.did)
    value["payload"]["extra"] = 2
    message = parse(json.dumps(value))
    with pytest.raises(Unauthorized):
        verify(message.content, message.signature, [BUYER.public_key], BUYER.did)


def test_001_33_a_signature_has_one_spelling() -> None:
    good = sign(b"x", BUYER)
    assert len(parse_signature(good)) == 64
    body = good.removeprefix(HEADER + "..")
    odd = body[:-1] + chr(ord(body[-1]) + 1)
    none, other = base64.urlsafe_b64encode(b'{"alg":"none"}').decode(), base64.urlsafe_b64encode(b'{"alg":"EdDSA"}').decode()
    for text in (
        "",
        body,
        f"{HEADER}.{body}",
        f"{HEADER}.x.{body}",
        f"{HEADER}..{body}==",
        f"{HEADER}..{body}\n",
        f"{HEADER}..{odd}",
        f"{HEADER}..{body[:-1]}",
        f"{HEADER[:-1]}k..{body}",
        f"{none}..{body}",
        f"{other}..{body}",
        f"{HEADER}...",
    ):
        with pytest.raises(Malformed) as failure:
            parse_signature(text)
        assert failure.value.code == "flow.signature", text


def test_001_33_only_authentication_keys_sign() -> None:
    content = signing_input(vector("initialize"))
    signature = parse_signature(sign(content, BUYER))
    verify(content, signature, [SHOP.public_key, b"no key", BUYER.public_key], BUYER.did)
    for keys in ([], [SHOP.public_key], [SHOP.public_key] * 8 + [BUYER.public_key]):
        with pytest.raises(Unauthorized):
            verify(content, signature, keys, BUYER.did)


# Caps and form


def test_messages_are_capped_before_they_are_read() -> None:
    value = vector("parameter-negotiation")
    value["payload"]["parameters"]["big"] = "x" * messages.MAX_MESSAGE
    with pytest.raises(TooLarge) as failure:
        parse(signed(value))
    assert failure.value.code == "flow.too-large"
    with pytest.raises(TooLarge):
        parse("[" * 2000, limit=1999)
    with pytest.raises(TooLarge):
        PayloadCodec().encode(bytes(MAX_DATA + 1))
    assert len(encode(message(wrap(bytes(MAX_DATA)), type="a", session_id="session-12345678"), BUYER)) < messages.MAX_APPLICATION
    full = CapabilitiesExchange(
        supported_protocols=tuple(
            payloads.Supported(f"anp:protocol:{'n' * 60}:{n}.0", f"{n}.0", tuple(f"{i:064}" for i in range(64)))
            for n in range(64)
        )
    )
    with pytest.raises(TooLarge):
        encode(message(full), BUYER)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "{}",
        '"meta-protocol"',
        '{"type": "meta-protocol"}',
        '{"a": 1, "a": 1}',
        '{"a": 1e999}',
        "[" * 40 + "]" * 40,
        "\ud800",
    ],
)
def test_what_is_no_message_is_refused(text: str) -> None:
    with pytest.raises(Malformed) as failure:
        parse(text)
    assert failure.value.code == "flow.message"


def test_numbers_without_one_common_reading_are_refused() -> None:
    value = vector("parameter-negotiation")
    value["payload"]["parameters"]["chunkSize"] = 1e16
    with pytest.raises(Malformed) as failure:
        parse(json.dumps({**value, "signature": sign(b"x", BUYER)}))
    assert failure.value.code == "flow.message"
    offer = ParameterNegotiation(protocol="anp:protocol:a:1.0", parameters={"chunkSize": 2**53})
    with pytest.raises(Malformed) as unsayable:
        encode(message(offer), BUYER)
    assert unsayable.value.code == "flow.offer"


def test_other_versions_and_actions_are_refused() -> None:
    value = vector("initialize")
    value["payload"]["version"] = "2.0"
    with pytest.raises(Refused) as refused:
        parse(signed(value))
    assert refused.value.code == "flow.version"
    with pytest.raises(Malformed) as failure:
        parse(signed({**vector("initialize"), "action": "finalize"}))
    assert failure.value.code == "flow.message"
    with pytest.raises(Malformed):
        parse_payload("initialize", ["1.0"])


def test_001_02_the_first_entry_of_an_id_counts() -> None:
    value = vector("capabilities-exchange")
    listed = value["payload"]["supportedProtocols"]
    listed.append({**listed[0], "preferenceScore": 0.1})
    payload = parse(signed(value)).message.payload
    assert isinstance(payload, CapabilitiesExchange)
    assert [entry.preference_score for entry in payload.supported_protocols] == [0.9, 0.7]


def test_the_first_message_tells_the_profiles_apart() -> None:
    assert is_flow(signed(vector("initialize")))
    for other in ('{"type": "sourceHello"}', "[]", "x", b"\x00", signed(vector("query")), " " * (messages.MAX_MESSAGE + 1)):
        assert not is_flow(other)


def test_001_04_a_proposal_names_its_fallback() -> None:
    parsed = parse(signed(vector("protocol-proposal"))).message.payload
    assert isinstance(parsed, ProtocolProposal)
    assert parsed.fallback_protocol is not None
    assert parsed.fallback_protocol.id == "anp:protocol:basic-transfer:1.1"


def test_001_06_both_confirmations_name_session_and_times() -> None:
    confirmed = parse(signed(vector("protocol-confirmation"))).message.payload
    ready = parse(signed(vector("confirmation-acknowledgment"))).message.payload
    assert isinstance(confirmed, ProtocolConfirmation)
    assert isinstance(ready, ConfirmationAcknowledgment)
    assert confirmed.session_id == ready.session_id == "session-xyz-123456789"
    assert parse_time(confirmed.expires_at) > parse_time(ready.ready_at)
