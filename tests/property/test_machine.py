"""No sequence of messages, however hostile or unlucky, crashes or hangs either side of the Hello profile."""

from __future__ import annotations

import json
from typing import Any

from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from meta_peers import (
    BUYER,
    FAILED,
    FRESH,
    GENERATED,
    HASH,
    NAMED,
    OTHER_HASH,
    OTHER_URI,
    SHOP,
    STALE,
    URI,
    Wire,
    application,
    buyer,
    destination_hello,
    meta,
    proposal,
    shop,
    source_hello,
    verdict,
)

from treaty_anp import frame
from treaty_anp.frame import ProtocolType
from treaty_anp.hello_profile import commands, hello, messages
from treaty_anp.hello_profile.actions import Action, Deliver, Ended, Running
from treaty_anp.hello_profile.commands import CodeFailed, CodeReady, Send, SendMeta
from treaty_anp.hello_profile.machine import FINAL, HelloState, Limits, Machine, Provided
from treaty_anp.hello_profile.messages import ReportProposed, ReportRefused
from treaty_consensus.errors import Refused, TreatyError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from([HASH, URI, "1.0", SHOP, BUYER]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
HELLO_FIELDS = (
    "version",
    "type",
    "messageId",
    "sessionId",
    "sourceDid",
    "destinationDid",
    "random",
    "verificationMethod",
    "metaProtocol",
)
META_FIELDS = ("version", "supportedCapabilities", "usedProtocolHash", "protocolHash", "candidateProtocols", "selectedProtocol")

GOOD = st.sampled_from(
    [
        source_hello().format(),
        source_hello((OTHER_URI, URI), offered=HASH, capabilities=(hello.REPORT_COSIGNATURE,)).format(),
        source_hello((), offered=OTHER_HASH).format(),
        destination_hello(selected=URI, used=HASH).format(),
        destination_hello(used=HASH, capabilities=(hello.REPORT_COSIGNATURE,)).format(),
        destination_hello().format(),
        GENERATED,
        FAILED,
        application(b"data"),
        application(bytes(frame.MAX_PAYLOAD)),
        meta(ReportProposed(b"{}", "did:wba:buyer.example#key-1", bytes(64))),
        meta(ReportRefused("report.x")),
        frame.encode(ProtocolType.VERIFICATION, b"x"),
        frame.encode(ProtocolType.NATURAL_LANGUAGE, b"x"),
        source_hello((), capabilities=NAMED).format(),
        destination_hello(capabilities=NAMED).format(),
        proposal(0),
        proposal(1, "# Another\n", "- changes"),
        verdict(1, "accepted"),
        verdict(1, "rejected"),
        meta(messages.TestCasesNegotiation("negotiating", "# Test case 1\n")),
        meta(messages.TestCasesNegotiation("accepted")),
        meta(messages.FixErrorNegotiation("negotiating", "It is wrong.")),
        meta(messages.NaturalLanguageNegotiation("REQUEST", "x" * 16, "?")),
    ]
)


@st.composite
def nearly_hellos(draw: st.DrawFn) -> str:
    """A proper Hello with one or two fields replaced by anything, or dropped."""
    value: dict[str, Any] = json.loads(
        draw(st.sampled_from([source_hello(offered=HASH), destination_hello(selected=URI)])).format()
    )
    for _ in range(draw(st.integers(1, 2))):
        inside, name = draw(
            st.one_of(
                *(
                    st.tuples(st.just(False), st.sampled_from(HELLO_FIELDS)),
                    st.tuples(st.just(True), st.sampled_from(META_FIELDS)),
                )
            )
        )
        target = value["metaProtocol"] if inside and isinstance(value.get("metaProtocol"), dict) else value
        if draw(st.booleans()):
            target[name] = draw(JSON)
        else:
            target.pop(name, None)
    return json.dumps(value)


MESSAGES = (
    GOOD | nearly_hellos() | st.text(max_size=40) | st.binary(max_size=40) | JSON.map(lambda v: b"\x00" + json.dumps(v).encode())
)
STEPS = st.one_of(
    MESSAGES.map(lambda message: ("receive", message)),
    st.sampled_from([HASH, OTHER_HASH]).map(lambda protocol_hash: ("ready", protocol_hash)),
    st.binary(max_size=8).map(lambda payload: ("send", payload)),
    st.binary(max_size=8).map(lambda payload: ("early", payload)),
    st.floats(0, 700, allow_nan=False).map(lambda seconds: ("wait", seconds)),
    st.sampled_from([("failed", None), ("report", None), ("lost", "why"), ("close", None)]),
    st.sampled_from(
        [
            commands.Propose("# Text\n", "- changes"),
            commands.Accept(),
            commands.ProposeTests("# Text\n", "- changes"),
            commands.AcceptTests(),
            commands.TestsPassed(),
            commands.AcceptError(),
            commands.SkipTests(),
        ]
    ).map(lambda command: ("decide", command)),
)
MACHINES = st.sampled_from(
    [
        buyer,
        lambda: buyer(source_hello(offered=HASH, capabilities=(hello.REPORT_COSIGNATURE,))),
        lambda: shop(FRESH, capabilities=(hello.REPORT_COSIGNATURE,)),
        lambda: shop(STALE),
        lambda: shop({}),
        lambda: buyer(source_hello((), capabilities=NAMED), negotiates=True, wants_tests=True),
        lambda: buyer(source_hello((), capabilities=NAMED), natural=True),
        lambda: shop({}, capabilities=NAMED, negotiates=True),
    ]
)


def step(machine: Machine, what: str, value: Any, now: float) -> list[Action]:
    match what:
        case "receive":
            return machine.receive(value, now)
        case "ready":
            return machine.apply(CodeReady(value), now)
        case "failed":
            return machine.apply(CodeFailed(Refused("x.y", "No.")), 0.0)
        case "send" | "early" if machine.is_natural:
            return []
        case "send" | "early":
            return machine.apply(Send(value, early=what == "early"), now)
        case "report":
            return machine.apply(SendMeta(ReportProposed(b"{}", "did:wba:buyer.example#key-1", bytes(64))), now)
        case "decide":
            return machine.apply(value, now)
        case "lost":
            return machine.lost(value)
        case "close":
            return machine.close()
    return machine.tick(now)


@settings(max_examples=examples(400), deadline=None)
@given(MACHINES, st.lists(STEPS, max_size=30))
def test_every_step_leaves_a_final_state_or_a_deadline_ahead(make: Any, steps: list[tuple[str, Any]]) -> None:
    machine, now, ended, running = make(), 0.0, 0, False
    for what, value in steps:
        now += value if what == "wait" else 0.0
        was_final = machine.is_final
        actions = step(machine, what, value, now)
        assert not (was_final and actions), "nothing happens after the end"
        ended += sum(isinstance(action, Ended) for action in actions)
        running = running or any(isinstance(action, Running) for action in actions)
        assert running or not any(isinstance(action, Deliver) for action in actions), "nothing is delivered before both are ready"
        assert not actions or not isinstance(actions[-1], Ended) or machine.is_final
        assert len(machine.application.inbox) <= Limits().waiting_frames
        assert machine.application.inbox.size <= Limits().waiting_bytes + frame.MAX_PAYLOAD
        assert machine.is_final or machine.deadline <= now + 600.0
    assert ended == machine.is_final
    machine.tick(machine.deadline)
    assert machine.state in FINAL, "whoever waits until the deadline is done"


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.sampled_from([URI, OTHER_URI]), unique=True, max_size=2),
    st.sampled_from([None, HASH, OTHER_HASH]),
    st.dictionaries(st.just(URI), st.booleans().map(lambda fresh: Provided(HASH, fresh)))
    | st.just({URI: Provided(HASH, True), OTHER_URI: Provided(OTHER_HASH, True)}),
    st.lists(st.sampled_from(["source", "destination"]), max_size=12),
    st.lists(st.binary(max_size=4), max_size=3),
)
def test_two_honest_sides_always_reach_the_same_end(
    candidates: list[str], offered: str | None, provides: dict[str, Provided], order: list[str], early: list[bytes]
) -> None:
    wire = Wire.join(source_hello(tuple(candidates), offered=offered), provides)
    wire.source.known_uri = URI if offered == HASH else OTHER_URI
    for payload in early:
        wire.perform("source", wire.source.apply(Send(payload, early=True), 0.0))
    for who in order:
        if wire.to_source if who == "source" else wire.to_destination:
            wire.deliver(who)
    wire.settle()
    common = any(uri in provides for uri in candidates)
    confirmed = any(provided.confirmable and provided.protocol_hash == offered for provided in provides.values())
    expected = HelloState.RUNNING if common or confirmed else HelloState.REJECTED
    assert (wire.source.state, wire.destination.state) == (expected, expected)
    assert wire.source.agreement == wire.destination.agreement
    assert wire.delivered["destination"] == (early if confirmed else [])


@settings(max_examples=examples(300))
@given(st.binary(max_size=64))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    try:
        decoded = frame.decode(data)
    except TreatyError as error:
        assert (data, error.code) == (b"", "frame.form")
    else:
        assert frame.encode(*decoded)[1:] == data[1:]


@settings(max_examples=examples(400))
@given(nearly_hellos() | st.text(max_size=60) | JSON.map(json.dumps), st.sampled_from(["sourceHello", "destinationHello"]))
def test_any_text_is_a_hello_with_one_spelling_or_refused(text: str, type: hello.HelloType) -> None:
    try:
        parsed = hello.parse(text, type)
    except TreatyError:
        return
    assert hello.parse(parsed.format(), type) == parsed


@settings(max_examples=examples(300))
@given(st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_meta_message_or_refused(payload: bytes) -> None:
    try:
        parsed = messages.parse(payload)
    except TreatyError:
        return
    assert messages.parse(messages.encode(parsed)) == parsed
