"""Each call is a span on both sides, below the span of its caller, with the names of the semantic conventions."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from treaty_agent import CallContext, ClaimedPeer, OperationError, TraceContext, current_call
from treaty_agent.sessions.call_span import CallSpan
from treaty_agent.testing import Simulation, run
from treaty_consensus.handler import OperationKind
from treaty_io import tracing

PAYMENT = Path(__file__).parents[1] / "support" / "payment"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider)
    try:
        yield exporter
    finally:
        tracing.stop()


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def of_calls(spans: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    """The spans of calls, by `KIND METHOD`."""
    named: dict[str, list[ReadableSpan]] = {}
    for span in spans.get_finished_spans():
        if "rpc.method" in facts(span):
            named.setdefault(f"{span.kind.name} {span.name}", []).append(span)
    return named


def meet(traces: list[str]) -> None:
    """Two calls, one of them refused, of which the second calls back; and a stream that is left early."""

    async def main() -> None:
        async with Simulation([PAYMENT]) as simulation:
            uri = simulation.uri("payment")
            host, guest = simulation.agent("host.example"), simulation.agent("guest.example")

            @host.provides(uri, role="payee")
            async def pay(amount: int) -> str:
                call = current_call()
                assert call is not None
                traces.append(call.trace.trace_id)
                (session,) = host.sessions()
                if not await session.call("approve", amount=amount):
                    raise OperationError(402, "The payer did not approve.")
                async with session.stream("numbers") as numbers:
                    return f"paid {await anext(numbers)}"

            @host.provides(uri, role="payee")
            async def count() -> int:
                return 7

            async def approve(amount: int) -> bool:
                return amount <= 100

            async def numbers() -> AsyncIterator[int]:
                for number in range(1000):
                    yield number

            peer = guest.peer("wss://host.example", protocols=[uri], role="payer", serving=[approve, numbers])
            async with simulation.serving(host), peer:
                assert await peer.call("pay", amount=1) == "paid 0"
                with pytest.raises(OperationError) as refused:
                    await peer.call("pay", amount=101)
                traces.append(refused.value.trace_id)

    run(main())


def test_both_sides_of_a_call_are_spans_of_one_trace(spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture) -> None:
    traces: list[str] = []
    with caplog.at_level(logging.INFO):
        meet(traces)
    calls = of_calls(spans)
    assert {name: len(calls_of_name) for name, calls_of_name in calls.items()} == {
        f"{side} payment/{operation}": count
        for side in ("CLIENT", "SERVER")
        for operation, count in (("pay", 2), ("approve", 2), ("numbers", 1))
    }
    for out, inside in zip(calls["CLIENT payment/pay"], calls["SERVER payment/pay"], strict=True):
        assert inside.parent is not None
        assert inside.parent.span_id == out.context.span_id
        assert inside.parent.is_remote
        assert inside.context.trace_id == out.context.trace_id
    # The call back belongs to the function that makes it, and crosses the wire the other way.
    by_id = {span.context.span_id: span for span in spans.get_finished_spans() if span.context is not None}
    for back, served in zip(calls["CLIENT payment/approve"], calls["SERVER payment/pay"], strict=True):
        assert back.parent is not None
        assert by_id[back.parent.span_id] is served
    assert f"{calls['SERVER payment/pay'][0].context.trace_id:032x}" == traces[0], "the log and the error name the span's trace"
    assert f"{calls['CLIENT payment/pay'][1].context.trace_id:032x}" == traces[1] == traces[2]
    paid, refused = calls["CLIENT payment/pay"]
    assert facts(refused) | {"treaty.session": ""} == {
        "rpc.system.name": "treaty",
        "rpc.method": "payment/pay",
        "rpc.response.status_code": "operation.402",
        "error.type": "operation.402",
        "treaty.protocol": facts(refused)["treaty.protocol"],
        "treaty.operation": "pay",
        "treaty.operation.kind": "request",
        "treaty.role": "payer",
        "treaty.peer": "did:wba:host.example",
        "treaty.peer.proved": False,
        "treaty.session": "",
    }
    assert str(facts(refused)["treaty.protocol"]).endswith("/payment/1.0")
    assert (paid.status.status_code.name, refused.status.status_code.name) == ("UNSET", "ERROR")
    assert calls["SERVER payment/pay"][1].status.status_code.name == "UNSET", "the mistake of the caller"
    assert facts(calls["SERVER payment/pay"][1])["rpc.response.status_code"] == "operation.402"
    left = calls["CLIENT payment/numbers"][0]
    assert (facts(left)["error.type"], left.status.status_code.name) == ("cancelled", "UNSET")
    (line,) = [one.getMessage() for one in caplog.records if "refused, trace=" in one.getMessage()]
    assert line == (f"operation.402: pay for did:wba:guest.example refused, trace={traces[1]}: 'The payer did not approve.'")


def test_a_caller_that_records_nothing_is_linked(spans: InMemorySpanExporter) -> None:
    """As an agent without OpenTelemetry: its flags are 00, and a sampler that follows its parents would drop the call."""
    came = TraceContext.new()
    served = CallContext(peer=ClaimedPeer("did:wba:guest.example"), operation="pay", trace=came.child())
    span = CallSpan(served, OperationKind.REQUEST, incoming=True)
    span.end("ok", None)
    (recorded,) = spans.get_finished_spans()
    assert recorded.parent is None
    assert [f"{link.context.span_id:016x}" for link in recorded.links] == [came.span_id]
    assert span.context.trace == served.trace, "both logs name the caller's trace"


def test_without_a_tracer_a_trace_still_crosses_the_wire() -> None:
    traces: list[str] = []
    assert not tracing.is_on()
    meet(traces)
    assert traces[1] == traces[2] != traces[0]
