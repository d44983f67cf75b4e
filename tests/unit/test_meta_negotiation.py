"""Agreeing on a protocol message by message: turns, numbers, texts, the limit, and the ways of the official SDK."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import pytest
from meta_peers import (
    DOCUMENT,
    FAILED,
    GENERATED,
    HASH,
    NAMED,
    OTHER_HASH,
    URI,
    Wire,
    application,
    buyer,
    destination_hello,
    failed,
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
    verification,
)

from treaty_anp import frame
from treaty_anp.frame import ProtocolType
from treaty_anp.hello_profile import actions, messages
from treaty_anp.hello_profile.actions import Action, Agreement, Consider, Deliver, Draft, Ended, Load, Running, SendBinary
from treaty_anp.hello_profile.commands import Accept, CodeFailed, CodeReady, Propose, Reject, Send
from treaty_anp.hello_profile.machine import HelloState, Limits, Machine, Provided
from treaty_anp.hello_profile.messages import CodeGeneration, FixErrorNegotiation, ProtocolNegotiation
from treaty_consensus import canonical, protocol
from treaty_consensus.errors import Malformed, TooLarge, TreatyError, Unavailable

AGREEMENT = Agreement("", HASH, False, DOCUMENT)
GOODS = "# 需求\n获取商品信息\n"
GOODS_HASH = "c0b599a4053cea0bef1245d900f7c5cdc792c6a456b8454ce41a77d4e8697b3b"
"""A text that was agreed on, and its hash by `sha256sum`."""


def error_of(machine: Machine) -> str:
    assert machine.error is not None
    return machine.error.code


def numbers(performed: list[Action]) -> list[int]:
    """The sequence numbers of what was said."""
    return [message.sequence_id for message in said(performed) if isinstance(message, ProtocolNegotiation)]


def agreed_shop() -> Machine:
    """A shop that accepted the buyer's proposal."""
    machine = negotiating_shop()
    machine.receive(proposal(0), 0.0)
    machine.apply(Accept(), 0.0)
    assert machine.state is HelloState.AGREED
    return machine


# Who begins, and what is said


def test_000_09_the_source_begins_with_its_requirements() -> None:
    machine = buyer(source_hello(()), negotiates=True)
    assert machine.receive(destination_hello().format(), 0.0) == [Draft()]
    assert machine.state is HelloState.NEGOTIATING
    machine = negotiating_buyer()
    assert machine.apply(Propose(DOCUMENT, ""), 0.0) == [SendBinary(proposal(0))]


def test_000_09_a_destination_does_not_begin() -> None:
    machine = negotiating_shop()
    assert machine.state is HelloState.NEGOTIATING
    assert machine.apply(Propose(DOCUMENT, ""), 0.0) == machine.apply(Accept(), 0.0) == machine.apply(Reject("no"), 0.0) == []
    machine.receive(proposal(0), 0.0)
    assert machine.state is HelloState.NEGOTIATING


def test_000_10_the_destination_answers_with_what_it_chose() -> None:
    machine = negotiating_shop()
    assert machine.receive(proposal(0), 0.0) == [Consider(DOCUMENT, "", 1, False)]
    answer = machine.apply(Propose("# Narrower\n", "- prices only"), 0.0)
    assert answer == [SendBinary(proposal(1, "# Narrower\n", "- prices only"))]
    source = negotiating_buyer()
    source.apply(Propose(DOCUMENT, ""), 0.0)
    assert isinstance(answer[0], SendBinary)
    assert source.receive(answer[0].data, 0.0) == [Consider("# Narrower\n", "- prices only", 2, False)]


def test_000_07_and_08_the_meta_process_is_fixed_json() -> None:
    (sent,) = negotiating_buyer().apply(Propose(DOCUMENT, ""), 0.0)
    assert isinstance(sent, SendBinary)
    decoded = frame.decode(sent.data)
    assert decoded.type is ProtocolType.META
    assert json.loads(decoded.payload) == {
        "action": "protocolNegotiation",
        "sequenceId": 0,
        "candidateProtocols": DOCUMENT,
        "status": "negotiating",
    }


def test_000_07_an_agreed_document_leaves_the_meta_process() -> None:
    text = "# Agreed\n\nFrom now on meta messages are XML, codeGeneration is called ready, and frames have two header bytes.\n"
    machine = negotiating_shop(())
    machine.receive(proposal(0, text), 0.0)
    machine.apply(Accept(), 0.0)
    for message in (
        b"\x00<codeGeneration/>",
        b'\x00{"action":"ready","status":"generated"}',
        b'\x00\x00{"action":"codeGeneration"}',
    ):
        other = negotiating_shop(())
        other.receive(proposal(0, text), 0.0)
        other.apply(Accept(), 0.0)
        assert other.receive(message, 0.0) == [Ended(other.error)]
        assert error_of(other) in ("canonical.json", "meta.message")
    assert machine.apply(CodeReady(canonical.hex_digest(text.encode())), 0.0) == [SendBinary(GENERATED)]
    machine.receive(GENERATED, 0.0)
    assert machine.state is HelloState.RUNNING


