"""Check the values of operations against a manifest's schemas.

An error says which arguments of a call are unknown and which are missing:

book has no argument guestt, and lacks guest. Its arguments: guest, nights.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from treaty_consensus.errors import Malformed
from treaty_consensus.handler import Manifest, Operation, OperationKind
from treaty_consensus.printable import printable
from treaty_handler import Failure, Value
from treaty_io.codes import OperationCode

from .schemas import Schemas, ValidationBudget, ValueTooLarge

MAX_FAILURE_TEXT = 500


class Operations:
    """A manifest's operations with compiled schemas. Raises `Refused` (`handler.manifest`) for an invalid schema."""

    def __init__(self, manifest: Manifest) -> None:
        schemas = Schemas()
        self.interface = manifest.interface
        self._arguments = {name: schemas.compile(item.arguments, name) for name, item in manifest.operations.items()}
        self._results = {
            name: schemas.compile(item.result, name) for name, item in manifest.operations.items() if item.result is not None
        }

    def check_arguments(self, operation: Operation, value: Value, budget: ValidationBudget) -> None:
        """Check the arguments of an operation. `budget`: shared by all values of the event.

        Raises `Malformed` (`operation.arguments`).
        """
        try:
            self._arguments[operation.name].check(value, OperationCode.ARGUMENTS, f"The arguments of {operation.name}", budget)
        except Malformed as error:
            raise name_fault(operation, value, error) from error

    def check_value(self, operation: Operation, value: Value, budget: ValidationBudget) -> None:
        """Check the result of a request, or an item of a stream. Raises `Malformed` (`operation.result`)."""
        noun = "items" if operation.kind is OperationKind.STREAM else "results"
        self._results[operation.name].check(value, OperationCode.RESULT, f"The {noun} of {operation.name}", budget)

    def check_answer(self, operation: Operation, value: Value, error: Failure | None, budget: ValidationBudget) -> None:
        """Check an answer: the value against its schema, or the error's code against the manifest. The end of a stream and the
        answer to an event have no value.

        Raises `Malformed` (`operation.result`).
        """
        if error is None:
            if operation.kind is OperationKind.REQUEST:
                self.check_value(operation, value, budget)
            elif value is not None:
                raise Malformed(OperationCode.RESULT, f"{operation.name} is a {operation.kind}; it ends without a value.")
            return
        if value is not None:
            raise Malformed(OperationCode.RESULT, f"{operation.name} answered with a value and an error at once.")
        if not operation.may_fail_with(error.code):
            raise Malformed(
                OperationCode.RESULT,
                f"{operation.name} failed with code {error.code:d}, which its manifest does not list.",
                fix="Use one of the codes under `errors`, or 500.",
            )
        if len(error.message) > MAX_FAILURE_TEXT:
            raise Malformed(OperationCode.RESULT, f"An error's message has at most {MAX_FAILURE_TEXT} characters.")


MAX_NAMES = 12
"""Arguments of each kind that an error names."""


def name_fault(operation: Operation, value: Value, error: Malformed) -> Malformed:
    """Return the error for arguments that break the schema of their operation: one that names the wrong names, else `error`."""
    if not isinstance(value, dict) or isinstance(error, ValueTooLarge):
        return error
    # JSON Schema names one fault. A misspelt argument is two: it is unknown, and the right one is missing.
    schema: Any = operation.arguments
    properties = schema.get("properties", {})
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    unknown = _listed(name for name in value if name not in properties) if is_closed else ""
    missing = _listed(name for name in schema.get("required", ()) if name not in value)
    faults = (f"has no argument {unknown}" if unknown else "", f"lacks {missing}" if missing else "")
    if not any(faults):
        return error
    message = f"{operation.name} {', and '.join(filter(None, faults))}."
    return Malformed(error.code, message, fix=f"Its arguments: {_listed(properties) or 'none'}.")


def _listed(names: Iterable[str]) -> str:
    """Return names in a row, at most `MAX_NAMES`: a caller may send thousands."""
    printable_names = [printable(name, 40) for name in islice(names, MAX_NAMES + 1)]
    return ", ".join((*printable_names[:MAX_NAMES], "…") if len(printable_names) > MAX_NAMES else printable_names)
