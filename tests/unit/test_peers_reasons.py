"""The reason that a peer gives for the end of a session is data: a family that fits its code, and the code itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meta_peers import (
    FAILED,
    HASH,
    URI,
    buyer,
    destination_hello,
    failed,
    meta,
    negotiating_shop,
    proposal,
    source_hello,
    verdict,
)

from treaty_anp.ending import ended_by_peer
from treaty_anp.flow_profile.errors import peers_error
from treaty_anp.flow_profile.payloads import ErrorReport
from treaty_anp.hello_profile.commands import CodeReady, Propose
from treaty_anp.hello_profile.machine import Machine
from treaty_anp.hello_profile.messages import CodeGeneration, parse
from treaty_consensus.errors import Origin, Refused, TreatyError, Unavailable
from treaty_io.codes import FlowCode, SessionCode
from treaty_io.errors import MAX_PEER_CODE, PeerUnavailable

HOSTILE = [
    "\x1b]0;owned\x07\x1b[2J",
    "<script>alert(1)</script>",
    "hello.version\x1b[2J",
    "line\r\nERROR forged",
    "x" * 1024 * 1024,
    "a." * 500_000,
    "\u202e\ud800",
    "HELLO.VERSION",
    " session.idle",
]


def agreed_buyer() -> Machine:
    machine = buyer()
    machine.receive(destination_hello(used=HASH, selected=URI).format(), 0.0)
    return machine


def running_buyer() -> Machine:
    machine = buyer(source_hello(offered=HASH))
    machine.receive(destination_hello(used=HASH).format(), 0.0)
    machine.apply(CodeReady(HASH), 0.0)
    return machine


def ended(reason: str) -> TreatyError:
    return ended_by_peer(reason, "The other side ended it", SessionCode.PEER_LOST, SessionCode.PEER_REFUSED)


@pytest.mark.parametrize(
    "code",
    [
        "session.idle",
        "session.no-worker",
        "secure.truncated",
        "sandbox.limit",
        "sandbox.died",
        "connection.busy",
        "session.protocol",
        "registry.unreachable",
        "checkpoint.stale",
    ],
)
def test_a_reason_that_may_pass_is_unavailable(code: str) -> None:
    error = ended(code)
    assert (type(error), error.code, error.peer_code, error.retryable) == (PeerUnavailable, "session.peer-lost", code, True)
    assert error.origin is Origin.PEER


@pytest.mark.parametrize(
    "code",
    [
        "hello.destination",
        "hello.version",
        "status.revoked",
        "frame.too-large",
        "sandbox.unavailable",
        "foreign.code",
        "nonsense",
    ],
)
def test_a_reason_that_does_not_pass_is_refused(code: str) -> None:
    error = ended(code)
    assert (error.family, error.code, error.peer_code, error.retryable) == ("Refused", "session.peer-refused", code, False)


def test_an_end_without_a_reason_may_be_repeated() -> None:
    error = ended("")
    assert (type(error), error.code, error.peer_code, error.origin) == (PeerUnavailable, "session.peer-lost", "", Origin.NETWORK)


@pytest.mark.parametrize("code", ["authentication.time", "secure.stale", "flow.stale"])
def test_a_reason_about_time_names_the_clock(code: str) -> None:
    error = ended(code)
    assert isinstance(error, Refused)
    assert "clock" in error.fix


@pytest.mark.parametrize("reason", HOSTILE)
def test_a_hostile_reason_is_short_printable_and_permanent(reason: str) -> None:
    error = ended(reason)
    assert error.code == "session.peer-refused"
    assert 0 < len(error.peer_code) <= MAX_PEER_CODE
    assert error.peer_code.isprintable()
    assert len(str(error)) < 300
    assert str(error).isprintable()


@given(st.text(max_size=200))
def test_every_reason_is_bounded(reason: str) -> None:
    error = ended(reason)
    assert len(error.peer_code) <= MAX_PEER_CODE
    assert error.peer_code.isprintable()
    assert isinstance(error, Unavailable) == (error.code == "session.peer-lost")


@pytest.mark.parametrize(
    ("make", "code", "family"), [(running_buyer, "session.idle", "Unavailable"), (buyer, "hello.destination", "Refused")]
)
def test_the_machine_of_the_hello_profile_says_it(make: Callable[[], Machine], code: str, family: str) -> None:
    machine = make()
    machine.lost(code)
    assert machine.error is not None
    assert (machine.error.family, machine.error.peer_code) == (family, code)


@pytest.mark.parametrize(
    ("reason", "family", "retryable"),
    [
        ("registry.unreachable", "Unavailable", True),
        ("checkpoint.stale", "Unavailable", True),
        ("status.revoked", "Refused", False),
    ],
)
def test_code_that_is_not_ready_may_be_ready_later(reason: str, family: str, retryable: bool) -> None:
    machine = agreed_buyer()
    machine.receive(failed(reason), 0.0)
    assert machine.error is not None
    assert machine.error.code == SessionCode.PEER_CODE
    assert (machine.error.family, machine.error.peer_code, machine.error.retryable) == (family, reason, retryable)


def test_another_make_says_no_reason() -> None:
    machine = agreed_buyer()
    machine.receive(FAILED, 0.0)
    assert machine.error is not None
    assert (machine.error.family, machine.error.peer_code) == ("Refused", "")


@pytest.mark.parametrize(
    "reason", ['"\\u001b[2J"', "7", "null", '{"a":1}', '["session.idle"]', '"' + "x" * 100_000 + '"', '"<b>a.b</b>"']
)
def test_a_hostile_reason_of_code_generation_is_none(reason: str) -> None:
    message = parse(f'{{"action":"codeGeneration","status":"error","reason":{reason}}}'.encode())
    assert message == CodeGeneration("error")


def test_a_refused_hello_may_be_accepted_later() -> None:
    for reason, family in (("session.no-worker: All are busy.", "Unavailable"), ("hello.version: There is none.", "Refused")):
        machine = buyer()
        machine.receive(verdict(0, "rejected", None, reason), 0.0)
        assert machine.error is not None
        assert (machine.error.code, machine.error.family, machine.error.peer_code) == (
            "hello.refused",
            family,
            reason.split(":")[0],
        )


def test_a_rejected_negotiation_has_the_code() -> None:
    machine = negotiating_shop()
    machine.receive(proposal(0), 0.0)
    machine.apply(Propose("# Another\n", "- all"), 0.0)
    machine.receive(verdict(2, "rejected", None, "session.reply-timeout: Too late."), 0.0)
    assert machine.error is not None
    assert (machine.error.code, machine.error.peer_code) == ("negotiation.rejected", "session.reply-timeout")


def test_an_error_message_of_the_flow_profile_has_both_codes() -> None:
    report = ErrorReport(error_code="BUSY", error_message="No.", details={"reason": "flow.busy"})
    error = peers_error(report)
    assert (error.code, error.peer_code, error.family) == (FlowCode.BUSY, "flow.busy", "Unavailable")
    for details in ({}, {"reason": 7}, {"reason": "\x1b[2J"}):
        error = peers_error(ErrorReport(error_code="VERSION\x1b[2J", error_message="\x1b", details=details))
        assert error.peer_code == "VERSION\\x1b[2J"
        assert str(error).isprintable()


def test_our_own_message_is_read_again() -> None:
    assert parse(meta(CodeGeneration("error", "registry.unreachable"))[1:]) == CodeGeneration("error", "registry.unreachable")