# The basic capability


def test_000_54_basic_messages_need_no_capability() -> None:
    """The messages as the source prints them, between agents that list nothing."""
    machine = negotiating_shop(())
    printed = '{"action": "protocolNegotiation", "sequenceId": 0, "candidateProtocols": %s, "modificationSummary": "", %s}'
    proposed = (printed % (json.dumps(DOCUMENT), '"status": "negotiating"')).encode()
    assert machine.receive(b"\x00" + proposed, 0.0) == [Consider(DOCUMENT, "", 1, False)]
    assert machine.apply(Accept(), 0.0) == [SendBinary(verdict(1, "accepted", DOCUMENT)), Load(AGREEMENT)]
    assert machine.receive(b'\x00{"action": "codeGeneration", "status": "generated"}', 0.0) == []
    assert machine.apply(CodeReady(HASH), 0.0) == [SendBinary(GENERATED), Running()]
    assert machine.receive(application(b"x"), 0.0) == [Deliver(b"x")]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (meta(messages.TestCasesNegotiation("negotiating", "# Test case 1\n")), "session.profile"),
        (meta(FixErrorNegotiation("negotiating", "It is wrong.")), "session.profile"),
        (meta(messages.NaturalLanguageNegotiation("REQUEST", "0123456789abcdef", "Why?")), "session.profile"),
        (natural("Why?"), "frame.form"),
        (verification(b"x"), "frame.form"),
    ],
)
def test_000_54_each_capability_unlocks_its_messages(sent: bytes, code: str) -> None:
    machine = negotiating_shop(())
    machine.receive(sent, 0.0)
    assert error_of(machine) == code


def test_000_22_and_23_every_proposal_has_the_whole_text() -> None:
    machine = negotiating_shop()
    for payload in (
        b'{"action":"protocolNegotiation","sequenceId":0,"status":"negotiating"}',
        b'{"action":"protocolNegotiation","sequenceId":0,"status":"negotiating","candidateProtocols":""}',
    ):
        machine = negotiating_shop(())
        assert rejection_in(machine.receive(frame.encode(ProtocolType.META, payload), 0.0)).startswith("meta.message: ")
        assert error_of(machine) == "meta.message"
    machine = negotiating_buyer()
    with pytest.raises(Malformed):
        machine.apply(Propose("", ""), 0.0)
    assert machine.state is HelloState.NEGOTIATING
    assert numbers(machine.apply(Propose(DOCUMENT, ""), 0.0)) == [0]


def test_000_22_23_24_and_27_a_later_proposal_has_a_summary() -> None:
    source, destination = negotiating_buyer(), negotiating_shop()
    (sent,) = source.apply(Propose(DOCUMENT, ""), 0.0)
    text, summary = DOCUMENT, ""
    for number, side in enumerate((destination, source, destination, source)):
        assert isinstance(sent, SendBinary)
        assert side.receive(sent.data, 0.0) == [Consider(text, summary, number + 1, False)]
        text, summary = text + "- one more\n", f"- {number + 1} more\n- nothing less\n"
        (sent,) = side.apply(Propose(text, summary), 0.0)
        assert said([sent]) == [ProtocolNegotiation(number + 1, "negotiating", text, summary)]


def test_000_24_and_27_a_later_proposal_says_what_it_changes() -> None:
    machine = negotiating_shop(())
    machine.receive(proposal(0), 0.0)
    with pytest.raises(Malformed) as missing:
        machine.apply(Propose("# Other\n", ""), 0.0)
    assert missing.value.code == "negotiation.answer"
    assert numbers(machine.apply(Propose("# Other\n", "- all"), 0.0)) == [1]


def test_000_27_a_later_proposal_may_lack_a_summary() -> None:
    machine = negotiating_shop()
    machine.receive(proposal(0), 0.0)
    machine.apply(Propose("# Other\n", "- all"), 0.0)
    assert machine.receive(proposal(2, "# Third\n"), 0.0) == [Consider("# Third\n", "", 3, False)]


