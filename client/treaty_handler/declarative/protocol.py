"""Compile the operations and the roles of a manifest with message forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from ..values import Value
from .faults import sentences
from .forms import Form, FormIndex, at
from .traits import FormTraits, MessageId, Path

# A provider owes at most so many items of one stream.
MAX_CREDIT: Final = 1_024
_DEFAULT_WINDOW = 16
_COMMON = frozenset({500, 502, 503, 504})
_ANSWERS = ("response", "item", "end", "error")
_CONTROLS = ("more", "cancel")

Check: TypeAlias = Callable[[str, str, Value], str]
"""Check a value against a schema of an operation: its name, `arguments` or `result`, and the value. Returns a sentence about the
first fault, or "" for a value that conforms."""


class OperationForms:
    """One operation with its forms. `codes`: the error codes that it may fail with."""

    def __init__(
        self, name: str, declared: Mapping[str, Value], messages: Mapping[str, Value], traits: FormTraits, check: Check
    ) -> None:
        self.name, self.traits = name, traits
        self.kind: str = declared.get("kind", "request")
        self.timeout = float(declared.get("timeout", 0))
        self.window: int = declared.get("window", _DEFAULT_WINDOW)
        self.codes = _COMMON | {int(code) for code in declared.get("errors", {})}
        reply = {"request": "response", "stream": "item", "event": "event"}[self.kind]
        form_kinds = {"request", "error", "cancel", reply} if self.kind == "request" else {reply}
        if self.kind == "stream":
            form_kinds = {"request", "item", "end", "error", "more", "cancel"}
        written = messages.get(name, messages.get("*", {}))
        self._schemas = {"arguments": declared["arguments"], "result": declared.get("result", {})}
        self.forms = {
            kind: Form(kind, name, written[kind], self._required(kind), traits) for kind in written if kind in form_kinds
        }
        # The form of errors is the last one: its `$code` holds every code that no other form has as a constant.
        self._answers = FormIndex(self.forms[kind] for kind in ("response", "item", "end") if kind in self.forms)
        self._errors = FormIndex(self.forms[kind] for kind in ("error",) if kind in self.forms)
        self.controls = FormIndex(self.forms[kind] for kind in _CONTROLS if kind in self.forms)
        self._check = check

    def answer_form(self, message: Value) -> Form | None:
        """Return the form of an answer, or None."""
        answer_form = self._answers.match(message) or self._errors.match(message)
        return answer_form[0] if answer_form else None

    def answer_faults(self, message: Value) -> list[str]:
        """Say why a message is no answer."""
        return self._answers.faults(message)

    def faults(self, form: Form, value: Value) -> list[str]:
        """Return the faults of the value that a form of this operation carries, a sentence each."""
        schema = "arguments" if form.source == "arguments" else "result"
        problems = self._check(self.name, schema, value)
        if not problems:
            return []
        name = ".".join(form.places.get(form.source, ())) or f"The {form.source}"
        return sentences(self._schemas[schema], value, name, form.place_of) or [problems]

    def _required(self, kind: str) -> list[str]:
        required = self._schemas["arguments" if kind in ("request", "event") else "result"].get("required", [])
        return required if isinstance(required, list) else []


class RoleForms:
    """One role: the operations of each direction, and the forms that it may receive."""

    def __init__(self, name: str, declared: Mapping[str, Value], operations: Mapping[str, OperationForms]) -> None:
        self.name = name
        self.peer: str = declared["peer"]
        self.calls = {item: operations[item] for item in declared["calls"]}
        self.invokes = {item: operations[item] for item in declared["invokes"]}
        self.initiations = FormIndex(_forms(self.invokes.values(), ("request", "event")))
        self.requests = FormIndex(_forms(self.invokes.values(), ("request",)))
        self.answer_places = _id_places(self.calls.values(), _ANSWERS)
        self.control_places = _id_places(self.invokes.values(), _CONTROLS)
        self.request_forms = list(_forms(self.invokes.values(), ("request",)))
        # Every form that this role sends, for `Handler.validate`.
        self.sent = FormIndex(
            (
                *_forms(self.calls.values(), ("request", "event", *_CONTROLS)),
                *_forms(self.invokes.values(), _ANSWERS),
            )
        )

    def request_id(self, message: Value) -> tuple[Form, MessageId] | None:
        """Return the id of a message as if it were a request, with the first request form that has an id there."""
        for form in self.request_forms:
            value = form.id_in(message)
            if value is not None:
                return form, value
        return None


class CompiledProtocol:
    """The compiled manifest. `manifest`: a JSON value that the rules of manifests accept."""

    def __init__(self, manifest: Mapping[str, Value], check: Check) -> None:
        messages = manifest["messages"]
        refusals = {int(own): code for own, code in manifest.get("refusals", {}).items()}
        traits = FormTraits.of(messages, manifest["interface"], refusals)
        self.operations = {
            name: OperationForms(name, item, messages, traits, check) for name, item in manifest["operations"].items()
        }
        self.roles = {name: RoleForms(name, item, self.operations) for name, item in manifest["roles"].items()}
        self.answers = FormIndex(_forms(self.operations.values(), _ANSWERS))
        self.controls = FormIndex(_forms(self.operations.values(), _CONTROLS))


def ids_at(message: Value, places: Iterable[Path]) -> Iterator[MessageId]:
    """Yield the texts and integers at these places. Only those under which a request is open are ids."""
    for place in places:
        value = at(message, place)
        if isinstance(value, str) or type(value) is int:
            yield value


def _forms(operations: Iterable[OperationForms], kinds: Iterable[str]) -> Iterator[Form]:
    form_kinds = tuple(kinds)
    for operation in operations:
        yield from (operation.forms[kind] for kind in form_kinds if kind in operation.forms)


def _id_places(operations: Iterable[OperationForms], kinds: Iterable[str]) -> tuple[Path, ...]:
    # A dictionary, because a set has no order and the first place decides.
    return tuple(dict.fromkeys(form.places["id"] for form in _forms(operations, kinds)))
