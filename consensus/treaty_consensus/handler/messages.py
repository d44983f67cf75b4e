"""Check the message forms of a manifest: the member `messages` of a protocol that needs no code.

docs/specification/declarative.md has the format and the reasons. An operation's name, or `"*"` for all operations that are not
named, maps to its forms. A form is a JSON object of constants and *slots*, which are texts that begin with `$`:

    "greet": {"request": {"id": "$id", "type": "request", "name": "$arguments.name"},
              "response": {"id": "$id", "type": "response", "greeting": "$result"},
              "error": {"id": "$id", "type": "error", "code": "$code", "message": "$message"}}

Two forms must be *told apart*: some place holds different constants in them, or is absent in one (`$absent`) and always written
by the other. So a reader finds the form of a message by its places alone, and a manifest has one reading.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from ..codes import HandlerCode
from ..errors import Refused

EVERY = "*"
# All forms as they are written: a host compares a message with each constant, and a registry compares forms in pairs.
MAX_NODES = 2_000
MAX_FORM_NODES = 64
MAX_FORM_DEPTH = 8
MAX_NAME = 64
MAX_CONSTANT = 200
# A message with a larger integer is no JSON that the other side reads (RFC 7493 §2.2).
MAX_INTEGER = 2**53 - 1
# The interpreter refuses requests with these codes. A form of errors carries them, although no manifest needs to list them.
REFUSALS = frozenset({400, 429})

# These and the ones that any operation may fail with (`manifest.COMMON_ERRORS`) are the interpreter's own.
_OWN_CODES = REFUSALS | {500, 502, 503, 504}

_OWN = {"request": "arguments", "event": "arguments", "response": "result", "item": "item"}
_SLOTS = {
    "request": {"$id", "$operation"},
    "response": {"$id", "$operation", "$message"},
    "error": {"$id", "$operation", "$code", "$message"},
    "item": {"$id", "$operation"},
    "end": {"$id", "$operation"},
    "more": {"$id", "$operation", "$count"},
    "cancel": {"$id", "$operation"},
    "event": {"$operation"},
}
_NEEDED = {name: {"$id"} for name in _SLOTS} | {"error": {"$id", "$code"}, "more": {"$id", "$count"}, "event": set()}
_BY_KIND = {
    "request": ({"request", "response", "error"}, {"cancel"}),
    "stream": ({"request", "item", "end", "error", "more", "cancel"}, set[str]()),
    "event": ({"event"}, set[str]()),
}
# The forms that belong to an open call, which their `$id` names. The forms of two operations need not differ then.
_ANSWERS = frozenset({"response", "error", "item", "end"})
_CONTROLS = frozenset({"more", "cancel"})
_ABSENT = "$absent"
# An older interpreter would take the slot for a value that the message lacks.
_ABSENT_INTERFACE = 5

Path: TypeAlias = tuple[str, ...]
Forms: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The forms of one operation: `request`, `response` and so on → JSON object."""


