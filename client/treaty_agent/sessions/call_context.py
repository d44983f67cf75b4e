"""The context of a call: who calls, how long there is, and the trace that the call belongs to.

    @agent.provides("https://registry.example/protocols/example.com/payment/1.0")
    async def cancel(payment: str, context: CallContext) -> dict:
        if payments[payment].owner != context.peer:  # a `ProvedPeer`, which no claim is equal to
            raise OperationError(403, "Only its owner cancels a payment.")

A function takes it as the parameter annotated `CallContext`, of any name, which is no argument of the operation. Code deeper down
gets it by `current_call()`. A call that a function makes continues the trace of its own call.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from treaty_anp.trace_context import TraceContext
from treaty_consensus.errors import Malformed
from treaty_io.codes import AgentCode
from treaty_io.identity import UNNAMED, ClaimedPeer, ProvedPeer

_NO_PARAMETERS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class CallContext:
    """The context of one call. In a test, make one: `CallContext(peer=ProvedPeer("did:wba:buyer.example"))`.

    `peer`: the other side, a `ProvedPeer` or a `ClaimedPeer`. A claim gives no rights: compare with a `ProvedPeer`.
    `call`: the id of the call in this side's session.
    `operation`, `protocol` (the URI), `role` (this side's): of the call.
    `session`: the session's id on the wire.
    `parameters`: the agreed parameters of the session.
    `trace`: the span of this call. It is a claim of the peer, so it decides nothing.
    `deadline`: when the answer is due, by `clock`; `time_left` is what most functions need.
    """

    peer: ProvedPeer | ClaimedPeer = UNNAMED
    call: str = ""
    operation: str = ""
    protocol: str = ""
    role: str = ""
    session: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    trace: TraceContext = field(default_factory=TraceContext.new)
    deadline: float = math.inf
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    @property
    def time_left(self) -> float:
        """The seconds until the answer is due, at least 0; infinity for a stream, whose time is that of each item. It may be read
        in any thread."""
        return max(self.deadline - self.clock(), 0.0)


class CallOrigin(NamedTuple):
    """The common part of all calls of one session, at this side. The fields are those of `CallContext`. `is_initiator`: whether
    this side opened the session."""

    peer: ProvedPeer | ClaimedPeer = UNNAMED
    protocol: str = ""
    role: str = ""
    session: str = ""
    parameters: Mapping[str, Any] = _NO_PARAMETERS
    is_initiator: bool = False

    def context(self, call: str, operation: str, trace: TraceContext, deadline: float, clock: Callable[[], float]) -> CallContext:
        """Return the context of one call."""
        return CallContext(
            peer=self.peer,
            call=call,
            operation=operation,
            protocol=self.protocol,
            role=self.role,
            session=self.session,
            parameters=self.parameters,
            trace=trace,
            deadline=deadline,
            clock=clock,
        )


_current: ContextVar[CallContext | None] = ContextVar("treaty_call", default=None)


def current_call() -> CallContext | None:
    """Return the context of the call that this code works for, or None. The tasks and threads of `asyncio.to_thread` that a
    function starts have it, too."""
    return _current.get()


def enter_call(context: CallContext) -> None:
    """Make a context the current one, for the rest of this task."""
    _current.set(context)


def trace_id() -> str:
    """Return the id of the current call's trace, or "" outside of calls. For log lines."""
    context = _current.get()
    return context.trace.trace_id if context else ""


def next_trace() -> TraceContext:
    """Return the span of a call that this code makes: the current call is its parent, if there is one."""
    context = _current.get()
    return context.trace.child() if context else TraceContext.new()


def context_parameter(function: Callable[..., Any]) -> str:
    """Return the name of the parameter that takes the context, or "". Raises `Malformed` (`agent.function`) for one that has no
    name, or for several."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions of the interpreter have no signature
        return ""
    matching = [parameter for parameter in parameters if _is_context(function, parameter.annotation)]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if len(matching) > 1 or any(parameter.kind not in named for parameter in matching):
        raise Malformed(
            AgentCode.FUNCTION,
            f"{getattr(function, '__name__', repr(function))} cannot be registered: one named parameter takes the context.",
        )
    return matching[0].name if matching else ""


def _is_context(function: Callable[..., Any], annotation: Any) -> bool:
    if not isinstance(annotation, str):
        return annotation is CallContext or CallContext in get_args(annotation)
    try:
        # The text is the application's own, as for `typing.get_type_hints`.
        evaluated = eval(annotation, getattr(inspect.unwrap(function), "__globals__", {}))  # noqa: S307
    except Exception:  # a name that only a type checker knows
        return annotation.rpartition(".")[2] == CallContext.__name__
    return not isinstance(evaluated, str) and _is_context(function, evaluated)
