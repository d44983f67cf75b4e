"""Parse the manifest of a handler package: its protocol, its roles, and the operations that business logic implements.

With the manifest, a host checks every effect of a handler, and every call to it, without running its code. The format is in
`docs/specification/handler-packages.md`, "The manifest". An example of one operation:

    "getProductInfo": {"arguments": {"type": "object"}, "result": {"type": "object"},
                       "errors": {"404": "There is no such product."}, "idempotent": true, "timeout": 15}

An operation of interface 2 may have another `kind`: a `stream` answers with many results, an `event` with none. With the member
`messages` the protocol needs no code (`messages`). A role of interface 3 may be shared (`"peers": "many"`).
Schemas are foreign and the host compiles them: `schema` refuses those that cost too much.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from ..canonical import parse_decimal, parse_digest
from ..codes import HandlerCode, RegistryCode
from ..errors import Malformed, Refused, TooLarge, TreatyError
from ..protocol import parse_protocol_uri
from .messages import Forms, parse_messages, parse_refusals
from .schema import check_schema, check_together

# The versions of the interface between host and handler. Interface 2 adds streams, events and cancellation. Interface 3 adds
# sessions with many peers, and interface 4 the change of agreed parameters. Interface 5 adds negative error codes, and forms that
# are told apart by the absence of a member, and whose ids may be integers. Interface 6 adds the runtime `wasm`.
INTERFACE = 6
INTERFACES = (1, 2, 3, 4, 5, 6)
MANIFEST_NAME = "manifest.json"
# Large enough for 64 operations with schemas; every peer parses it before the first session.
MAX_MANIFEST = 128 * 1024
MAX_OPERATIONS = 64
MAX_ROLES = 16
MAX_DEPTH = 32
MAX_TEXT = 2_048
MAX_ERROR_CODE = 999_999_999
# A day: a longer call needs an operation of its own to ask for the result.
MAX_TIMEOUT = 86_400
# Seconds for the function of an event. No answer waits for it, so the manifest has no member for it.
EVENT_TIMEOUT = 30
# The items of a stream that its caller asks for ahead. The host of the caller holds them in memory.
DEFAULT_WINDOW = 16
MAX_WINDOW = 1_024

# Any operation may fail with these: the logic failed, the peer broke the protocol, the peer is gone, or its answer is late.
COMMON_ERRORS = frozenset({500, 502, 503, 504})

_OPERATION = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_ROLE = re.compile(r"[a-z][a-z0-9-]{0,31}")
# The values of `peers`: the connections of one session in a role.
_ONE, _MANY = "one", "many"


class Runtime(StrEnum):
    """The runtime of a handler: Python, also for one without code, or a WebAssembly module."""

    PYTHON = "python"
    WASM = "wasm"


class OperationKind(StrEnum):
    """The number of answers to one call: a request has one, a stream has items and an end, an event has none."""

    REQUEST = "request"
    STREAM = "stream"
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class Operation:
    """Hold an operation that business logic implements.

    `arguments`: a JSON Schema.
    `result`: the JSON Schema of the result, or of each item of a stream; None for an event.
    `errors`: code → meaning.
    `timeout`: seconds; for a stream, the longest silence while an item is owed.
    `window`: the items of a stream that its caller asks for ahead; 0 for the other kinds.
    """

    name: str
    arguments: Mapping[str, Any]
    result: Mapping[str, Any] | None
    errors: Mapping[int, str]
    idempotent: bool
    timeout: int
    kind: OperationKind = OperationKind.REQUEST
    window: int = 0

    def may_fail_with(self, code: float) -> bool:
        """Tell whether the manifest allows this error code. A float may be equal to one."""
        return code in COMMON_ERRORS or code in self.errors


@dataclass(frozen=True, slots=True)
class Role:
    """Hold one side of the protocol: the role of its peer, and the operations on its own side.

    `is_shared`: one session of this role has many peers.
    """

    name: str
    peer: str
    calls: Mapping[str, Operation]
    invokes: Mapping[str, Operation]
    is_shared: bool = False

    def fits(self, other: Role) -> bool:
        """Tell whether a session can have this role on one side and `other` on the other side.

        They fit if each names the other as its peer, as in a protocol where both sides have the same role. They also fit if each
        invokes all operations that the other calls, and at least one calls something: several roles may share one peer.
        """
        if self.peer == other.name and other.peer == self.name:
            return True
        served = self.calls.keys() <= other.invokes.keys() and other.calls.keys() <= self.invokes.keys()
        return served and bool(self.calls or other.calls)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Hold a parsed manifest. Mappings are read-only.

    `interface`: the version of the interface that the handler was written for.
    `messages`: the forms of each operation's messages, if the protocol needs no code; else empty.
    `refusals`: code of the interpreter → the code that the protocol has in its place.
    """

    protocol_uri: str
    protocol_hash: str
    operations: Mapping[str, Operation]
    roles: Mapping[str, Role]
    interface: int = INTERFACE
    messages: Mapping[str, Forms] = field(default_factory=dict)
    refusals: Mapping[int, int] = field(default_factory=dict)
    runtime: Runtime = Runtime.PYTHON


