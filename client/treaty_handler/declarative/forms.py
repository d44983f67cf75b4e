"""Write a message by its form, and find the form of a message by its constants and its absent members."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from ..values import Value, check_size, encode_json
from .traits import ABSENT, FormTraits, MessageId, Path

# The host refuses a longer message and ends the session.
MAX_MESSAGE: Final = 1024 * 1024
_MAX_LISTED = 5

_Key: TypeAlias = tuple[object, ...]
_MISSING = object()
_SUCCESS = "Success"
_WORDS = {"error": "response"}


class Reading(NamedTuple):
    """What a form found in a message. `values`: slot without `$` → value. `faults`: a sentence each."""

    values: dict[str, Value]
    faults: list[str]


class Form:
    """One form of one operation. `constants`: the places whose values are fixed; the slot `$operation` is one of them.
    `presence`: place → whether it is there in each message; only of the places that another form may tell apart by it."""

    def __init__(
        self,
        kind: str,
        operation: str,
        template: Mapping[str, Value],
        required: Collection[str],
        traits: FormTraits,
    ) -> None:
        """`required`: the members of the value that each message has. `traits`: of all forms of the manifest."""
        self.kind, self.operation = kind, operation
        self.constants: dict[Path, Value] = {}
        self.presence: dict[Path, bool] = {}
        self.objects: list[Path] = []
        self.places: dict[str, Path] = {}
        self.members: dict[str, Path] = {}
        self.source = {"request": "arguments", "event": "arguments", "response": "result", "item": "item"}.get(kind, "")
        self._template, self._traits = template, traits
        self._compile((), template)
        written = {*self.objects, *self.places.values(), *(path for name, path in self.members.items() if name in required)}
        self.presence |= dict.fromkeys(traits.absent & written, True)

    @property
    def word(self) -> str:
        """Return the kind as sentences name it: a response reports a success or an error."""
        return _WORDS.get(self.kind, self.kind)

    def place_of(self, member: str) -> str:
        """Return the place of a member of the operation's value, as sentences name it."""
        if member in self.members:
            return dotted(self.members[member])
        return ".".join((*self.places.get(self.source, ()), member))

    def id_in(self, message: Value) -> MessageId | None:
        """Return the id of a message, or None if it has none that can be kept."""
        return self._traits.id_of(at(message, self.places["id"]))

    def write(self, values: Mapping[str, Value]) -> bytes:
        """Return the bytes of a message, without absent members. Raises `ValueError` if the message is too large."""
        message = self._fill(self._template, {"operation": self.operation, "message": _SUCCESS, **values})
        check_size(message)
        data = encode_json(message)
        if len(data) > MAX_MESSAGE:
            raise ValueError(f"more than {MAX_MESSAGE} bytes")
        return data

    def read(self, message: Value) -> Reading:
        """Read the slots. The message is an object with the constants of this form."""
        faults = [f"{dotted(path)} is not an object." for path in self.objects if self._is_broken(message, path)]
        values: dict[str, Value] = {}
        for name, path in self.places.items():
            value = at(message, path)
            if name in ("code", "count"):
                if type(value) is not int and not faults:
                    faults.append(f"{dotted(path)} is not an integer.")
            elif name == "message" or (name == "id" and not self._traits.has_integer_ids):
                if not isinstance(value, str) and not faults:
                    faults.append(f"{dotted(path)} is not a string.")
            elif name == "id":
                if type(value) is not int and not isinstance(value, str) and not faults:
                    faults.append(f"{dotted(path)} is neither a string nor an integer.")
            elif value is _MISSING:
                faults.append(f"{dotted(path)} is missing.")
            values[name] = value
        if self.source and self.source not in values:
            members = {name: value for name, path in self.members.items() if (value := at(message, path)) is not _MISSING}
            values[self.source] = members if members or self.members or self.source == "arguments" else None
        return Reading(values, faults)

    def _compile(self, path: Path, node: Value) -> None:
        # The rules of the manifest bound the depth.
        if isinstance(node, dict):
            if path:
                self.objects.append(path)
            for name, child in node.items():
                self._compile((*path, name), child)
        elif node == ABSENT:
            self.presence[path] = False
        elif not isinstance(node, str) or not node.startswith("$"):
            self.constants[path] = node
        elif node.startswith("$$"):
            self.constants[path] = node[1:]
        elif node == "$operation":
            self.constants[path] = self.operation
        else:
            source, dot, member = node[1:].partition(".")
            if dot:
                self.members[member] = path
            else:
                self.places[source] = path

    def _fill(self, node: Value, values: Mapping[str, Value]) -> Value:
        if isinstance(node, dict):
            filled: dict[str, Value] = {}
            for name, child in node.items():
                value = self._fill(child, values)
                if value is not _MISSING:
                    filled[name] = value
            return filled
        if not isinstance(node, str) or not node.startswith("$"):
            return node
        if node.startswith("$$"):
            return node[1:]
        source, dot, member = node[1:].partition(".")
        value = values.get(source, _MISSING)
        if not dot:
            return value
        return value.get(member, _MISSING) if isinstance(value, dict) else _MISSING

    def _is_broken(self, message: Value, path: Path) -> bool:
        # Only the outermost object that is none: one sentence for one fault.
        return isinstance(at(message, path[:-1]), dict) and not isinstance(at(message, path), dict)