def test_000_26_the_first_proposal_needs_no_summary() -> None:
    assert negotiating_shop().receive(proposal(0), 0.0) == [Consider(DOCUMENT, "", 1, False)]
    assert negotiating_shop().receive(proposal(0, DOCUMENT, "first"), 0.0) == [Consider(DOCUMENT, "first", 1, False)]
    assert said(negotiating_buyer().apply(Propose(DOCUMENT, ""), 0.0)) == [ProtocolNegotiation(0, "negotiating", DOCUMENT)]


# Sequence numbers


def test_000_14_and_15_numbers_start_at_0_and_go_up_by_one() -> None:
    source, destination = negotiating_buyer(), negotiating_shop()
    sent = source.apply(Propose("# 1\n", ""), 0.0)
    spoken = numbers(sent)
    for turn in range(1, 6):
        (message,) = [action for action in sent if isinstance(action, SendBinary)]
        speaker = destination if turn % 2 else source
        speaker.receive(message.data, 0.0)
        sent = speaker.apply(Propose(f"# {turn + 1}\n", "- more"), 0.0)
        spoken += numbers(sent)
    assert spoken == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("number", [0, 1])
def test_000_14_a_count_from_0_or_1_is_continued(number: int) -> None:
    machine = negotiating_shop()
    machine.receive(proposal(number), 0.0)
    assert numbers(machine.apply(Propose("# 2\n", "- more"), 0.0)) == [number + 1]


@pytest.mark.parametrize("number", [2, 3, 10, 2**31 - 1])
def test_000_18_a_first_number_beyond_that_is_refused(number: int) -> None:
    machine = negotiating_shop(())
    assert rejection_in(machine.receive(proposal(number), 0.0)) == (
        f"negotiation.message: The sequence number {number} came where 0 was due."
    )
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "negotiation.message")


@pytest.mark.parametrize(("number", "is_accepted"), [(0, True), (1, True), (2, True), (3, False), (10, False)])
def test_000_18_a_destination_starts_its_own_count(number: int, is_accepted: bool) -> None:
    machine = negotiating_buyer(())
    machine.apply(Propose(DOCUMENT, ""), 0.0)
    machine.receive(proposal(number, "# 2\n", "- more"), 0.0)
    assert (machine.state is HelloState.NEGOTIATING) == is_accepted
    if is_accepted:
        assert numbers(machine.apply(Propose("# 3\n", "- more"), 0.0)) == [number + 1]
    else:
        assert error_of(machine) == "negotiation.message"


@pytest.mark.parametrize("number", [0, 3, 4, 100])
def test_000_18_the_peers_number_must_increase_by_one(number: int) -> None:
    machine = negotiating_shop(())
    machine.receive(proposal(0), 0.0)
    machine.apply(Propose("# 2\n", "- more"), 0.0)
    assert "came where 2 was due" in rejection_in(machine.receive(proposal(number, "# 3\n", "- more"), 0.0))
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "negotiation.message")


@pytest.mark.parametrize("numbers", [(0, 2, 4, 6), (1, 3, 5, 7), (0, 1, 2, 3), (1, 2, 3, 4)])
def test_000_18_a_source_may_count_in_each_way(numbers: tuple[int, ...]) -> None:
    machine, seen = negotiating_shop(), -1
    for turn, number in enumerate(numbers):
        machine.receive(proposal(number, f"# {turn}\n", "- more"), 0.0)
        (own,) = (message for message in said(machine.apply(Propose(f"# Own {turn}\n", "- more"), 0.0)))
        assert isinstance(own, ProtocolNegotiation)
        assert own.sequence_id == max(number, seen) + 1
        seen = own.sequence_id
    assert machine.state is HelloState.NEGOTIATING


@pytest.mark.parametrize("numbers", [(1, 3, 5, 7), (2, 4, 6, 8), (0, 1, 2, 3), (1, 2, 3, 4)])
def test_000_18_a_destination_may_count_in_each_way(numbers: tuple[int, ...]) -> None:
    machine = negotiating_buyer()
    for turn, number in enumerate(numbers):
        machine.apply(Propose(f"# Own {turn}\n", "- more"), 0.0)
        machine.receive(proposal(number, f"# {turn}\n", "- more"), 0.0)
    assert machine.state is HelloState.NEGOTIATING


def test_000_18_an_acceptance_has_its_number_too() -> None:
    machine = negotiating_buyer(())
    machine.apply(Propose(DOCUMENT, ""), 0.0)
    machine.receive(verdict(5, "accepted", DOCUMENT), 0.0)
    assert error_of(machine) == "negotiation.message"


