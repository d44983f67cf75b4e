"""Run business logic: the functions behind a protocol's operations, and the functions that an agent offers for negotiation.

    @agent.provides("https://registry.example/protocols/example.com/product-info/1.0")
    async def getProductInfo(productId: str = "", productName: str = "") -> dict:
        if productId not in catalogue:
            raise OperationError(404, "There is no such product.")
        return catalogue[productId]

The name of a function is the name of its operation; its keyword arguments are those of the operation. It may
be `async` or not; functions that are not `async` run in threads. It returns a JSON value that satisfies the operation's schema,
or raises `OperationError` with a code that the protocol lists. At the other end `Session.call` returns that value, or raises an
`OperationError` with the same status and message. The value that the function of an event returns is dropped.

    @agent.provides("https://registry.example/protocols/example.com/log-stream/1.0")
    async def follow(name: str) -> AsyncIterator[dict]:
        async with open_log(name) as lines:
            async for line in lines:
                yield line

A parameter annotated `CallContext` is no argument: it gets the context of the call (`call_context`).

The function of a stream is an async generator function. It runs only as far as the other side takes its items, and is closed when
the other side leaves; then its `finally` blocks run.

    @agent.offers
    async def getProductInfo(productId: str) -> Product:
        "Return all facts about one product."

An offered function is described to a negotiator by its name, its docstring and its type hints. A hint is any type that msgspec
describes: JSON's own types, dataclasses, TypedDicts, Structs, dates, `Literal`, `Annotated`. An argument without a hint may be
any JSON value. A function gets and returns dataclasses, Structs and dates as its hints say (`typed_values`).

Functions are checked against the operations of a protocol before a peer can call them. A function has to take all arguments
that the manifest declares, and must require no other ones. An argument that a caller may leave out needs a default. A function
with `**kwargs` takes every argument.

    operation search: to, date required, limit optional, no other arguments

    async def search(to, date, limit=10)     fits
    async def search(to, date)               does not take limit
    async def search(to, date, limit)        limit needs a default: a caller may leave it out
    async def search(to, date, **more)       fits
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from inspect import Parameter
from typing import Any, NamedTuple, Protocol, get_args, get_type_hints

import msgspec

from treaty_anp.hello_profile.hello import ROLE_FIX
from treaty_consensus.errors import Malformed, NotFound, Refused
from treaty_consensus.handler import Manifest, Operation, OperationKind, Role
from treaty_handler import Value
from treaty_io.codes import AgentCode, SessionCode
from treaty_io.places import Places, asker

from ..negotiators.negotiator import Capability
from .call_context import CallContext, context_parameter
from .interfaces import Capacity
from .operation_errors import busy
from .typed_values import TypedValues

_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def check_functions(functions: Functions, role: Role, uri: str) -> None:
    """Check that there is a function of the right kind for each operation that the role invokes. Raises `NotFound`
    (`agent.function`) and `Malformed` (`agent.function`)."""
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
            AgentCode.FUNCTION,
            f"No function serves {', '.join(missing)}, which the role {role.name} of {uri} needs.",
            fix="Register a function of that name: @agent.provides(URI), or @agent.offers for negotiated protocols. For one "
            "session that this side opens: connect(…, serving=[…]), and likewise peer. For the other side of it: role=.",
        )
    misfits = functions.misfits(role.invokes.values())
    if misfits:
        raise Malformed(
            AgentCode.FUNCTION,
            f"The functions of {', '.join(misfits)} do not have the kind that {uri} gives these operations.",
            fix="Write the function of a stream with `async def` and `yield`, and other functions without `yield`.",
        )


def check_signatures(functions: Functions, role: Role, uri: str) -> None:
    """Check that each function takes the arguments of its operation. All faults are named together. Raises `Malformed`
    (`agent.function`)."""
    faults = [
        f"{name} {fault}"
        for name, operation in role.invokes.items()
        for fault in _faults(functions.get(name), operation, functions.context_parameter(name))
    ]
    if faults:
        raise Malformed(
            AgentCode.FUNCTION,
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


_REFERENCE = "#/$defs/{name}"

Function = Callable[..., Any]


class OperationHandlers(Protocol):
    """Answer the operations that a handler invokes; `Functions` implements it."""

    async def call(self, context: CallContext, operation: Operation, arguments: Mapping[str, Value]) -> Value:
        """Return the value of an operation. Raises anything; `FunctionFailures` describes it to the peer."""

    def items(self, context: CallContext, operation: Operation, arguments: Mapping[str, Value]) -> AsyncGenerator[Value, None]:
        """Return the items of a stream. This call and the generator may raise anything, as `call`."""


def choose_role(manifest: Manifest, *, is_initiator: bool, name: str | None, peer_role: str = "") -> Role:
    """Return the role of one side: the one of `name`, else the only role that has calls (initiator) or invokes business logic
    (responder). `peer_role`: the role that the peer says it has, or "". It decides where the side leaves its role open.

    Raises `Refused` (`session.role`) unless there is exactly one, and it fits the peer's.
    """
    roles, peer = manifest.roles.values(), manifest.roles.get(peer_role)
    eligible = [role for role in roles if (role.calls if is_initiator else role.invokes)]
    if name:
        eligible = [role for role in roles if role.name == name]
    elif peer is not None:
        # Also a role without calls: the responder may be the one that calls.
        eligible = [role for role in eligible if role.fits(peer)] or [role for role in roles if role.fits(peer)]
    if len(eligible) != 1:
        raise Refused(
            SessionCode.ROLE,
            f"{manifest.protocol_uri} has no role {name!r}." if name else f"{manifest.protocol_uri} leaves the role open.",
            fix=f"Name one of its roles, as role=…: {', '.join(manifest.roles)}.",
        )
    check_peer_role(manifest, eligible[0], peer_role)
    return eligible[0]


def check_peer_role(manifest: Manifest, role: Role, peer_role: str) -> None:
    """Check that a peer in `peer_role` can speak with this side's role. "" is a peer that says none. Raises `Refused`
    (`session.role`)."""
    peer = manifest.roles.get(peer_role)
    if peer_role and (peer is None or not role.fits(peer)):
        fits = [other.name for other in manifest.roles.values() if role.fits(other)]
        raise Refused(
            SessionCode.ROLE,
            f"In {manifest.protocol_uri} this side is {role.name}, which speaks with {' or '.join(fits) or 'no role'}. "
            f"The other side is {peer_role!a:.80}.",
            fix=ROLE_FIX,
        )


class Functions:
    """The functions behind the operations of one protocol. For one event loop."""

    def __init__(self, capacity: Capacity | None = None) -> None:
        """`capacity`: of threads."""
        self._capacity = capacity or Capacity()
        self._functions: dict[str, _Registered] = {}
        self._threads: _Threads | None = None
        # The pool's own queue keeps the arguments of calls that were given up, so calls wait here. A function may hang for ever,
        # so no peer may have all threads.
        self.threads = Places(self._capacity.threads, keeps_some=True)

    @classmethod
    def of(cls, functions: Iterable[Function]) -> Functions | None:
        """Return some functions, each under its own name, or None if there are none. Raises `Malformed` (`agent.function`)."""
        collected: Functions | None = None
        for function in functions:
            collected = collected or cls()
            collected.add(function)
        return collected

    def add(self, function: Function, *, name: str = "") -> None:
        """Register a function under the operation's `name`, by default its own. Raises `Malformed` (`agent.function`) if the
        name is taken or missing, or the context has no parameter of its own."""
        name = name or getattr(function, "__name__", "")
        if not name.isidentifier() or name in self._functions:
            raise Malformed(
                AgentCode.FUNCTION,
                f"{name or function!r} cannot be registered: an operation is served by one function that bears its name.",
            )
        self._functions[name] = _Registered.of(function)

    def remove(self, name: str) -> None:
        """Stop serving an operation. Running calls continue."""
        self._functions.pop(name, None)

    def context_parameter(self, name: str) -> str:
        """Return the parameter of an operation's function that takes the context, or ""."""
        return self._functions[name].context_parameter if name in self._functions else ""

    @property
    def names(self) -> tuple[str, ...]:
        """The operations that are served."""
        return tuple(self._functions)

    def get(self, name: str) -> Function:
        """Return the function of an operation that is served."""
        return self._functions[name].function

    def missing(self, operations: Iterable[str]) -> list[str]:
        """Return the operations that no function serves."""
        return [name for name in operations if name not in self._functions]

    def misfits(self, operations: Iterable[Operation]) -> list[str]:
        """Return the streams that no async generator function serves, and the other operations that a generator serves."""
        return [
            operation.name
            for operation in operations
            if operation.name in self._functions and not self._functions[operation.name].serves(operation.kind)
        ]

    async def call(self, context: CallContext, operation: Operation, arguments: Mapping[str, Value]) -> Value:
        """Run the function of an operation. Raises anything that it raises."""
        registered = self._functions[operation.name]
        function, bound, typed = registered.function, registered.bound(context, operation, arguments), registered.typed
        if registered.is_coroutine:
            return typed.result(await function(**bound))
        if self._threads is None:
            # A pool of its own: slow functions must not block the threads of the event loop.
            self._threads = _Threads(self._capacity.threads, partial(self._release, asyncio.get_running_loop()))
        try:
            # Less than the time of the call: what waits in vain is refused before it is begun.
            await self.threads.take(self._capacity.wait)
        except TimeoutError as error:
            raise busy() from error
        # The copied variables contain the current call.
        work = partial(copy_context().run, partial(function, **bound))
        return typed.result(await asyncio.get_running_loop().run_in_executor(self._threads, work))

    def items(self, context: CallContext, operation: Operation, arguments: Mapping[str, Value]) -> AsyncGenerator[Value, None]:
        """Run the function of a stream, as far as the caller takes items. Raises anything that the function raises."""
        registered = self._functions[operation.name]
        return registered.typed.items(registered.function(**registered.bound(context, operation, arguments)))

    def close(self) -> None:
        """Release the threads without waiting for running functions."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _release(self, loop: asyncio.AbstractEventLoop, who: str) -> None:
        with suppress(RuntimeError):  # the loop is closed: the agent has ended, and the function only now
            loop.call_soon_threadsafe(self.threads.give_back, who)


class _Registered(NamedTuple):
    """A function, and what each session and each call ask of it. `context_parameter`: the one that takes the context, or ""."""

    function: Function
    context_parameter: str
    typed: TypedValues
    is_coroutine: bool
    is_stream: bool
    is_generator: bool

    @classmethod
    def of(cls, function: Function) -> _Registered:
        """Describe a function. Raises as `context_parameter`."""
        kinds = inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction
        return cls(function, context_parameter(function), TypedValues.of(function), *(is_kind(function) for is_kind in kinds))

    def serves(self, kind: OperationKind) -> bool:
        """Return whether the function has the kind of an operation."""
        # A generator of either sort would give its object as the value.
        return self.is_stream if kind is OperationKind.STREAM else not (self.is_stream or self.is_generator)

    def bound(self, context: CallContext, operation: Operation, arguments: Mapping[str, Value]) -> dict[str, Any]:
        """Return the arguments of the function. Raises TypeError if the peer sent an argument of the context's name."""
        parameter = self.context_parameter
        if parameter and parameter in arguments:
            raise TypeError(f"{parameter} is the parameter of the context, and no argument of {operation.name}")
        bound = self.typed.arguments(dict(arguments))
        return {**bound, parameter: context} if parameter else bound


