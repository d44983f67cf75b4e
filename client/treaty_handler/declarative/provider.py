"""Read the requests of the peer, and send the answers of the local application."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from ..effects import Audit, Cancel, Effect, Invoke, Request, Send
from ..events import Item, Result
from ..values import Value
from .forms import Form, dotted, with_article
from .protocol import MAX_CREDIT, OperationForms, RoleForms
from .traits import MessageId

MAX_OPEN: Final = 256
_MAX_TEXT = 500


@dataclass(slots=True)
class IncomingRequest:
    """An open request. `number`: its id on the wire, "" for an event; `credit`: the items that may still be sent."""

    number: MessageId
    operation: str
    credit: int = 0


class Provider:
    """The peer's requests of one session. `ids`: id on the wire → call."""

    def __init__(self, role: RoleForms, peer: str, state: Value) -> None:
        self.open: dict[str, IncomingRequest] = {call: IncomingRequest(**item) for call, item in state["open"].items()}
        self.ids = {item.number: call for call, item in self.open.items() if item.number != ""}
        self._role, self._peer = role, peer
        self._made: int = state["made"]

    def snapshot(self) -> Value:
        """Return the state as a JSON value."""
        return {"made": self._made, "open": {call: asdict(item) for call, item in self.open.items()}}

    def start(self, form: Form, message: Value) -> list[Effect]:
        """Invoke the operation of a request or of an event, or refuse it."""
        operation = self._role.invokes[form.operation]
        values, faults = form.read(message)
        if not faults:
            faults = operation.faults(form, values["arguments"])
        if form.kind == "event":
            return self._start_event(operation, values["arguments"], faults)
        number = form.id_in(message)
        if number is None:
            return [Audit(text=f"Ignored a message without {with_article(dotted(form.places['id']))}.")]
        # An answer would end the request that is open under this id.
        if number in self.ids:
            return [Audit(text=f"Ignored a request whose {dotted(form.places['id'])} is open already.")]
        if faults:
            return [self.refuse(operation, number, 400, " ".join(faults))]
        if len(self.open) >= MAX_OPEN:
            return [self.refuse(operation, number, 429, f"{MAX_OPEN} requests are open already.")]
        credit = operation.window if operation.kind == "stream" else 0
        call = self._add(IncomingRequest(number, operation.name, credit))
        self.ids[number] = call
        invoke = Invoke(call=call, operation=operation.name, arguments=values["arguments"])
        return [invoke, Request(call=call, count=credit)] if credit else [invoke]

    def control(self, form: Form, number: MessageId, message: Value) -> list[Effect]:
        """Cancel an open request, or raise the credit of a stream."""
        call = self.ids[number]
        request = self.open[call]
        if form.kind == "cancel":
            self._forget(call)
            return [Cancel(call=call)]
        values, faults = form.read(message)
        count = values["count"]
        if not faults and 1 <= count <= MAX_CREDIT - request.credit:
            request.credit += count
            return [Request(call=call, count=count)]
        # A smaller credit than the peer believes in would make both sides wait.
        self._forget(call)
        text = " ".join(faults) or f"At most {MAX_CREDIT} items may be asked for at once."
        return [Cancel(call=call), self.refuse(self._role.invokes[request.operation], number, 400, text)]

    def result(self, event: Result) -> list[Effect]:
        """Send the answer of the application, or the end of its stream."""
        request = self._forget(event.call)
        operation = self._role.invokes[request.operation]
        error = event.error
        if operation.kind == "event":
            text = f"The event {operation.name} failed with code {error.code}: {error.message}" if error else ""
            return [Audit(text=text[:_MAX_TEXT])] if error else []
        if error is not None:
            return [self.refuse(operation, request.number, error.code, error.message)]
        form = operation.forms["end" if operation.kind == "stream" else "response"]
        try:
            return [self._send(form, request.number, {} if operation.kind == "stream" else {"result": event.value})]
        except ValueError as fault:
            return [self.refuse(operation, request.number, 500, f"The result does not fit into a message: {fault}.")]

    def item(self, event: Item) -> list[Effect]:
        """Send the next item of the application's stream."""
        request = self.open[event.call]
        operation = self._role.invokes[request.operation]
        request.credit -= 1
        try:
            return [self._send(operation.forms["item"], request.number, {"item": event.value})]
        except ValueError as fault:
            self._forget(event.call)
            text = f"An item does not fit into a message: {fault}."
            return [Cancel(call=event.call), self.refuse(operation, request.number, 500, text)]

    def refuse(self, operation: OperationForms, number: MessageId, code: int, text: str) -> Send:
        """Return an error as the answer to a request."""
        values = {"code": operation.traits.refusals.get(code, code), "message": text[:_MAX_TEXT]}
        return self._send(operation.forms["error"], number, values)

    def _start_event(self, operation: OperationForms, arguments: Value, faults: list[str]) -> list[Effect]:
        if faults:
            return [Audit(text=f"Ignored an event that does not conform: {' '.join(faults)}"[:_MAX_TEXT])]
        if len(self.open) >= MAX_OPEN:
            return [Audit(text=f"Ignored an event: {MAX_OPEN} requests and events are open already.")]
        call = self._add(IncomingRequest("", operation.name))
        return [Invoke(call=call, operation=operation.name, arguments=arguments)]

    def _add(self, request: IncomingRequest) -> str:
        self._made += 1
        call = str(self._made)
        self.open[call] = request
        return call

    def _forget(self, call: str) -> IncomingRequest:
        request = self.open.pop(call)
        self.ids.pop(request.number, None)
        return request

    def _send(self, form: Form, number: MessageId, values: dict[str, Value]) -> Send:
        return Send(peer=self._peer, data=form.write({"id": number, **values}))
