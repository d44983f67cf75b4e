"""Between the code and the session: test cases, verification messages, and errors that are mended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from meta_peers import (
    DOCUMENT,
    FRESH,
    GENERATED,
    HASH,
    NAMED,
    URI,
    Wire,
    application,
    buyer,
    destination_hello,
    meta,
    said,
    shop,
    source_hello,
    verification,
)

from treaty_anp.hello_profile import actions, hello, messages
from treaty_anp.hello_profile.actions import (
    Action,
    ConsiderError,
    ConsiderTests,
    Deliver,
    DeliverVerification,
    DraftTests,
    Ended,
    ErrorRejected,
    Load,
    Running,
    SendBinary,
)
from treaty_anp.hello_profile.commands import (
    AcceptError,
    AcceptTests,
    CodeFailed,
    CodeReady,
    ProposeTests,
    RejectError,
    RejectTests,
    ReportError,
    Send,
    SendMeta,
    SendVerification,
    SkipTests,
    TestsPassed,
)
from treaty_anp.hello_profile.machine import HelloState, Limits, Machine
from treaty_anp.hello_profile.messages import FixErrorNegotiation
from treaty_consensus.errors import Malformed, Refused, TooLarge

CASES = "# Test case 1\n\n# Test case 2\n"
TEST = actions.Test(CASES)
COMPLAINT = "# Error\n- the answer has no status.code\n"


def error_of(machine: Machine) -> str:
    assert machine.error is not None
    return machine.error.code


def cases(status: messages.NegotiationStatus, text: str | None = None, summary: str | None = None) -> bytes:
    return meta(messages.TestCasesNegotiation(status, text, summary))


def fix(status: messages.NegotiationStatus, description: str = "") -> bytes:
    return meta(FixErrorNegotiation(status, description))


@dataclass
class Pair:
    """A buyer and a shop whose codes are ready; what one sends, the other gets at once."""

    source: Machine
    destination: Machine

    @classmethod
    def ready(cls, *, tests: bool = True, capabilities: tuple[str, ...] = NAMED, limits: Limits | None = None) -> Pair:
        limits = limits or Limits()
        source = buyer(source_hello(capabilities=capabilities), wants_tests=tests, limits=limits)
        destination = shop(FRESH, capabilities=capabilities, limits=limits)
        destination.receive(source_hello(capabilities=capabilities).format(), 0.0)
        source.receive(destination.own.format(), 0.0)
        pair = cls(source, destination)
        pair.pass_on(destination, destination.apply(CodeReady(HASH), 0.0))
        return pair

    def pass_on(self, sender: Machine, performed: list[Action], now: float = 0.0) -> list[Action]:
        """Deliver what was said; what it led to."""
        receiver = self.destination if sender is self.source else self.source
        led = []
        for action in performed:
            if isinstance(action, SendBinary):
                led += receiver.receive(action.data, now)
        return led

    @classmethod
    def testing(cls, **options: Limits) -> Pair:
        """Both run the agreed test cases."""
        pair = cls.ready(**options)  # type: ignore[arg-type]
        pair.pass_on(pair.source, pair.source.apply(CodeReady(HASH), 0.0))
        pair.pass_on(pair.source, pair.source.apply(ProposeTests(CASES, ""), 0.0))
        assert pair.pass_on(pair.destination, pair.destination.apply(AcceptTests(), 0.0)) == [TEST]
        assert pair.states == (HelloState.TESTING, HelloState.TESTING)
        return pair

    @classmethod
    def running(cls, *, limits: Limits | None = None) -> Pair:
        """Both run, and no test cases were agreed on; the buyer has said something."""
        pair = cls.ready(tests=False, limits=limits)
        pair.pass_on(pair.source, pair.source.apply(CodeReady(HASH), 0.0))
        assert pair.pass_on(pair.source, pair.source.apply(Send(b"hello"), 0.0)) == [Deliver(b"hello")]
        assert pair.states == (HelloState.RUNNING, HelloState.RUNNING)
        return pair

    @property
    def states(self) -> tuple[HelloState, HelloState]:
        return self.source.state, self.destination.state


# Test cases


def test_000_36_the_source_proposes_test_cases() -> None:
    pair = Pair.ready()
    announced, draft = pair.source.apply(CodeReady(HASH), 0.0)
    assert (announced, draft) == (SendBinary(GENERATED), DraftTests())
    assert pair.source.state is HelloState.TESTING
    assert pair.pass_on(pair.source, [announced]) == [Running()]
    proposed = pair.source.apply(ProposeTests(CASES, ""), 0.0)
    assert proposed == [SendBinary(cases("negotiating", CASES))]
    assert pair.pass_on(pair.source, proposed) == [ConsiderTests(CASES, "", False)]
    assert pair.states == (HelloState.TESTING, HelloState.TESTING)


def test_000_36_testing_may_be_skipped() -> None:
    pair = Pair.ready()
    pair.source.apply(CodeReady(HASH), 0.0)
    assert pair.source.apply(Send(b"x"), 0.0) == []
    assert pair.source.apply(SkipTests(), 0.0) == [Running(), SendBinary(application(b"x"))]
    assert pair.source.state is HelloState.RUNNING
    assert pair.source.apply(SkipTests(), 0.0) == pair.source.apply(ProposeTests(CASES, ""), 0.0) == []


def test_000_36_testing_needs_wish_and_capability() -> None:
    without = tuple(name for name in NAMED if name != hello.TEST_CASES_NEGOTIATION)
    for pair in (Pair.ready(tests=False), Pair.ready(capabilities=without)):
        assert pair.source.apply(CodeReady(HASH), 0.0) == [SendBinary(GENERATED), Running()]
    pair.destination.receive(GENERATED, 0.0)
    pair.destination.receive(cases("negotiating", CASES), 0.0)
    assert error_of(pair.destination) == "session.profile"


def test_000_36_a_confirmed_hash_is_not_tested_again() -> None:
    source = buyer(source_hello(offered=HASH, capabilities=NAMED), wants_tests=True)
    source.receive(destination_hello(used=HASH, capabilities=NAMED).format(), 0.0)
    assert source.apply(CodeReady(HASH), 0.0) == [Running()]
    destination = shop(capabilities=NAMED)
    destination.receive(source_hello(offered=HASH, capabilities=NAMED).format(), 0.0)
    destination.apply(CodeReady(HASH), 0.0)
    destination.receive(cases("negotiating", CASES), 0.0)
    assert error_of(destination) == "meta.message"


def test_000_37_and_38_test_cases_are_negotiated() -> None:
    pair = Pair.ready()
    pair.pass_on(pair.source, pair.source.apply(CodeReady(HASH), 0.0))
    pair.pass_on(pair.source, pair.source.apply(ProposeTests("# Test case 1\n", ""), 0.0))
    with pytest.raises(Malformed) as refusal:
        pair.destination.apply(ProposeTests(CASES, ""), 0.0)
    assert refusal.value.code == "negotiation.answer"
    counter = pair.destination.apply(ProposeTests(CASES, "- one more"), 0.0)
    assert pair.pass_on(pair.destination, counter) == [ConsiderTests(CASES, "- one more", False)]
    accepted = pair.source.apply(AcceptTests(), 0.0)
    assert accepted == [SendBinary(cases("accepted", CASES)), TEST]
    assert pair.pass_on(pair.source, accepted) == [TEST]


def test_000_38_rejected_test_cases_end_the_session() -> None:
    pair = Pair.ready()
    pair.pass_on(pair.source, pair.source.apply(CodeReady(HASH), 0.0))
    pair.pass_on(pair.source, pair.source.apply(ProposeTests(CASES, ""), 0.0))
    pair.pass_on(pair.destination, pair.destination.apply(RejectTests("They would cost money."), 0.0))
    for machine in (pair.source, pair.destination):
        assert (machine.state, error_of(machine)) == (HelloState.REJECTED, "negotiation.tests")
        assert "cost money" in str(machine.error)


def test_000_38_an_acceptance_of_other_cases_is_refused() -> None:
    pair = Pair.ready()
    pair.pass_on(pair.source, pair.source.apply(CodeReady(HASH), 0.0))
    pair.source.apply(ProposeTests(CASES, ""), 0.0)
    pair.source.receive(cases("accepted", "# Other\n"), 0.0)
    assert error_of(pair.source) == "negotiation.message"


def test_000_38_sides_take_turns() -> None:
    pair = Pair.ready()
    pair.pass_on(pair.source, pair.source.apply(CodeReady(HASH), 0.0))
    assert pair.source.apply(AcceptTests(), 0.0) == pair.destination.apply(AcceptTests(), 0.0) == []
    pair.pass_on(pair.source, pair.source.apply(ProposeTests(CASES, ""), 0.0))
    pair.destination.receive(cases("negotiating", CASES, "- same"), 0.0)
    assert error_of(pair.destination) == "negotiation.message"


def test_000_17_test_cases_have_a_limit_too() -> None:
    pair = Pair.ready(limits=Limits(test_rounds=2))
    pair.pass_on(pair.source, pair.source.apply(CodeReady(HASH), 0.0))
    considered = pair.pass_on(pair.source, pair.source.apply(ProposeTests(CASES, ""), 0.0))
    assert considered == [ConsiderTests(CASES, "", True)]
    pair.pass_on(pair.destination, pair.destination.apply(ProposeTests("# Other\n", "- all"), 0.0))
    assert error_of(pair.destination) == "negotiation.limit"
    assert error_of(pair.source) == "negotiation.tests"


def test_an_application_message_settles_the_destination() -> None:
    pair = Pair.running()
    pair.destination.receive(cases("negotiating", CASES), 0.0)
    assert (pair.destination.state, error_of(pair.destination)) == (HelloState.ERROR, "meta.message")


def test_a_source_is_never_asked_to_test() -> None:
    pair = Pair.running()
    pair.source.receive(cases("negotiating", CASES), 0.0)
    assert error_of(pair.source) == "meta.message"


def test_each_side_runs_as_soon_as_its_own_tests_are_passed() -> None:
    pair = Pair.testing()
    assert pair.destination.apply(TestsPassed(), 0.0) == [Running()]
    assert pair.pass_on(pair.destination, pair.destination.apply(Send(b"early"), 0.0)) == []
    assert pair.source.apply(Send(b"waits"), 0.0) == []
    assert pair.states == (HelloState.TESTING, HelloState.RUNNING)
    assert pair.source.apply(TestsPassed(), 0.0) == [Running(), SendBinary(application(b"waits")), Deliver(b"early")]
    assert pair.source.apply(TestsPassed(), 0.0) == []


def test_a_full_inbox_stops_only_a_testing_side() -> None:
    pair = Pair.testing(limits=Limits(waiting_frames=1))
    pair.source.receive(application(b"x"), 0.0)
    assert not pair.source.accepts_input
    pair = Pair.ready(limits=Limits(waiting_frames=1))
    pair.source.apply(CodeReady(HASH), 0.0)
    pair.source.apply(ProposeTests(CASES, ""), 0.0)
    pair.source.receive(application(b"x"), 0.0)
    assert pair.source.accepts_input
    pair.source.receive(application(b"x"), 0.0)
    assert error_of(pair.source) == "session.inbox-full"


def test_tests_that_fail_by_this_sides_fault_end_it() -> None:
    pair = Pair.testing()
    cause = Refused("negotiation.tests", "Case 2 does not pass.")
    error_message, ended = pair.source.apply(CodeFailed(cause), 0.0)
    assert (error_message, ended) == (SendBinary(meta(messages.CodeGeneration("error", "negotiation.tests"))), Ended(cause))
    pair.pass_on(pair.source, [error_message])
    assert error_of(pair.destination) == "session.peer-code"


def test_testing_takes_at_most_60_seconds_a_step() -> None:
    pair = Pair.ready()
    pair.source.apply(CodeReady(HASH), 5.0)
    assert pair.source.deadline == 65.0
    pair.source.apply(ProposeTests(CASES, ""), 20.0)
    assert pair.source.deadline == 80.0
    pair.source.receive(cases("accepted"), 30.0)
    assert pair.source.deadline == 90.0
    pair.source.tick(90.0)
    assert (pair.source.state, error_of(pair.source)) == (HelloState.TIMEOUT, "session.reply-timeout")
    assert "This side's tests" in str(pair.source.error)


# Verification messages


def test_000_05_and_51_verification_reaches_the_tested_handler() -> None:
    pair = Pair.testing()
    sent = pair.source.apply(SendVerification(b"\xff request"), 0.0)
    assert sent == [SendBinary(verification(b"\xff request"))]
    assert pair.pass_on(pair.source, sent) == [DeliverVerification(b"\xff request")]
    pair.destination.apply(TestsPassed(), 0.0)
    assert pair.pass_on(pair.source, sent) == [DeliverVerification(b"\xff request")]


def test_000_51_verification_needs_the_capability_on_both_sides() -> None:
    without = tuple(name for name in NAMED if name != hello.VERIFICATION_PROTOCOL)
    pair = Pair.ready(tests=False, capabilities=without)
    pair.source.apply(CodeReady(HASH), 0.0)
    with pytest.raises(Refused) as refusal:
        pair.source.apply(SendVerification(b"x"), 0.0)
    assert refusal.value.code == "session.profile"
    pair.source.receive(verification(b"x"), 0.0)
    assert error_of(pair.source) == "frame.form"
    assert "capabilities" in str(pair.source.error)  # the code is also that of a message that comes too early


def test_000_05_verification_waits_for_both_codes() -> None:
    machine = buyer(source_hello(capabilities=NAMED))
    assert machine.both_list(hello.VERIFICATION_PROTOCOL) is False
    machine.receive(destination_hello(selected=URI, used=HASH, capabilities=NAMED).format(), 0.0)
    assert machine.apply(SendVerification(b"x"), 0.0) == []
    machine.receive(verification(b"x"), 0.0)
    assert error_of(machine) == "frame.form"


def test_000_05_verification_belongs_to_agreed_test_cases() -> None:
    pair = Pair.running()
    assert pair.source.apply(SendVerification(b"x"), 0.0) == []
    pair.destination.receive(verification(b"x"), 0.0)
    assert error_of(pair.destination) == "frame.form"


def test_000_05_what_crossed_an_error_report_is_dropped() -> None:
    pair = Pair.testing()
    crossing = pair.source.apply(SendVerification(b"request"), 0.0)
    pair.pass_on(pair.source, pair.source.apply(ReportError(COMPLAINT), 0.0))
    pair.destination.apply(AcceptError(), 0.0)
    assert pair.pass_on(pair.source, crossing) == []
    assert pair.destination.state is HelloState.AGREED


def test_too_large_a_verification_message_is_not_sent() -> None:
    pair = Pair.testing()
    with pytest.raises(TooLarge):
        pair.source.apply(SendVerification(bytes(2**20 + 1)), 0.0)
    assert pair.source.state is HelloState.TESTING


# Errors that are mended


@pytest.mark.parametrize("make", [Pair.testing, Pair.running])
@pytest.mark.parametrize("complainer", ["source", "destination"])
def test_000_41_the_side_at_fault_announces_its_code_anew(make: Callable[[], Pair], complainer: str) -> None:
    pair = make()
    tested = pair.source.state is HelloState.TESTING
    blamer, fixer = (pair.source, pair.destination) if complainer == "source" else (pair.destination, pair.source)
    assert pair.pass_on(blamer, blamer.apply(ReportError(COMPLAINT), 0.0)) == [ConsiderError(COMPLAINT)]
    answer, load = fixer.apply(AcceptError(), 0.0)
    assert isinstance(load, Load)
    assert load.error == COMPLAINT
    assert pair.pass_on(fixer, [answer]) == []
    assert pair.states == (HelloState.AGREED, HelloState.AGREED)
    assert blamer.apply(Send(b"waits"), 0.0) == []
    (announced, begin) = fixer.apply(CodeReady(HASH), 0.0)
    assert (announced, begin) == (SendBinary(GENERATED), TEST if tested else Running())
    led = pair.pass_on(fixer, [announced])
    assert led == ([TEST] if tested else [Running(), SendBinary(application(b"waits"))])
    if tested:
        assert fixer.apply(TestsPassed(), 0.0) == [Running()]
        assert blamer.apply(TestsPassed(), 0.0) == [Running(), SendBinary(application(b"waits"))]
    assert pair.states == (HelloState.RUNNING, HelloState.RUNNING)


def test_000_42_a_side_that_is_not_at_fault_rejects_and_says_why() -> None:
    for pair in (Pair.testing(), Pair.running()):
        before = pair.states
        pair.pass_on(pair.source, pair.source.apply(ReportError(COMPLAINT), 0.0))
        with pytest.raises(Malformed):
            pair.destination.apply(RejectError(""), 0.0)
        rejected = pair.destination.apply(RejectError("Section 2 makes it optional."), 0.0)
        assert pair.pass_on(pair.destination, rejected) == [ErrorRejected("Section 2 makes it optional.")]
        assert pair.states == before
        assert pair.destination.apply(RejectError("again"), 0.0) == pair.destination.apply(AcceptError(), 0.0) == []


def test_000_40_both_may_be_at_fault_at_once() -> None:
    pair = Pair.running()
    from_source = pair.source.apply(ReportError("yours"), 0.0)
    from_destination = pair.destination.apply(ReportError("no, yours"), 0.0)
    assert pair.pass_on(pair.source, from_source) == [ConsiderError("yours")]
    assert pair.pass_on(pair.destination, from_destination) == [ConsiderError("no, yours")]
    first = pair.source.apply(AcceptError(), 0.0)
    second = pair.destination.apply(AcceptError(), 0.0)
    pair.pass_on(pair.source, first)
    pair.pass_on(pair.destination, second)
    assert pair.states == (HelloState.AGREED, HelloState.AGREED)
    assert pair.pass_on(pair.source, pair.source.apply(CodeReady(HASH), 0.0)) == []
    assert pair.states == (HelloState.AGREED, HelloState.AGREED)
    assert pair.pass_on(pair.destination, pair.destination.apply(CodeReady(HASH), 0.0)) == [Running()]
    assert pair.states == (HelloState.RUNNING, HelloState.RUNNING)


def test_000_40_an_error_is_judged_while_code_is_awaited() -> None:
    pair = Pair.running()
    from_source = pair.source.apply(ReportError("yours"), 0.0)
    from_destination = pair.destination.apply(ReportError("no, yours"), 0.0)
    pair.pass_on(pair.source, from_source)
    pair.pass_on(pair.destination, from_destination)
    pair.pass_on(pair.destination, pair.destination.apply(AcceptError(), 0.0))
    assert pair.source.state is HelloState.AGREED
    assert pair.pass_on(pair.source, pair.source.apply(RejectError("It is not."), 0.0)) == [ErrorRejected("It is not.")]
    assert pair.pass_on(pair.destination, pair.destination.apply(CodeReady(HASH), 0.0)) == [Running()]
    assert pair.states == (HelloState.RUNNING, HelloState.RUNNING)


def test_000_40_there_are_several_rounds_and_a_limit() -> None:
    pair = Pair.running()
    for _ in range(3):
        pair.pass_on(pair.source, pair.source.apply(ReportError(COMPLAINT), 0.0))
        pair.pass_on(pair.destination, pair.destination.apply(AcceptError(), 0.0))
        pair.pass_on(pair.destination, pair.destination.apply(CodeReady(HASH), 0.0))
        assert pair.states == (HelloState.RUNNING, HelloState.RUNNING)
    assert pair.source.apply(ReportError(COMPLAINT), 0.0) == [Ended(pair.source.error)]
    assert (pair.source.state, error_of(pair.source)) == (HelloState.ERROR, "negotiation.too-many")
    pair.destination.receive(fix("negotiating", COMPLAINT), 0.0)
    assert (pair.destination.state, error_of(pair.destination)) == (HelloState.ERROR, "negotiation.too-many")


def test_one_error_is_reported_at_a_time() -> None:
    pair = Pair.running()
    pair.pass_on(pair.source, pair.source.apply(ReportError(COMPLAINT), 0.0))
    assert pair.source.apply(ReportError("another"), 0.0) == []
    pair.destination.receive(fix("negotiating", "another"), 0.0)
    assert error_of(pair.destination) == "meta.message"


@pytest.mark.parametrize("status", ["accepted", "rejected"])
def test_an_answer_to_no_report_is_refused(status: messages.NegotiationStatus) -> None:
    pair = Pair.running()
    pair.source.receive(fix(status, "because"), 0.0)
    assert error_of(pair.source) == "meta.message"


def test_errors_need_the_capability_of_both_and_a_message() -> None:
    without = tuple(name for name in NAMED if name != hello.FIX_ERROR_NEGOTIATION)
    pair = Pair.ready(tests=False, capabilities=without)
    pair.source.apply(CodeReady(HASH), 0.0)
    with pytest.raises(Refused) as refusal:
        pair.source.apply(ReportError(COMPLAINT), 0.0)
    assert refusal.value.code == "session.profile"
    pair.source.receive(fix("negotiating", COMPLAINT), 0.0)
    assert error_of(pair.source) == "session.profile"
    pair = Pair.ready()
    assert pair.source.apply(ReportError(COMPLAINT), 0.0) == []
    pair.pass_on(pair.source, pair.source.apply(CodeReady(HASH), 0.0))
    assert pair.source.apply(ReportError(COMPLAINT), 0.0) == pair.destination.apply(ReportError(COMPLAINT), 0.0) == []


def test_000_39_without_tests_a_report_may_come_at_once() -> None:
    without = tuple(name for name in NAMED if name != hello.TEST_CASES_NEGOTIATION)
    pair = Pair.ready(capabilities=without)
    pair.pass_on(pair.source, pair.source.apply(CodeReady(HASH), 0.0))
    assert pair.destination.apply(ReportError(COMPLAINT), 0.0) == [SendBinary(fix("negotiating", COMPLAINT))]


def test_a_report_during_the_choice_of_cases_ends_the_session() -> None:
    pair = Pair.ready()
    pair.pass_on(pair.source, pair.source.apply(CodeReady(HASH), 0.0))
    pair.source.receive(fix("negotiating", COMPLAINT), 0.0)
    assert error_of(pair.source) == "negotiation.fault"


def test_reports_and_verdicts_have_their_time() -> None:
    for who, sentence in (
        ("source", "other side did not answer a reported error"),
        ("destination", "This side did not answer"),
    ):
        pair = Pair.running()
        pair.pass_on(pair.source, pair.source.apply(ReportError(COMPLAINT), 100.0), 100.0)
        machine: Machine = getattr(pair, who)
        assert machine.deadline == 160.0
        machine.tick(160.0)
        assert (machine.state, error_of(machine)) == (HelloState.TIMEOUT, "session.reply-timeout")
        assert sentence in str(machine.error)


def test_a_report_gives_the_tests_their_time_anew() -> None:
    pair = Pair.testing()
    pair.source.apply(ReportError(COMPLAINT), 50.0)
    assert pair.source.deadline == 110.0
    pair.source.receive(fix("rejected", "It is not."), 100.0)
    assert (pair.source.deadline, pair.source.state) == (160.0, HelloState.TESTING)


def test_000_33_mended_code_must_come_in_15_seconds() -> None:
    pair = Pair.running()
    pair.pass_on(pair.source, pair.source.apply(ReportError(COMPLAINT), 0.0))
    pair.pass_on(pair.destination, pair.destination.apply(AcceptError(), 10.0), 10.0)
    for machine in (pair.source, pair.destination):
        assert machine.deadline == 25.0
        machine.tick(25.0)
        assert error_of(machine) == "session.code-timeout"


def test_000_41_repaired_cached_code_is_announced() -> None:
    wire = Wire.join(source_hello(offered=HASH, capabilities=NAMED))
    wire.destination = shop(capabilities=NAMED)
    wire.settle()
    assert GENERATED not in [message for _, message in wire.sent]
    assert wire.source.apply(ReportError(COMPLAINT), 0.0) == []  # it has heard nothing that could be wrong
    wire.perform("destination", wire.destination.apply(Send(b"wrong"), 0.0))
    wire.deliver("source")
    wire.perform("source", wire.source.apply(ReportError(COMPLAINT), 0.0))
    wire.deliver("destination")
    wire.perform("destination", wire.destination.apply(AcceptError(), 0.0))
    wire.settle()
    assert wire.source.state is wire.destination.state is HelloState.RUNNING
    assert [who for who, message in wire.sent if message == GENERATED] == ["destination"]


def test_application_messages_wait_while_code_is_mended() -> None:
    pair = Pair.running()
    pair.pass_on(pair.source, pair.source.apply(ReportError(COMPLAINT), 0.0))
    crossing = pair.source.apply(Send(b"crossing"), 0.0)
    answer = pair.destination.apply(AcceptError(), 0.0)
    assert pair.pass_on(pair.source, crossing) == []
    pair.pass_on(pair.destination, answer)
    assert pair.destination.apply(CodeReady(HASH), 0.0)[1:] == [Running(), Deliver(b"crossing")]


def test_a_report_may_cross_a_cosignature() -> None:
    capabilities = (*NAMED, hello.REPORT_COSIGNATURE)
    pair = Pair.ready(tests=False, capabilities=capabilities)
    pair.pass_on(pair.source, pair.source.apply(CodeReady(HASH), 0.0))
    pair.pass_on(pair.source, pair.source.apply(Send(b"x"), 0.0))
    crossing = pair.source.apply(SendMeta(messages.ReportRefused("report.x")), 0.0)
    pair.pass_on(pair.destination, pair.destination.apply(ReportError(COMPLAINT), 0.0))
    pair.pass_on(pair.source, pair.source.apply(AcceptError(), 0.0))
    assert pair.pass_on(pair.source, crossing) == [actions.Meta(messages.ReportRefused("report.x"))]


def test_000_39_an_error_report_has_the_fixed_form() -> None:
    pair = Pair.running()
    (message,) = said(pair.source.apply(ReportError(COMPLAINT), 0.0))
    assert message == FixErrorNegotiation("negotiating", COMPLAINT)
    assert DOCUMENT not in COMPLAINT
