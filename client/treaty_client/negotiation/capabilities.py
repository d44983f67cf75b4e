"""What the destination's functions demand of a protocol: their names, arguments and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import jsonschema_rs
import msgspec

from treaty_consensus.errors import Refused
from treaty_consensus.printable import printable
from treaty_handler import Value

from .negotiator import Capability
from .test_cases import Success, TestCase


def described(capabilities: Sequence[Capability]) -> str:
    """The capabilities as JSON, for a model; "" where there are none."""
    return msgspec.json.format(msgspec.json.encode(capabilities), indent=1).decode("utf-8") if capabilities else ""


def check_operations(capabilities: Sequence[Capability], operations: Iterable[str]) -> None:
    """Raises `Refused` (`negotiation.capability`) for an operation that no function serves. Nothing is checked on a side that
    offers nothing: the source."""
    known = {capability.name for capability in capabilities}
    missing = [name for name in operations if name not in known]
    if known and missing:
        raise Refused(
            "negotiation.capability",
            f"No function serves the operation {printable(missing[0], 80)}. There are: {', '.join(sorted(known))}.",
        )


def check_cases(capabilities: Sequence[Capability], cases: Sequence[TestCase]) -> None:
    """Raises `Refused` (`negotiation.capability`) for a case that the functions' schemas do not allow."""
    check_operations(capabilities, (case.operation for case in cases))
    functions = {capability.name: capability for capability in capabilities}
    for number, case in enumerate(cases, 1):
        function = functions.get(case.operation)
        if function is None:
            continue
        _check(function.arguments, dict(case.arguments), f"The arguments object of test case {number}")
        if isinstance(case.outcome, Success):
            _check(function.result, case.outcome.value, f"The result of test case {number}")


def _check(schema: Mapping[str, object], value: Value, what: str) -> None:
    try:
        jsonschema_rs.validate(dict(schema), value)
    except jsonschema_rs.ValidationError as error:
        place = printable("".join(f".{step}" for step in error.instance_path), 100)
        said = f"{what} is not what the function takes or gives, at ${place}: {printable(error.message, 300)}."
        raise Refused("negotiation.capability", said) from error
