"""The side that asks. A request that is not answered within 15 seconds has failed; a later answer is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from treaty_handler import (
    Audit,
    Call,
    Close,
    Effect,
    End,
    Event,
    Failure,
    PeerLost,
    Received,
    Return,
    Send,
    SetTimer,
    Timer,
    Value,
    decode_json,
    derive_id,
    encode_json,
)

from . import messages

TIMEOUT: Final = 15.0


class Requester:
    """State: how many requests were made, and which calls wait under which messageId."""

    def __init__(self, parameters: Mapping[str, Value], snapshot: bytes) -> None:
        self._peer: str = parameters["peer"]
        self._seed: str = parameters["seed"]
        state: Value = decode_json(snapshot) if snapshot else {"made": 0, "waiting": {}}
        self._made: int = state["made"]
        self._waiting: dict[str, str] = state["waiting"]

    def snapshot(self) -> bytes:
        """The state as JSON."""
        return encode_json({"made": self._made, "waiting": self._waiting})

    def handle(self, event: Event) -> list[Effect]:
        """A call becomes a request and a timer; whichever of answer and timer comes first settles it."""
        match event:
            case Call(call=call, arguments=arguments):
                self._made += 1
                message_id = derive_id(self._seed, self._made)
                self._waiting[message_id] = call
                data = messages.request(message_id, messages.wanted(arguments))
                return [SetTimer(name=message_id, seconds=TIMEOUT), Send(peer=self._peer, data=data)]
            case Received(data=data):
                return self._received(data)
            case Timer(name=message_id):
                return [self._fail(message_id, 504, f"No answer came within {TIMEOUT:g} seconds.")]
            case PeerLost():
                failures = [self._fail(message_id, 503, "The provider is gone.") for message_id in tuple(self._waiting)]
                return [*failures, End(status="failed" if failures else "completed")]
            case Close():
                return [End()]
        return []

    def _received(self, data: bytes) -> list[Effect]:
        try:
            message = messages.decode(data)
        except ValueError as error:
            return [Audit(text=f"Ignored what is no message: {error}"[:500])]
        message_id = message.get("messageId")
        if not isinstance(message_id, str) or message_id not in self._waiting:
            return [Audit(text="Ignored an answer to no open request.")]
        cancel = SetTimer(name=message_id, seconds=None)
        issues = messages.response_issues(message)
        if issues:
            return [cancel, self._fail(message_id, 502, f"The provider's answer does not conform: {' '.join(issues)}")]
        code, text = message["status"]["code"], message["status"]["message"]
        if code == messages.OK:
            return [cancel, Return(call=self._waiting.pop(message_id), value=messages.product(message))]
        if code not in messages.CODES:
            return [cancel, self._fail(message_id, 502, f"The provider answered with status {code}: {text}")]
        return [cancel, self._fail(message_id, code, text)]

    def _fail(self, message_id: str, code: int, text: str) -> Return:
        return Return(call=self._waiting.pop(message_id), error=Failure(code=code, message=text[:500]))
