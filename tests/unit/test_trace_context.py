"""Trace contexts: the rules of W3C Trace Context, and what breaks them."""

from __future__ import annotations

import pytest

from treaty_agent import TraceContext
from treaty_anp.trace_context import MAX_STATE

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_traceparent_is_read_and_written() -> None:
    read = TraceContext.parse(PARENT, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")
    assert read == TraceContext(TRACE, SPAN, flags=1, state="congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")
    assert read is not None
    assert read.traceparent == PARENT


@pytest.mark.parametrize(
    "text",
    [
        "",
        PARENT.upper(),
        PARENT + "-00",
        " " + PARENT,
        PARENT + "\n",
        PARENT.replace("00-", "01-", 1),
        PARENT.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0g",
        f"00-{TRACE[:-1]}\u0661-{SPAN}-01",
    ],
)
def test_a_traceparent_that_breaks_the_rules_is_none(text: str) -> None:
    assert TraceContext.parse(text, "a=1") is None


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("a=1,b=2", "a=1,b=2"),
        ("a=1 ,\tb=2,,", "a=1,b=2"),
        ("tenant@system=x y", "tenant@system=x y"),
        ("a=1,a=2", ""),
        ("A=1", ""),
        ("a=\x1b[31m", ""),
        ("a=ü", ""),
        ("a", ""),
        ("a=" + "x" * MAX_STATE, ""),
        (",".join(f"k{number}=v" for number in range(33)), ""),
        (",".join(f"k{number}=v" for number in range(32)), ",".join(f"k{number}=v" for number in range(32))),
    ],
)
def test_a_tracestate_that_breaks_the_rules_is_dropped_alone(text: str, state: str) -> None:
    assert TraceContext.parse(PARENT, text) == TraceContext(TRACE, SPAN, flags=1, state=state)


def test_a_child_has_a_new_span_of_the_same_trace() -> None:
    parent = TraceContext(TRACE, SPAN, flags=1, state="a=1")
    child = parent.child()
    assert (child.trace_id, child.parent_id, child.flags, child.state) == (TRACE, SPAN, 1, "a=1")
    assert child.span_id != SPAN
    assert TraceContext.parse(child.traceparent) is not None


def test_a_new_trace_is_random_and_not_recorded() -> None:
    one, other = TraceContext.new(), TraceContext.new()
    assert (one.flags, one.state, one.parent_id) == (0, "", "")
    assert len({one.trace_id, other.trace_id, one.span_id, other.span_id}) == 4