def parse_manifest(data: bytes) -> Manifest:
    """Parse a manifest.

    Raises `TooLarge`, `Malformed` (`handler.manifest`), `Refused` (`handler.mismatch`, `handler.manifest`).
    """
    value = _parse_json(data)
    # Before the fields: a later interface may have other ones, and then only this error helps.
    if isinstance(value, dict):
        _check_interface(value.get("interface", INTERFACE))
    declared = {"messages", "refusals"} & value.keys() if isinstance(value, dict) else set[str]()
    more = declared | ({"runtime"} & value.keys() if isinstance(value, dict) else set())
    fields = _object(value, "the manifest", {"interface", "protocol", "operations", "roles"} | more)
    interface = fields["interface"]
    runtime = _runtime(fields, interface, is_declarative=bool(declared))
    protocol = _object(fields["protocol"], "protocol", {"uri", "sha256"})
    uri = _text(protocol["uri"], "protocol.name")
    operations = {
        name: _operation(name, item, interface)
        for name, item in _named(fields["operations"], "operations", _OPERATION, MAX_OPERATIONS).items()
    }
    # Each schema has passed on its own; many small ones could still exhaust a host together.
    check_together(schema for item in operations.values() for schema in (item.arguments, item.result) if schema is not None)
    roles = {
        name: _role(name, item, operations, interface)
        for name, item in _named(fields["roles"], "roles", _ROLE, MAX_ROLES).items()
    }
    for role in roles.values():
        if role.peer not in roles:
            raise _malformed(f"roles.{role.name}.peer is {role.peer!a:.80}, which is not a role; there are {', '.join(roles)}")
        if role.is_shared and roles[role.peer].is_shared:
            raise _malformed(f"roles.{role.name} and its peer {role.peer} are both shared; only one of them may be")
    try:
        parse_protocol_uri(uri)
        protocol_hash = parse_digest(_text(protocol["sha256"], "protocol.sha256"))
    except TreatyError as error:
        raise _malformed(f"protocol: {error.message}") from error
    if declared and interface < 2:
        raise _malformed('messages need "interface": 2')
    if "refusals" in declared and ("messages" not in declared or interface < 5):
        raise _malformed('refusals need messages and "interface": 5')
    if declared and any(role.is_shared for role in roles.values()):
        raise _malformed("messages are for sessions with one peer; a shared role needs code")
    messages = parse_messages(fields["messages"], operations, interface) if declared else MappingProxyType[str, Forms]({})
    refusals = parse_refusals(fields["refusals"], operations) if "refusals" in declared else MappingProxyType[int, int]({})
    tables = MappingProxyType(operations), MappingProxyType(roles)
    return Manifest(uri, protocol_hash, *tables, interface, messages, refusals, runtime)


