"""Check the values of operations against a manifest's schemas."""

from __future__ import annotations

from treaty_consensus.errors import Malformed
from treaty_consensus.handler import Manifest, Operation, OperationKind
from treaty_handler import Failure, Value
from treaty_io.codes import OperationCode

from .argument_names import name_fault
from .schemas import Schemas, ValidationBudget

MAX_FAILURE_TEXT = 500


class Operations:
    """A manifest's operations with compiled schemas. Raises `Refused` (`handler.schema`) for an invalid schema."""

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