class _Threads(ThreadPoolExecutor):
    """Threads that report the end of each function. A thread cannot be stopped, so its function may outlive the call."""

    def __init__(self, size: int, ended: Callable[[str], None]) -> None:
        """`ended`: called in any thread, once for each function, with the asker that submitted it."""
        super().__init__(size, thread_name_prefix="treaty-operation")
        self._ended = ended

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        who = asker.get()
        future.add_done_callback(lambda _: self._ended(who))
        return future


class OfferedFunctions:
    """The functions of `@agent.offers`, for all protocols that are negotiated for them."""

    def __init__(self, capacity: Capacity | None = None) -> None:
        """`capacity`: as in `Functions`."""
        self.functions = Functions(capacity)
        self._capabilities: list[Capability] = []

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        """The descriptions of the functions, in the order of registration."""
        return tuple(self._capabilities)

    def add(self, function: Function) -> None:
        """Register a function under its name. Raises `Malformed` (`agent.function`)."""
        described = capability_of(function)
        self.functions.add(function)
        self._capabilities.append(described)


def capability_of(function: Callable[..., Any]) -> Capability:
    """Describe a function by its name, docstring and signature. Raises the errors of `schemas_of`, and `Malformed`
    (`agent.function`) for a generator."""
    name = getattr(function, "__name__", repr(function))
    if inspect.isasyncgenfunction(function):
        raise _malformed(name, "it yields items, and an operation that is negotiated returns one value")
    return Capability(name, inspect.getdoc(function) or "", *schemas_of(function))


