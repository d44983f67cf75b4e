"""Take the examples of a document from the vectors: one of each form, or the messages of one call where code makes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from treaty_consensus.handler import Manifest
from treaty_handler import Call, Received, Value, decode_json
from treaty_handler.declarative import Form, FormIndex, FormTraits
from treaty_sandbox.vectors import Vector, VectorStep

_MAX_MESSAGES = 8
_MAX_LENGTH = 800
"""Characters of an example. A longer one explains nothing."""


def form_examples(manifest: Manifest, vectors: Iterable[Vector]) -> Mapping[tuple[str, str], Value]:
    """Return the first message of each form, by operation and kind. A message that the handler sent is preferred: one that it
    received may break a schema."""
    traits = FormTraits.of(manifest.messages, manifest.interface, manifest.refusals)
    forms = [
        (name, kind, Form(kind, name, dict(template), (), traits))
        for name, kinds in manifest.messages.items()
        for kind, template in kinds.items()
    ]
    readers = [(name, kind, form, FormIndex([form])) for name, kind, form in forms]
    sent: dict[tuple[str, str], Value] = {}
    received: dict[tuple[str, str], Value] = {}
    for vector in vectors:
        # The operation of each request, because answers of several operations may have one form.
        owners: dict[str | int | None, str] = {}
        for step in vector.steps:
            for message, is_sent in _messages(step):
                for name, kind, form, index in readers:
                    if not _is_short(message) or not index.match(message) or form.read(message).faults:
                        continue
                    call = form.id_in(message) if "id" in form.places else None
                    if kind == "request":
                        owners[call] = name
                    if call is None or owners.get(call) == name:
                        (sent if is_sent else received).setdefault((name, kind), message)
    return received | sent


def call_examples(vectors: Iterable[Vector]) -> Mapping[str, list[Value]]:
    """Return the messages at the caller of the first call of each operation that succeeds; only JSON, and only short ones."""
    examples: dict[str, list[Value]] = {}
    for vector in vectors:
        messages: list[Value] = []
        begun: dict[str, tuple[str, int]] = {}
        for step in vector.steps:
            start = len(messages)
            messages += [message for message, _ in _messages(step)]
            if isinstance(step.event, Call):
                begun[step.event.call] = step.event.operation, start
            for tag, effect in step.effects:
                if tag == "return" and not effect.get("error"):
                    name, first = begun.pop(str(effect["call"]), ("", 0))
                    excerpt = messages[first:]
                    if name and 0 < len(excerpt) <= _MAX_MESSAGES and all(map(_is_short, excerpt)):
                        examples.setdefault(name, excerpt)
    return examples


def _messages(step: VectorStep) -> Iterator[tuple[Value, bool]]:
    """Yield the messages of a step, each with whether it is sent. One that is no JSON object is None."""
    if isinstance(step.event, Received):
        try:
            message = decode_json(step.event.data)
        except ValueError:
            message = None
        yield message if isinstance(message, dict) else None, False
    for tag, effect in step.effects:
        if tag in ("send", "multicast"):
            data = effect["data"]
            yield data.get("json") if isinstance(data, dict) and isinstance(data.get("json"), dict) else None, True


def _is_short(message: Value) -> bool:
    return message is not None and len(json.dumps(message, ensure_ascii=False)) <= _MAX_LENGTH
