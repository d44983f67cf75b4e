"""Write the part of a document that the manifest says: roles, operations, forms, schemas, errors and examples.

Where code makes the messages, the manifest knows no forms: the part has roles, operations, errors, and the messages of a call as
far as they are JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from treaty_consensus.handler import Manifest, Operation, OperationKind
from treaty_handler import Value
from treaty_handler.declarative import FormTraits
from treaty_sandbox.vectors import Vector

from .document_examples import call_examples, form_examples

_WIDTH = 120
_KINDS = ("request", "response", "item", "end", "error", "more", "cancel", "event")
_FORMS = """\
Messages are JSON objects in UTF-8. A form has the members of a message; `$name` stands for a value. Members that no form shows
are ignored.
"""
_ABSENT = "`$absent`: the message has no such member.\n"


def messages_part(manifest: Manifest, vectors: Sequence[Vector]) -> str:
    """Return the part, without its marks. `vectors`: the examples come from them, so they must hold."""
    return "\n".join(_Part(manifest, vectors).blocks())


class _Part:
    def __init__(self, manifest: Manifest, vectors: Sequence[Vector]) -> None:
        self._manifest = manifest
        self._of_forms = form_examples(manifest, vectors)
        self._of_calls = {} if manifest.messages else call_examples(vectors)

    def blocks(self) -> Iterator[str]:
        manifest = self._manifest
        yield f"## {'Messages' if manifest.messages else 'Roles and operations'}\n"
        rows = [
            (
                f"`{role.name}`{', one session for many' * role.is_shared}",
                f"`{role.peer}`",
                _names(role.calls),
                _names(role.invokes),
            )
            for role in manifest.roles.values()
        ]
        yield _table(("role", "other side", "calls", "serves"), rows)
        if manifest.messages:
            yield _FORMS
            if FormTraits.of(manifest.messages, manifest.interface, {}).absent:
                yield _ABSENT
        for operation in manifest.operations.values():
            yield from self._operation(operation)

    def _operation(self, operation: Operation) -> Iterator[str]:
        yield f"### {operation.name}\n\n{self._sentences(operation)}\n"
        forms = self._manifest.messages.get(operation.name, {})
        if forms:
            kinds = [kind for kind in _KINDS if kind in forms]
            yield f"Forms:\n\n{_block([forms[kind] for kind in kinds])}"
            examples = [self._of_forms[operation.name, kind] for kind in kinds if (operation.name, kind) in self._of_forms]
        else:
            examples = self._of_calls.get(operation.name, [])
        if examples:
            yield f"For example:\n\n{_block(examples)}"
        if forms:
            yield f"`$arguments`:\n\n{_block([operation.arguments])}"
            if operation.result is not None:
                yield f"`${'item' if operation.kind is OperationKind.STREAM else 'result'}`:\n\n{_block([operation.result])}"
        if operation.errors:
            rows = [(str(code), _line(meaning)) for code, meaning in sorted(operation.errors.items())]
            yield _table(("error", "meaning"), rows)

    def _sentences(self, operation: Operation) -> str:
        roles = self._manifest.roles.values()
        callers = _names(role.name for role in roles if operation.name in role.calls)
        providers = _names(role.name for role in roles if operation.name in role.invokes)
        sentences = [f"{', '.join([f'{callers} calls it'] * bool(callers) + [f'{providers} serves it'] * bool(providers))}."]
        seconds = f"{operation.timeout} second{'s' * (operation.timeout != 1)}"
        match operation.kind:
            case OperationKind.EVENT:
                sentences.append("It has no answer.")
            case OperationKind.STREAM:
                sentences.append(f"It has many answers, the items. An item that is owed comes within {seconds}.")
            case _:
                sentences.append(f"It has one answer, within {seconds}.")
        return " ".join([*sentences, *(["It may be repeated."] if operation.idempotent else [])])


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _block(values: Iterable[Value]) -> str:
    return "```json\n" + "".join(f"{_json(value)}\n" for value in values) + "```\n"


def _json(value: Value) -> str:
    value = dict(value)
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= _WIDTH else json.dumps(value, ensure_ascii=False, indent=2)
