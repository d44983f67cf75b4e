"""Run a session of a declarative protocol: give each event to the caller or to the provider in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..effects import Audit, Effect, End
from ..events import Call, Cancelled, Close, Event, Item, PeerLost, Received, Requested, Result, Timer
from ..interface import Session
from ..values import Value, decode_json, encode_json
from .caller import MAX_TEXT, Caller
from .forms import dotted, with_article
from .protocol import Check, CompiledProtocol, RoleForms, ids_at
from .provider import Provider

_NO_STATE: Value = {"caller": {"made": 0, "waiting": {}, "crossing": {}}, "provider": {"made": 0, "open": {}}}


def handler(manifest: Mapping[str, Value], check: Check) -> DeclarativeHandler:
    """Return the handler of a manifest with `messages`.

    `manifest`: the JSON value of `manifest.json`, which passed the rules for manifests. `check`: checks a value against a schema
    of the manifest.
    """
    return DeclarativeHandler(CompiledProtocol(manifest, check))


class DeclarativeHandler:
    """A `Handler` that interprets message forms."""

    def __init__(self, protocol: CompiledProtocol) -> None:
        self._protocol = protocol

    def open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes = b"") -> Session:
        state = decode_json(snapshot) if snapshot else _NO_STATE
        return DeclarativeSession(self._protocol, self._protocol.roles[role], parameters, state)

    def encode(self, message: Value) -> bytes:
        if not isinstance(message, dict):
            raise ValueError("a message is a JSON object")
        return encode_json(message)

    def decode(self, data: bytes) -> Value:
        message = decode_json(data)
        if not isinstance(message, dict):
            raise ValueError("a message is a JSON object")
        return message

    def validate(self, message: Value, sender: str) -> Sequence[str]:
        if not isinstance(message, dict):
            return ["A message is a JSON object."]
        role = self._protocol.roles[sender]
        matching_form = role.sent.match(message)
        if not matching_form:
            return role.sent.faults(message)
        form = matching_form[0]
        values, faults = form.read(message)
        # Several operations may share a form. Then the message alone does not say which schema applies.
        if not faults and form.source and len(matching_form) == 1:
            faults = self._protocol.operations[form.operation].faults(form, values[form.source])
        return faults


class DeclarativeSession:
    """One session in one role."""

    def __init__(self, protocol: CompiledProtocol, role: RoleForms, parameters: Mapping[str, Value], state: Value) -> None:
        self._protocol, self._role = protocol, role
        self._caller = Caller(role, parameters["peer"], parameters["seed"], state["caller"])
        self._provider = Provider(role, parameters["peer"], state["provider"])

    def snapshot(self) -> bytes:
        return encode_json({"caller": self._caller.snapshot(), "provider": self._provider.snapshot()})

    def handle(self, event: Event) -> Sequence[Effect]:
        match event:
            case Call():
                return self._caller.call(event)
            case Received(data=data):
                return self._received(data)
            case Requested():
                return self._caller.requested(event)
            case Cancelled(call=call):
                return self._caller.cancelled(call)
            case Result():
                return self._provider.result(event)
            case Item():
                return self._provider.item(event)
            case Timer(name=name):
                return self._caller.timed_out(name)
            case PeerLost():
                failures = self._caller.peer_lost()
                return [*failures, End(status="failed" if failures or self._provider.open else "completed")]
            case Close():
                return [End()]
        return []

    def _received(self, data: bytes) -> Sequence[Effect]:
        try:
            message = decode_json(data)
            if not isinstance(message, dict):
                raise ValueError("a message is a JSON object")
        except ValueError as error:
            return [Audit(text=f"Ignored what is no message: {error}"[:MAX_TEXT])]
        if started := self._role.initiations.match(message):
            return self._provider.start(started[0], message)
        # Requests and answers have different constants, so an id that both sides chose does not confuse them.
        for number in ids_at(message, self._role.control_places):
            if number in self._provider.ids:
                operation = self._role.invokes[self._provider.open[self._provider.ids[number]].operation]
                if control := operation.controls.match(message):
                    return self._provider.control(control[0], number, message)
        for number in ids_at(message, self._role.answer_places):
            # The ids that this side chooses are texts.
            if isinstance(number, int):
                continue
            if number in self._caller.waiting:
                return self._caller.answered(number, message, len(data))
            if self._caller.crossed(number):
                return []
        return self._unknown(message)

    def _unknown(self, message: Value) -> Sequence[Effect]:
        """Answer a message that is no request with 400, if it can be one."""
        # The controls of a request that has just ended. They crossed its last answer, which is no fault.
        if self._protocol.controls.match(message):
            return []
        role = self._role
        is_answer = bool(self._protocol.answers.match(message))
        if role.calls and (is_answer or not role.requests):
            return [Audit(text="Ignored an answer to no open request.")]
        if not role.requests:
            return [Audit(text="Ignored a message that is no event.")]
        request_id = role.request_id(message)
        if request_id is None:
            return [Audit(text=f"Ignored a message without {with_article(dotted(role.request_forms[0].places['id']))}.")]
        if is_answer:
            return [Audit(text="Ignored a response; answering it could go on for ever.")]
        form, number = request_id
        operation = role.invokes[form.operation]
        return [self._provider.refuse(operation, number, 400, " ".join(role.requests.faults(message)))]
