"""A node: an agent or a tool. It registers, keeps its registration alive, speaks to agents and calls tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treaty_handler import (
    Call,
    Cancelled,
    Close,
    Effect,
    End,
    Event,
    Invoke,
    Opened,
    PeerLost,
    Received,
    Result,
    Return,
    SetTimer,
    Timer,
    Value,
    decode_json,
    derive_id,
    encode_json,
)

from .clients import Clients
from .frames import REQUESTS, Frame, Place, finish, read, send
from .outgoing import NO_GATEWAY, Outgoing
from .registry import node_id
from .served import MAX_SESSIONS, SESSION_SECONDS, Served
from .speakers import Speakers

HEARTBEAT_INTERVAL = 10.0
REQUEST_SECONDS = 30.0
"""Seconds for the answer to a request."""


class Node:
    """A session as node of a gateway, or as one of two peers without a gateway."""

    def __init__(self, parameters: Mapping[str, Value], snapshot: bytes) -> None:
        state = decode_json(snapshot) if snapshot else {}
        self._seed, self._peer = parameters["seed"], parameters["peer"]
        self._interval = float(parameters.get("heartbeat_interval", HEARTBEAT_INTERVAL))
        self._made: int = state.get("made", 0)
        self._description: Value = state.get("description")
        self._gateway: str | None = state.get("gateway")
        self._wanted: Value = state.get("wanted")
        self._subscription: str = state.get("subscription", "")
        # In a session of two peers, the other one takes the place of a gateway.
        self._direct = parameters.get("role") == "peer"
        request_seconds = float(parameters.get("request_seconds", REQUEST_SECONDS))
        tool_seconds = float(parameters.get("session_seconds", SESSION_SECONDS))
        self._outgoing = Outgoing(state, self._peer, request_seconds, tool_seconds, self._new_call)
        most = int(parameters.get("max_sessions", MAX_SESSIONS))
        self._clients = Clients(state, self._peer, self._new_call, most, direct=self._direct)
        # A node's other side is its gateway, which speaks for the other nodes.
        gateway = "" if self._direct else self._peer
        self._speakers = Speakers(parameters, gateway, members=state.get("proofs", ()), direct=self._direct)
        self._name = str(parameters.get("node_id", ""))
        self._served = Served(state, parameters, self._speakers, self._new_call, self._own_id)
        self._feedback: dict[str, str] = state.get("feedback", {})

    def snapshot(self) -> bytes:
        """Return the state as JSON."""
        own: dict[str, Any] = {
            "made": self._made,
            "description": self._description,
            "gateway": self._gateway,
            "wanted": self._wanted,
            "subscription": self._subscription,
            "feedback": self._feedback,
            "proofs": sorted(self._speakers.members or ()),
        }
        return encode_json(own | self._outgoing.state() | self._clients.state() | self._served.state())

    def handle(self, event: Event) -> list[Effect]:
        """Perform the calls of the application, and answer the requests of others."""
        effects = self._handle(event)
        # The application's answer to a feedback says whether it took it.
        for effect in effects:
            if isinstance(effect, Invoke) and effect.operation == "feedback":
                self._feedback[effect.call] = effect.arguments["message"]["session_id"]
        return effects

    def _handle(self, event: Event) -> list[Effect]:
        match event:
            case Opened(is_proved=True):
                self._speakers.joined(self._peer)
            case Call(call=call, operation=operation, arguments=arguments):
                return self._called(call, operation, arguments)
            case Received(peer=peer, data=data):
                return self._received(peer, data)
            case Result(call=call, value=value, error=error):
                if call in self._feedback:
                    session = self._feedback.pop(call)
                    return self._clients.ended(session) if error is not None else []
                return self._served.result(call, value, error)
            case Timer(name="heartbeat"):
                return self._beat()
            case Timer(name=name):
                return self._outgoing.expired(name) or self._served.expired(name)
            case Cancelled():
                return []
            case PeerLost(peer=peer):
                return [*self._served.lost(peer), *(self._clients.lost() if peer == self._peer else [])]
            case Close():
                return [End()]
        return []

    def _new_call(self) -> str:
        self._made += 1
        return derive_id(self._seed, self._made)

    def _own_id(self) -> str:
        """Return the id under which this node registered, or which its host names; "" for none."""
        return node_id(self._description) if self._description else self._name

    def _called(self, call: str, operation: str, arguments: dict[str, Value]) -> list[Effect]:
        match operation:
            case "create_client":
                return self._clients.create(call, arguments)
            case "submit_inquiry":
                gateway = "" if self._direct else self._gateway
                return self._clients.submit(call, arguments["message"], arguments.get("status"), gateway)
            case "submit_feedback":
                return self._served.submit(call, arguments["message"], arguments.get("status"))
            case "close_client":
                return self._clients.close(call, arguments["session_id"], arguments["receiver_id"])
            case "call_tool" if arguments.get("address") or self._direct:
                return self._outgoing.ask("CallTool", arguments["request"], call=call, address=arguments.get("address", ""))
            case "register":
                return self._register(call, arguments["peer"], arguments.get("address", ""))
        if self._gateway is None:
            return [Return(call=call, error=NO_GATEWAY)]
        return self._ask_gateway(call, operation, arguments)

    def _ask_gateway(self, call: str, operation: str, arguments: dict[str, Value]) -> list[Effect]:
        own, to = node_id(self._description), self._gateway or ""
        match operation:
            case "call_tool":
                return self._outgoing.ask("RouteToolCalling", arguments["request"], call=call, address=to)
            case "get_nodes":
                message = {"agent_id": own, "domain": arguments["domain"]}
                return self._outgoing.ask("GetNodes", message, call=call, address=to)
            case "update_info":
                self._wanted = {"peer": arguments["peer"], "address": to}
                message = {"sender_id": own, "peer": arguments["peer"]}
                return self._outgoing.ask("UpdateNodeInfo", message, call=call, then="updated", address=to)
            case "deregister":
                self._gateway = None
                quiet: list[Effect] = [SetTimer(name="heartbeat", seconds=None)]
                return quiet + self._outgoing.ask("DeregisterNode", {"node_id": own}, call=call, address=to)
            case "subscribe":
                self._subscription = self._new_call()
                message = {"subscriber_id": own, "node_ids": arguments["node_ids"]}
                frame = Frame("REQUEST", "SubscribeToUpdates", self._subscription, message, address=to)
                return [send(self._peer, frame), Return(call=call, value=True)]
        message = {"subscriber_id": own, "node_ids": arguments["node_ids"]}
        return self._outgoing.ask("Unsubscribe", message, call=call, address=to)

    def _register(self, call: str, peer: Value, address: str) -> list[Effect]:
        # Taken over when the gateway has accepted it: a refused registration changes nothing.
        self._wanted = {"peer": peer, "address": address}
        return self._registration(call, "registered", peer, address)

    def _registration(self, call: str, then: str, peer: Value, address: str) -> list[Effect]:
        kind = "agent_info" if "agent_info" in peer else "tool_info"
        method = "RegisterAgent" if kind == "agent_info" else "RegisterTool"
        return self._outgoing.ask(method, peer[kind], call=call, then=then, address=address)

    def _received(self, peer: str, data: bytes) -> list[Effect]:
        try:
            frame = read(data)
        except ValueError:
            return []
        place = Place(peer, frame.call)
        if frame.kind in REQUESTS:
            if frame.method == "CallAgent":
                return self._served.stream(place, frame)
            if frame.method == "CallTool":
                return self._served.request(place, frame)
            return [finish(place, frame.method, "UNIMPLEMENTED", "A node does not serve this method.")]
        if peer != self._peer:
            return []
        if frame.call == self._subscription:
            return self._updated(frame)
        returned = self._outgoing.returned(frame)
        if returned is None:
            return self._clients.returned(frame)
        then, response, effects = returned
        return effects + self._then(then, response)

    def _updated(self, frame: Frame) -> list[Effect]:
        if frame.kind != "RESPONSE":
            self._subscription = ""
            return []
        return [Invoke(call=self._new_call(), operation="node_changed", arguments={"update": frame.message})]

    def _then(self, then: str, response: Value) -> list[Effect]:
        """Go on after an answer to a request of the node's own."""
        if then in ("registered", "updated") and response is not None and response["success"] and self._wanted is not None:
            self._description, self._gateway = self._wanted["peer"], self._wanted["address"]
            return [SetTimer(name="heartbeat", seconds=self._interval)]
        # A gateway that does not know this node has forgotten it, or was started anew.
        if then == "beat" and response is not None and not response["success"] and self._gateway is not None:
            return self._registration("", "again", self._description, self._gateway)
        return []

    def _beat(self) -> list[Effect]:
        if self._gateway is None:
            return []
        next_beat = SetTimer(name="heartbeat", seconds=self._interval)
        message = {"sender_id": node_id(self._description)}
        return [next_beat, *self._outgoing.ask("Heartbeat", message, then="beat", address=self._gateway)]
