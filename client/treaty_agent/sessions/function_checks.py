"""Check the functions of an agent against the operations of a protocol, before a peer can call them.

A function has to take all arguments that the manifest declares, and must require no other ones. An argument that a caller may
leave out needs a default. A function with `**kwargs` takes every argument.

    operation search: to, date required, limit optional, no other arguments

    async def search(to, date, limit=10)     fits
    async def search(to, date)               does not take limit
    async def search(to, date, limit)        limit needs a default: a caller may leave it out
    async def search(to, date, **more)       fits
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from inspect import Parameter

from treaty_consensus.errors import Malformed, NotFound
from treaty_consensus.handler import Operation, Role
from treaty_io.codes import AgentCode

from .operations import Function, Functions

_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def check_functions(functions: Functions, role: Role, uri: str) -> None:
    """Check that there is a function of the right kind for each operation that the role invokes. Raises `NotFound`
    (`agent.function-missing`) and `Malformed` (`agent.function-kind`, `agent.function`)."""
    for name, operation in role.invokes.items():
        parameter = functions.context_parameter(name)
        if parameter and parameter in operation.arguments.get("properties", {}):
            raise Malformed(
                AgentCode.FUNCTION,
                f"The function of {name} takes its context as {parameter}, which is an argument of the operation in {uri}.",
                fix="Give the parameter that is annotated CallContext another name.",
            )
    missing = functions.missing(role.invokes)
    if missing:
        raise NotFound(
            AgentCode.FUNCTION_MISSING,
            f"No function serves {', '.join(missing)}, which the role {role.name} of {uri} needs.",
            fix="Register a function of that name: @agent.provides(URI), or @agent.offers for negotiated protocols. For one "
            "session that this side opens: connect(…, serving=[…]), and likewise peer. For the other side of it: role=.",
        )
    misfits = functions.misfits(role.invokes.values())
    if misfits:
        raise Malformed(
            AgentCode.FUNCTION_KIND,
            f"The functions of {', '.join(misfits)} do not have the kind that {uri} gives these operations.",
            fix="Write the function of a stream with `async def` and `yield`, and other functions without `yield`.",
        )


def check_signatures(functions: Functions, role: Role, uri: str) -> None:
    """Check that each function takes the arguments of its operation. All faults are named together. Raises `Malformed`
    (`agent.function-signature`)."""
    faults = [
        f"{name} {fault}"
        for name, operation in role.invokes.items()
        for fault in _faults(functions.get(name), operation, functions.context_parameter(name))
    ]
    if faults:
        raise Malformed(
            AgentCode.FUNCTION_SIGNATURE,
            f"The functions do not fit the operations of {uri}: {'; '.join(faults)}.",
            fix="Name the parameters as the manifest names the arguments, with a default for each that is not required.",
        )


def _faults(function: Function, operation: Operation, context: str) -> Iterator[str]:
    try:
        parameters = [one for one in inspect.signature(function).parameters.values() if one.name != context]
    except (TypeError, ValueError):  # of a function in C: its first call shows what it takes
        return
    schema = operation.arguments
    declared, required = schema.get("properties", {}), schema.get("required", ())
    named = {one.name: one for one in parameters if one.kind in _NAMED}
    if not any(one.kind is Parameter.VAR_KEYWORD for one in parameters):
        for argument in declared:
            if argument not in named:
                yield f"does not take the argument {argument}"
    # A schema that declares nothing allows any arguments: then the function knows more than the manifest.
    is_open = not declared and schema.get("additionalProperties") is not False
    for name, parameter in named.items():
        if parameter.default is Parameter.empty and name not in required and not is_open:
            why = "a caller may leave it out" if name in declared else "the operation has no such argument"
            yield f"requires {name}, and {why}"
    for parameter in parameters:
        if parameter.kind is Parameter.POSITIONAL_ONLY and parameter.default is Parameter.empty:
            yield f"takes {parameter.name} by position, and arguments have names"