def schemas_of(function: Callable[..., Any]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the JSON Schemas of a function's arguments and of its result; of an async generator function, of an item. Raises
    `Malformed` (`agent.function`) if an argument has no name, or a hint cannot be described in JSON Schema."""
    name = getattr(function, "__name__", repr(function))
    try:
        hints = get_type_hints(function, include_extras=True)
        signature = inspect.signature(function).parameters
    except (TypeError, NameError, ValueError) as error:
        raise _malformed(name, f"its signature cannot be read: {error}") from error
    # The context is given by this side, so it is no part of what a peer may send.
    context = context_parameter(function)
    parameters = [parameter for name, parameter in signature.items() if name != context]
    if any(parameter.kind not in _NAMED for parameter in parameters):
        raise _malformed(name, "each of its arguments needs a name")
    result = hints.get("return", Any)
    if inspect.isasyncgenfunction(function):
        result = next(iter(get_args(result)), Any)
    schemas, definitions = _schemas(name, {parameter.name: hints.get(parameter.name, Any) for parameter in parameters})
    [result_schema], result_definitions = _schemas(name, {"return": result})
    arguments: dict[str, object] = {
        "type": "object",
        "properties": {parameter.name: schema for parameter, schema in zip(parameters, schemas, strict=True)},
        "required": [parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty],
        "additionalProperties": False,
    }
    return (
        arguments | ({"$defs": definitions} if definitions else {}),
        result_schema | ({"$defs": result_definitions} if result_definitions else {}),
    )


def _schemas(function: str, types: Mapping[str, Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """Return a schema for each type, and the definitions that they refer to. `types`: by the name that has the hint."""
    try:
        return msgspec.json.schema_components(types.values(), ref_template=_REFERENCE)
    except (TypeError, NameError, ValueError):
        for name, hint in types.items():
            try:
                msgspec.json.schema(hint)
            except (TypeError, NameError, ValueError) as error:
                hint_text = getattr(hint, "__name__", None) or str(hint)
                raise _malformed(function, f"the hint of {name}, {hint_text}, has no JSON Schema: {error}") from error
        raise


def _malformed(name: str, what: str) -> Malformed:
    return Malformed(AgentCode.FUNCTION, f"{name} cannot be described: {what}.")
