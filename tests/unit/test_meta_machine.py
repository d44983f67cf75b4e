"""The state machine of the Hello profile, by the numbers of the source specification's checklist."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from meta_peers import (
    BUYER,
    FAILED,
    GENERATED,
    HASH,
    OTHER_HASH,
    OTHER_URI,
    SHOP,
    STALE,
    TIMEOUTS,
    URI,
    Wire,
    application,
    buyer,
    destination_hello,
    failed,
    meta,
    rejection_in,
    shop,
    source_hello,
)
from msgspec import structs

from treaty_anp.call_metadata import CallMetadata
from treaty_anp.frame import MAX_PAYLOAD, ProtocolType, encode
from treaty_anp.hello_profile import hello, messages
from treaty_anp.hello_profile.actions import (
    Action,
    Agreement,
    Deliver,
    Ended,
    Load,
    Meta,
    Published,
    Running,
    SendBinary,
    SendText,
)
from treaty_anp.hello_profile.commands import CodeFailed, CodeReady, Send, SendMeta, TellPublished
from treaty_anp.hello_profile.core import say
from treaty_anp.hello_profile.machine import HelloState, Limits, Machine, Provided
from treaty_anp.hello_profile.messages import ProtocolPublished, ReportProposed
from treaty_anp.trace_context import TraceContext
from treaty_consensus.errors import Refused, TreatyError, Unavailable

REPORTS = (hello.REPORT_COSIGNATURE,)


def error_of(machine: Machine) -> str:
    assert machine.error is not None
    return machine.error.code


def answer(machine: Machine, *, used: str | None = None, selected: str | None = None, digest: str | None = None) -> list[Action]:
    """The shop answers the buyer."""
    return machine.receive(destination_hello(used=used, selected=selected, digest=digest).format(), 0.0)


def agreed_buyer() -> Machine:
    machine = buyer()
    answer(machine, selected=URI, used=HASH)
    assert machine.state is HelloState.AGREED
    return machine


def agreed_shop() -> Machine:
    machine = shop()
    machine.receive(source_hello().format(), 0.0)
    assert machine.state is HelloState.AGREED
    return machine


def running_buyer(capabilities: tuple[str, ...] = ()) -> Machine:
    machine = buyer(source_hello(offered=HASH, capabilities=capabilities))
    machine.receive(destination_hello(used=HASH, capabilities=capabilities).format(), 0.0)
    machine.apply(CodeReady(HASH), 0.0)
    assert machine.state is HelloState.RUNNING
    return machine


TRACED = CallMetadata(TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", flags=1), 1000)
CONTEXTS = (hello.CALL_CONTEXT,)


def context_of(metadata: CallMetadata) -> bytes:
    return encode(ProtocolType.META, messages.encode(metadata))


def with_context(metadata: CallMetadata, payload: bytes) -> bytes:
    return context_of(metadata) + b"\n" + application(payload)


def test_a_calls_context_precedes_its_message() -> None:
    plain, traced = [SendBinary(application(b"x"))], [SendBinary(with_context(TRACED, b"x"))]
    assert running_buyer(CONTEXTS).apply(Send(b"x", metadata=TRACED), 1.0) == traced
    assert running_buyer().apply(Send(b"x", metadata=TRACED), 1.0) == plain
    assert running_buyer(CONTEXTS).apply(Send(b"x"), 1.0) == plain


def test_a_context_too_large_for_its_message_goes_first() -> None:
    large = bytes(MAX_PAYLOAD)
    sent = running_buyer(CONTEXTS).apply(Send(large, metadata=TRACED), 1.0)
    assert sent == [SendBinary(context_of(TRACED)), SendBinary(application(large))]


def test_a_message_may_have_any_bytes_behind_its_context() -> None:
    for payload in (b"", b"\n@\n@", bytes(range(256)), b'{"action":"codeGeneration"}'):
        received = running_buyer(CONTEXTS).receive(with_context(TRACED, payload), 1.0)
        assert received == [Deliver(payload, TRACED)]


def test_no_other_meta_message_has_a_message_behind_it() -> None:
    machine = running_buyer(CONTEXTS)
    machine.receive(GENERATED + b"\n@x", 1.0)
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "meta.message")


def test_a_kept_messages_context_has_less_time() -> None:
    machine = buyer(source_hello(capabilities=CONTEXTS))
    machine.receive(destination_hello(selected=URI, capabilities=CONTEXTS).format(), 0.0)
    assert machine.apply(Send(b"x", metadata=TRACED), 0.0) == []
    machine.apply(CodeReady(HASH), 0.25)
    flushed = machine.receive(GENERATED, 0.5)
    assert flushed[-1] == SendBinary(with_context(structs.replace(TRACED, timeout=500), b"x"))


def test_early_contexts_need_a_known_reader() -> None:
    for is_known in (True, False):
        opening = source_hello(offered=HASH, capabilities=CONTEXTS)
        machine, _ = Machine.initiator(opening, now=0.0, timeouts=TIMEOUTS, known_uri=URI, known_reader=is_known)
        sent = machine.apply(Send(b"x", early=True, metadata=TRACED), 0.0)
        assert sent == [SendBinary(with_context(TRACED, b"x") if is_known else application(b"x"))]


def test_the_last_context_belongs_to_the_next_message() -> None:
    machine = running_buyer(CONTEXTS)
    assert machine.receive(context_of(CallMetadata(None, 1)), 1.0) == []
    assert machine.receive(context_of(TRACED), 1.0) == []
    assert machine.receive(application(b"x"), 1.0) == [Deliver(b"x", TRACED)]
    assert machine.receive(application(b"x"), 1.0) == [Deliver(b"x")]


def test_an_unagreed_context_ends_the_session() -> None:
    machine = running_buyer()
    machine.receive(context_of(TRACED), 1.0)
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "session.profile")


@pytest.mark.parametrize("listed", [CONTEXTS, ()])
def test_a_destination_lists_contexts_to_a_source_that_does(listed: tuple[str, ...]) -> None:
    machine = shop(capabilities=CONTEXTS)
    (answered, _) = machine.receive(source_hello(capabilities=listed).format(), 0.0)
    assert isinstance(answered, SendText)
    assert tuple(json.loads(answered.text)["metaProtocol"]["supportedCapabilities"]) == listed


def test_a_peer_names_two_uris_if_both_list_that() -> None:
    published = ProtocolPublished(URI)
    buyer = running_buyer((hello.PROTOCOL_PUBLISHED,))
    assert buyer.apply(TellPublished(URI), 0.0) == [say(published)]
    for _ in range(2):
        assert buyer.receive(say(published).data, 0.0) == [Published(URI)]
    buyer.receive(say(published).data, 0.0)
    assert error_of(buyer) == "meta.message"
    buyer = running_buyer()
    assert buyer.apply(TellPublished(URI), 0.0) == []
    buyer.receive(say(published).data, 0.0)
    assert error_of(buyer) == "session.profile"


def stays_ended(machine: Machine) -> None:
    """After the end nothing moves it, and nothing is sent."""
    state, error = machine.state, machine.error
    acts: list[Callable[[], list[Action]]] = [
        lambda: machine.receive(GENERATED, 1.0),
        lambda: machine.receive(source_hello().format(), 1.0),
        lambda: machine.apply(Send(b"x"), 1.0),
        lambda: machine.apply(CodeReady(HASH), 1.0),
        lambda: machine.apply(CodeFailed(Refused("x.y", "No.")), 0.0),
        lambda: machine.tick(1e9),
        lambda: machine.lost("again"),
        machine.close,
    ]
    assert [act() for act in acts] == [[]] * len(acts)
    assert (machine.state, machine.error) == (state, error)


# What the destination chooses


def test_000_60_a_confirmed_hash_skips_negotiation_on_both_sides() -> None:
    wire = Wire.join(source_hello(offered=HASH))
    wire.settle()
    assert wire.source.agreement == wire.destination.agreement == Agreement(URI, HASH, True)
    assert wire.source.state is wire.destination.state is HelloState.RUNNING
    assert [type(message) for _, message in wire.sent] == [str, str]  # two Hellos and nothing else


def test_000_60_the_confirmation_repeats_the_hash() -> None:
    machine = shop()
    sent = machine.receive(source_hello(offered=HASH).format(), 0.0)[0]
    assert isinstance(sent, SendText)
    assert hello.parse(sent.text, "destinationHello").used_protocol_hash == HASH


@pytest.mark.parametrize("provides", [{}, {OTHER_URI: Provided(OTHER_HASH, True)}, STALE])
def test_000_61_an_unsupported_or_stale_hash_is_left_out(provides: dict[str, Provided]) -> None:
    machine = shop(provides)
    sent = machine.receive(source_hello((), offered=HASH).format(), 0.0)[0]
    assert isinstance(sent, SendText)
    assert hello.parse(sent.text, "destinationHello").used_protocol_hash is None


def test_000_61_an_unconfirmed_hash_falls_back_to_the_candidates() -> None:
    wire = Wire.join(source_hello((URI,), offered=OTHER_HASH))
    wire.settle()
    assert wire.source.agreement == wire.destination.agreement == Agreement(URI, HASH, False)
    assert wire.source.state is wire.destination.state is HelloState.RUNNING


def test_000_61_a_stale_verification_renegotiates() -> None:
    wire = Wire.join(source_hello((URI,), offered=HASH), STALE)
    wire.deliver("destination")
    wire.deliver("source")
    assert {wire.source.state, wire.destination.state} == {HelloState.AGREED}
    wire.settle()
    assert {wire.source.state, wire.destination.state} == {HelloState.RUNNING}
    assert [message for _, message in wire.sent].count(GENERATED) == 2


def test_000_63_the_first_provided_candidate_wins() -> None:
    provides = {OTHER_URI: Provided(OTHER_HASH, True), URI: Provided(HASH, True)}
    foreign = "https://other.example/protocol/1.0"
    for candidates, expected in (((foreign, URI, OTHER_URI), URI), ((OTHER_URI, URI), OTHER_URI)):
        machine = shop(provides)
        sent = machine.receive(source_hello(candidates).format(), 0.0)[0]
        assert isinstance(sent, SendText)
        answer = hello.parse(sent.text, "destinationHello")
        assert (answer.selected_protocol, answer.selected_protocol_hash) == (expected, provides[expected].protocol_hash)
        assert answer.used_protocol_hash is None  # by the source it confirms an offered hash


def test_a_confirmed_hash_wins_over_a_candidate() -> None:
    provides = {OTHER_URI: Provided(OTHER_HASH, True), URI: Provided(HASH, True)}
    wire = Wire.join(source_hello((OTHER_URI,), offered=HASH), provides)
    wire.settle()
    assert wire.destination.agreement == Agreement(URI, HASH, True)


def test_without_a_common_protocol_both_learn_the_reason() -> None:
    wire = Wire.join(source_hello((OTHER_URI,)))
    wire.settle()
    for machine in (wire.source, wire.destination):
        assert (machine.state, error_of(machine)) == (HelloState.REJECTED, "session.no-common-protocol")
        assert "configure a language model" in str(machine.error)
        stays_ended(machine)
    assert wire.loads == {"source": [], "destination": []}


@pytest.mark.parametrize("version", ["0.9", "0.1"])
def test_000_53_a_destination_without_a_common_version_says_so(version: str) -> None:
    machine = shop()
    text = source_hello().format().replace('"version":"1.0"},"random"', f'"version":"{version}"}},"random"')
    assert f'"version":"{version}"' in text
    assert rejection_in(machine.receive(text, 0.0)).startswith("hello.version: ")
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "hello.version")


def test_000_53_a_newer_source_is_answered_in_the_common_version() -> None:
    machine = shop()
    text = source_hello().format().replace('"version":"1.0"},"random"', '"version":"2.1"},"random"')
    assert '"version":"2.1"' in text
    sent = machine.receive(text, 0.0)[0]
    assert isinstance(sent, SendText)
    assert hello.parse(sent.text, "destinationHello").meta_version == "1.0"


def test_a_destination_addressed_by_another_did_refuses() -> None:
    machine = shop()
    assert "This is did:wba:shop.example" in rejection_in(machine.receive(source_hello(to="did:wba:else.example").format(), 0.0))
    assert error_of(machine) == "hello.destination"
    assert shop().receive(source_hello(to="").format(), 0.0)[0].__class__ is SendText


def test_000_53_v2_speaks_v1_to_a_v1_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    old_source, old_answer = source_hello(), destination_hello(selected=URI, used=HASH)
    for module in (hello,):
        monkeypatch.setattr(module, "META_VERSIONS", ("1.0", "2.0"))
    newer = structs.replace(source_hello(), meta_version="2.0")
    for asked, version in ((old_source, "1.0"), (newer, "2.0"), (structs.replace(newer, meta_version="3.1"), "2.0")):
        machine = shop()
        machine.receive(asked.format(), 0.0)
        assert (machine.state, machine.own.meta_version) == (HelloState.AGREED, version)
    source = buyer(newer)
    source.receive(old_answer.format(), 0.0)
    assert source.state is HelloState.AGREED


# What the source believes


def test_000_64_a_selection_that_was_no_candidate_aborts() -> None:
    machine = buyer()
    assert rejection_in(answer(machine, selected=OTHER_URI)).startswith("hello.form: ")
    assert error_of(machine) == "hello.form"
    stays_ended(machine)


def test_a_hash_that_nobody_offered_is_not_confirmed() -> None:
    for machine in (buyer(), buyer(source_hello(offered=HASH))):
        answer(machine, used=OTHER_HASH)
        assert (machine.state, error_of(machine)) == (HelloState.ERROR, "hello.form")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sessionId": "x" * 16}, "hello.form"),
        ({"destinationDid": "did:wba:else.example"}, "hello.form"),
        ({"sourceDid": "did:wba:else.example"}, "hello.destination"),
    ],
)
def test_an_answer_to_somebody_else_aborts(changes: dict[str, str], code: str) -> None:
    addresses = {"sessionId": "s" * 16, "destinationDid": BUYER, "sourceDid": SHOP}
    text = destination_hello(selected=URI, used=HASH).format()
    for name, value in changes.items():
        text = text.replace(f'"{name}":"{addresses[name]}"', f'"{name}":"{value}"')
    machine = buyer()
    machine.receive(text, 0.0)
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, code)


def test_a_source_that_knew_only_the_address_learns_the_did() -> None:
    machine = buyer(source_hello(to=""))
    answer(machine, selected=URI, used=HASH)
    assert machine.peer is not None
    assert machine.peer.source_did == SHOP


def test_the_document_must_have_the_hash_beside_the_selected_uri() -> None:
    machine = buyer()
    answer(machine, selected=URI, digest=OTHER_HASH)
    assert machine.apply(CodeReady(HASH), 0.0) == [SendBinary(failed("session.hash-mismatch")), Ended(machine.error)]
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "session.hash-mismatch")


def test_a_destination_may_leave_the_hash_of_its_selection_out() -> None:
    machine = buyer()
    assert answer(machine, selected=URI) == [Load(Agreement(URI, None, False))]
    machine.apply(CodeReady(HASH), 0.0)
    assert machine.agreement == Agreement(URI, HASH, False)


def test_000_53_a_version_that_was_not_offered_aborts() -> None:
    machine = buyer()
    text = destination_hello(selected=URI).format().replace('"version":"1.0"},"random"', '"version":"1.1"},"random"')
    machine.receive(text, 0.0)
    assert error_of(machine) == "hello.version"


# The types of frames


def test_000_02_only_type_00_is_a_meta_message() -> None:
    body = b'{"action": "codeGeneration", "status": "error"}'
    for header in (b"\x40", b"\x80", b"\xc0"):
        machine = agreed_buyer()
        machine.receive(header + body, 0.0)
        assert machine.error is None or machine.error.code != "session.peer-code"
    machine = agreed_buyer()
    machine.receive(b"\x00" + body, 0.0)
    assert error_of(machine) == "session.peer-code"
    (sent,) = agreed_buyer().apply(CodeReady(HASH), 0.0)
    assert isinstance(sent, SendBinary)
    assert (sent.data[:1], json.loads(sent.data[1:])) == (b"\x00", {"action": "codeGeneration", "status": "generated"})


@pytest.mark.parametrize(("sender", "receiver"), [("source", "destination"), ("destination", "source")])
def test_000_03_type_01_carries_an_application_message(sender: str, receiver: str) -> None:
    wire = Wire.join(source_hello())
    wire.settle()
    wire.perform(sender, (wire.source if sender == "source" else wire.destination).apply(Send(b"in the agreed form"), 0.0))
    assert wire.sent[-1] == (sender, b"\x40in the agreed form")
    wire.settle()
    assert wire.delivered == {sender: [], receiver: [b"in the agreed form"]}


def test_000_03_no_other_type_is_taken_for_the_agreed_protocol() -> None:
    for header in (b"\x00", b"\x80", b"\xc0"):
        machine = running_buyer()
        assert not [action for action in machine.receive(header + b"{}", 0.0) if isinstance(action, Deliver)]


# codeGeneration


def test_000_32_both_sides_send_code_generation_after_agreement() -> None:
    wire = Wire.join(source_hello())
    wire.settle()
    assert [(who, message) for who, message in wire.sent if message == GENERATED] == [
        ("destination", GENERATED),
        ("source", GENERATED),
    ]
    assert wire.source.state is wire.destination.state is HelloState.RUNNING


def test_000_32_neither_runs_before_it_has_both() -> None:
    machine = agreed_buyer()
    assert machine.apply(CodeReady(HASH), 0.0) == [SendBinary(GENERATED)]
    assert machine.state is HelloState.AGREED
    assert machine.receive(GENERATED, 0.0) == [Running()]
    machine = agreed_buyer()
    assert machine.receive(GENERATED, 0.0) == []
    assert machine.state is HelloState.AGREED
    assert machine.apply(CodeReady(HASH), 0.0) == [SendBinary(GENERATED), Running()]


def test_code_generation_said_twice_changes_nothing() -> None:
    machine = agreed_buyer()
    machine.receive(GENERATED, 0.0)
    assert machine.receive(GENERATED, 0.0) == []
    machine.apply(CodeReady(HASH), 0.0)
    assert machine.receive(GENERATED, 0.0) == machine.apply(CodeReady(HASH), 0.0) == []
    assert machine.state is HelloState.RUNNING


@pytest.mark.parametrize("make", [agreed_buyer, agreed_shop])
@pytest.mark.parametrize("own_code", [True, False])
def test_000_33_and_34_missing_code_ends_after_15_seconds(make: Callable[[], Machine], own_code: bool) -> None:
    machine = make()
    if own_code:
        machine.apply(CodeReady(HASH), 3.0)
    assert machine.deadline == 15.0
    assert machine.tick(14.999) == []
    assert not machine.is_final
    assert machine.tick(15.0) == [Ended(machine.error)]
    assert (machine.state, error_of(machine)) == (HelloState.TIMEOUT, "session.code-timeout")
    stays_ended(machine)


def test_000_35_an_error_status_terminates() -> None:
    for machine in (agreed_buyer(), agreed_shop(), running_buyer()):
        assert machine.receive(FAILED, 0.0) == [Ended(machine.error)]
        assert (machine.state, error_of(machine)) == (HelloState.ERROR, "session.peer-code")
        stays_ended(machine)


def test_000_35_own_failure_is_told_and_terminates() -> None:
    machine = agreed_shop()
    cause = Refused("verification.7", "The wheel was tampered with.")
    assert machine.apply(CodeFailed(cause), 0.0) == [SendBinary(failed("verification.7")), Ended(cause)]
    assert machine.state is HelloState.ERROR
    stays_ended(machine)


def test_an_action_nobody_listed_is_a_clear_error() -> None:
    machine = agreed_buyer()
    machine.receive(encode(ProtocolType.META, b'{"action":"somethingNew","status":"negotiating"}'), 0.0)
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "meta.message")


# Application messages


@pytest.mark.parametrize(
    "payload", [b"", b"\0", bytes(range(256)), b"\xff\xfe\0", b' {"json": 1}\r\n', "<xml>价格</xml>".encode()]
)
def test_000_47_agreed_bytes_are_carried_unchanged(payload: bytes) -> None:
    wire = Wire.join(source_hello())
    wire.settle()
    for sender, machine in (("source", wire.source), ("destination", wire.destination)):
        wire.perform(sender, machine.apply(Send(payload), 0.0))
    wire.settle()
    assert wire.delivered == {"source": [payload], "destination": [payload]}


@pytest.mark.parametrize("make", [agreed_buyer, agreed_shop])
def test_000_47_messages_before_the_code_keep_their_order(make: Callable[[], Machine]) -> None:
    machine = make()
    machine.receive(GENERATED, 0.0)
    assert machine.receive(application(b"\x00\xff one"), 0.0) == []
    assert machine.receive(application(b"two"), 0.0) == []
    assert machine.apply(CodeReady(HASH), 0.0) == [SendBinary(GENERATED), Running(), Deliver(b"\x00\xff one"), Deliver(b"two")]
    assert machine.receive(application(b"three"), 0.0) == [Deliver(b"three")]


def test_early_messages_follow_code_generation() -> None:
    machine = agreed_buyer()
    machine.apply(CodeReady(HASH), 0.0)
    assert machine.apply(Send(b"first"), 0.0) == []
    assert machine.receive(GENERATED, 0.0) == [Running(), SendBinary(application(b"first"))]
    assert machine.apply(Send(b"second"), 0.0) == [SendBinary(application(b"second"))]


def test_a_peer_that_floods_before_code_generation_is_cut_off() -> None:
    machine = agreed_shop()
    for _ in range(Limits().waiting_frames):
        assert machine.receive(application(b"x"), 0.0) == []
        assert machine.accepts_input
    machine.receive(application(b"x"), 0.0)
    assert error_of(machine) == "session.inbox-full"


def test_a_peer_whose_code_is_ready_is_merely_asked_to_wait() -> None:
    machine = agreed_shop()
    machine.receive(GENERATED, 0.0)
    for _ in range(Limits().waiting_frames):
        assert machine.accepts_input
        machine.receive(application(b"x"), 0.0)
    assert not machine.accepts_input
    machine.apply(CodeReady(HASH), 0.0)
    assert machine.accepts_input


def test_large_messages_fill_the_inbox_by_bytes() -> None:
    machine = agreed_shop()
    machine.receive(GENERATED, 0.0)
    machine.receive(application(bytes(MAX_PAYLOAD)), 0.0)
    assert not machine.accepts_input


@pytest.mark.parametrize("type", [ProtocolType.NATURAL_LANGUAGE, ProtocolType.VERIFICATION])
def test_000_05_other_types_are_never_delivered_as_user_data(type: ProtocolType) -> None:
    machine = running_buyer()
    assert machine.receive(encode(type, b"data"), 0.0) == [Ended(machine.error)]
    assert error_of(machine) == "frame.form"


def test_too_large_a_message_is_not_sent() -> None:
    machine = running_buyer()
    assert machine.apply(Send(bytes(MAX_PAYLOAD + 1)), 0.0) == [Ended(machine.error)]
    assert error_of(machine) == "frame.too-large"


def test_an_outbox_that_overflows_ends_the_session() -> None:
    machine = agreed_buyer()
    machine.apply(CodeReady(HASH), 0.0)
    for _ in range(Limits().waiting_frames):
        assert machine.apply(Send(b"x"), 0.0) == []
    machine.apply(Send(b"x"), 0.0)
    assert error_of(machine) == "session.outbox-full"


# Early data


def test_000_60_early_data_arrives_with_the_confirmed_hash() -> None:
    wire = Wire.join(source_hello(offered=HASH))
    wire.perform("source", wire.source.apply(Send(b"early", early=True), 0.0))
    assert list(wire.to_destination) == [wire.sent[0][1], application(b"early")]
    wire.settle()
    assert wire.delivered["destination"] == [b"early"]


def test_messages_that_may_not_be_early_are_not_overtaken() -> None:
    machine = buyer(source_hello(offered=HASH))
    assert machine.apply(Send(b"once only"), 0.0) == []
    assert machine.apply(Send(b"idempotent", early=True), 0.0) == []
    answer(machine, used=HASH)
    assert machine.apply(CodeReady(HASH), 0.0) == [
        Running(),
        SendBinary(application(b"once only")),
        SendBinary(application(b"idempotent")),
    ]


def test_without_an_offered_hash_nothing_is_early() -> None:
    assert buyer().apply(Send(b"early", early=True), 0.0) == []


@pytest.mark.threat(98)
@pytest.mark.parametrize("provides", [STALE, {URI: Provided(OTHER_HASH, True)}])
def test_000_61_unconfirmed_early_data_is_dropped(provides: dict[str, Provided]) -> None:
    wire = Wire.join(source_hello(offered=HASH), provides)
    wire.perform("source", wire.source.apply(Send(b"early", early=True), 0.0))
    wire.perform("source", wire.source.apply(Send(b"kept"), 0.0))
    wire.deliver("destination")
    wire.deliver("destination")
    wire.deliver("source")
    loads = wire.loads["source"]
    assert len(loads) == 1
    assert not loads[0].agreement.confirmed  # by which the driver knows to say everything again
    loads.clear()
    wire.perform("source", wire.source.apply(CodeReady(provides[URI].protocol_hash), 0.0))
    wire.perform("source", wire.source.apply(Send(b"again"), 0.0))
    wire.settle()
    assert wire.delivered["destination"] == [b"again"]


def test_early_data_to_a_destination_that_rejects_goes_nowhere() -> None:
    wire = Wire.join(source_hello((OTHER_URI,), offered=OTHER_HASH))
    wire.perform("source", wire.source.apply(Send(b"early", early=True), 0.0))
    wire.settle()
    assert wire.delivered["destination"] == []
    assert wire.destination.state is HelloState.REJECTED


# Order, ends, deadlines


def test_000_09_a_frame_before_the_hello_is_an_error() -> None:
    for machine in (buyer(), shop()):
        machine.receive(application(b"x"), 0.0)
        assert error_of(machine) == "hello.form"


def test_a_second_hello_is_an_error() -> None:
    machine = shop()
    machine.receive(source_hello().format(), 0.0)
    machine.receive(source_hello().format(), 0.0)
    assert error_of(machine) == "hello.form"


@pytest.mark.parametrize("make", [buyer, shop])
def test_a_silent_peer_is_given_ten_seconds_to_say_hello(make: Callable[[], Machine]) -> None:
    machine = make()
    assert (machine.deadline, machine.tick(9.9)) == (10.0, [])
    assert machine.tick(10.0) == [Ended(machine.error)]
    assert (machine.state, error_of(machine)) == (HelloState.TIMEOUT, "session.reply-timeout")


def test_an_idle_session_ends_and_any_message_postpones_that() -> None:
    machine = running_buyer()
    machine.receive(application(b"x"), 100.0)
    assert machine.deadline == 700.0
    machine.apply(Send(b"y"), 200.0)
    assert machine.tick(799.0) == []
    machine.tick(800.0)
    assert (machine.state, error_of(machine)) == (HelloState.TIMEOUT, "session.idle")


def test_a_confirmed_session_whose_code_does_not_come_ends_too() -> None:
    machine = buyer(source_hello(offered=HASH))
    answer(machine, used=HASH)
    machine.receive(application(b"x"), 14.0)
    machine.tick(15.0)
    assert (machine.state, error_of(machine)) == (HelloState.TIMEOUT, "session.code-timeout")


@pytest.mark.parametrize("make", [buyer, agreed_buyer, shop])
def test_a_peer_without_room_began_nothing(make: Callable[[], Machine]) -> None:
    machine = make()
    machine.lost("session.busy")
    assert isinstance(machine.error, Unavailable)
    assert error_of(machine) == "session.busy"


def test_calls_begin_in_a_session_whose_peer_has_no_room() -> None:
    machine = running_buyer()
    machine.lost("session.busy")
    assert error_of(machine) == "session.peer-lost"


def test_a_full_side_gives_its_reason_in_the_close_alone() -> None:
    machine, cause = agreed_shop(), Unavailable("session.busy", "No room.")
    assert machine.apply(CodeFailed(cause), 0.0) == [Ended(cause)]


@pytest.mark.parametrize(
    ("make", "state"),
    [(buyer, HelloState.ERROR), (shop, HelloState.ERROR), (agreed_buyer, HelloState.ERROR), (running_buyer, HelloState.CLOSED)],
)
def test_a_lost_connection_ends_the_session(make: Callable[[], Machine], state: HelloState) -> None:
    machine = make()
    machine.lost()
    assert machine.state is state
    stays_ended(machine)


def test_the_reason_a_peer_gave_is_shown_escaped() -> None:
    machine = buyer()
    machine.lost("hello.version\x1b[2J")
    assert "hello.version\\x1b" in str(machine.error)


def test_close_and_fail_end_it() -> None:
    machine = running_buyer()
    assert machine.close() == [Ended(None)]
    stays_ended(machine)
    machine, cause = running_buyer(), TreatyError("x.y", "Enough.")
    assert machine.fail(cause) == [Ended(cause)]
    assert machine.state is HelloState.ERROR


# Reports


def test_000_52_reports_need_the_capability_of_both() -> None:
    proposal = ReportProposed(b"{}", "did:wba:buyer.example#key-1", bytes(64))
    machine = running_buyer(REPORTS)
    assert machine.both_list(hello.REPORT_COSIGNATURE)
    assert machine.receive(meta(proposal), 0.0) == [Meta(proposal)]
    machine = running_buyer()
    assert not machine.both_list(hello.REPORT_COSIGNATURE)
    machine.receive(meta(proposal), 0.0)
    assert error_of(machine) == "session.profile"


def test_report_messages_belong_to_a_running_session() -> None:
    machine = shop(capabilities=REPORTS)
    machine.receive(source_hello(capabilities=REPORTS).format(), 0.0)
    assert machine.apply(SendMeta(ReportProposed(b"{}", "did:wba:buyer.example#key-1", bytes(64))), 0.0) == []
    machine.receive(meta(ReportProposed(b"{}", "did:wba:buyer.example#key-1", bytes(64))), 0.0)
    assert error_of(machine) == "meta.message"
