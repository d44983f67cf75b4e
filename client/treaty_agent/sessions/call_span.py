"""Record a call as a span of OpenTelemetry, linked with the span of the other side.

    CLIENT  payment/pay   {rpc.system.name: treaty, rpc.method: payment/pay, rpc.response.status_code: operation.402, …}
    SERVER  payment/pay   the same trace, below the CLIENT span of the other agent

The names are those of the semantic conventions for RPC. The span's ids travel as the `traceparent` of the call. A span of the
caller that was not recorded (flags 00) is no parent, because a sampler would follow it and record nothing; the span then has a
trace of its own, and a link to it.

A status 400 to 499 is the caller's mistake: the span of the server is no error. Texts of errors and arguments are not recorded.
"""

from __future__ import annotations

from contextvars import Token
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from treaty_anp.trace_context import TraceContext
from treaty_consensus.handler import OperationKind
from treaty_consensus.printable import printable
from treaty_io import tracing
from treaty_io.identity import ProvedPeer

from .operation_errors import OperationError

if TYPE_CHECKING:
    from .call_context import CallContext

_CANCELLED = "cancelled"


class CallSpan:
    """The span of one call. Make it only while `tracing.is_on`; always call `end`. `context`: the call's, with the ids of the
    span as its trace."""

    def __init__(self, context: CallContext, kind: OperationKind, *, incoming: bool) -> None:
        """Begin the span, and make it the current one."""
        from opentelemetry import context as current
        from opentelemetry.trace import Link, SpanKind, get_current_span, set_span_in_context

        came, self._incoming = context.trace, incoming
        caller = tracing.received(replace(came, span_id=came.parent_id or "0" * 16).traceparent, came.state) if incoming else None
        is_recorded = incoming and bool(came.flags & 1)
        # Of a caller that records nothing: a link, and no parent.
        link = get_current_span(caller).get_span_context()
        self._span = tracing.tracer().start_span(
            _method(context),
            caller if is_recorded else (tracing.received("") if incoming else None),
            SpanKind.SERVER if incoming else SpanKind.CLIENT,
            _attributes(context, kind),
            [Link(link)] if incoming and not is_recorded and link.is_valid else None,
        )
        own = self._span.get_span_context()
        self.context = context
        if is_recorded or not incoming:
            # Otherwise the trace of the caller stays: both sides find the call in their logs by it.
            ids = f"{own.trace_id:032x}", f"{own.span_id:016x}"
            state = own.trace_state.to_header()
            self.context = replace(context, trace=TraceContext(*ids, came.parent_id, int(own.trace_flags), state))
        # The taker of a stream may be another task each time, and a context is left where it was entered.
        is_current = incoming or kind is not OperationKind.STREAM
        self._token: Token[Any] | None = current.attach(set_span_in_context(self._span)) if is_current else None

    def end(self, status: str, error: BaseException | None) -> None:
        """End the span. `status`: as in the log of calls. `error`: the exception of the call."""
        from opentelemetry import context as current
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("rpc.response.status_code", status)
        if error is not None:
            self._span.set_attribute("error.type", status)
        if error is not None and status != _CANCELLED and not (self._incoming and _is_callers(error)):
            self._span.set_status(StatusCode.ERROR)
        if self._token is not None:
            current.detach(self._token)
        self._span.end()


def _is_callers(error: BaseException) -> bool:
    return isinstance(error, OperationError) and 400 <= error.status <= 499


def _method(context: CallContext) -> str:
    """Return the name of a protocol without its version, and of the operation."""
    parts = context.protocol.rstrip("/").split("/")
    name = parts[-2] if len(parts) > 1 else "treaty"
    return printable(f"{name}/{context.operation}", 128)


def _attributes(context: CallContext, kind: OperationKind) -> dict[str, str | bool]:
    return {
        "rpc.system.name": "treaty",
        "rpc.method": _method(context),
        "treaty.protocol": context.protocol,
        "treaty.operation": printable(context.operation, 64),
        "treaty.operation.kind": kind.value,
        "treaty.role": context.role,
        "treaty.peer": printable(context.peer.did, 200),
        "treaty.peer.proved": isinstance(context.peer, ProvedPeer),
        "treaty.session": context.session,
    }