@pytest.mark.parametrize("number", ["0", -1, 1.5, True, None, 2**31, 2**60])
def test_000_18_a_number_is_a_number(number: object) -> None:
    value = {"action": "protocolNegotiation", "sequenceId": number, "candidateProtocols": "# x", "status": "negotiating"}
    machine = negotiating_shop(())
    machine.receive(frame.encode(ProtocolType.META, json.dumps(value).encode()), 0.0)
    assert machine.state is HelloState.ERROR
    assert error_of(machine) in ("meta.message", "canonical.json")


# Ends


def test_000_29_either_side_may_accept_what_the_other_proposed() -> None:
    machine = negotiating_shop()
    machine.receive(proposal(0), 0.0)
    assert machine.apply(Accept(), 0.0) == [SendBinary(verdict(1, "accepted", DOCUMENT)), Load(AGREEMENT)]
    assert (machine.state, machine.agreement) == (HelloState.AGREED, AGREEMENT)
    machine = negotiating_buyer()
    machine.apply(Propose("# 1\n", ""), 0.0)
    machine.receive(proposal(1, DOCUMENT, "- better"), 0.0)
    assert machine.apply(Accept(), 0.0) == [SendBinary(verdict(2, "accepted", DOCUMENT)), Load(AGREEMENT)]


def test_000_29_only_the_others_proposal_is_accepted() -> None:
    machine = negotiating_buyer()
    assert machine.apply(Accept(), 0.0) == []
    machine.apply(Propose(DOCUMENT, ""), 0.0)
    assert machine.apply(Accept(), 0.0) == []
    assert (machine.state, machine.agreement) == (HelloState.NEGOTIATING, None)


def test_000_29_an_acceptance_repeats_the_text_or_omits_it() -> None:
    for text in (DOCUMENT, None):
        machine = negotiating_buyer()
        machine.apply(Propose(DOCUMENT, ""), 0.0)
        assert machine.receive(verdict(1, "accepted", text), 0.0) == [Load(AGREEMENT)]
        assert machine.agreement == AGREEMENT
    for changed in (DOCUMENT + " ", DOCUMENT.strip(), "# Another\n"):
        machine = negotiating_buyer(())
        machine.apply(Propose(DOCUMENT, ""), 0.0)
        assert rejection_in(machine.receive(verdict(1, "accepted", changed), 0.0)).startswith("negotiation.message: ")
        assert (machine.state, error_of(machine), machine.agreement) == (HelloState.ERROR, "negotiation.message", None)


def test_000_29_an_acceptance_of_nothing_is_no_agreement() -> None:
    machine = negotiating_shop(())
    machine.receive(verdict(0, "accepted", DOCUMENT), 0.0)
    assert (machine.state, error_of(machine), machine.agreement) == (HelloState.ERROR, "negotiation.message", None)


@pytest.mark.parametrize("message", [proposal(2, "# 2\n", "- more"), verdict(2, "accepted", DOCUMENT)])
def test_000_29_a_side_that_speaks_out_of_turn_is_refused(message: bytes) -> None:
    machine = negotiating_shop(())
    machine.receive(proposal(0), 0.0)
    assert rejection_in(machine.receive(message, 0.0)).startswith("negotiation.message: ")
    assert (machine.state, error_of(machine), machine.agreement) == (HelloState.ERROR, "negotiation.message", None)


def test_000_28_and_29_a_rejection_ends_it_with_its_reason() -> None:
    source, destination = negotiating_buyer(), negotiating_shop()
    (sent,) = source.apply(Propose(DOCUMENT, ""), 0.0)
    assert isinstance(sent, SendBinary)
    destination.receive(sent.data, 0.0)
    answer, ended = destination.apply(Reject("No prices are given out."), 0.0)
    assert isinstance(answer, SendBinary)
    assert ended == Ended(destination.error)
    assert source.receive(answer.data, 0.0) == [Ended(source.error)]
    for machine in (source, destination):
        assert (machine.state, error_of(machine)) == (HelloState.REJECTED, "negotiation.rejected")
        assert "No prices are given out." in str(machine.error)
        assert machine.agreement is None


def test_000_28_a_source_may_reject_before_it_proposed() -> None:
    machine = negotiating_buyer()
    assert machine.apply(Reject("I do not know what to say."), 0.0)[1:] == [Ended(machine.error)]
    destination = negotiating_shop()
    destination.receive(verdict(0, "rejected", None, "I do not know what to say."), 0.0)
    assert machine.state is destination.state is HelloState.REJECTED


@pytest.mark.threat(109)
def test_a_reason_is_shown_escaped_and_not_at_any_length() -> None:
    reason = "\x1b[2JNo.\r\nAll is well \u202e\\x1b" + 5_000 * "o"
    source, destination = negotiating_buyer(), negotiating_shop()
    source.apply(Propose(DOCUMENT, ""), 0.0)
    destination.receive(proposal(0), 0.0)
    source.receive(verdict(1, "rejected", None, reason), 0.0)
    destination.apply(Reject(reason), 0.0)
    for machine in (source, destination):
        assert machine.error is not None
        assert r": \x1b[2JNo.\r\nAll is well \u202e\\x1booo" in machine.error.message
        assert machine.error.message.count("o") < 550