class DeclaredOperation(Protocol):
    """The members of `manifest.Operation` that these rules use."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def arguments(self) -> Mapping[str, Any]: ...
    @property
    def result(self) -> Mapping[str, Any] | None: ...
    def may_fail_with(self, code: float) -> bool:
        """Tell whether the manifest allows this error code. A float may be equal to one."""


@dataclass(frozen=True, slots=True)
class _Form:
    """A checked form. `constants`: path → constant, with the type that tells `true` from 1. `slots`: slot → path. `objects`: the
    paths of the objects inside. `absent`: the paths of `$absent`."""

    where: str
    template: Mapping[str, Any]
    constants: Mapping[Path, tuple[bool, object]]
    slots: Mapping[str, Path]
    objects: frozenset[Path]
    absent: frozenset[Path]

    def always_has(self, path: Path, operation: DeclaredOperation) -> bool:
        """Tell whether each message of this form has a member at this place."""
        if path in self.constants or path in self.objects:
            return True
        for slot, place in self.slots.items():
            if place == path:
                source, dot, member = slot[1:].partition(".")
                return not dot or member in _required(operation, source)
        return False


def parse_messages(value: object, operations: Mapping[str, DeclaredOperation], interface: int) -> Mapping[str, Forms]:
    """Return the forms of each operation by its name. Raises `Refused` (`handler.manifest`). `interface`: of the manifest."""
    if not isinstance(value, dict) or not value:
        raise _refused("messages is not an object of forms")
    budget = _Budget()
    written = {
        name: {kind: _form(kind, form, f"messages.{name}.{kind}", budget) for kind, form in _forms(name, forms, operations)}
        for name, forms in value.items()
    }
    if interface < _ABSENT_INTERFACE and (
        with_absent := [form for forms in written.values() for form in forms.values() if form.absent]
    ):
        raise _refused(f'{with_absent[0].where} has the slot {_ABSENT}, which needs "interface": {_ABSENT_INTERFACE}')
    forms_of = {name: _of_operation(operation, written) for name, operation in operations.items()}
    if len(written) > len(operations.keys() & written.keys()) + (EVERY in written):
        raise _refused(f"messages names {min(written.keys() - operations.keys() - {EVERY})!a}, which is no operation")
    _check_told_apart([(operations[name], kind, form) for name, forms in forms_of.items() for kind, form in forms.items()])
    return MappingProxyType(
        {
            name: MappingProxyType({kind: MappingProxyType(dict(form.template)) for kind, form in forms.items()})
            for name, forms in forms_of.items()
        }
    )


class _Budget:
    """The nodes that all forms of a manifest may have together."""

    def __init__(self) -> None:
        self._left = MAX_NODES

    def take(self, where: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise _refused(f"the forms have more than {MAX_NODES} nodes together; {where} is one too many")


def parse_refusals(value: object, operations: Mapping[str, DeclaredOperation]) -> Mapping[int, int]:
    """Return the codes that the protocol has in place of the interpreter's own. Raises `Refused` (`handler.manifest`)."""
    if not isinstance(value, dict) or not value.keys() <= {str(code) for code in _OWN_CODES}:
        raise _refused(f"refusals is not an object of {', '.join(str(code) for code in sorted(_OWN_CODES))}")
    for own, code in value.items():
        for operation in operations.values():
            # A caller fails with 502 at a code that is not listed.
            if operation.kind != "event" and (type(code) is not int or not operation.may_fail_with(code)):
                raise _refused(f"refusals.{own} is not a code that {operation.name} lists")
    return MappingProxyType({int(own): code for own, code in value.items()})


def _forms(name: str, forms: object, operations: Mapping[str, DeclaredOperation]) -> Iterator[tuple[str, object]]:
    """Yield the forms under one name. The name itself is checked after all forms."""
    if not isinstance(forms, dict):
        raise _refused(f"messages.{name[:MAX_NAME]} is not an object of forms")
    needed, optional = _BY_KIND[operations[name].kind] if name in operations else (set[str](), set(_SLOTS))
    if forms.keys() - needed - optional or needed - forms.keys():
        required = f"{', '.join(sorted(needed))}" if needed else f"some of {', '.join(sorted(_SLOTS))}"
        raise _refused(f"messages.{name[:MAX_NAME]} has the forms {', '.join(sorted(forms))[:200]}; it needs {required}")
    yield from forms.items()


def _of_operation(operation: DeclaredOperation, written: Mapping[str, Mapping[str, _Form]]) -> dict[str, _Form]:
    rules = written.get(operation.name) or written.get(EVERY, {})
    needed, optional = _BY_KIND[operation.kind]
    if missing := needed - rules.keys():
        raise _refused(f"the operation {operation.name} has no form {min(missing)}")
    forms = {kind: form for kind, form in rules.items() if kind in needed | optional}
    for kind, form in forms.items():
        if (source := _OWN.get(kind)) is not None:
            _check_carried(form, source, operation)
    return forms


def _required(operation: DeclaredOperation, source: str) -> list[Any]:
    """Return the members without which the arguments, the result or the item breaks its schema."""
    schema = operation.arguments if source == "arguments" else operation.result or {}
    required = schema.get("required", [])
    return required if isinstance(required, list) else []


def _check_carried(form: _Form, source: str, operation: DeclaredOperation) -> None:
    """Check that a form carries every member without which the value breaks its schema."""
    if f"${source}" in form.slots:
        return
    for name in _required(operation, source):
        if f"${source}.{name}" not in form.slots:
            raise _refused(f"{form.where} has no slot ${source}.{name}, which the schema requires")


def _form(kind: str, value: object, where: str, budget: _Budget) -> _Form:
    if not isinstance(value, dict):
        raise _refused(f"{where} is not an object")
    constants: dict[Path, tuple[bool, object]] = {}
    slots: dict[str, Path] = {}
    objects: set[Path] = set()
    absent: set[Path] = set()
    nodes = 0
    level: list[tuple[Path, object]] = [((), value)]
    for _ in range(MAX_FORM_DEPTH + 1):
        deeper: list[tuple[Path, object]] = []
        for path, node in level:
            nodes += 1
            budget.take(where)
            if nodes > MAX_FORM_NODES:
                raise _refused(f"{where} has more than {MAX_FORM_NODES} nodes")
            if node == _ABSENT:
                absent.add(path)
            elif isinstance(node, dict):
                objects.add(path)
                deeper += [((*path, _name(name, where)), child) for name, child in node.items()]
            elif isinstance(node, str) and node.startswith("$") and not node.startswith("$$"):
                _take_slot(slots, node, path, kind, where)
            else:
                constants[path] = _constant(node, where)
        level = deeper
    if level:
        raise _refused(f"{where} is nested deeper than {MAX_FORM_DEPTH} levels")
    if missing := _NEEDED[kind] - slots.keys():
        raise _refused(f"{where} has no slot {min(missing)}")
    return _Form(where, value, constants, slots, frozenset(objects), frozenset(absent))


