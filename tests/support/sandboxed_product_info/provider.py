"""The side that answers. Each request becomes one invocation of business logic; answers go out as they come, in any order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from treaty_handler import (
    Audit,
    Close,
    Effect,
    End,
    Event,
    Failure,
    Invoke,
    PeerLost,
    Received,
    Result,
    Send,
    Value,
    decode_json,
    encode_json,
)

from . import messages

MAX_OPEN: Final = 256


class Provider:
    """State: how many invocations were made, and which request each that is open belongs to."""

    def __init__(self, parameters: Mapping[str, Value], snapshot: bytes) -> None:
        self._peer: str = parameters["peer"]
        state: Value = decode_json(snapshot) if snapshot else {"made": 0, "open": {}}
        self._made: int = state["made"]
        self._open: dict[str, str] = state["open"]

    def snapshot(self) -> bytes:
        """The state as JSON."""
        return encode_json({"made": self._made, "open": self._open})

    def handle(self, event: Event) -> list[Effect]:
        """A request invokes the operation; its result answers the request."""
        match event:
            case Received(data=data):
                return self._received(data)
            case Result(call=call, value=value, error=None):
                return [self._answer(self._open.pop(call), messages.OK, "Success", value)]
            case Result(call=call, error=Failure(code=code, message=text)):
                return [self._answer(self._open.pop(call), code, text)]
            case PeerLost():
                return [End(status="failed" if self._open else "completed")]
            case Close():
                return [End()]
        return []

    def _received(self, data: bytes) -> list[Effect]:
        try:
            message = messages.decode(data)
        except ValueError as error:
            return [Audit(text=f"Ignored what is no message: {error}"[:500])]
        message_id = message.get("messageId")
        if not isinstance(message_id, str):
            return [Audit(text="Ignored a message without a messageId.")]
        if message.get("type") == "RESPONSE":
            return [Audit(text="Ignored a response; answering it could go on for ever.")]
        issues = messages.request_issues(message)
        if issues:
            return [self._answer(message_id, 400, " ".join(issues))]
        if len(self._open) >= MAX_OPEN:
            return [self._answer(message_id, 429, f"{MAX_OPEN} requests are open already.")]
        self._made += 1
        call = str(self._made)
        self._open[call] = message_id
        return [Invoke(call=call, operation=messages.ACTION, arguments=messages.wanted(message))]

    def _answer(self, message_id: str, code: int, text: str, product: Value = None) -> Effect:
        return Send(peer=self._peer, data=messages.response(message_id, code, text, product))