@pytest.mark.parametrize("status", ["timeout", "rejected"])
def test_000_28_timeout_is_read_as_rejected(status: str) -> None:
    machine = negotiating_buyer()
    machine.apply(Propose(DOCUMENT, ""), 0.0)
    value = {"action": "protocolNegotiation", "sequenceId": 1, "candidateProtocols": "", "status": status}
    machine.receive(frame.encode(ProtocolType.META, json.dumps(value).encode()), 0.0)
    assert (machine.state, error_of(machine)) == (HelloState.REJECTED, "negotiation.rejected")


@pytest.mark.parametrize("action", ["protocolNegotiation", "testCasesNegotiation", "fixErrorNegotiation"])
def test_000_28_and_38_there_is_no_other_status(action: str) -> None:
    fields = {"sequenceId": 0, "candidateProtocols": DOCUMENT, "testCases": "# T", "errorDescription": "# E"}
    others = ("generated", "error", "REQUEST", "undecided", "finished", "Accepted", "accepted ", "", None, 0, True, ["accepted"])
    for status in others:
        machine = negotiating_shop(())
        value = {"action": action, **fields, "status": status}
        machine.receive(frame.encode(ProtocolType.META, json.dumps(value).encode()), 0.0)
        assert (machine.state, error_of(machine)) == (HelloState.ERROR, "meta.message"), status


def test_without_a_model_a_proposal_is_rejected_with_reason() -> None:
    destination = negotiating_shop(negotiates=False)
    answer, ended = destination.receive(proposal(0), 0.0)
    assert (destination.state, error_of(destination)) == (HelloState.REJECTED, "session.no-model")
    assert ended == Ended(destination.error)
    assert isinstance(answer, SendBinary)
    source = negotiating_buyer()
    source.apply(Propose(DOCUMENT, ""), 0.0)
    source.receive(answer.data, 0.0)
    assert (source.state, error_of(source)) == (HelloState.REJECTED, "negotiation.rejected")
    assert "no language model" in str(source.error)


# The limit


def exchange(source: Machine, destination: Machine, *, proposals: int) -> list[Action]:
    """So many proposals, and what the last one led to."""
    sent = source.apply(Propose("# 1\n", ""), 0.0)
    led: list[Action] = []
    for turn in range(1, proposals + 1):
        (message,) = [action for action in sent if isinstance(action, SendBinary)]
        listener = destination if turn % 2 else source
        led = listener.receive(message.data, 0.0)
        if turn < proposals:
            sent = listener.apply(Propose(f"# {turn + 1}\n", "- more"), 0.0)
    return led


def test_000_17_the_tenth_message_is_the_last() -> None:
    source, destination = negotiating_buyer(), negotiating_shop()
    assert exchange(source, destination, proposals=8) == [Consider("# 8\n", "- more", 8, False)]
    (ninth,) = source.apply(Propose("# 9\n", "- more"), 0.0)
    assert isinstance(ninth, SendBinary)
    assert destination.receive(ninth.data, 0.0) == [Consider("# 9\n", "- more", 9, True)]
    tenth, _ = destination.apply(Accept(), 0.0)
    assert isinstance(tenth, SendBinary)
    assert numbers([tenth]) == [9]
    source.receive(tenth.data, 0.0)
    assert source.state is destination.state is HelloState.AGREED


def test_000_17_a_tenth_proposal_is_a_rejection_on_this_side() -> None:
    source, destination = negotiating_buyer(), negotiating_shop()
    exchange(source, destination, proposals=9)
    answer, ended = destination.apply(Propose("# 10\n", "- more"), 0.0)
    assert ended == Ended(destination.error)
    assert [message.status for message in said([answer]) if isinstance(message, ProtocolNegotiation)] == ["rejected"]
    assert (destination.state, error_of(destination)) == (HelloState.REJECTED, "negotiation.limit")
    assert isinstance(answer, SendBinary)
    source.receive(answer.data, 0.0)
    assert (source.state, error_of(source)) == (HelloState.REJECTED, "negotiation.rejected")


def test_000_17_a_tenth_proposal_of_the_peer_ends_it() -> None:
    source, destination = negotiating_buyer(), negotiating_shop()
    exchange(source, destination, proposals=9)
    assert "limit of messages" in rejection_in(source.receive(proposal(9, "# 10\n", "- more"), 0.0))
    assert (source.state, error_of(source)) == (HelloState.REJECTED, "negotiation.limit")