def _name(name: str, where: str) -> str:
    if len(name) > MAX_NAME:
        raise _refused(f"{where} has a name of more than {MAX_NAME} characters")
    return name


def _take_slot(slots: dict[str, Path], slot: str, path: Path, kind: str, where: str) -> None:
    source, dot, member = slot[1:].partition(".")
    own = source == _OWN.get(kind) and (not dot or 0 < len(member) <= MAX_NAME)
    if not own and slot not in _SLOTS[kind]:
        raise _refused(f"{where} has the slot {slot[:80]!a}, which a form of this kind does not have")
    whole = f"${source}"
    # Twice the same value could be twice another one in a message, and a reader would have to choose.
    if slot in slots or (own and (whole in slots or (not dot and any(name.startswith(f"{whole}.") for name in slots)))):
        raise _refused(f"{where} has the slot {slot[:80]!a} twice, or a whole value beside its members")
    slots[slot] = path


def _constant(node: object, where: str) -> tuple[bool, object]:
    if isinstance(node, list):
        raise _refused(f"{where} has a list; a form consists of objects, slots and single constants")
    if isinstance(node, str):
        if len(node) > MAX_CONSTANT:
            raise _refused(f"{where} has a text of more than {MAX_CONSTANT} characters")
        node = node.removeprefix("$") if node.startswith("$$") else node
    if type(node) is int and abs(node) > MAX_INTEGER:
        raise _refused(f"{where} has an integer beyond 2^53-1")
    return isinstance(node, bool), node


def _check_told_apart(forms: Sequence[tuple[DeclaredOperation, str, _Form]]) -> None:
    """Check each pair of forms that one reader could confuse."""
    compared: dict[tuple[int, int], bool] = {}
    for (one, kind, left), (other, also, right) in itertools.combinations(forms, 2):
        same_class = {kind, also} <= _ANSWERS or {kind, also} <= _CONTROLS
        if same_class and one is not other:
            continue
        # Operations share the forms of "*", so equal pairs are compared once.
        pair = (id(left), id(right))
        if pair not in compared:
            compared[pair] = _differ_by_constant(left, right)
        sides = left, one, right, other
        if not (compared[pair] or _differ_by_operation(*sides) or _differ_by_code(*sides) or _differ_by_absence(*sides)):
            raise _refused(
                f"{left.where} of {one.name} and {right.where} of {other.name} are not told apart by a constant, an operation's "
                f"name, a code or a member that is {_ABSENT} in one of them"
            )


def _differ_by_constant(left: _Form, right: _Form) -> bool:
    few, many = sorted((left.constants, right.constants), key=len)
    return any(path in many and many[path] != constant for path, constant in few.items())


def _differ_by_operation(left: _Form, one: DeclaredOperation, right: _Form, other: DeclaredOperation) -> bool:
    for form, name, beside, its in ((left, one.name, right, other.name), (right, other.name, left, one.name)):
        path = form.slots.get("$operation")
        if path is None:
            continue
        if beside.slots.get("$operation") == path:
            return name != its
        if path in beside.constants and beside.constants[path] != (False, name):
            return True
    return False


def _differ_by_code(left: _Form, one: DeclaredOperation, right: _Form, other: DeclaredOperation) -> bool:
    for form, operation, beside in ((left, one, right), (right, other, left)):
        path = form.slots.get("$code")
        if path is None or path not in beside.constants:
            continue
        is_boolean, constant = beside.constants[path]
        # A float too: a reader takes 404.0 and 404 for equal.
        if is_boolean or not isinstance(constant, int | float):
            return True
        if constant not in REFUSALS and not operation.may_fail_with(constant):
            return True
    return False


def _differ_by_absence(left: _Form, one: DeclaredOperation, right: _Form, other: DeclaredOperation) -> bool:
    return any(right.always_has(path, other) for path in left.absent) or any(left.always_has(path, one) for path in right.absent)


def _refused(fault: str) -> Refused:
    return Refused(
        HandlerCode.MANIFEST, f"The manifest's messages are not valid: {fault}.", fix="See docs/specification/declarative.md."
    )
