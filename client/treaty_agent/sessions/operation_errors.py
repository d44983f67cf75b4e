"""The errors of an operation: those that a caller gets, and the failure that is sent for an exception of a function.

    the function raises                the caller gets                      the operator's log and events have
    OperationError(status)             the status, with its message         nothing
    OperationError of another agent    502 if the manifest lists it,        operation.upstream
                                       else 500
    Unavailable                        503                                  operation.unavailable
    TimeoutError, or it is late        504                                  nothing
    a status that is not listed        500                                  operation.wrong-result
    anything else                      500                                  operation.uncaught
    (its value breaks the schema)      500                                  operation.wrong-result
    (its value is too large)           500                                  operation.too-large

The texts of exceptions may be confidential, so they stay in the log of this side. The caller gets the trace id of the log's line.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from treaty_consensus.errors import Malformed, Origin, TreatyError, Unavailable
from treaty_consensus.handler import Operation, OperationKind
from treaty_consensus.printable import printable
from treaty_handler import Failure
from treaty_io.codes import OperationCode, SessionCode
from treaty_io.line_limit import limited_logger
from treaty_sandbox.schemas import ValueTooLarge

MAX_MESSAGE = 500
_TOO_MANY_REQUESTS = 429
_GATEWAY = frozenset({502, 503, 504})
_SAID = {
    OperationCode.UPSTREAM: "Another agent that the other side asked answered with an error.",
    OperationCode.UNAVAILABLE: "A service that the other side needs is not available at present.",
    OperationCode.TOO_LARGE: "The answer is too large.",
}
_FAILED = "The other side's business logic failed."
_log = limited_logger(__name__)


class OperationError(TreatyError):
    """Report that an operation failed with a status of the protocol. `status`: 100 to 599 as in HTTP, else the protocol's own;
    `code` is `operation.STATUS`. `trace_id`: of the call, "" before it was made."""

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(f"operation.{status}", message or f"The operation failed with status {status}.")
        self.status = status

    @property
    def origin(self) -> Origin:
        """The caller for 400 to 499, else the peer."""
        return Origin.CALLER if 400 <= self.status <= 499 else Origin.PEER

    @property
    def retryable(self) -> bool:
        """Whether the call was not done for now (429)."""
        return self.status == _TOO_MANY_REQUESTS


class PeerOperationError(OperationError):
    """Report that the other agent failed an operation that this side called. A function that does not catch it fails with 502 or
    500, so that the caller does not take it for the function's own; to pass it on, raise `OperationError(error.status, …)`.

    `operation`: its declaration in the manifest, or None.
    """

    def __init__(self, status: int, message: str, operation: Operation | None) -> None:
        super().__init__(status, message)
        self.operation = operation

    @property
    def retryable(self) -> bool:
        """Whether the call was not done for now (429), or may be done twice (502, 503 and 504 of an idempotent operation)."""
        is_idempotent = self.operation is not None and self.operation.idempotent
        return super().retryable or (is_idempotent and self.status in _GATEWAY)


class OutcomeUnknown(Unavailable):
    """Report that a call was sent and not answered, so that it is unknown whether it was done (`session.outcome-unknown`).
    `operation`: its declaration in the manifest; an idempotent one may be called again. `trace_id`: of the call."""

    def __init__(self, name: str, why: str, operation: Operation | None) -> None:
        super().__init__(
            SessionCode.OUTCOME_UNKNOWN,
            f"{why} It is unknown whether {name} was done.",
            fix="Ask the other side before you call again, unless doing it twice is harmless.",
        )
        self.operation = operation

    @property
    def retryable(self) -> bool:
        """Whether the operation may be done twice."""
        return self.operation is not None and self.operation.idempotent


def busy() -> OperationError:
    """Return the error for an operation that waited too long for its turn."""
    return OperationError(503, "The other side is busy. The operation was not begun.")


def wrong_kind(operation: Operation) -> Malformed:
    """Return the error for a stream that is called, or for another operation that is iterated over."""
    if operation.kind is OperationKind.STREAM:
        return Malformed(
            SessionCode.OPERATION,
            f"{operation.name} is a stream.",
            fix=f'Take its items: async for item in session.stream("{operation.name}", …).',
        )
    return Malformed(
        SessionCode.OPERATION, f"{operation.name} is no stream.", fix=f'Call it: await session.call("{operation.name}", …).'
    )


class FunctionFault(NamedTuple):
    """A failure of a business function that its operator should know. `code`: an `OperationCode`. `trace_id`: in the log's line,
    and in the caller's message. `peer`: the DID of the caller."""

    code: OperationCode
    operation: str
    trace_id: str
    peer: str


OnFault: TypeAlias = Callable[[FunctionFault], None]
"""Take a failure of a business function."""


class FunctionFailures:
    """Turn the failures of a session's functions into answers, and report them to the operator."""

    def __init__(self, peer: str = "", on_fault: OnFault | None = None) -> None:
        """`peer`: the DID of the other side, for the log; "" in a shared role, where each call has its own."""
        self._peer, self._on_fault = peer, on_fault

    def raised(self, operation: Operation, error: Exception, trace_id: str = "", peer: str = "") -> Failure:
        """Return the answer for an exception of the function. `trace_id`: of the call; without one the failure gets its own.
        `peer`: of the call, where the session has several."""
        match error:
            case PeerOperationError():
                status = 502 if 502 in operation.errors else 500
                return self._failed(OperationCode.UPSTREAM, operation, error, trace_id, peer, status=status)
            case OperationError() if not operation.may_fail_with(error.status):
                return self._failed(OperationCode.WRONG_RESULT, operation, error, trace_id, peer)
            case OperationError():
                # With its trace, because the caller has the status alone, and the reason is here.
                caller = printable(peer or self._peer, 200) or "-"
                _log.info("%s: %s for %s refused, trace=%s: %r", error.code, operation.name, caller, trace_id, error.message)
                return Failure(code=error.status, message=error.message[:MAX_MESSAGE])
            case Unavailable():
                return self._failed(OperationCode.UNAVAILABLE, operation, error, trace_id, peer, status=503)
            case TimeoutError():
                return Failure(code=504, message=f"No answer came within {operation.timeout} seconds.")
        return self._failed(OperationCode.UNCAUGHT, operation, error, trace_id, peer)

    def broke(self, operation: Operation, error: TreatyError, trace_id: str = "", peer: str = "") -> Failure:
        """Return the answer for a value or an item that breaks the contract of the operation. `error`: the broken rule.
        `trace_id`, `peer`: as in `raised`."""
        code = OperationCode.TOO_LARGE if isinstance(error, ValueTooLarge) else OperationCode.WRONG_RESULT
        return self._failed(code, operation, error, trace_id, peer)

    def _failed(
        self, code: OperationCode, operation: Operation, error: Exception, trace_id: str, peer: str, *, status: int = 500
    ) -> Failure:
        trace_id, peer = trace_id or secrets.token_hex(16), peer or self._peer
        # A foreseen failure needs no traceback: its message says everything.
        trace = error if code is OperationCode.UNCAUGHT else None
        caller = printable(peer, 200) or "-"
        _log.error("%s: %s for %s failed, trace=%s: %r", code, operation.name, caller, trace_id, str(error), exc_info=trace)
        if self._on_fault is not None:
            self._on_fault(FunctionFault(code, operation.name, trace_id, peer))
        return Failure(code=status, message=f"{_SAID.get(code, _FAILED)} Its log has trace {trace_id}.")