@pytest.mark.parametrize("rounds", [2, 3, 6])
def test_000_16_the_limit_is_the_owners_choice(rounds: int) -> None:
    limits = Limits(rounds=rounds)
    source, destination = negotiating_buyer(limits=limits), negotiating_shop(limits=limits)
    (considered,) = exchange(source, destination, proposals=rounds - 1)
    assert isinstance(considered, Consider)
    assert considered.last


# The official SDK


def test_000_29_one_stale_acceptance_is_ignored() -> None:
    for echo in (verdict(1, "accepted", DOCUMENT), verdict(1, "accepted")):
        machine = negotiating_shop(())
        machine.receive(proposal(1), 0.0)
        machine.apply(Accept(), 0.0)
        assert machine.receive(echo, 0.0) == []
        assert machine.receive(GENERATED, 0.0) == []
        assert machine.state is HelloState.AGREED
        machine.receive(echo, 0.0)
        assert (machine.state, error_of(machine)) == (HelloState.ERROR, "meta.message")


def test_a_repeated_acceptance_of_another_text_is_refused() -> None:
    machine = negotiating_shop(())
    machine.receive(proposal(1), 0.0)
    machine.apply(Accept(), 0.0)
    machine.receive(verdict(1, "accepted", "# Another\n"), 0.0)
    assert error_of(machine) == "negotiation.message"


def test_nothing_but_an_acceptance_is_repeated() -> None:
    machine = negotiating_shop(())
    machine.receive(proposal(1), 0.0)
    machine.apply(Accept(), 0.0)
    machine.receive(proposal(2, "# 2\n", "- more"), 0.0)
    assert error_of(machine) == "meta.message"


def test_000_28_a_late_rejection_ends_the_session() -> None:
    machine = agreed_shop()
    assert machine.receive(verdict(1, "rejected", None, "We changed our mind."), 0.0) == [Ended(machine.error)]
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "negotiation.rejected")
    assert "We changed our mind." in str(machine.error)


def test_the_sdks_three_conversations() -> None:
    counter = negotiating_shop()
    counter.receive(proposal(1), 0.0)
    assert numbers(counter.apply(Propose("# 2\n", "- more"), 0.0)) == [2]
    counter.receive(verdict(3, "accepted", "# 2\n"), 0.0)
    assert counter.state is HelloState.AGREED
    reject = negotiating_shop()
    reject.receive(proposal(1), 0.0)
    assert numbers(reject.apply(Reject("no"), 0.0)) == [2]
    assert reject.receive(verdict(1, "rejected"), 0.0) == []
    failed = negotiating_buyer()
    failed.apply(Propose(DOCUMENT, ""), 0.0)
    failed.receive(verdict(0, "rejected", None, "Error during evaluation: no key"), 0.0)
    assert (failed.state, error_of(failed)) == (HelloState.REJECTED, "negotiation.rejected")


# After the agreement


def test_000_56_57_and_58_both_sides_hash_the_agreed_text() -> None:
    source, destination = negotiating_buyer(), negotiating_shop()
    source.apply(Propose("# Another\n", ""), 0.0)
    destination.receive(proposal(0, "# Another\n"), 0.0)
    destination.apply(Propose(GOODS, "- All of it."), 0.0)
    source.receive(proposal(1, GOODS, "- All of it."), 0.0)
    source.apply(Accept(), 0.0)
    destination.receive(verdict(2, "accepted"), 0.0)
    for machine in (source, destination):
        assert machine.agreement == Agreement("", GOODS_HASH, False, GOODS)


@pytest.mark.parametrize("other", ["# Another\n", GOODS.rstrip("\n"), GOODS.replace("\n", "\r\n"), "\ufeff" + GOODS])
def test_000_57_code_for_a_text_of_another_hash_ends_the_session(other: str) -> None:
    machine = negotiating_shop()
    machine.receive(proposal(0, GOODS), 0.0)
    machine.apply(Accept(), 0.0)
    digest = hashlib.sha256(other.encode()).hexdigest()
    assert machine.apply(CodeReady(digest), 0.0) == [SendBinary(failed("session.hash-mismatch")), Ended(machine.error)]
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "session.hash-mismatch")


def test_000_32_both_sides_say_that_their_code_is_ready() -> None:
    wire = Wire.join(source_hello(()), {})
    wire.source, wire.destination = negotiating_buyer(), negotiating_shop()
    wire.to_destination.clear()
    wire.perform("source", wire.source.apply(Propose(DOCUMENT, ""), 0.0))
    wire.deliver("destination")
    wire.perform("destination", wire.destination.apply(Accept(), 0.0))
    wire.settle()
    assert wire.source.state is wire.destination.state is HelloState.RUNNING
    assert [message for _, message in wire.sent].count(GENERATED) == 2
    assert wire.source.agreement == wire.destination.agreement == AGREEMENT


