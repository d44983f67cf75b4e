"""Two state machines of the Hello profile and the wire between them, under every order of messages, decisions, losses and time.

`Honest`: both sides do what they are asked, when and as they like. Then no rule is ever broken, and when all that is on its way
has arrived and all that is asked is answered, both run with one agreement, or both are through.

`Hostile`: on top of that anybody may say anything, messages and connections get lost, and decisions come that nobody asked for.
Then each side still ends, by itself, in one of the ways in which a session may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from meta_peers import (
    DOCUMENT,
    FAILED,
    FRESH,
    GENERATED,
    HASH,
    NAMED,
    OTHER_HASH,
    STALE,
    TIMEOUTS,
    URI,
    application,
    destination_hello,
    meta,
    natural,
    proposal,
    source_hello,
    verdict,
    verification,
)

from treaty_anp.hello_profile import actions, commands, hello, messages
from treaty_anp.hello_profile.actions import Action
from treaty_anp.hello_profile.machine import FINAL, HelloState, Limits, Machine
from treaty_anp.hello_profile.messages import FixErrorNegotiation, NaturalLanguageNegotiation, ReportRefused
from treaty_consensus.errors import Refused, TreatyError

SOURCE, DESTINATION = "source", "destination"
SIDES = st.sampled_from([SOURCE, DESTINATION])
ALL = (*NAMED, hello.REPORT_COSIGNATURE)
CAPABILITIES = st.sampled_from([ALL, ALL, ALL]) | st.lists(st.sampled_from(ALL), unique=True).map(tuple)
TEXTS = st.sampled_from([DOCUMENT, "# Another\n", "# 需求\n"])
IDS = st.sampled_from([f"{number:016}" for number in range(6)])
APPLICATION, UNDER_TEST = b"application", b"verification"
CASES = "# Test case 1\n\n# Test case 2\n"
ASKED = (
    actions.Draft,
    actions.Consider,
    actions.Load,
    actions.DraftTests,
    actions.ConsiderTests,
    actions.Test,
    actions.ConsiderError,
    actions.Question,
)
ENDS = {
    HelloState.REJECTED: {
        "negotiation.rejected",
        "negotiation.tests",
        "negotiation.limit",
        "session.no-common-protocol",
        "session.no-model",
        "session.profile",
    },
    # The other side may say why it closes, for example `negotiation.too-many`.
    HelloState.CLOSED: {"session.peer-lost", "session.peer-refused"},
    HelloState.ERROR: {"negotiation.too-many", "session.peer-code", "session.peer-lost", "session.peer-refused", "own.code"},
}
"""How a session between honest sides may end, besides running."""


class Pair(RuleBasedStateMachine):
    """Two machines, what is on its way, and what each side has been asked and has not answered."""

    limits = Limits()

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.wire: dict[str, deque[str | bytes]] = {SOURCE: deque(), DESTINATION: deque()}
        self.asked: dict[str, list[Action]] = {SOURCE: [], DESTINATION: []}
        self.ran = {SOURCE: False, DESTINATION: False}
        self.ended = {SOURCE: 0, DESTINATION: 0}
        self.machines: dict[str, Machine] = {}

    @initialize(
        capabilities=st.tuples(CAPABILITIES, CAPABILITIES),
        negotiates=st.sampled_from([(True, True), (True, True), (True, True), (False, True), (True, False)]),
        wants_tests=st.sampled_from([True, True, False]),
        offer=st.sampled_from(["nothing", "nothing", "candidate", "hash", "other hash", "natural"]),
        provides=st.sampled_from([FRESH, STALE, {}]),
        ahead=st.integers(0, 10),
    )
    def begin(self, capabilities: Any, negotiates: Any, wants_tests: bool, offer: str, provides: Any, ahead: int) -> None:
        """`ahead`: how far things went already, in their usual course."""
        self.machines[DESTINATION] = Machine.responder(
            destination_hello(capabilities=capabilities[1]),
            now=0.0,
            timeouts=TIMEOUTS,
            provides=provides,
            negotiates=negotiates[1],
            limits=self.limits,
        )
        self.machines[SOURCE], first = Machine.initiator(
            source_hello(
                (URI,) if offer in ("candidate", "hash") else (),
                offered={"hash": HASH, "other hash": OTHER_HASH}.get(offer),
                capabilities=capabilities[0],
            ),
            now=0.0,
            timeouts=TIMEOUTS,
            known_uri=URI,
            negotiates=negotiates[0],
            wants_tests=wants_tests,
            natural=offer == "natural",
            limits=self.limits,
        )
        self.perform(SOURCE, first)
        for step in range(ahead):
            self.go_on((DESTINATION, SOURCE)[step % 2], 1)

    def perform(self, who: str, performed: list[Action]) -> None:
        """What a driver would do; every rule about what a machine may ask for is checked here."""
        for action in performed:
            assert not self.ended[who], "nothing happens after the end"
            match action:
                case actions.SendText(text=message) | actions.SendBinary(data=message):
                    self.wire[self.other(who)].append(message)
                case actions.Running():
                    self.ran[who] = True
                case actions.Deliver(payload):
                    assert self.ran[who], "nothing is delivered before the session runs"
                    assert self.machines[who].state is HelloState.RUNNING
                    assert payload != UNDER_TEST, "a verification message is not user data"
                case actions.DeliverVerification(payload):
                    assert payload != APPLICATION
                    assert self.machines[who].state in (HelloState.TESTING, HelloState.RUNNING)
                case actions.Ended(error):
                    self.ended[who] += 1
                    assert self.machines[who].is_final
                    assert error == self.machines[who].error
                case _ if isinstance(action, ASKED):
                    self.asked[who].append(action)

    def other(self, who: str) -> str:
        return DESTINATION if who == SOURCE else SOURCE

    def act(self, who: str, command: commands.Command) -> None:
        """A decision or a wish of one side; what may not be said changes nothing."""
        machine = self.machines[who]
        before = (machine.state, machine.deadline, machine.agreement)
        try:
            performed = machine.apply(command, self.now)
        except TreatyError:
            assert (machine.state, machine.deadline, machine.agreement) == before
        else:
            self.perform(who, performed)

    def deliver_to(self, who: str) -> None:
        machine, peer = self.machines[who], self.machines[self.other(who)]
        if self.wire[who]:
            if machine.accepts_input:
                self.perform(who, machine.receive(self.wire[who].popleft(), self.now))
        elif peer.is_final:
            self.perform(who, machine.lost(peer.error.code if peer.error else ""))

    def answer_as(self, who: str, choice: str, text: str) -> None:
        """Answer what this side was asked first, by accepting it, rejecting it, or with something else."""
        if not self.asked[who]:
            return
        machine, now = self.machines[who], self.now
        match self.asked[who].pop(0), choice:
            case (actions.Draft() | actions.Consider(), "reject"):
                self.act(who, commands.Reject("no"))
            case (actions.Consider(last=False), "other") | (actions.Draft(), _):
                self.act(who, commands.Propose(text, "- changes"))
            case (actions.Consider(), _):
                self.act(who, commands.Accept())
            case (actions.Load() | actions.Test(), "reject"):
                self.perform(who, machine.apply(commands.CodeFailed(Refused("own.code", "No.")), now))
            case (actions.Load(agreement), _):
                self.act(who, commands.CodeReady(agreement.protocol_hash or HASH))
            case (actions.DraftTests() | actions.ConsiderTests(), "reject"):
                self.act(who, commands.RejectTests("no"))
            case (actions.DraftTests(), "other"):
                self.act(who, commands.SkipTests())
            case (actions.DraftTests(), _) | (actions.ConsiderTests(last=False), "other"):
                self.act(who, commands.ProposeTests(CASES, "- changes"))
            case (actions.ConsiderTests(), _):
                self.act(who, commands.AcceptTests())
            case (actions.Test(), "other"):
                self.act(who, commands.ReportError("It fails."))
                self.act(who, commands.TestsPassed())
            case (actions.Test(), _):
                self.act(who, commands.TestsPassed())
            case (actions.ConsiderError(), "accept"):
                self.act(who, commands.AcceptError())
            case (actions.ConsiderError(), _):
                self.act(who, commands.RejectError("It is not my fault."))
            case (actions.Question(message_id), _):
                self.act(who, commands.Answer(message_id, text))

    @rule(who=SIDES, times=st.integers(1, 4))
    def deliver(self, who: str, times: int) -> None:
        for _ in range(times):
            self.deliver_to(who)

    @rule(who=SIDES, choice=st.sampled_from(["accept", "accept", "accept", "other", "reject"]), text=TEXTS)
    def answer(self, who: str, choice: str, text: str) -> None:
        self.answer_as(who, choice, text)

    @rule(who=SIDES, times=st.integers(1, 3))
    def go_on(self, who: str, times: int) -> None:
        """The usual course of things, a little further."""
        for _ in range(times):
            self.deliver_to(who)
            self.answer_as(who, "accept", DOCUMENT)
            self.deliver_to(self.other(who))
            self.answer_as(self.other(who), "accept", DOCUMENT)

    @rule(who=SIDES, early=st.booleans())
    def send(self, who: str, early: bool) -> None:
        machine = self.machines[who]
        if not machine.is_natural:
            self.perform(who, machine.apply(commands.Send(APPLICATION, early), self.now))

    @rule(who=SIDES, message_id=IDS)
    def speak(self, who: str, message_id: str) -> None:
        machine = self.machines[who]
        if machine.both_list(hello.NATURAL_LANGUAGE_PROTOCOL):
            self.act(who, commands.Say("Hello?"))
        if machine.both_list(hello.NATURAL_LANGUAGE_NEGOTIATION):
            self.act(who, commands.Ask(message_id, "In which currency?"))

    @rule(who=SIDES)
    def verify(self, who: str) -> None:
        if self.machines[who].both_list(hello.VERIFICATION_PROTOCOL):
            self.act(who, commands.SendVerification(UNDER_TEST))

    @rule(who=SIDES)
    def complain(self, who: str) -> None:
        if self.machines[who].both_list(hello.FIX_ERROR_NEGOTIATION):
            self.act(who, commands.ReportError("status.code is missing"))

    @rule(who=SIDES)
    def report(self, who: str) -> None:
        if self.machines[who].both_list(hello.REPORT_COSIGNATURE):
            self.act(who, commands.SendMeta(ReportRefused("report.x")))

    @invariant()
    def there_is_a_deadline_ahead_or_an_end(self) -> None:
        for who, machine in self.machines.items():
            assert machine.is_final == bool(self.ended[who])
            assert machine.is_final or self.now < machine.deadline <= self.now + 600.0
            assert machine.state in FINAL or machine.error is None

    def teardown(self) -> None:
        for machine in self.machines.values():
            machine.tick(machine.deadline)
            assert machine.is_final, "whoever waits until the deadline is done"


class Honest(Pair):
    """Nobody breaks a rule and nothing is lost."""

    @precondition(lambda self: self.machines)
    @invariant()
    def no_rule_is_broken(self) -> None:
        for machine in self.machines.values():
            if machine.is_final:
                assert machine.error is not None
                assert machine.error.code in ENDS[machine.state], machine.error

    def teardown(self) -> None:
        if not self.machines:
            return
        for _ in range(200):
            for who in (SOURCE, DESTINATION):
                self.deliver_to(who)
                self.answer_as(who, "accept", DOCUMENT)
        self.no_rule_is_broken()
        source, destination = self.machines[SOURCE], self.machines[DESTINATION]
        assert not self.wire[SOURCE] or source.is_final
        assert not self.wire[DESTINATION] or destination.is_final
        if source.is_natural and destination.state is HelloState.NEGOTIATING:
            return  # nobody said anything yet
        assert (source.state is HelloState.RUNNING) == (destination.state is HelloState.RUNNING), (
            source.state,
            destination.state,
        )
        assert source.is_final == destination.is_final
        if source.state is HelloState.RUNNING:
            ours, theirs = source.agreement, destination.agreement
            assert ours and theirs
            assert (ours.protocol_hash, ours.confirmed) == (theirs.protocol_hash, theirs.confirmed)
            # One without a negotiator knows the agreed text as that of a protocol that it provides.
            assert ours == theirs or (theirs.uri, ours.document) == (URI, DOCUMENT)
            assert self.ran[SOURCE]
            assert self.ran[DESTINATION]
        super().teardown()


FOREIGN = st.one_of(
    st.sampled_from(
        [
            GENERATED,
            FAILED,
            application(APPLICATION),
            verification(UNDER_TEST),
            natural("Hello?"),
            source_hello(capabilities=ALL).format(),
            destination_hello(capabilities=ALL).format(),
            destination_hello(capabilities=ALL, selected=URI, used=HASH).format(),
            meta(ReportRefused("report.x")),
        ]
    ),
    st.builds(proposal, st.integers(0, 6), TEXTS, st.sampled_from([None, "- changes"])),
    st.builds(verdict, st.integers(0, 6), st.sampled_from(["accepted", "rejected"]), st.none() | TEXTS),
    st.builds(
        lambda status, text: meta(messages.TestCasesNegotiation(status, text, "- changes")),
        st.sampled_from(["negotiating", "accepted", "rejected"]),
        st.just(CASES),
    ),
    st.builds(
        lambda status: meta(FixErrorNegotiation(status, "because")), st.sampled_from(["negotiating", "accepted", "rejected"])
    ),
    st.builds(
        lambda type, message_id: meta(NaturalLanguageNegotiation(type, message_id, "?")),
        st.sampled_from(["REQUEST", "RESPONSE"]),
        IDS,
    ),
    st.binary(max_size=20),
    st.text(max_size=20),
)
UNASKED: tuple[commands.Command, ...] = (
    commands.Propose(DOCUMENT, "- changes"),
    commands.Accept(),
    commands.Reject("no"),
    commands.CodeReady(HASH),
    commands.ProposeTests(CASES, "- changes"),
    commands.AcceptTests(),
    commands.RejectTests("no"),
    commands.SkipTests(),
    commands.TestsPassed(),
    commands.ReportError("It fails."),
    commands.AcceptError(),
    commands.RejectError("It is not my fault."),
    commands.Say("Hello?"),
    commands.Ask("x" * 16, "?"),
    commands.Answer("0" * 16, "!"),
    commands.Send(APPLICATION),
    commands.SendVerification(UNDER_TEST),
    commands.SendMeta(ReportRefused("report.x")),
)


class Hostile(Pair):
    """Anything may be said and decided, and anything gets lost."""

    limits = Limits(rounds=4, test_rounds=3, fix_rounds=1, questions=2, waiting_frames=3)

    @rule(who=SIDES, message=FOREIGN)
    def say_anything(self, who: str, message: str | bytes) -> None:
        self.perform(who, self.machines[who].receive(message, self.now))

    @rule(who=SIDES, command=st.sampled_from(UNASKED))
    def decide_anything(self, who: str, command: commands.Command) -> None:
        self.act(who, command)

    @rule(who=SIDES)
    def lose_a_message(self, who: str) -> None:
        if self.wire[who]:
            self.wire[who].popleft()

    @rule(who=SIDES)
    def repeat_a_message(self, who: str) -> None:
        if self.wire[who]:
            self.wire[who].append(self.wire[who][0])

    @rule(who=SIDES, reason=st.sampled_from(["", "hello.version"]))
    def lose_the_connection(self, who: str, reason: str) -> None:
        self.perform(who, self.machines[who].lost(reason))

    @rule(who=SIDES, act=st.sampled_from(["close", "fail", "code failed"]))
    def give_up(self, who: str, act: str) -> None:
        machine, error = self.machines[who], Refused("own.code", "No.")
        match act:
            case "close":
                self.perform(who, machine.close())
            case "fail":
                self.perform(who, machine.fail(error))
            case _:
                self.perform(who, machine.apply(commands.CodeFailed(error), self.now))

    @rule(seconds=st.floats(0.1, 700.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for who, machine in self.machines.items():
            self.perform(who, machine.tick(self.now))


def case(machine: type[Pair], *, examples: int, steps: int) -> Any:
    test: Callable[..., Any] = machine.TestCase
    test.settings = settings(  # type: ignore[attr-defined]
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
    )
    return test


TestHonest = case(Honest, examples=80, steps=40)
TestHostile = case(Hostile, examples=80, steps=40)
