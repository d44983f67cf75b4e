"""The negotiation flow against anything: every text is a message or refused, and no sequence of messages, however hostile or
unlucky, crashes, hangs or loops either side."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from depth import examples
from flow_peers import (
    BUYER,
    DELEGATION,
    GRAPH,
    SHARING,
    SHOP,
    FlowWire,
    at,
    delegation,
    digest_of,
    registry,
    sharing,
    wrap,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from treaty_agent.sessions.agreements import FlowHistory
from treaty_anp.flow_profile.actions import Action, Agreed, NegotiationEnded, Ready, SendMessage, Shortcut
from treaty_anp.flow_profile.capabilities import FlowRequest, PeerCapabilities, ProtocolOffer
from treaty_anp.flow_profile.commands import Hosted, Loaded, Renegotiate, SendData, Unverified
from treaty_anp.flow_profile.machine import MAX_MESSAGES
from treaty_anp.flow_profile.messages import (
    HEADER,
    FlowMessage,
    encode,
    format_time,
    is_flow,
    parse,
    parse_signature,
    parse_time,
    sign,
    signing_input,
)
from treaty_anp.flow_profile.parameters import Choice, Range, Rule
from treaty_anp.flow_profile.payloads import (
    PAYLOADS,
    ContextInfo,
    Metrics,
    Payload,
    Supported,
    encode_payload,
    parse_payload,
    parse_protocol_id,
    ratio,
    share,
)
from treaty_anp.flow_profile.states import FINAL, FlowLimits, FlowState
from treaty_anp.flow_profile.strategy import StrategyEngine
from treaty_consensus.errors import TreatyError

VECTORS = [json.loads(path.read_text()) for path in sorted((Path(__file__).parents[1] / "vectors" / "flow").glob("*.json"))]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**55), 2**55)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([SHARING, "1.0", "accept", "2026-01-01T00:00:00Z", "session-12345678", BUYER.did]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


@st.composite
def nearly_messages(draw: st.DrawFn) -> dict[str, Any]:
    """An example of the source with one or two values replaced by anything, or dropped."""
    value: dict[str, Any] = json.loads(json.dumps(draw(st.sampled_from(VECTORS))))
    for _ in range(draw(st.integers(1, 2))):
        *inside, last = draw(st.sampled_from(places(value)[1:]))
        target = value
        for key in inside:
            target = target[key]
        if draw(st.booleans()):
            target[last] = draw(JSON)
        elif isinstance(target, dict):
            target.pop(last)
    return value


def signed(value: dict[str, Any]) -> str:
    try:
        signature = sign(signing_input(value), BUYER)
    except ValueError:  # a number that JCS does not have
        signature = f"{HEADER}..{'A' * 86}"
    return json.dumps({**value, "signature": signature})


@settings(max_examples=examples(400), deadline=None)
@given(st.text(max_size=60) | JSON.map(json.dumps) | nearly_messages().map(signed))
def test_any_text_is_a_message_with_one_written_form_or_refused(text: str) -> None:
    is_flow(text)
    try:
        message = parse(text)
    except TreatyError as error:
        assert error.code and error.message
        return
    written = encode(message.message, BUYER)
    again = parse(written)
    assert again.message == message.message
    assert encode(again.message, BUYER) == written


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(sorted(PAYLOADS)), JSON)
def test_any_value_is_a_payload_or_refused(action: str, value: Any) -> None:
    given_value = {"version": "1.0", **value} if isinstance(value, dict) else value
    try:
        payload = parse_payload(action, given_value)
    except TreatyError:
        return
    assert parse_payload(action, json.loads(json.dumps(encode_payload(payload)))) == payload


@pytest.mark.parametrize(
    ("read", "write"),
    [(parse_protocol_id, str), (parse_time, format_time), (parse_signature, None)],
    ids=["id", "time", "signature"],
)
@settings(max_examples=examples(150), deadline=None)
@given(
    text=st.text(max_size=40)
    | st.from_regex(r"anp:protocol:[a-z-]{1,5}:[0-9.a-z]{1,6}", fullmatch=True)
    | st.from_regex(r"20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](\.[0-9]{3})?Z", fullmatch=True)
    | st.from_regex(r"[A-Za-z0-9_-]{86}", fullmatch=True).map(lambda body: f"{HEADER}..{body}")
)
def test_what_is_read_has_one_spelling(read: Callable[[str], Any], write: Callable[[Any], str] | None, text: str) -> None:
    try:
        value = read(text)
    except TreatyError:
        return
    if write is format_time:
        assert write(value) == text.replace(".000Z", "Z")
    elif write is not None:
        assert write(value) == text


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=80) | JSON.map(lambda value: json.dumps({"negotiations": [value]}).encode()))
def test_any_history_is_read(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    home = tmp_path_factory.mktemp("home")
    (home / "flow-history.json").write_bytes(data)
    assert FlowHistory(home).recall("did:x:1", "buy", [SHARING]) is None


@settings(deadline=None)
@given(st.floats(0, 1))
def test_scores_survive_the_wire(number: float) -> None:
    score = ratio(number)
    assert 0 <= score <= 10_000
    assert ratio(json.loads(json.dumps(share(score)))) == score
    assert abs(share(score) - number) <= 0.5001 / 10_000


LEVELS = st.none() | st.sampled_from(["low", "medium", "high"])
SUPPORTED = st.builds(
    Supported,
    st.just(SHARING),
    st.just("1.0"),
    st.none() | st.frozensets(st.sampled_from("abcd")).map(tuple),
    st.floats(0, 1),
    st.none() | st.builds(Metrics, LEVELS, LEVELS, LEVELS, LEVELS),
)
CONTEXTS = st.builds(
    ContextInfo, LEVELS, st.none() | st.sampled_from(["stable", "intermittent"]), st.just(()) | st.just(("efficiency", "x"))
)


@settings(deadline=None)
@given(SUPPORTED, SUPPORTED, CONTEXTS, CONTEXTS, st.frozensets(st.sampled_from("ab")))
def test_001_08_a_score_is_symmetric_between_0_and_1(
    one: Supported, other: Supported, here: ContextInfo, there: ContextInfo, required: frozenset[str]
) -> None:
    goal = FlowRequest("x", required=tuple(required), requirements={"dataVolume": "large"})
    mine = StrategyEngine().evaluate(one, other, goal, here, PeerCapabilities(context=there))
    theirs = StrategyEngine().evaluate(other, one, goal, there, PeerCapabilities(context=here))
    assert mine == theirs
    if mine is None:
        assert not required <= set(one.capabilities or ()) & set(other.capabilities or ())
    else:
        assert all(0 <= score <= 10_000 for score in (mine.score, mine.task, mine.performance, mine.context))


VALUES = range(10)
RULES = st.dictionaries(
    st.sampled_from("abc"),
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=3, unique=True).map(lambda values: Choice(tuple(values)))
    | st.lists(st.sampled_from(VALUES), min_size=3, max_size=3).map(sorted).map(lambda ends: Range(ends[0], ends[2], ends[1])),
)


def admitted(rule: Rule) -> set[int]:
    """The values that a rule admits, counted out."""
    if isinstance(rule, Choice):
        return {value for value in VALUES if value in rule.values}
    assert isinstance(rule, Range)
    return {value for value in VALUES if rule.low <= value <= rule.high}


@settings(max_examples=examples(400), deadline=None)
@given(RULES, RULES)
def test_001_05_what_both_rules_admit_is_agreed_on(mine: dict[str, Rule], theirs: dict[str, Rule]) -> None:
    """Two engines negotiate. Each parameter that both know gets a value that both rules admit, if there is one."""
    both = {name: admitted(mine[name]) & admitted(theirs[name]) for name in mine.keys() & theirs.keys()}
    wire = FlowWire.join(registry(sharing(parameters=mine)), registry(sharing(parameters=theirs))).settle()
    ready = wire.of("initiator", Ready)
    assert ready == wire.of("responder", Ready)
    if not ready:
        assert ended_with(wire) in ("flow.parameters", "flow.rounds")
        assert not all(both.values()), "each parameter has a value that both rules admit"
        return
    agreed = ready[0].agreed.parameters
    assert agreed.keys() == {name for name, values in both.items() if values}
    assert all(agreed[name] in both[name] for name in agreed)


# The engine

EXAMPLES = [parse(signed(value)).message for value in VECTORS]
LIMITS = FlowLimits(lifetime=300)
RULED = {"chunkSize": Range(1024, 65_536), "level": Choice(("a", "b"))}
OTHER = {"chunkSize": Range(512, 32_768), "level": Choice(("b",))}


def wires() -> st.SearchStrategy[Callable[[], FlowWire]]:
    """Meetings of all kinds."""
    mine, theirs = (sharing(parameters=RULED), delegation(), ProtocolOffer(GRAPH)), (sharing(parameters=OTHER), delegation())
    agreed = Agreed(SHARING, {"chunkSize": 2048, "level": "b"}, {}, "", digest_of(SHARING))
    makers: list[Callable[[], FlowWire]] = [
        lambda: FlowWire.join(registry(*mine), registry(*theirs), limits=LIMITS),
        lambda: FlowWire.join(registry(*mine), registry(*theirs), limits=LIMITS, count=2),
        lambda: FlowWire.join(registry(*mine), registry(*theirs), FlowRequest("x", summary=True), limits=LIMITS),
        lambda: FlowWire.join(registry(*mine), registry(*theirs), limits=LIMITS, shortcut=Shortcut(agreed, True)),
        lambda: FlowWire.join(registry(*mine), registry(*theirs), limits=LIMITS, shortcut=Shortcut(agreed, False)),
        lambda: FlowWire.join(registry(*mine), registry(delegation()), limits=LIMITS, shortcut=Shortcut(agreed, True)),
        lambda: FlowWire.join(registry(*mine), registry(*theirs), limits=LIMITS, refuses={"initiator": {SHARING}}),
        lambda: FlowWire.join(registry(*mine), registry(*theirs), limits=LIMITS, refuses={"responder": {SHARING, DELEGATION}}),
        lambda: FlowWire.join(registry(ProtocolOffer(GRAPH)), registry(*theirs), limits=LIMITS),
    ]
    return st.sampled_from(makers)


SIDES = st.sampled_from(["initiator", "responder"])
STEPS = st.one_of(
    st.tuples(st.just("deliver"), SIDES),
    st.tuples(st.just("deliver"), SIDES),
    st.tuples(st.just("deliver"), SIDES),
    st.tuples(st.sampled_from(["drop", "twice", "swap", "lost", "close", "tick", "unverified", "send", "change"]), SIDES),
    st.tuples(st.just("settle"), SIDES),
    st.tuples(st.just("inject"), SIDES, st.sampled_from(EXAMPLES), st.integers(-3, 20), st.booleans()),
    st.tuples(st.just("speak"), SIDES, st.binary(max_size=4)),
    st.tuples(st.just("wait"), SIDES, st.floats(0, 400)),
    st.tuples(st.just("late"), SIDES, st.sampled_from([SHARING, DELEGATION, "session-00000001"])),
)


def forged(wire: FlowWire, who: str, example: FlowMessage, answered: int, about_session: bool) -> FlowMessage:
    """An example of the source as the other side might send it, in answer to any message, about any session."""
    sender, recipient = (SHOP.did, BUYER.did) if who == "initiator" else (BUYER.did, SHOP.did)
    sent = [message.message_id for _, message in wire.sent]
    reply = sent[answered] if -len(sent) <= answered < len(sent) else example.reply_to
    sessions = list(wire.engine(who).sessions)
    session = sessions[0] if about_session and sessions else example.session_id
    return replace(example, sender=sender, recipient=recipient, reply_to=reply, session_id=session, timestamp=at(wire.now).unix)


def step(wire: FlowWire, what: str, who: str, *rest: Any) -> None:
    engine, waiting, now = wire.engine(who), wire.on_its_way[who], at(wire.now)
    actions: list[Action] = []
    match what:
        case "deliver" if waiting:
            wire.deliver(who)
        case "drop" if waiting:
            waiting.popleft()
        case "twice" if waiting:
            waiting.append(waiting[0])
        case "swap" if len(waiting) > 1:
            waiting.rotate(1)
        case "settle":
            wire.settle()
        case "inject":
            actions = engine.receive(forged(wire, who, *rest), now)
        case "speak":
            sessions = list(engine.sessions) or ["session-nowhere1"]
            example = forged(wire, who, EXAMPLES[10], 99, False)
            actions = engine.receive(replace(example, session_id=sessions[0], action="message", payload=wrap(rest[0])), now)
        case "wait":
            wire.wait(rest[0])
        case "tick":
            wire.wait(max(0.0, engine.deadline - wire.now) + 0.01 if not engine.is_final else 0.0)
        case "late":
            late = Loaded(rest[0], "https://r.example", digest_of("x")), Hosted(rest[0])
            actions = [action for command in late for action in engine.apply(command, now)]
        case "lost":
            actions = engine.lost("x")
        case "close":
            actions = engine.close()
        case "unverified":
            actions = engine.apply(Unverified(TreatyError("flow.verification", "No.")), now)
        case "send" | "change":
            for session in list(engine.sessions):
                try:
                    if what == "send":
                        actions += engine.apply(SendData(session, b"x"), now)
                    else:
                        actions += engine.apply(Renegotiate(session, protocol=DELEGATION), now)
                except TreatyError as error:
                    assert error.code
    wire.perform(who, actions)


@settings(max_examples=examples(300), deadline=None)
@given(wires(), st.lists(STEPS, max_size=25))
def test_no_sequence_hangs_loops_or_crashes_and_every_one_ends(make: Callable[[], FlowWire], steps: list[Any]) -> None:
    wire = make()
    for one in steps:
        step(wire, *one)
    assert len(wire.sent) <= 4 * MAX_MESSAGES + 25 * len(steps)
    for who in ("initiator", "responder"):
        engine = wire.engine(who)
        for _ in range(60):
            if engine.is_final:
                break
            wire.on_its_way = {name: type(waiting)() for name, waiting in wire.on_its_way.items()}
            wire.now = max(wire.now, engine.deadline) + 0.01
            wire.perform(who, engine.tick(at(wire.now)))
        assert engine.state in FINAL, engine
        (over,) = wire.of(who, NegotiationEnded)
        assert wire.done[who].index(over) == len(wire.done[who]) - 1
        assert (over.error is None) <= (engine.state is FlowState.CLOSED)
        assert engine.receive(EXAMPLES[0], at(wire.now)) == engine.tick(at(wire.now + 10_000)) == engine.close() == []
    wire.check_transcripts()


def ended_with(wire: FlowWire) -> str:
    (over,) = wire.of("initiator", NegotiationEnded)
    return str(over.error.code) if over.error else ""


@settings(max_examples=examples(40), deadline=None)
@given(wires())
def test_left_alone_both_sides_come_to_the_same_end(make: Callable[[], FlowWire]) -> None:
    wire = make().settle()
    wire.check_transcripts()
    mine, theirs = wire.of("initiator", Ready), wire.of("responder", Ready)
    assert mine == theirs
    assert (wire.initiator.state is FlowState.RUNNING) == bool(mine)
    if not mine:
        assert wire.initiator.state is FlowState.REJECTED
        wire.perform("responder", wire.responder.lost(ended_with(wire)))  # the initiator's driver closes the connection
        assert wire.responder.is_final
        assert wire.responder.state is not FlowState.CLOSED
    for action in wire.done["initiator"] + wire.done["responder"]:
        if isinstance(action, SendMessage) and isinstance(action.message.payload, Payload):
            text = encode(replace(action.message, timestamp=at(0).unix), BUYER)
            assert parse(text).message.payload == action.message.payload