def test_000_33_34_and_35_the_agreement_needs_code() -> None:
    machine = agreed_shop()
    assert machine.deadline == 15.0
    machine.tick(15.0)
    assert (machine.state, error_of(machine)) == (HelloState.TIMEOUT, "session.code-timeout")
    machine = agreed_shop()
    machine.receive(FAILED, 0.0)
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "session.peer-code")
    machine = agreed_shop()
    assert machine.apply(CodeReady(OTHER_HASH), 0.0) == [SendBinary(failed("session.hash-mismatch")), Ended(machine.error)]
    assert error_of(machine) == "session.hash-mismatch"


def test_codes_are_not_ready_before_there_is_an_agreement() -> None:
    machine = negotiating_shop(())
    assert machine.apply(CodeReady(HASH), 0.0) == []
    machine.receive(GENERATED, 0.0)
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "meta.message")


def test_code_that_fails_before_an_agreement_is_not_reported() -> None:
    for make in (buyer, negotiating_buyer):
        machine, cause = make(), TreatyError("x.y", "No.")
        assert machine.apply(CodeFailed(cause), 0.0) == [Ended(cause)]


def test_application_messages_wait_for_an_agreement() -> None:
    machine = negotiating_shop(())
    machine.receive(application(b"x"), 0.0)
    assert error_of(machine) == "frame.form"
    machine = negotiating_shop()
    assert machine.apply(Send(b"x"), 0.0) == []
    machine.receive(proposal(0), 0.0)
    machine.apply(Accept(), 0.0)
    machine.apply(CodeReady(HASH), 0.0)
    assert machine.receive(GENERATED, 0.0) == [actions.Running(), SendBinary(application(b"x"))]


def test_000_61_an_unconfirmed_offer_is_negotiated() -> None:
    hello = source_hello((), offered=HASH)
    source = buyer(hello, negotiates=True)
    early = source.apply(Send(b"early", early=True), 0.0)
    source.apply(Send(b"kept"), 0.0)
    destination = shop({}, negotiates=True)
    (answer,) = destination.receive(hello.format(), 0.0)
    assert isinstance(answer, actions.SendText)
    assert isinstance(early[0], SendBinary)
    assert destination.receive(early[0].data, 0.0) == []
    assert source.receive(answer.text, 0.0) == [Draft()]
    assert destination.receive(proposal(0), 0.0) == [Consider(DOCUMENT, "", 1, False)]


# Deadlines


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (negotiating_shop, "other side did not answer"),
        (negotiating_buyer, "no decision"),
    ],
)
def test_a_turn_takes_at_most_60_seconds(make: Callable[[], Machine], sentence: str) -> None:
    machine = make()
    assert machine.deadline == 60.0
    assert machine.tick(59.9) == []
    machine.tick(60.0)
    assert (machine.state, error_of(machine)) == (HelloState.TIMEOUT, "session.reply-timeout")
    assert sentence in str(machine.error)


def test_every_turn_has_its_time_anew() -> None:
    machine = negotiating_shop()
    machine.receive(proposal(0), 50.0)
    assert machine.deadline == 110.0
    machine.apply(Propose("# 2\n", "- more"), 100.0)
    assert machine.deadline == 160.0


def test_a_connection_that_is_lost_while_negotiating_is_an_error() -> None:
    machine = negotiating_shop()
    machine.receive(proposal(0), 0.0)
    machine.lost()
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "session.peer-lost")
    machine = negotiating_shop()
    machine.lost("session.no-common-protocol")
    assert (machine.state, error_of(machine)) == (HelloState.REJECTED, "session.no-common-protocol")


# Notices


@pytest.mark.parametrize("capabilities", [NAMED, ()])
def test_000_39_a_rule_broken_early_is_answered_by_rejection(capabilities: tuple[str, ...]) -> None:
    machine = negotiating_shop(capabilities)
    assert rejection_in(machine.receive(proposal(7), 0.0)).startswith("negotiation.message: ")
    assert machine.receive(proposal(7), 0.0) == []


def test_000_39_a_rule_broken_later_is_reported_once() -> None:
    machine = agreed_shop()
    notice, ended = machine.receive(proposal(7), 0.0)
    assert ended == Ended(machine.error)
    (message,) = said([notice])
    assert isinstance(message, FixErrorNegotiation)
    assert message.status == "negotiating"
    assert message.error_description.startswith("meta.message: ")
    assert machine.receive(proposal(7), 0.0) == []


