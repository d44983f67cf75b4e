"""The errors of an operation: those that a caller gets, and the failure that is sent for an exception of a function."""

from __future__ import annotations

import logging

from treaty_consensus.errors import Malformed, TreatyError, Unavailable
from treaty_consensus.handler import Operation, OperationKind
from treaty_handler import Failure

from ..codes import OperationCode, SessionCode

# The text of an exception may be confidential, so the peer does not get it.
FAILED = Failure(code=500, message="The other side's business logic failed.")
_log = logging.getLogger(__name__)


class OperationError(TreatyError):
    """Report that an operation failed with a status of the protocol. `status`: 100 to 599 as in HTTP, else the protocol's own;
    `code` is `operation.STATUS`."""

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(f"operation.{status}", message or f"The operation failed with status {status}.")
        self.status = status


class OutcomeUnknown(Unavailable):
    """Report that a call was sent and not answered, so that it is unknown whether it was done (`session.outcome-unknown`).
    `operation`: its declaration in the manifest; an idempotent one may be called again."""

    def __init__(self, name: str, why: str, operation: Operation | None) -> None:
        super().__init__(
            SessionCode.OUTCOME_UNKNOWN,
            f"{why} It is unknown whether {name} was done.",
            fix="Ask the other side before you call again, unless doing it twice is harmless.",
        )
        self.operation = operation


def busy() -> OperationError:
    """Return the error for an operation that waited too long for its turn."""
    return OperationError(503, "The other side is busy. The operation was not begun.")


def wrong_kind(operation: Operation) -> Malformed:
    """Return the error for a stream that is called, or for another operation that is iterated over."""
    if operation.kind is OperationKind.STREAM:
        return Malformed(
            OperationCode.KIND,
            f"{operation.name} is a stream.",
            fix=f'Take its items: async for item in session.stream("{operation.name}", …).',
        )
    return Malformed(
        OperationCode.KIND, f"{operation.name} is no stream.", fix=f'Call it: await session.call("{operation.name}", …).'
    )


def failure_of(operation: Operation, error: Exception) -> Failure:
    """Return the failure that the peer gets for an exception of the function, and log an exception that it should not raise."""
    if isinstance(error, OperationError):
        return Failure(code=error.status, message=error.message[:500])
    if isinstance(error, TimeoutError):
        return Failure(code=504, message=f"No answer came within {operation.timeout} seconds.")
    _log.error("The function %s raised", operation.name, exc_info=error)
    return FAILED
