"""Write a project from a class: each public method is an operation of a protocol without code.

    class Greeter:                                           greeter.py
        \"\"\"Greet people.\"\"\"

        def greet(self, name: str) -> str: ...

    await write_class_project(Path("greeting"), load_class("greeter:Greeter"), NewProtocol("greeting", "social/greeting"))

The manifest has a request for each method, and a stream for each async generator; the document has their docstrings. The vectors
are made of the examples in the docstrings. Where an example states no answer, or a method without examples can be called without
arguments, an object of the class answers.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType, MethodType
from typing import Any

from treaty_client.authoring.building import build
from treaty_client.authoring.manifest import manifest_problems
from treaty_client.authoring.new_project import MAX_SUMMARY, NewProtocol, check_free, project_head, write_files
from treaty_client.protocols.project import DOCUMENT, MANIFEST, load_project
from treaty_client.protocols.project_file import TOML
from treaty_consensus.errors import Malformed
from treaty_consensus.handler import VECTORS, HandlerPackage, Operation
from treaty_consensus.printable import printable
from treaty_handler import Failure
from treaty_io.codes import AgentCode
from treaty_sandbox import SandboxPool
from treaty_sandbox.vectors import LOCAL, PEER

from ..sessions.call_context import CallContext
from ..sessions.operation_errors import OperationError
from ..sessions.operations import Functions
from .checked_files import write_checked
from .class_document import class_prose
from .described_method import NO_ANSWER, DescribedMethod, MethodExample, describe_method, fault_of
from .exchange import AnsweredCall, Exchange, with_errors
from .two_roles import NOT_CONFORMING, PROVIDER, REQUESTER, manifest_of

_TIMEOUT = 10
# A stream may have no end.
_MAX_ITEMS = 8


def load_class(place: str) -> type:
    """Return the class at `module:Class`. Raises `Malformed` (`agent.function`), also for an exception of the module."""
    module, _, name = place.partition(":")
    fix = "Write module:Class, such as greeter:Greeter, in the folder of greeter.py."
    try:
        loaded = getattr(importlib.import_module(module), name)
    except Exception as error:  # the module is code of the author, and may raise anything
        raise Malformed(AgentCode.FUNCTION, f"{place} cannot be loaded: {type(error).__name__}: {error}.", fix=fix) from error
    if not isinstance(loaded, type):
        raise Malformed(AgentCode.FUNCTION, f"{place} is no class.", fix=fix)
    return loaded


async def write_class_project(folder: Path, described: type, new: NewProtocol) -> list[Path]:
    """Write a project from a class, and return its files. They pass `check_project`, or none is written.

    Raises `Conflict` (`system.exists`), and `Malformed` (`agent.function`), which names the method and the fault.
    """
    check_free(folder)
    protocol = ClassProtocol(described, new)
    with TemporaryDirectory() as scratch:
        # The rules are those of every project, so it is one, before it is the author's.
        place = Path(scratch) / "project"
        write_files(place, protocol.files)
        files = {**protocol.files, **await protocol.vectors(build(load_project(place)))}
    try:
        return await write_checked(folder, files)
    except ValueError as error:
        raise Malformed(AgentCode.FUNCTION, f"{described.__name__} cannot become a protocol: {error}") from error


class ClassProtocol:
    """The protocol that a class describes."""

    def __init__(self, described: type, new: NewProtocol) -> None:
        """Raises `Malformed` (`agent.function`)."""
        self._class, self._new = described, new
        self._methods = [describe_method(name, function) for name, function in _public_methods(described)]
        if not self._methods:
            raise fault_of(described.__name__, "it has no public method", fix="Write a method for each operation.")
        for problem in manifest_problems(self._manifest):
            raise fault_of(f"{described.__name__}, {problem.field}", problem.error.message.rstrip("."), fix=problem.error.fix)

    @cached_property
    def files(self) -> dict[str, str]:
        """The files of the project without its vectors, path → text."""
        return {
            TOML: project_head(replace(self._new, summary=printable(self._about.splitlines()[0], MAX_SUMMARY))),
            DOCUMENT: class_prose(self._new.title, self._about, _TIMEOUT, self._methods),
            MANIFEST: json.dumps(self._manifest, ensure_ascii=False, indent=2) + "\n",
        }

    async def vectors(self, package: HandlerPackage) -> dict[str, str]:
        """Return the vectors of the examples, path → text. The class answers where an example does not. Raises `Malformed`
        (`agent.function`)."""
        vectors = {}
        async with SandboxPool(size=0) as pool:
            for method in self._methods:
                operation = package.manifest.operations[method.name]
                worker = await pool.load(package, local=LOCAL, peers=[PEER])
                exchange = await Exchange.open(worker, REQUESTER, PROVIDER)
                for answered in await self._calls(method, operation):
                    try:
                        await exchange.call(operation, answered)
                    except ValueError as error:
                        raise fault_of(method.name, f"its example does not fit its hints: {error}") from error
                for role, data in (await exchange.close()).items():
                    vectors[f"{VECTORS}/{method.name}-{role}.json"] = data.decode()
        return vectors

    @cached_property
    def _about(self) -> str:
        # Not the docstring of a base, which tells of something else.
        text = inspect.cleandoc(self._class.__doc__ or "")
        return text or f"Call {', '.join(method.name for method in self._methods)}."

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        return manifest_of({method.name: _operation(method) for method in self._methods})

    async def _calls(self, method: DescribedMethod, operation: Operation) -> list[AnsweredCall]:
        """Return a call for each example, and one for each error that no example has."""
        examples = method.examples
        if not examples and not method.needs_arguments:
            examples = (MethodExample({}, NO_ANSWER),)
        if not examples:
            fix = f"Add an example to its docstring: >>> {method.name}({', '.join(method.arguments['required'])}), with literals."
            raise fault_of(method.name, "it needs arguments and has no example, so there is no vector", fix=fix)
        calls = [AnsweredCall(example.arguments, await self._answer(method, operation, example)) for example in examples]
        return with_errors(calls, operation)

    async def _answer(self, method: DescribedMethod, operation: Operation, example: MethodExample) -> Any:
        if example.answer is not NO_ANSWER:
            return example.answer
        function = getattr(self._object(method.name), method.name)
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await _called(function, operation, example.arguments)
        except OperationError as error:
            if error.status not in operation.errors:
                fix = f"Add to its docstring: OperationError: {error.status}: and what it means."
                raise fault_of(method.name, f"it raised {error.status}, which its docstring does not list", fix=fix) from error
            return Failure(code=error.status, message=error.message)
        except Exception as error:  # of the author's code
            fault = f"its call with {example.arguments!r:.200} raised {type(error).__name__}: {error}"
            raise fault_of(method.name, fault, fix="Write the answer of the example as a literal.") from error

    def _object(self, name: str) -> Any:
        try:
            return self._class()
        except Exception as error:  # of the author's code, or it takes arguments
            fault = f"its example has no answer that is a literal, and {self._class.__name__}() raised {error}"
            raise fault_of(
                name, fault, fix="Write the answer of each example, or give the arguments of the class defaults."
            ) from error


async def _called(function: Callable[..., Any], operation: Operation, arguments: dict[str, Any]) -> Any:
    functions, context = Functions(), CallContext(operation=operation.name)
    functions.add(function)
    try:
        if not inspect.isasyncgenfunction(function):
            return await functions.call(context, operation, arguments)
        async with aclosing(functions.items(context, operation, arguments)) as items:
            first_items = []
            async for item in items:
                first_items.append(item)
                if len(first_items) == _MAX_ITEMS:
                    break
            return first_items
    finally:
        functions.close()


def _public_methods(described: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods, those of the bases first, each bound as an object's method would be."""
    for name in dict.fromkeys(name for base in reversed(described.__mro__) for name in vars(base) if not name.startswith("_")):
        member = inspect.getattr_static(described, name)
        if isinstance(member, FunctionType):
            yield name, MethodType(member, described)
        elif isinstance(member, staticmethod | classmethod):
            yield name, getattr(described, name)


def _operation(method: DescribedMethod) -> dict[str, Any]:
    errors = {400: NOT_CONFORMING, **method.errors}
    first = method.text.partition("\n\n")[0]
    return {
        **({"kind": "stream"} if method.is_stream else {}),
        "arguments": {**method.arguments, **({"description": " ".join(first.split())} if first else {})},
        "result": method.result,
        "errors": {str(code): errors[code] for code in sorted(errors)},
        # A call that was not answered may have been done; only the author knows whether it may be repeated.
        "idempotent": False,
        "timeout": _TIMEOUT,
    }