def test_000_39_an_error_notice_needs_the_capability() -> None:
    machine = negotiating_shop(tuple(name for name in NAMED if name != "fixErrorNegotiation"))
    machine.receive(proposal(0), 0.0)
    machine.apply(Accept(), 0.0)
    assert machine.receive(proposal(7), 0.0) == [Ended(machine.error)]


def test_a_failure_of_this_side_is_told_by_its_code_alone() -> None:
    machine = negotiating_shop()
    machine.receive(proposal(0), 0.0)
    assert rejection_in(machine.fail(Unavailable("model.unavailable", "10.0.0.7 does not answer."))) == "model.unavailable"


def test_a_peer_whose_time_is_up_is_told() -> None:
    for machine in (negotiating_buyer(), negotiating_shop()):
        assert rejection_in(machine.tick(60.0)).startswith("session.reply-timeout: ")
        assert machine.state is HelloState.TIMEOUT


# Without a model


def test_000_54_a_provided_protocols_text_needs_no_model() -> None:
    machine = shop({URI: Provided(HASH, False)})
    machine.receive(source_hello(()).format(), 0.0)
    agreed = Agreement(URI, HASH, False)
    assert machine.receive(proposal(0, DOCUMENT), 0.0) == [SendBinary(verdict(1, "accepted", DOCUMENT)), Load(agreed)]
    assert machine.apply(CodeReady(HASH), 0.0) == [SendBinary(GENERATED)]
    machine.receive(GENERATED, 0.0)
    assert machine.state is HelloState.RUNNING


@pytest.mark.parametrize("make", [negotiating_buyer, negotiating_shop, agreed_shop])
def test_000_39_whoever_is_told_and_has_no_code_to_mend_ends_too(make: Callable[[], Machine]) -> None:
    machine = make()
    machine.receive(meta(FixErrorNegotiation("negotiating", "negotiation.message: 7 came where 0 was due.\x1b")), 0.0)
    assert (machine.state, error_of(machine)) == (HelloState.ERROR, "negotiation.fault")
    assert "7 came where 0 was due.\\x1b" in str(machine.error)


# Sizes


def test_000_20_the_largest_document_fits_in_every_spelling() -> None:
    for text in (
        "求" * (protocol.MAX_DOCUMENT // 3),
        "\n" * (protocol.MAX_DOCUMENT - 1) + "x",
        "я" * (protocol.MAX_DOCUMENT // 2),
    ):
        assert isinstance(negotiating_buyer().apply(Propose(text, ""), 0.0)[0], SendBinary)
        value = {"action": "protocolNegotiation", "sequenceId": 1, "candidateProtocols": text, "status": "negotiating"}
        escaped = b"\x00" + json.dumps(value).encode()  # as the official SDK writes it: in ASCII
        assert negotiating_shop().receive(escaped, 0.0) == [Consider(text, "", 1, False)]


def test_a_larger_document_is_refused_in_both_directions() -> None:
    text = "x" * (protocol.MAX_DOCUMENT + 1)
    machine = negotiating_buyer()
    with pytest.raises(TooLarge):
        machine.apply(Propose(text, ""), 0.0)
    assert numbers(machine.apply(Propose(DOCUMENT, ""), 0.0)) == [0]
    machine = negotiating_shop(())
    value = {"action": "protocolNegotiation", "sequenceId": 0, "candidateProtocols": text, "status": "negotiating"}
    machine.receive(b"\x00" + json.dumps(value).encode(), 0.0)
    assert error_of(machine) == "frame.too-large"


def test_a_reason_that_is_too_long_changes_nothing() -> None:
    machine = negotiating_shop()
    machine.receive(proposal(0), 0.0)
    with pytest.raises(TooLarge):
        machine.apply(Reject("x" * (messages.MAX_SUMMARY + 1)), 0.0)
    assert numbers(machine.apply(Reject("no"), 0.0)) == [1]


def test_a_decision_after_the_end_does_nothing() -> None:
    machine = negotiating_shop()
    machine.receive(proposal(0), 0.0)
    machine.close()
    late: list[Callable[[], list[Action]]] = [
        lambda: machine.apply(Propose("# 2\n", "- more"), 0.0),
        lambda: machine.apply(Accept(), 0.0),
        lambda: machine.apply(Reject("no"), 0.0),
        lambda: machine.apply(CodeFailed(TreatyError("x.y", "No.")), 0.0),
        lambda: machine.receive(meta(CodeGeneration("generated")), 0.0),
    ]
    assert [act() for act in late] == [[]] * len(late)
