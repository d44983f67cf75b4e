"""AIP 0.0.1: the codec of its messages and the rules of its sessions.

fields, codec           the field table, and the wire format of Protocol Buffers
frames                  calls, where the transport is not gRPC
conversation            the rules of a stream
speakers                the ids that a caller may use, where it is proved
gateway                 registry (nodes, subscriptions) and routing
node                    outgoing (requests), clients (sessions begun here) and served (sessions and requests of others)
"""

from __future__ import annotations

from collections.abc import Mapping

from treaty_handler import Session, Value

from .codec import decode, encode
from .conversation import QUESTS, RESPONSES
from .fields import METHODS
from .frames import REQUESTS, Frame, read, write
from .gateway import Gateway
from .node import Node


class Aip:
    """The protocol: a message is a frame of a call."""

    def open(self, role: str, parameters: Mapping[str, Value], snapshot: bytes = b"") -> Session:
        """A session as gateway, as node of one, or as one of two peers."""
        return Gateway(parameters, snapshot) if role == "gateway" else Node({**parameters, "role": role}, snapshot)

    def encode(self, message: Value) -> bytes:
        """A frame: kind, method and call; message, or code and text."""
        if not isinstance(message, dict) or message.get("kind") not in (*REQUESTS - {"BROKEN"}, "RESPONSE", "STATUS"):
            raise ValueError("a frame is an object with a kind")
        if not isinstance(message.get("method"), str) or message.keys() - set(Frame._fields):
            raise ValueError("a frame has a method, and no field that is not defined")
        return write(Frame(**{"call": "", **message}))

    def decode(self, data: bytes) -> Value:
        """A frame as an object; without what its kind does not have."""
        frame = read(data)
        if frame.kind == "BROKEN" or (frame.kind == "STATUS" and frame.text.startswith("The message cannot be read")):
            raise ValueError(frame.text)
        value: dict[str, Value] = {"kind": frame.kind, "method": frame.method, "call": frame.call}
        more = {"message": frame.message, "address": frame.address} if frame.message is not None else {}
        return value | more | ({"code": frame.code, "text": frame.text} if frame.kind == "STATUS" else {})

    def validate(self, message: Value, sender: str) -> list[str]:
        """A gateway serves the methods of its service; streams have the statuses of their direction."""
        kind, method = message["kind"], message["method"]
        if method not in METHODS:
            return ["The protocol has no such method."]
        is_request = kind in REQUESTS
        by_gateway = METHODS[method][0] == "GatewayService"
        if sender == "peer" and by_gateway:
            return ["Two peers have no gateway."]
        if sender != "peer" and (sender == "gateway") == (is_request == by_gateway):
            return [f"A {sender} sends no {kind} of {method}."]
        content = message.get("message") or {}
        if "session_status" in content and content["session_status"] not in (QUESTS if is_request else RESPONSES):
            return ["The status is one of the other direction."]
        return []


handler = Aip()

__all__ = ["Aip", "Gateway", "Node", "decode", "encode", "handler"]
