"""Describe a public method as an operation: its schemas by its type hints, the rest by its docstring.

    def greet(self, name: str) -> str:
        \"\"\"Greet someone by name.

        >>> greet("Ada")
        'Hello, Ada.'

        Raises:
            OperationError: 404: Nobody has this name.
        \"\"\"

A line with `OperationError` and a status lists an error. The examples are lines of doctest that call the method with literals;
an answer that is a literal is taken as it stands, for a stream the list of its items.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from treaty_consensus.errors import Malformed, TreatyError
from treaty_io.codes import AgentCode

from ..sessions.operations import schemas_of

NO_ANSWER: Final = object()
"""The answer of an example that states none, or one that is no literal."""
_ERROR = re.compile(r"OperationError[(:\s]+(?P<status>[0-9]{1,9})\)?[:,\s]+(?P<meaning>\S.*)")
_RAISES = re.compile(r"\s*Raises:?\s*")


@dataclass(frozen=True, slots=True)
class MethodExample:
    """A call in a docstring. `answer`: what it returns, or `NO_ANSWER`."""

    arguments: dict[str, Any]
    answer: object


@dataclass(frozen=True, slots=True)
class DescribedMethod:
    """An operation. `function`: bound, maybe to no object of its class. `text`: the docstring without examples and errors."""

    name: str
    function: Callable[..., Any]
    text: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    errors: dict[int, str]
    examples: tuple[MethodExample, ...]

    @property
    def is_stream(self) -> bool:
        """Whether it yields items."""
        return inspect.isasyncgenfunction(self.function)

    @property
    def needs_arguments(self) -> bool:
        """Whether a call has to give arguments."""
        return bool(self.arguments["required"])


def describe_method(name: str, function: Callable[..., Any]) -> DescribedMethod:
    """Describe a bound method. Raises `Malformed` (`agent.function`), which names the hint or the line."""
    try:
        arguments, result = schemas_of(function)
    except TreatyError as error:
        fix = "Use the types of JSON: str, int, float, bool, None, list, dict, TypedDict, dataclasses, Literal, unions of them."
        raise Malformed(AgentCode.FUNCTION, error.message, fix=fix) from error
    if inspect.isgeneratorfunction(function):
        raise fault_of(name, "it yields items and is not async", fix="Write `async def` before it.")
    try:
        parts = doctest.DocTestParser().parse(inspect.getdoc(function) or "", name)
        examples = tuple(_examples(name, list(arguments["properties"]), parts))  # type: ignore[call-overload]
    except ValueError as error:
        raise fault_of(name, f"its examples cannot be read: {error}") from error
    lines = "".join(part for part in parts if isinstance(part, str)).splitlines()
    errors = {int(match["status"]): match["meaning"].strip() for line in lines if (match := _ERROR.search(line))}
    text_lines = [line for line in lines if not _ERROR.search(line) and not _RAISES.fullmatch(line)]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(text_lines)).strip()
    return DescribedMethod(name, function, text, arguments, result, errors, examples)


def fault_of(name: str, fault: str, fix: str = "") -> Malformed:
    """Return the error for a class or a method of it that is no protocol."""
    return Malformed(AgentCode.FUNCTION, f"{name} cannot become an operation: {fault}.", fix=fix)


def _examples(name: str, parameters: list[str], parts: list[str | doctest.Example]) -> Iterator[MethodExample]:
    for part in parts:
        if isinstance(part, str):
            continue
        try:
            call = ast.parse(part.source.strip(), mode="eval").body
        except SyntaxError:  # a statement: it prepares something, and calls nothing
            continue
        call = call.value if isinstance(call, ast.Await) else call
        if not isinstance(call, ast.Call) or _called(call.func) != name:
            continue
        if len(call.args) > len(parameters) or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError(f"{part.source.strip()} does not fit its parameters")
        nodes = dict(zip(parameters, call.args, strict=False)) | {str(word.arg): word.value for word in call.keywords}
        try:
            arguments = {key: ast.literal_eval(value) for key, value in nodes.items()}
        except ValueError as error:
            raise ValueError(f"{part.source.strip()} has arguments that are no literals") from error
        yield MethodExample(arguments, _literal(part.want))


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return NO_ANSWER