def _check_interface(interface: object) -> None:
    # `True == 1`: the type is part of the test.
    if type(interface) is not int or interface not in INTERFACES:
        is_newer = type(interface) is int and interface > INTERFACE
        raise Refused(
            RegistryCode.NEWER if is_newer else HandlerCode.MISMATCH,
            f"This handler needs interface {interface!r:.20}; this version has the interfaces 1 to {INTERFACE}.",
            fix="Upgrade treaty, or ask the publisher for a package of one of these interfaces.",
        )


def _runtime(fields: Mapping[str, Any], interface: int, *, is_declarative: bool) -> Runtime:
    if "runtime" not in fields:
        return Runtime.PYTHON
    # Python is said by leaving it out: a second spelling would need a later interface than the handler does.
    if fields["runtime"] != Runtime.WASM or interface < 6 or is_declarative:
        raise _malformed('runtime is "wasm" or left out, needs "interface": 6, and is for handlers with code')
    return Runtime.WASM


def _operation(name: str, value: object, interface: int) -> Operation:
    where = f"operations.{name}"
    kind = _kind(value, where, interface)
    optional = {key for key in ("kind", "window") if isinstance(value, dict) and key in value}
    if kind is OperationKind.EVENT:
        fields = _object(value, where, {"arguments", "kind"})
        arguments = _arguments(fields["arguments"], where)
        return Operation(name, arguments, None, MappingProxyType({}), idempotent=False, timeout=EVENT_TIMEOUT, kind=kind)
    fields = _object(value, where, {"arguments", "result", "errors", "idempotent", "timeout"} | optional)
    timeout, idempotent = fields["timeout"], fields["idempotent"]
    if type(timeout) is not int or not 1 <= timeout <= MAX_TIMEOUT:
        raise _malformed(f"{where}.timeout is not a number of seconds from 1 to {MAX_TIMEOUT}")
    if not isinstance(idempotent, bool):
        raise _malformed(f"{where}.idempotent is neither true nor false")
    if not isinstance(fields["errors"], dict):
        raise _malformed(f"{where}.errors is not an object")
    errors = {
        _error_code(code, where, interface): _text(meaning, f"{where}.errors.{code}")
        for code, meaning in fields["errors"].items()
    }
    arguments = _arguments(fields["arguments"], where)
    result = check_schema(fields["result"], f"{where}.result")
    return Operation(name, arguments, result, MappingProxyType(errors), idempotent, timeout, kind, _window(fields, where, kind))


def _error_code(text: str, where: str, interface: int) -> int:
    digits = text.removeprefix("-")
    try:
        code = parse_decimal(digits, limit=MAX_ERROR_CODE)
    except Malformed as error:
        raise _malformed(f"{where}.errors maps codes, written in plain digits, to sentences") from error
    if digits == text:
        return code
    # -0 would be a second spelling of 0.
    if not code or interface < 5:
        raise _malformed(f'{where}.errors has the code {text}; a negative one is -1 or less, and needs "interface": 5')
    return -code


def _kind(value: object, where: str, interface: int) -> OperationKind:
    name = value.get("kind", OperationKind.REQUEST) if isinstance(value, dict) else OperationKind.REQUEST
    if not isinstance(name, str) or name not in tuple(OperationKind):
        raise _malformed(f"{where}.kind is none of {', '.join(OperationKind)}")
    if interface < 2 and isinstance(value, dict) and "kind" in value:
        raise _malformed(f'{where}.kind needs "interface": 2')
    return OperationKind(name)


def _window(fields: Mapping[str, Any], where: str, kind: OperationKind) -> int:
    if kind is not OperationKind.STREAM:
        if "window" in fields:
            raise _malformed(f"{where}.window is for streams")
        return 0
    window = fields.get("window", DEFAULT_WINDOW)
    if type(window) is not int or not 1 <= window <= MAX_WINDOW:
        raise _malformed(f"{where}.window is not a number of items from 1 to {MAX_WINDOW}")
    return window