class FormIndex:
    """Find the forms of a message by their constants, and by the members that are there or absent.

    Forms with constants at the same places share a table from these constants to the form. So a message costs one look-up for
    each set of places, not one comparison for each form. The manifest's rules bound the number of places.
    """

    def __init__(self, forms: Iterable[Form]) -> None:
        # By the places of constants, and those that are there or absent.
        self._tables: dict[tuple[tuple[Path, ...], tuple[Path, ...]], dict[_Key, list[Form]]] = {}
        for form in forms:
            places, marked = tuple(sorted(form.constants)), tuple(sorted(form.presence))
            key = (*(_comparable(form.constants[place]) for place in places), *(form.presence[place] for place in marked))
            self._tables.setdefault((places, marked), {}).setdefault(key, []).append(form)

    def __bool__(self) -> bool:
        return bool(self._tables)

    def match(self, message: Value) -> list[Form]:
        """Return the forms whose constants the message has. Several are the same form of several operations."""
        for (places, marked), table in self._tables.items():
            present = (at(message, place) is not _MISSING for place in marked)
            matching = table.get((*(_comparable(at(message, place)) for place in places), *present))
            if matching is not None:
                return matching
        return []

    def faults(self, message: Value) -> list[str]:
        """Say which constants keep a message from having the first form of this index."""
        for (places, marked), table in self._tables.items():
            wrong = [*_wrong_constants(message, places, table), *_wrong_presence(message, marked, table)]
            return wrong or ["The message has no known combination of constants."]
        return []


def at(message: Value, path: Path) -> object:
    """Return the value at a place of a message, or an object that is no JSON value."""
    for name in path:
        if not isinstance(message, dict) or name not in message:
            return _MISSING
        message = message[name]
    return message


def dotted(path: Path) -> str:
    """Return a place as sentences name it."""
    return ".".join(path)


def with_article(noun: str) -> str:
    """Return the noun with `a` or `an`, for a sentence."""
    return f"an {noun}" if noun[:1].lower() in tuple("aeiou") else f"a {noun}"


def _wrong_constants(message: Value, places: tuple[Path, ...], table: Mapping[_Key, list[Form]]) -> Iterator[str]:
    for number, place in enumerate(places):
        expected = {key[number]: forms[0] for key, forms in table.items()}
        if _comparable(at(message, place)) in expected:
            continue
        constants = [form.constants[place] for form in expected.values()]
        if len(constants) > 1:
            more = " …" * (len(constants) > _MAX_LISTED)
            yield f"{dotted(place)} is none of {', '.join(map(_shown, constants[:_MAX_LISTED]))}{more}."
        elif constants[0] == next(iter(expected.values())).operation:
            yield f"The only {dotted(place)} is {constants[0]}."
        else:
            yield f"The {dotted(place)} of {with_article(next(iter(expected.values())).word)} is {_shown(constants[0])}."


def _wrong_presence(message: Value, marked: tuple[Path, ...], table: Mapping[_Key, list[Form]]) -> Iterator[str]:
    forms = [forms[0] for forms in table.values()]
    for place in marked:
        is_present = at(message, place) is not _MISSING
        if any(form.presence[place] is is_present for form in forms):
            continue
        yield f"A {forms[0].word} has no {dotted(place)}." if is_present else f"{dotted(place)} is missing."


def _shown(constant: Value) -> str:
    return constant if isinstance(constant, str) else encode_json(constant).decode()


def _comparable(value: object) -> object:
    """Return an object that is equal for equal JSON scalars: Python takes 1 and true for equal."""
    if isinstance(value, dict | list):
        return _MISSING
    return (value,) if isinstance(value, bool) else value
