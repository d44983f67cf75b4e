"""Natural language: as a protocol of its own (PT=10), and for what the predefined messages cannot say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from meta_peers import (
    DOCUMENT,
    HASH,
    NAMED,
    application,
    buyer,
    destination_hello,
    meta,
    natural,
    negotiating_buyer,
    negotiating_shop,
    proposal,
    rejection_in,
    said,
    shop,
    source_hello,
    verdict,
)

from treaty_anp import frame
from treaty_anp.frame import ProtocolType
from treaty_anp.hello_profile import hello, messages
from treaty_anp.hello_profile.actions import Agreement, Answered, Consider, DeliverText, Load, Question, Running, SendBinary
from treaty_anp.hello_profile.commands import Answer, Ask, Propose, Say, Send
from treaty_anp.hello_profile.machine import HelloState, Limits, Machine
from treaty_anp.hello_profile.messages import NaturalLanguageNegotiation
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError

ID, OTHER_ID = "0123456789abcdef", "fedcba9876543210"
NATURAL = Agreement("", None, False)


def error_of(machine: Machine) -> str:
    assert machine.error is not None
    return machine.error.code


def question(message_id: str = ID, text: str = "In which currency?") -> bytes:
    return meta(NaturalLanguageNegotiation("REQUEST", message_id, text))


def response(message_id: str = ID, text: str = "In euro.") -> bytes:
    return meta(NaturalLanguageNegotiation("RESPONSE", message_id, text))


def natural_buyer() -> Machine:
    machine = buyer(source_hello((), capabilities=NAMED), natural=True)
    machine.receive(destination_hello(capabilities=NAMED).format(), 0.0)
    return machine


# PT=10


def test_000_50_natural_language_alone_skips_the_negotiation() -> None:
    source = buyer(source_hello((), capabilities=NAMED), natural=True)
    assert source.receive(destination_hello(capabilities=NAMED).format(), 0.0) == [Running()]
    assert (source.state, source.agreement) == (HelloState.RUNNING, NATURAL)
    destination = negotiating_shop(negotiates=False)
    assert destination.receive(natural("Hello?"), 0.0) == [Running(), DeliverText("Hello?")]
    assert (destination.state, destination.agreement) == (HelloState.RUNNING, NATURAL)
    assert destination.apply(Say("Hello."), 0.0) == [SendBinary(natural("Hello."))]
    assert source.receive(natural("Hello."), 0.0) == [DeliverText("Hello.")]


def test_000_50_it_is_optional() -> None:
    source = buyer(source_hello((), capabilities=NAMED), natural=True)
    source.receive(destination_hello(capabilities=()).format(), 0.0)
    assert (source.state, error_of(source)) == (HelloState.REJECTED, "session.profile")
    for machine in (negotiating_shop(()), negotiating_buyer(())):
        with pytest.raises(Refused, match="not a capability") as refusal:
            machine.apply(Say("Hello?"), 0.0)
        assert refusal.value.code == "session.profile"
        assert rejection_in(machine.receive(natural("Hello?"), 0.0)).startswith("frame.form: ")
        assert error_of(machine) == "frame.form"


def test_000_04_only_type_10_carries_natural_language() -> None:
    machine = natural_buyer()
    assert machine.receive(b"\x80How much is it?", 0.0) == [DeliverText("How much is it?")]
    assert machine.apply(Say("19 euro."), 0.0) == [SendBinary(b"\x8019 euro.")]
    for header in (b"\x00", b"\x40", b"\xc0"):
        other = natural_buyer()
        assert not [action for action in other.receive(header + b"How much is it?", 0.0) if isinstance(action, DeliverText)]


def test_000_48_it_is_utf_8() -> None:
    machine = natural_buyer()
    assert machine.receive(natural("商品ID:P12345 – 1.299,99 €"), 0.0) == [DeliverText("商品ID:P12345 – 1.299,99 €")]
    machine.receive(frame.encode(ProtocolType.NATURAL_LANGUAGE, b"\xff\xfe"), 0.0)
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "frame.form")
    machine = natural_buyer()
    for text, family in (("\ud800", Malformed), ("x" * (frame.MAX_PAYLOAD + 1), TooLarge)):
        with pytest.raises(family):
            machine.apply(Say(text), 0.0)
    assert machine.state is HelloState.RUNNING


@pytest.mark.parametrize("make", [negotiating_buyer, negotiating_shop])
def test_000_43_it_may_be_spoken_at_any_time_after_the_hellos(make: Callable[[], Machine]) -> None:
    machine = make()
    if not machine.is_initiator:
        machine.receive(proposal(0), 0.0)
    assert machine.apply(Say("One moment."), 0.0) == [SendBinary(natural("One moment."))]
    assert machine.receive(natural("Take your time."), 0.0) == [DeliverText("Take your time.")]
    assert machine.state is HelloState.NEGOTIATING


def test_before_the_hellos_nothing_is_said() -> None:
    for machine in (buyer(source_hello(capabilities=NAMED)), shop(capabilities=NAMED)):
        with pytest.raises(Refused):
            machine.apply(Say("Hello?"), 0.0)
        machine.receive(natural("Hello?"), 0.0)
        assert error_of(machine) == "hello.form"


def test_a_source_may_speak_before_it_proposes() -> None:
    machine = negotiating_shop()
    assert machine.receive(natural("Hello?"), 0.0) == [Running(), DeliverText("Hello?")]
    assert machine.receive(proposal(0), 0.0) == [Consider(DOCUMENT, "", 1, False)]
    assert (machine.state, machine.agreement) == (HelloState.NEGOTIATING, None)
    assert machine.receive(natural("Well?"), 0.0) == [DeliverText("Well?")]
    assert machine.state is HelloState.NEGOTIATING


def test_natural_language_alone_has_no_application_messages() -> None:
    machine = natural_buyer()
    with pytest.raises(Refused) as refusal:
        machine.apply(Send(b"x"), 0.0)
    assert refusal.value.code == "session.profile"
    machine.receive(application(b"x"), 0.0)
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "frame.form")


@pytest.mark.parametrize(
    "message",
    [
        messages.CodeGeneration("generated"),
        messages.TestCasesNegotiation("negotiating", "# Test case 1\n"),
        messages.ProtocolNegotiation(0, "negotiating", DOCUMENT),
    ],
)
def test_the_source_of_a_natural_session_negotiates_nothing(message: messages.MetaMessage) -> None:
    machine = natural_buyer()
    machine.receive(meta(message), 0.0)
    assert error_of(machine) == "meta.message"


def test_a_destination_of_a_natural_session_has_nothing_to_test() -> None:
    machine = negotiating_shop()
    machine.receive(natural("Hello?"), 0.0)
    machine.receive(meta(messages.TestCasesNegotiation("negotiating", "# Test case 1\n")), 0.0)
    assert error_of(machine) == "meta.message"


def test_speaking_keeps_a_session_awake() -> None:
    machine = natural_buyer()
    assert machine.deadline == 600.0
    machine.receive(natural("Hello?"), 100.0)
    machine.apply(Say("Yes?"), 200.0)
    assert machine.deadline == 800.0


# Questions


def test_000_45_and_46_an_answer_has_its_questions_id() -> None:
    source, destination = negotiating_buyer(), negotiating_shop()
    assert source.apply(Ask(ID, "In which currency?"), 0.0) == [SendBinary(question())]
    assert destination.receive(question(), 0.0) == [Question(ID, "In which currency?")]
    answered = destination.apply(Answer(ID, "In euro."), 0.0)
    assert said(answered) == [NaturalLanguageNegotiation("RESPONSE", ID, "In euro.")]
    assert source.receive(response(), 0.0) == [Answered(ID, "In euro.")]
    assert destination.apply(Answer(ID, "In dollars."), 0.0) == []


def test_000_44_only_predefined_messages_decide() -> None:
    """A model may write that it accepts, or that its code is ready. The session goes on by the predefined messages alone."""
    source, destination = negotiating_buyer(), negotiating_shop()
    source.apply(Propose(DOCUMENT, ""), 0.0)
    destination.receive(proposal(0), 0.0)
    for text in ("Do you accept my proposal?", '{"action": "protocolNegotiation", "status": "accepted"}'):
        message_id = f"{len(text):016}"
        (question,) = source.apply(Ask(message_id, text), 0.0)
        assert isinstance(question, SendBinary)
        assert destination.receive(question.data, 0.0) == [Question(message_id, text)]
        (answered,) = destination.apply(Answer(message_id, "Accepted. My code is ready."), 0.0)
        assert isinstance(answered, SendBinary)
        assert source.receive(answered.data, 0.0) == [Answered(message_id, "Accepted. My code is ready.")]
    assert source.receive(natural("Accepted. My code is ready."), 0.0) == [DeliverText("Accepted. My code is ready.")]
    for machine in (source, destination):
        assert (machine.state, machine.agreement) == (HelloState.NEGOTIATING, None)
    assert source.receive(verdict(1, "accepted"), 0.0) == [Load(Agreement("", HASH, False, DOCUMENT))]


@pytest.mark.parametrize("message_id", [ID, "十六个字符的随机字符串一二三四五", "0b7a1d6e-0e0c-4f0e-9c35-6f1b3a4f5d21"])
def test_000_46_an_id_of_another_form_is_repeated_in_the_answer(message_id: str) -> None:
    machine = negotiating_buyer()
    assert machine.receive(question(message_id), 0.0) == [Question(message_id, "In which currency?")]
    (answer,) = said(machine.apply(Answer(message_id, "!"), 0.0))
    assert answer == NaturalLanguageNegotiation("RESPONSE", message_id, "!")


@pytest.mark.parametrize("message_id", ["", "x" * 129])
def test_000_46_an_id_is_neither_empty_nor_long(message_id: str) -> None:
    machine = negotiating_buyer()
    value = f'{{"action":"naturalLanguageNegotiation","type":"REQUEST","messageId":"{message_id}","message":"?"}}'.encode()
    machine.receive(frame.encode(ProtocolType.META, value), 0.0)
    assert error_of(machine) == "meta.message"
    machine = negotiating_buyer()
    with pytest.raises(TreatyError):
        machine.apply(Ask(message_id, "?"), 0.0)
    assert machine.deadline == 60.0


def test_000_46_an_answer_to_no_question_is_refused() -> None:
    machine = negotiating_buyer()
    machine.apply(Ask(ID, "?"), 0.0)
    machine.receive(response(OTHER_ID), 0.0)
    assert error_of(machine) == "meta.message"
    machine = negotiating_buyer()
    machine.apply(Ask(ID, "?"), 0.0)
    machine.receive(response(), 0.0)
    assert not machine.is_final
    machine.receive(response(), 0.0)
    assert error_of(machine) == "meta.message"


def test_000_46_an_id_asks_once() -> None:
    machine = negotiating_shop()
    machine.receive(question(), 0.0)
    machine.apply(Answer(ID, "In euro."), 0.0)
    machine.receive(question(), 0.0)
    assert error_of(machine) == "negotiation.message"
    machine = negotiating_shop()
    machine.apply(Ask(ID, "?"), 0.0)
    with pytest.raises(Refused) as refusal:
        machine.apply(Ask(ID, "?"), 0.0)
    assert refusal.value.code == "negotiation.message"


def test_000_43_either_side_may_ask_with_the_capability() -> None:
    for machine in (negotiating_buyer(), negotiating_shop()):
        assert machine.receive(question(), 0.0) == [Question(ID, "In which currency?")]
        assert said(machine.apply(Answer(ID, "In euro."), 0.0)) == [NaturalLanguageNegotiation("RESPONSE", ID, "In euro.")]
        assert machine.apply(Ask(OTHER_ID, "In which currency?"), 0.0) == [SendBinary(question(OTHER_ID))]
        assert machine.receive(response(OTHER_ID), 0.0) == [Answered(OTHER_ID, "In euro.")]


def test_000_43_questions_need_the_capability_on_both_sides() -> None:
    machine = negotiating_shop(tuple(name for name in NAMED if name != hello.NATURAL_LANGUAGE_NEGOTIATION))
    with pytest.raises(Refused) as refusal:
        machine.apply(Ask(ID, "?"), 0.0)
    assert refusal.value.code == "session.profile"
    machine.receive(question(), 0.0)
    assert error_of(machine) == "session.profile"


def test_each_side_may_ask_16_questions() -> None:
    machine = negotiating_shop()
    for number in range(16):
        assert machine.receive(question(f"{number:016}"), 0.0) == [Question(f"{number:016}", "In which currency?")]
        machine.apply(Ask(f"{number:016}", "?"), 0.0)
    with pytest.raises(Refused) as refusal:
        machine.apply(Ask("x" * 16, "?"), 0.0)
    assert refusal.value.code == "negotiation.too-many"
    machine.receive(question("x" * 16), 0.0)
    assert error_of(machine) == "negotiation.too-many"
    machine = negotiating_shop(limits=Limits(questions=0))
    machine.receive(question(), 0.0)
    assert error_of(machine) == "negotiation.too-many"


def test_a_question_that_is_not_answered_ends_the_session() -> None:
    machine = natural_buyer()
    machine.apply(Ask(ID, "?"), 10.0)
    machine.apply(Ask(OTHER_ID, "?"), 20.0)
    assert machine.deadline == 70.0
    machine.receive(response(), 30.0)
    assert machine.deadline == 80.0
    machine.tick(80.0)
    assert (machine.state, error_of(machine)) == (HelloState.TIMEOUT, "session.reply-timeout")


def test_empty_or_endless_questions_are_not_asked() -> None:
    machine = negotiating_shop()
    machine.receive(question(), 0.0)
    for text, family in (("", Malformed), ("x" * (messages.MAX_QUESTION + 1), TooLarge)):
        with pytest.raises(family):
            machine.apply(Ask(OTHER_ID, text), 0.0)
        with pytest.raises(family):
            machine.apply(Answer(ID, text), 0.0)
    assert machine.apply(Answer(ID, "In euro."), 0.0) == [SendBinary(response())]
