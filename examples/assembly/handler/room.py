"""The side with many peers."""

from __future__ import annotations

from treaty_handler import (
    Call,
    Effect,
    Event,
    Failure,
    Invoke,
    Multicast,
    Opened,
    PeerJoined,
    PeerLost,
    Persist,
    Received,
    Result,
    Return,
    Send,
    Value,
    decode_json,
    encode_json,
)

from .messages import read

KEPT = 5


class Room:
    """State: the members, the number of texts, the last of them, and the texts that the application judges."""

    def __init__(self, state: dict[str, Value]) -> None:
        """Begin, or go on from the state."""
        self.members: list[str] = state.get("members", [])
        self.number: int = state.get("number", 0)
        self.last: list[dict[str, Value]] = state.get("last", [])
        self.asked: int = state.get("asked", 0)
        self.judged: dict[str, list[str]] = state.get("judged", {})

    def handle(self, event: Event) -> list[Effect]:
        """Tell the words of a member to all members."""
        match event:
            case Opened(stored=stored):
                kept = decode_json(stored["last"]) if "last" in stored else []
                self.last, self.number = kept, kept[-1]["number"] if kept else 0
            case PeerJoined(peer=peer):
                self.members.append(peer)
                return [self.send(peer, said) for said in self.last]
            case PeerLost(peer=peer):
                self.members.remove(peer)
                self.judged = {call: asked for call, asked in self.judged.items() if asked[0] != peer}
            case Received(peer=peer, data=data):
                message = read(data, "member")
                if message is not None:
                    self.asked += 1
                    self.judged[str(self.asked)] = [peer, message["id"]]
                    return [Invoke(call=str(self.asked), operation="accept", arguments={"text": message["text"]})]
            case Result(call=call, value=value, error=error):
                return self.judge(call, value, error)
            case Call(call=call, arguments=arguments):
                return [*self.tell("", arguments["text"]), Return(call=call, value=len(self.members))]
        return []

    def judge(self, call: str, text: Value, error: Failure | None) -> list[Effect]:
        """Answer the member, and tell the text if the application accepts it."""
        asked = self.judged.pop(call, None)
        if asked is None:
            return []  # the member has left
        peer, id = asked
        if error is not None:
            code, message = (error.code, error.message) if error.code == 403 else (500, "The room failed.")
            return [self.send(peer, {"type": "error", "id": id, "code": code, "message": message})]
        told = self.tell(peer, text)
        return [self.send(peer, {"type": "heard", "id": id, "number": self.number}), *told]

    def tell(self, speaker: str, text: str) -> list[Effect]:
        """Keep a text, and tell all members."""
        self.number += 1
        said = {"type": "said", "number": self.number, "from": speaker, "text": text}
        self.last = [*self.last, said][-KEPT:]
        # Durable before any member hears it: a text that was heard is not lost.
        kept = Persist(key="last", value=encode_json(self.last))
        return [kept, Multicast(peers=tuple(self.members), data=encode_json(said))]

    def send(self, peer: str, message: dict[str, Value]) -> Send:
        """One message to one member."""
        return Send(peer=peer, data=encode_json(message))

    def snapshot(self) -> bytes:
        """All of the state."""
        return encode_json(vars(self))
