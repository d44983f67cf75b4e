"""The metadata of a call, which both profiles carry: its trace, and how long its caller waits.

    {"traceparent": TEXT, "tracestate": TEXT, "timeout": MILLISECONDS}

All members are optional. A trace that breaks the rules of W3C Trace Context counts as absent (`trace_context`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from .trace_context import TraceContext

MAX_TIMEOUT = 2**31 - 1  # so that a peer with 32-bit integers can read it


class CallMetadata(msgspec.Struct, frozen=True):
    """The trace and the time of a call. `timeout`: the milliseconds that the caller waits from now on, at most `MAX_TIMEOUT`."""

    trace: TraceContext | None = None
    timeout: int | None = None


class _Members(msgspec.Struct, frozen=True):
    traceparent: str | None = None
    tracestate: str | None = None
    timeout: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMEOUT)] | None = None


def call_fields(metadata: CallMetadata) -> dict[str, str | int]:
    """Return the members; the inverse of `parse_call_metadata`."""
    trace, fields = metadata.trace, dict[str, str | int]()
    if trace is not None:
        fields["traceparent"] = trace.traceparent
        if trace.state:
            fields["tracestate"] = trace.state
    if metadata.timeout is not None:
        fields["timeout"] = metadata.timeout
    return fields


def parse_call_metadata(value: object) -> CallMetadata:
    """Parse the members; others are ignored. Raises `msgspec.ValidationError`."""
    members = msgspec.convert(value, _Members)
    trace = TraceContext.parse(members.traceparent, members.tracestate or "") if members.traceparent else None
    return CallMetadata(trace, members.timeout)
