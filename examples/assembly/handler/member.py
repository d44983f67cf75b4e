"""The side with one peer, the room."""

from __future__ import annotations

from treaty_handler import (
    Call,
    Effect,
    Event,
    Failure,
    Invoke,
    PeerLost,
    Received,
    Result,
    Return,
    Send,
    SetTimer,
    Timer,
    Value,
    derive_id,
    encode_json,
)

from .messages import read

SECONDS = 10
# The application hears one text after the other. Beyond this it misses some, because a room may send any number.
MAX_HEARD = 64


class Member:
    """State: the texts that were said and not answered, by id, and the number of texts that the application hears now."""

    def __init__(self, peer: str, seed: str, state: dict[str, Value]) -> None:
        """Begin, or go on from the state."""
        self.peer, self.seed = peer, seed
        self.made: int = state.get("made", 0)
        self.said: dict[str, str] = state.get("said", {})
        self.hearing: list[str] = state.get("hearing", [])

    def handle(self, event: Event) -> list[Effect]:
        """Say a text, or hear one."""
        match event:
            case Call(call=call, arguments=arguments):
                self.made += 1
                id = derive_id(self.seed, self.made)
                self.said[id] = call
                message = {"type": "say", "id": id, "text": arguments["text"]}
                return [SetTimer(name=id, seconds=SECONDS), Send(peer=self.peer, data=encode_json(message))]
            case Received(data=data):
                message = read(data, "room")
                return [] if message is None else self.received(message)
            case Result(call=call):
                self.hearing.remove(call)
            case Timer(name=id):
                return [self.fail(id, 504, "The room does not answer.")]
            case PeerLost():
                return [self.fail(id, 503, "The room is gone.") for id in tuple(self.said)]
        return []

    def received(self, message: dict[str, Value]) -> list[Effect]:
        """Hear a text, or the answer to one's own."""
        if message["type"] == "said":
            if len(self.hearing) >= MAX_HEARD:
                return []
            self.made += 1
            call = derive_id(self.seed, self.made)
            self.hearing.append(call)
            arguments = {"number": message["number"], "speaker": message["from"], "text": message["text"]}
            return [Invoke(call=call, operation="said", arguments=arguments)]
        id = message["id"]
        if id not in self.said:
            return []
        stopped = SetTimer(name=id, seconds=None)
        if message["type"] == "heard":
            return [stopped, Return(call=self.said.pop(id), value=message["number"])]
        code = 403 if message["code"] == 403 else 500
        return [stopped, self.fail(id, code, message["message"])]

    def fail(self, id: str, code: int, message: str) -> Return:
        """The end of a text that was not accepted."""
        return Return(call=self.said.pop(id), error=Failure(code=code, message=message))

    def snapshot(self) -> bytes:
        """All of the state."""
        return encode_json({"made": self.made, "said": self.said, "hearing": self.hearing})