def _arguments(value: object, where: str) -> Mapping[str, Any]:
    arguments = check_schema(value, f"{where}.arguments")
    if arguments.get("type") != "object":
        raise _malformed(f'{where}.arguments lacks "type": "object"')
    return arguments


def _role(name: str, value: object, operations: Mapping[str, Operation], interface: int) -> Role:
    where = f"roles.{name}"
    optional = {"peers"} if isinstance(value, dict) and "peers" in value else set[str]()
    fields = _object(value, where, {"peer", "calls", "invokes"} | optional)
    peers = fields.get("peers", _ONE)
    if peers not in (_ONE, _MANY):
        raise _malformed(f"{where}.peers is neither {_ONE} nor {_MANY}")
    if optional and interface < 3:
        raise _malformed(f'{where}.peers needs "interface": 3')
    listed: list[Mapping[str, Operation]] = []
    for key in ("calls", "invokes"):
        names = fields[key]
        if not isinstance(names, list) or len(names) > MAX_OPERATIONS:
            raise _malformed(f"{where}.{key} is not a list of operations")
        selected = {item: operations[item] for item in names if isinstance(item, str) and item in operations}
        if unknown := [item for item in names if not isinstance(item, str) or item not in operations]:
            operation_names = ", ".join(operations)
            raise _malformed(f"{where}.{key} names {ascii(unknown[0])[:80]}, which is no operation; there are {operation_names}")
        if len(selected) != len(names):
            raise _malformed(f"{where}.{key} names an operation twice")
        listed.append(MappingProxyType(selected))
    return Role(name, _text(fields["peer"], f"{where}.peer"), listed[0], listed[1], peers == _MANY)


def _parse_json(data: bytes) -> Any:
    """Parse strict JSON.

    Unlike signed values, a schema may need floats (`"multipleOf": 0.01`), so this is not `canonical.parse_json`.
    """
    if len(data) > MAX_MANIFEST:
        raise TooLarge(HandlerCode.MANIFEST, f"A manifest has at most {MAX_MANIFEST} bytes, this one has {len(data)}.")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_float,
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # fails on a lone surrogate, which JSON can escape
    except (ValueError, RecursionError) as error:
        raise _malformed(f"it does not parse: {error}") from error
    _check_depth(value)
    return value


def _check_depth(value: object) -> None:
    # Iterative: a recursive walk over foreign data could exhaust the stack.
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
        ]
    if level:
        raise _malformed(f"it is nested deeper than {MAX_DEPTH} levels")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return value


def _integer(text: str) -> int:
    # `int` takes quadratic time on long text.
    if len(text) > 16:
        raise ValueError("an integer is beyond 2^53-1")
    return int(text)


def _float(text: str) -> float:
    value = float(text) if len(text) <= 32 else float("inf")
    if value - value != 0:  # NaN and the infinities, by name or by overflow
        raise ValueError(f"{text[:24]} is not a finite number of at most 32 characters")
    return value


def _object(value: object, where: str, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _malformed(f"{where} is not an object with {', '.join(sorted(names))}")
    if missing := sorted(names - value.keys()):
        raise _malformed(f"{where} lacks {', '.join(missing)}")
    if unknown := sorted(value.keys() - names):
        raise _malformed(f"{where} has the unknown member {ascii(unknown[0])[:80]}; its members are {', '.join(sorted(names))}")
    return value


def _named(value: object, where: str, pattern: re.Pattern[str], limit: int) -> dict[str, Any]:
    if not isinstance(value, dict) or not 1 <= len(value) <= limit:
        raise _malformed(f"{where} is not an object of 1 to {limit} entries")
    for name in value:
        if not pattern.fullmatch(name):
            raise _malformed(f"{where} has the name {ascii(name)[:80]}, which is not of the form {pattern.pattern}")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value or len(value) > MAX_TEXT:
        raise _malformed(f"{where} is not a text of 1 to {MAX_TEXT} characters")
    return value


def _malformed(fault: str) -> Malformed:
    return Malformed(HandlerCode.MANIFEST, f"The handler's {MANIFEST_NAME} is not valid: {fault}.")
