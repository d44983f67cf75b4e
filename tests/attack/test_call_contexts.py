"""A peer that sends contexts of calls: huge ones, wrong ones, floods, and spoofed traces."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from connections import ConnectionWrapper
from meetings import LAPTOP, TOPIC, URI_2, Party, buyer, meeting, shop

from treaty_agent import Call, CallContext, Proceed, Session, TraceContext, Unavailable, current_call
from treaty_agent.testing import run
from treaty_agent.transport.connection import Connection
from treaty_anp.frame import ProtocolType, encode
from treaty_anp.hello_profile.messages import MAX_SEQUENCE
from treaty_consensus.errors import TreatyError

SPOOFED = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", flags=1)


def context(**members: Any) -> bytes:
    return encode(ProtocolType.META, json.dumps({"action": "callContext", **members}).encode())


class Injecting(ConnectionWrapper):
    """A connection of a hostile initiator: before its first application message it sends other ones, in place of its context."""

    def __init__(self, inner: Connection, injected: Iterable[bytes]) -> None:
        super().__init__(inner)
        self.injected = injected

    def send(self, message: str | bytes) -> None:
        if isinstance(message, bytes) and b'"callContext"' in message:
            message = message[message.index(b"\n@") + 1 :]  # without its own context
        if isinstance(message, bytes) and message[0] >> 6 == 1:
            for other in self.injected:
                super().send(other)
            self.injected = ()
        super().send(message)


def noting(seller: Party, seen: list[CallContext]) -> None:
    @seller.agent.middleware
    async def note(call: Call, proceed: Proceed) -> Any:
        seen.append(call.context)
        assert current_call() == call.context
        return await proceed()


def attack(tmp_path: Path, *injected: bytes) -> list[CallContext]:
    """Call the shop once, with these messages before the call. Return the contexts that its middleware saw."""
    seen: list[CallContext] = []

    async def main() -> None:
        seller, customer = shop(tmp_path, URI_2), buyer(tmp_path)
        noting(seller, seen)
        async with meeting(seller) as wire, customer.agent.connect_over(Injecting(wire, injected), topic=TOPIC) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP

    run(main())
    return seen


@pytest.mark.parametrize(
    "members",
    [
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-00"},
        {"traceparent": "\x1b[31m\n trace=forged"},
        {"traceparent": SPOOFED.traceparent.upper()},
        {"traceparent": SPOOFED.traceparent + "x" * 100_000},
        {"tracestate": "a=1"},
        {},
        {"unknown": ["x" * 1000] * 1000},
    ],
)
@pytest.mark.threat(180)
def test_a_context_without_a_trace_by_the_rules_begins_a_new_one(tmp_path: Path, members: dict[str, Any]) -> None:
    (seen,) = attack(tmp_path, context(**members))
    assert seen.trace.parent_id == ""
    assert TraceContext.parse(seen.trace.traceparent) is not None
    assert seen.trace.state == ""


@pytest.mark.threat(180)
def test_a_huge_state_is_dropped_and_the_trace_is_kept(tmp_path: Path) -> None:
    (seen,) = attack(tmp_path, context(traceparent=SPOOFED.traceparent, tracestate="a=" + "x" * 500_000))
    assert (seen.trace.trace_id, seen.trace.parent_id, seen.trace.state) == (SPOOFED.trace_id, SPOOFED.span_id, "")


@pytest.mark.parametrize(
    "members",
    [
        {"traceparent": 7},
        {"tracestate": ["a=1"]},
        {"timeout": -1},
        {"timeout": MAX_SEQUENCE + 1},
        {"timeout": "1"},
        {"timeout": 1e400},
    ],
)
@pytest.mark.threat(180)
def test_a_context_member_of_another_type_ends_the_session(tmp_path: Path, members: dict[str, Any]) -> None:
    seen: list[CallContext] = []

    async def main() -> None:
        seller, customer = shop(tmp_path, URI_2), buyer(tmp_path)
        noting(seller, seen)
        async with (
            meeting(seller) as wire,
            customer.agent.connect_over(Injecting(wire, [context(**members)]), topic=TOPIC) as session,
        ):
            with pytest.raises(TreatyError):
                await session.call("getProductInfo", productId="P12345")
        assert seen == []

    run(main())


@pytest.mark.threat(180)
def test_of_a_flood_of_contexts_the_last_one_counts(tmp_path: Path) -> None:
    flood = [context(traceparent=TraceContext.new().traceparent, tracestate="a=" + "x" * 400) for _ in range(5000)]
    (seen,) = attack(tmp_path, *flood, context(traceparent=SPOOFED.traceparent))
    assert (seen.trace.trace_id, seen.trace.state) == (SPOOFED.trace_id, "")


def test_a_context_does_not_outlive_its_message(tmp_path: Path) -> None:
    seen: list[CallContext] = []

    async def main() -> None:
        seller, customer = shop(tmp_path, URI_2), buyer(tmp_path)
        noting(seller, seen)
        first = context(traceparent=SPOOFED.traceparent, timeout=5000)
        async with meeting(seller) as wire, customer.agent.connect_over(Injecting(wire, [first]), topic=TOPIC) as session:
            for _ in range(2):
                await session.call("getProductInfo", productId="P12345")

    run(main())
    assert (seen[0].trace.trace_id, seen[1].trace.parent_id) == (SPOOFED.trace_id, "")
    assert seen[0].time_left <= 5.0


@pytest.mark.threat(180)
def test_a_claimed_time_cannot_be_longer_than_the_operations(tmp_path: Path) -> None:
    (long,) = attack(tmp_path, context(timeout=MAX_SEQUENCE))
    assert long.deadline - long.clock() <= 60.0


@pytest.mark.threat(180)
def test_a_spoofed_trace_cannot_forge_lines_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "treaty_agent"):
        attack(tmp_path, context(traceparent="00-x\n2026-11-23 ERROR forged-01", tracestate="a=1\n2026 ERROR forged"))
        attack(tmp_path, context(traceparent=SPOOFED.traceparent, tracestate="a=1\n2026 ERROR forged"))
    assert "forged" not in caplog.text
    assert f"trace={SPOOFED.trace_id}" in caplog.text


def test_an_unlisted_context_is_an_unknown_message(tmp_path: Path) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path, URI_2), buyer(tmp_path)
        async with meeting(seller) as wire:
            hiding = Unlisting(wire, [context(traceparent=SPOOFED.traceparent)])
            async with customer.agent.connect_over(hiding, topic=TOPIC) as session:
                await refused(session)

    run(main())


class Unlisting(Injecting):
    """The initiator's Hello does not list `callContext`."""

    def send(self, message: str | bytes) -> None:
        super().send(message.replace('"callContext"', '"other"') if isinstance(message, str) else message)


async def refused(session: Session) -> None:
    with pytest.raises(Unavailable) as ended:
        await session.call("getProductInfo", productId="P12345")
    assert "session.profile" in str(ended.value)
