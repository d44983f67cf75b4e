"""Write typed Python for the operations of a protocol, so that an editor completes and a type checker checks them.

For each role the module has

    Requester       the operations that an application calls: async with agent.peer(…) as peer: Requester(peer).…
                    over one session: Requester(session).…; of a shared role: Room(agent.shared(URI)).…
    Provider        a `Protocol` of the functions that it provides, and `provide_provider(agent, functions)`

and a TypedDict for each object in their schemas (`types`).

The `Protocol` has each argument as a parameter, because a type checker lets `**arguments` stand only for `**arguments`: then
pyright would refuse every class with named parameters. `= ...` marks an argument that a caller may leave out. A function that
takes its context declares it as optional, `context: CallContext | None = None`, to fit the `Protocol`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from treaty_consensus.handler import HandlerPackage, Operation, OperationKind, Role
from treaty_consensus.printable import printable

from .types import Names, SchemaTypes, is_identifier

_MAX_TEXT = 500
_HEAD = """\
from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, NotRequired, Protocol, TypeAlias, TypedDict, Unpack

from treaty_agent import Agent, ItemStream, Peer, Session, SharedSession

"""
# Else the linter and the formatter of an application would rewrite the module, and its next version would differ everywhere.
_UNTOUCHED = "# ruff: noqa\n# fmt: off\n"
_TAKEN = ("Agent", "AsyncIterator", "ItemStream", "Peer", "Session", "SharedSession", "URI")
# Names of the annotations of methods: a method of such a name would hide it from the methods after it.
_HIDING = frozenset({"Any", "AsyncIterator", "ItemStream", "Peer", "Session", "SharedSession", "Unpack"})


@dataclass(frozen=True, slots=True)
class _Signature:
    """An operation with its method and the types of its arguments and result. `parameters`: the parameters of its function;
    None if an argument has a name that no parameter can have."""

    operation: Operation
    method: str
    arguments: str
    result: str
    parameters: tuple[str, ...] | None

    @property
    def of_caller(self) -> str:
        """The parameters of the method that calls it, after `self`. What is left out is not sent, so they are one mapping."""
        if self.parameters is None:
            return f", arguments: {self.arguments}, /"
        return f", **arguments: Unpack[{self.arguments}]" if self.parameters else ""

    @property
    def of_function(self) -> str:
        """The parameters of the function that serves it, after `self`."""
        if self.parameters is None:
            return ", **arguments: Any"
        return f", *, {', '.join(self.parameters)}" if self.parameters else ""

    @property
    def passed(self) -> str:
        """The arguments that the method passes on."""
        # As a mapping, because an argument may have the name `within`.
        return ", ".join([repr(self.operation.name), *(["arguments"] if self.of_caller else []), "within=self._within"])

    @property
    def about(self) -> str:
        """The docstring of the method."""
        errors = "; ".join(f"{code}: {meaning.rstrip('.')}" for code, meaning in sorted(self.operation.errors.items()))
        description = self.operation.arguments.get("description")
        about = description if isinstance(description, str) else f"Call {self.operation.name}."
        return _said(f"{about} Errors: {errors}." if errors else about)


def write_stubs(package: HandlerPackage) -> str:
    """Return the module for a verified handler package. No text of the package becomes code."""
    manifest = package.manifest
    names = Names([*_TAKEN, *manifest.operations])
    types = SchemaTypes(names)
    methods = {name: _method(name, manifest.operations) for name in manifest.operations}
    signatures = {
        name: _signature(operation, methods[name], types, methods.values()) for name, operation in manifest.operations.items()
    }
    parts = [part for role in manifest.roles.values() for part in _role(role, signatures, names)]
    about = (
        f"Typed operations of {manifest.protocol_uri}, sha256:{manifest.protocol_hash}. Written by `treaty stubs`; do not edit."
    )
    head = f"{_UNTOUCHED}{_said(about)}\n\n{_HEAD}URI = {manifest.protocol_uri!r}\n"
    return "\n\n".join([head + "\n" + "\n".join(types.definitions), *parts])


def _method(name: str, operations: Collection[str]) -> str:
    """Return the operation's name, an ASCII identifier by the manifest's rules. A reserved one gets underscores."""
    method = name
    # Another operation may have the name with an underscore. Its method would replace this one.
    while keyword.iskeyword(method) or method in _HIDING or (method != name and method in operations):
        method += "_"
    return method


def _signature(operation: Operation, method: str, types: SchemaTypes, methods: Collection[str]) -> _Signature:
    schema = operation.arguments
    arguments, is_dictionary = types.type_of(schema, f"{operation.name} arguments")
    result = "None"
    if operation.result is not None:
        result, _ = types.type_of(operation.result, f"{operation.name} result")
    members = schema.get("properties", {})
    takes_nothing = not members and schema.get("additionalProperties") is False
    # `self` is the name of the object in the methods.
    is_plain = (is_dictionary or takes_nothing) and all(is_identifier(name) and name != "self" for name in members)
    parameters = tuple(_parameters(types, arguments, schema.get("required", ()), methods)) if is_plain else None
    return _Signature(operation, method, arguments, result, parameters)


def _parameters(types: SchemaTypes, arguments: str, required: Collection[str], methods: Collection[str]) -> Iterator[str]:
    for name, kind in types.dictionaries.get(arguments, {}).items():
        # A method of the name of a type, such as `str`, hides it in its class, and an alias it does not.
        is_hidden = any(word in methods for word in re.findall(r"\w+", kind))
        yield f"{name}: {types.alias(kind, f'{arguments} {name}') if is_hidden else kind}{'' if name in required else ' = ...'}"


def _role(role: Role, signatures: Mapping[str, _Signature], names: Names) -> Iterator[str]:
    if role.calls:
        yield "".join(_caller(role, [signatures[name] for name in role.calls], names.new(role.name)))
    if role.invokes:
        functions, served = names.new(role.name, "functions"), [signatures[name] for name in role.invokes]
        yield "".join(_functions(role, served, functions))
        yield "".join(_provide(role, served, functions))


def _caller(role: Role, signatures: Sequence[_Signature], name: str) -> Iterator[str]:
    session = "SharedSession" if role.is_shared else "Session | Peer"
    yield f"class {name}:\n    {_said(f'The operations that the role {role.name} calls.')}\n\n"
    yield f"    def __init__(self, session: {session}, *, within: float | None = None) -> None:\n"
    yield f"        {_said('`within`: seconds for each call, as for `Session.call`.')}\n"
    yield "        self._session, self._within = session, within\n"
    for signature in signatures:
        head = f"{signature.method}(self{signature.of_caller})"
        if signature.operation.kind is OperationKind.STREAM:
            yield f"\n    def {head} -> ItemStream[{signature.result}]:\n        {signature.about}\n"
            yield f"        return self._session.stream({signature.passed})\n"
            continue
        yield f"\n    async def {head} -> {signature.result}:\n        {signature.about}\n"
        called = f"await self._session.call({signature.passed})"
        if signature.operation.kind is OperationKind.EVENT:
            yield f"        {called}\n"
        else:
            yield f"        result: {signature.result} = {called}\n        return result\n"


def _functions(role: Role, signatures: Sequence[_Signature], name: str) -> Iterator[str]:
    yield f"class {name}(Protocol):\n    {_said(f'The functions that the role {role.name} provides.')}\n"
    for signature in signatures:
        head = f"{signature.method}(self{signature.of_function})"
        # A stream is provided by an async generator function, which is no coroutine function.
        if signature.operation.kind is OperationKind.STREAM:
            yield f"\n    def {head} -> AsyncIterator[{signature.result}]:\n"
        else:
            yield f"\n    async def {head} -> {signature.result}:\n"
        yield f"        {signature.about}\n        ...\n"


def _provide(role: Role, signatures: Sequence[_Signature], functions: str) -> Iterator[str]:
    yield f"def provide_{role.name.replace('-', '_')}(agent: Agent, functions: {functions}) -> None:\n"
    yield f"    {_said(f'Register the functions of the role {role.name} with an agent.')}\n"
    for signature in signatures:
        name = signature.operation.name
        operation = "" if signature.method == name else f"operation={name!r}, "
        yield f"    agent.provides(URI, {operation}role={role.name!r})(functions.{signature.method})\n"


def _said(text: str) -> str:
    """Return a docstring. By `repr`, so that no quote of a foreign text can end it."""
    return repr(printable(text, _MAX_TEXT))
