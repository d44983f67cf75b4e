"""Send the calls of the local application, and read the answers of the peer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Final

from ..effects import Audit, Effect, Emit, Return, Send, SetTimer
from ..events import Call, Requested
from ..interface import derive_id
from ..values import Failure, Value
from .forms import Form, at
from .protocol import MAX_CREDIT, OperationForms, RoleForms

# Bytes of the items of all streams that the application has not asked for yet. A request grants the window before it asks.
MAX_HELD: Final = 1024 * 1024
MAX_TEXT: Final = 500
# Cancelled calls whose answers may still be on their way. The oldest is forgotten: its answers are then noted like any other's.
MAX_CROSSING: Final = 32


@dataclass(slots=True)
class OutgoingCall:
    """An open call. For a stream: the numbers of items `granted` to the provider, `wanted` by the application, `received` and
    `emitted`; `held`: received items that were not emitted, with their bytes; `outcome`: the end that waits for them."""

    call: str
    operation: str
    granted: int = 0
    wanted: int = 0
    received: int = 0
    emitted: int = 0
    held: list[tuple[Value, int]] = field(default_factory=list)
    outcome: Failure | None = None
    ended: bool = False


class Caller:
    """The calls of one session. `waiting`: id of a request → open call.

    `_crossing`: id of a request that this side cancelled → number of its messages that may cross the `cancel`.
    """

    def __init__(self, role: RoleForms, peer: str, seed: str, state: Value) -> None:
        self.waiting: dict[str, OutgoingCall] = {
            number: OutgoingCall(**{**item, "outcome": item["outcome"] and Failure(**item["outcome"])})
            for number, item in state["waiting"].items()
        }
        self._role, self._peer, self._seed = role, peer, seed
        self._made: int = state["made"]
        self._crossing: dict[str, int] = dict(state["crossing"])
        self._ids = {item.call: number for number, item in self.waiting.items()}
        self._held = sum(size for item in self.waiting.values() for _, size in item.held)

    def snapshot(self) -> Value:
        """Return the state as a JSON value."""
        waiting = {number: asdict(item) for number, item in self.waiting.items()}
        return {"made": self._made, "waiting": waiting, "crossing": self._crossing}

    def call(self, event: Call) -> list[Effect]:
        """Send a request or an event."""
        operation = self._role.calls[event.operation]
        kind = "event" if operation.kind == "event" else "request"
        # Counted first: an id that was sent once is never derived again.
        self._made += 1
        number = derive_id(self._seed, self._made)
        try:
            data = operation.forms[kind].write({"id": number, "arguments": event.arguments})
        except ValueError as error:
            failure = Failure(code=500, message=f"The arguments do not fit into a message: {error}."[:MAX_TEXT])
            return [Return(call=event.call, error=failure)]
        send = Send(peer=self._peer, data=data)
        if operation.kind == "event":
            return [send, Return(call=event.call)]
        granted = operation.window if operation.kind == "stream" else 0
        self.waiting[number] = OutgoingCall(event.call, operation.name, granted)
        self._ids[event.call] = number
        return [SetTimer(name=number, seconds=operation.timeout), send]

    def requested(self, event: Requested) -> list[Effect]:
        """Emit held items, and ask the provider for further ones."""
        number = self._ids[event.call]
        open_call = self.waiting[number]
        open_call.wanted += event.count
        effects = self._emit(open_call)
        if not open_call.ended:
            return [*effects, *self._grant(number, open_call)]
        return effects if open_call.held else [*effects, self._close(number, open_call.outcome)]

    def cancelled(self, call: str) -> list[Effect]:
        """Tell the provider that a call was given up."""
        number = self._ids[call]
        effects = self._cancel(number)
        self._forget(number)
        return effects

    def answered(self, number: str, message: Value, size: int) -> list[Effect]:
        """Read an answer to an open request. `size`: its bytes."""
        open_call = self.waiting[number]
        operation = self._role.calls[open_call.operation]
        form = operation.answer_form(message)
        if open_call.ended or (form is not None and at(message, form.places["id"]) != number):
            return [Audit(text="Ignored an answer to no open request.")]
        if form is None:
            return self._broken(number, operation.answer_faults(message))
        values, faults = form.read(message)
        if not faults and form.source:
            faults = operation.faults(form, values[form.source])
        if faults:
            return self._broken(number, faults)
        if form.kind == "item":
            return self._item(number, open_call, values["item"], size)
        if form.kind == "error":
            return self._end(number, self._failure(operation, form, values))
        if form.kind == "end":
            return self._end(number, None)
        return [SetTimer(name=number, seconds=None), self._close(number, None, values["result"])]

    def crossed(self, number: str) -> bool:
        """Count a message of a cancelled call, and return whether the provider may have sent it before the `cancel` arrived."""
        left = self._crossing.pop(number, 0)
        if left > 1:
            self._crossing[number] = left - 1
        return left > 0

    def timed_out(self, number: str) -> list[Effect]:
        """Give up a request whose answer is late."""
        if number not in self.waiting:
            return []
        operation = self._role.calls[self.waiting[number].operation]
        missing = "item" if operation.kind == "stream" else "answer"
        failure = Failure(code=504, message=f"No {missing} came within {operation.timeout:g} seconds.")
        return [*self._send_cancel(number), self._close(number, failure)]

    def peer_lost(self) -> list[Effect]:
        """Fail every open call."""
        failure = Failure(code=503, message=f"The {self._role.peer} is gone.")
        return [self._close(number, failure) for number in tuple(self.waiting)]

    def _item(self, number: str, open_call: OutgoingCall, value: Value, size: int) -> list[Effect]:
        if open_call.received >= open_call.granted:
            return self._give_up(number, 502, f"The {self._role.peer} sent more items than were asked for.")
        open_call.received += 1
        open_call.held.append((value, size))
        self._held += size
        effects = self._emit(open_call)
        if self._held > MAX_HELD:
            return [*effects, *self._give_up(number, 500, f"More than {MAX_HELD} bytes of items wait for the application.")]
        return [*effects, *self._grant(number, open_call)]

    def _emit(self, open_call: OutgoingCall) -> list[Effect]:
        count = min(len(open_call.held), open_call.wanted - open_call.emitted)
        items, open_call.held = open_call.held[:count], open_call.held[count:]
        open_call.emitted += count
        self._held -= sum(size for _, size in items)
        return [Emit(call=open_call.call, value=value) for value, _ in items]

    def _grant(self, number: str, open_call: OutgoingCall) -> list[Effect]:
        """Ask the provider for the items that the application wants, and restart the timer while the provider owes one."""
        operation = self._role.calls[open_call.operation]
        count = min(open_call.wanted, open_call.received + MAX_CREDIT) - open_call.granted
        effects: list[Effect] = []
        if count > 0:
            open_call.granted += count
            effects.append(self._send(operation.forms["more"], number, {"count": count}))
        waits = open_call.granted > open_call.received
        return [SetTimer(name=number, seconds=operation.timeout if waits else None), *effects]

    def _end(self, number: str, failure: Failure | None) -> list[Effect]:
        open_call = self.waiting[number]
        stop = SetTimer(name=number, seconds=None)
        if not open_call.held:
            return [stop, self._close(number, failure)]
        # The application gets the held items first.
        open_call.ended, open_call.outcome = True, failure
        return [stop]

    def _failure(self, operation: OperationForms, form: Form, values: dict[str, Value]) -> Failure:
        code, text = values["code"], str(values.get("message", ""))
        if code not in operation.codes:
            text = f"The {self._role.peer} answered with status {code}: {text}"
            code = 502
        return Failure(code=code, message=text[:MAX_TEXT])

    def _broken(self, number: str, faults: list[str]) -> list[Effect]:
        return self._give_up(number, 502, f"The {self._role.peer}'s answer does not conform: {' '.join(faults)}")

    def _give_up(self, number: str, code: int, text: str) -> list[Effect]:
        return [*self._cancel(number), self._close(number, Failure(code=code, message=text[:MAX_TEXT]))]

    def _cancel(self, number: str) -> list[Effect]:
        return [SetTimer(name=number, seconds=None), *self._send_cancel(number)]

    def _send_cancel(self, number: str) -> Iterator[Effect]:
        open_call = self.waiting[number]
        form = self._role.calls[open_call.operation].forms.get("cancel")
        # After its end, the provider has forgotten the request.
        if form is not None and not open_call.ended:
            # The items that it owes, and the end.
            self._crossing[number] = open_call.granted - open_call.received + 1
            while len(self._crossing) > MAX_CROSSING:
                del self._crossing[next(iter(self._crossing))]
            yield self._send(form, number, {})

    def _send(self, form: Form, number: str, values: dict[str, Value]) -> Send:
        return Send(peer=self._peer, data=form.write({"id": number, **values}))

    def _close(self, number: str, failure: Failure | None, value: Value = None) -> Return:
        return Return(call=self._forget(number), value=value, error=failure)

    def _forget(self, number: str) -> str:
        forgotten = self.waiting.pop(number)
        self._held -= sum(size for _, size in forgotten.held)
        del self._ids[forgotten.call]
        return forgotten.call
