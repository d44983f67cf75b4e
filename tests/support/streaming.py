"""A protocol with an operation of each kind, and its handler: a watcher asks a feed, which answers.

A message is a JSON object with `type` and `id`. The feed sends an item only when the watcher asked for one by `more`. The handler
keeps the rules of the interface unless the watcher's `text` says otherwise: `flood` emits an item that was not asked for, `late`
emits one after `Cancelled`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from declared import EVERY
from meetings import MAX_AGE, Party, Published, SimulatedProtocols, party
from signers import ORIGIN

from treaty_agent import Policy
from treaty_anp.flow_profile.capabilities import ProtocolOffer
from treaty_anp.flow_profile.payloads import Metrics
from treaty_consensus.canonical import hex_digest
from treaty_consensus.handler import DECLARATIVE, HandlerMetadata, build_wheel, read_wheel

URI = f"https://{ORIGIN}/protocols/publisher.example/feed/1.0"
FEED = "anp:protocol:feed:1.0"
TOPIC = "news/feed"
WINDOW = 4

HANDLER = """
from treaty_handler import *


class Watcher:
    def __init__(self, peer, state):
        self.peer, self.kinds, self.texts = peer, state.get("kinds", {}), state.get("texts", {})

    def snapshot(self):
        return encode_json({"kinds": self.kinds, "texts": self.texts})

    def send(self, **message):
        return Send(peer=self.peer, data=encode_json(message))

    def handle(self, event):
        match event:
            case Call(call=call, operation="note", arguments=arguments):
                return [self.send(type="note", id=call, arguments=arguments), Return(call=call)]
            case Call(call=call, operation=operation, arguments=arguments):
                self.kinds[call], self.texts[call] = operation, arguments.get("text", "")
                return [self.send(type=operation, id=call, arguments=arguments)]
            case Requested(call=call, count=count):
                flood = [Emit(call=call, value=0)] * (count + 1) if self.texts[call] == "flood" else []
                return [self.send(type="more", id=call, count=count), *flood]
            case Cancelled(call=call):
                del self.kinds[call]
                late = [Emit(call=call, value=0)] if self.texts.pop(call) == "late" else []
                return [self.send(type="cancel", id=call), *late]
            case Received(data=data):
                return self.received(decode_json(data))
            case Close():
                return [End()]
            case PeerLost():
                return [Return(call=call, error=Failure(code=503)) for call in self.kinds] + [End(status="failed")]
        return []

    def received(self, message):
        call = message["id"]
        if call not in self.kinds:
            return []
        if message["type"] == "item":
            return [Emit(call=call, value=message["value"])]
        del self.kinds[call], self.texts[call]
        if "code" in message:
            return [Return(call=call, error=Failure(code=message["code"], message=message["message"]))]
        return [Return(call=call, value=message["value"])]


class Feed:
    def __init__(self, peer, state):
        self.peer, self.open = peer, state.get("open", [])

    def snapshot(self):
        return encode_json({"open": self.open})

    def send(self, **message):
        return [Send(peer=self.peer, data=encode_json(message))]

    def handle(self, event):
        match event:
            case Received(data=data):
                return self.received(decode_json(data))
            case Item(call=call, value=value):
                return self.send(type="item", id=call, value=value)
            case Result(call=call, value=value, error=error):
                if call.startswith("note-"):
                    return [Audit(text=f"failed with {error.code}")] if error else []
                self.open.remove(call)
                failed = {"code": error.code, "message": error.message} if error else {}
                return self.send(type="end", id=call, value=value, **failed)
            case Close() | PeerLost():
                return [*(Cancel(call=call) for call in self.open), End()]
        return []

    def received(self, message):
        call, kind = message["id"], message["type"]
        if kind == "note":
            return [Invoke(call="note-" + call, operation="note", arguments=message["arguments"])]
        if kind in ("watch", "count"):
            self.open.append(call)
            return [Invoke(call=call, operation=kind, arguments=message["arguments"])]
        if call not in self.open:
            return []
        if kind == "more":
            return [Request(call=call, count=message["count"])]
        self.open.remove(call)
        return [Cancel(call=call)]


class Handler:
    def open(self, role, parameters, snapshot=b""):
        state = decode_json(snapshot) if snapshot else {}
        return {"watcher": Watcher, "feed": Feed}[role](parameters["peer"], state)

    def encode(self, message):
        return encode_json(message)

    def decode(self, data):
        return decode_json(data)

    def validate(self, message, sender):
        return []


handler = Handler()
"""
_ANSWERED = {"errors": {"404": "There is no such feed."}, "idempotent": True, "timeout": 15}
MANIFEST: dict[str, Any] = {
    "operations": {
        "watch": {
            "kind": "stream",
            "window": WINDOW,
            "arguments": {"type": "object"},
            "result": {"type": ["integer", "string"]},
            **_ANSWERED,
        },
        "count": {"arguments": {"type": "object"}, "result": {"type": "integer"}, **_ANSWERED},
        "note": {"kind": "event", "arguments": {"type": "object", "properties": {"text": {"type": "string"}}}},
    },
    "roles": {
        "watcher": {"peer": "feed", "calls": ["watch", "count", "note"], "invokes": []},
        "feed": {"peer": "watcher", "calls": [], "invokes": ["watch", "count", "note"]},
    },
}


def published(**operation: Any) -> Published:
    """The protocol, with these members of `watch` replaced."""
    operations = {**MANIFEST["operations"], "watch": {**MANIFEST["operations"]["watch"], **operation}}
    metadata = HandlerMetadata(
        name="feed",
        version="1.0",
        summary="Watch a feed.",
        licence="Apache-2.0",
        entry_point="treaty_handler_feed:handler",
        protocol_uri=URI,
        protocol_hash=hex_digest(URI.encode()),
        manifest={**MANIFEST, "operations": operations},
    )
    wheel = build_wheel({"__init__.py": HANDLER.encode()}, metadata)
    return Published(URI, metadata.protocol_hash, TOPIC, read_wheel(*wheel), aliases=(FEED,))


def declared(**operation: Any) -> Published:
    """The same protocol without code: its manifest has the forms of these messages."""
    operations = {**MANIFEST["operations"], "watch": {**MANIFEST["operations"]["watch"], **operation}}
    metadata = HandlerMetadata(
        name="feed",
        version="1.0",
        summary="Watch a feed.",
        licence="Apache-2.0",
        entry_point=DECLARATIVE,
        protocol_uri=URI,
        protocol_hash=hex_digest(URI.encode()),
        manifest={**MANIFEST, "operations": operations, "messages": {"*": EVERY}},
    )
    return Published(URI, metadata.protocol_hash, TOPIC, read_wheel(*build_wheel({}, metadata)), aliases=(FEED,))


def offer() -> ProtocolOffer:
    """The feed in the flow profile."""
    return ProtocolOffer(FEED, ("watch",), metrics=Metrics("low", "high", "medium"), uri=URI)


def feeding(name: str, home: Path, **options: Any) -> Party:
    """An agent NAME.example that knows the feed. `operation`: members of `watch`; the others are the agent's."""
    protocols = SimulatedProtocols({URI: published(**options.pop("operation", {}))})
    policy = Policy(publishers=["did:wba:publisher.example"], max_age=MAX_AGE, encryption="off")
    return party(name, home, protocols=protocols, policy=policy, **options)
