"""The gateway: it registers nodes, routes their calls, and forgets nodes that are silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treaty_handler import (
    Call,
    Close,
    Effect,
    End,
    Event,
    Opened,
    PeerJoined,
    PeerLost,
    Received,
    Return,
    SetTimer,
    Timer,
    Value,
    decode_json,
    derive_id,
    encode_json,
)

from .frames import REQUESTS, Frame, Place, answer, finish, read
from .registry import MAX_NODES, MAX_STATE, Refusal, Registry, info_of
from .routing import Routing
from .speakers import Speakers

HEARTBEAT_TIMEOUT = 30.0
"""Seconds of silence after which a node is deregistered."""


class Gateway:
    """A session as gateway. Every peer of the session may register nodes."""

    def __init__(self, parameters: Mapping[str, Value], snapshot: bytes) -> None:
        state = decode_json(snapshot) if snapshot else {}
        self._seed = parameters["seed"]
        self._timeout = float(parameters.get("heartbeat_timeout", HEARTBEAT_TIMEOUT))
        self._speakers = Speakers(parameters, members=state.get("proofs", ()))
        bounds = int(parameters.get("max_nodes", MAX_NODES)), int(parameters.get("max_state", MAX_STATE))
        self._registry = Registry(state, *bounds, self._speakers)
        self._routing = Routing(state, parameters, self._registry, self._speakers, self._new_call)
        self._made: int = state.get("made", 0)

    def snapshot(self) -> bytes:
        """Return nodes, subscriptions, routes and proved members as JSON."""
        proofs: list[Value] = sorted(self._speakers.members or ())
        return encode_json({"made": self._made, "proofs": proofs, **self._registry.state(), **self._routing.state()})

    def handle(self, event: Event) -> list[Effect]:
        """Answer requests, forward what is routed, and look for silent nodes."""
        match event:
            case Opened(at=at):
                return [self._next_look(at)]
            case Received(peer=peer, data=data, at=at):
                return self._received(peer, data, at)
            case Call(call=call, operation="registered_nodes"):
                return [Return(call=call, value={name: node["peer"] for name, node in self._registry.nodes.items()})]
            case Timer(name="heartbeats", at=at):
                silent = [name for name, node in self._registry.nodes.items() if at - node["seen"] >= self._timeout * 1000]
                return [effect for name in silent for effect in self._forget(name)] + [self._next_look(at)]
            case Timer(name=name):
                return self._routing.expired(name)
            case PeerJoined(peer=peer, is_proved=True):
                self._speakers.joined(peer)
            case PeerLost(peer=peer):
                self._speakers.left(peer)
                # A host that dials its nodes names a lost one by its address: callers have no connection of their own there.
                lost = [
                    name
                    for name, node in self._registry.nodes.items()
                    if peer in (node["owner"], info_of(node["peer"])["address"])
                ]
                gone = [effect for name in lost for effect in self._forget(name) if getattr(effect, "peer", "") != peer]
                return gone + self._routing.lost(peer)
            case Close():
                return [End()]
        return []

    def _next_look(self, at: int) -> Effect:
        # No node that registers or is heard from later is due before this.
        first = min((node["seen"] for node in self._registry.nodes.values()), default=at)
        return SetTimer(name="heartbeats", seconds=max(self._timeout - (at - first) / 1000, 0.01))

    def _new_call(self) -> str:
        self._made += 1
        return derive_id(self._seed, self._made)

    def _received(self, peer: str, data: bytes, at: int) -> list[Effect]:
        try:
            frame = read(data)
        except ValueError:
            return []
        place = Place(peer, frame.call)
        if frame.kind not in REQUESTS:
            return self._routing.returned(place, frame)
        if frame.method == "RouteAgentCalling":
            self._refresh(frame.message, peer, at)
            return self._routing.stream(place, frame)
        if frame.kind == "CANCEL":
            self._registry.drop(place)
            return self._routing.cancelled(place)
        if frame.kind == "END":
            return []
        if frame.kind == "BROKEN":
            return [finish(place, frame.method, "INVALID_ARGUMENT", frame.text)]
        try:
            return self._request(place, frame, at)
        except Refusal as refusal:
            return [finish(place, frame.method, refusal.code, refusal.text)]

    def _request(self, place: Place, frame: Frame, at: int) -> list[Effect]:
        message, method = frame.message, frame.method
        match method:
            case "RegisterAgent":
                return self._register(place, method, {"agent_info": message}, at)
            case "RegisterTool":
                return self._register(place, method, {"tool_info": message}, at)
            case "DeregisterNode":
                name = message["node_id"]
                self._registry.owned(name, place.peer)
                is_registered = name in self._registry.nodes
                return answer(place, method, {"success": is_registered}) + (self._forget(name) if is_registered else [])
            case "GetNodes":
                return answer(place, method, {"peers": self._registry.listed(message["domain"])})
            case "Heartbeat":
                self._registry.owned(message["sender_id"], place.peer)
                is_registered = self._refresh(message, place.peer, at)
                text = "Heartbeat received" if is_registered else "No node of this id is registered."
                return answer(place, method, {"success": is_registered, "message": text})
            case "UpdateNodeInfo":
                return self._update(place, message, at)
            case "SubscribeToUpdates":
                return self._registry.subscribe(message["subscriber_id"], message["node_ids"], place)
            case "Unsubscribe":
                was_subscribed, effects = self._registry.unsubscribe(message["subscriber_id"], message["node_ids"], place.peer)
                text = "Unsubscribed" if was_subscribed else "There is no subscription."
                return effects + answer(place, method, {"success": was_subscribed, "message": text})
            case "RouteToolCalling":
                self._refresh(message, place.peer, at)
                return self._routing.tool(place, message)
        raise Refusal("UNIMPLEMENTED", "A gateway does not serve this method.")

    def _register(self, place: Place, method: str, peer: dict[str, Any], at: int) -> list[Effect]:
        others = self._registry.listed("")
        updates = self._registry.add(peer, place.peer, at)
        response: dict[str, Value] = {"success": True}
        if method == "RegisterAgent":
            response["peers"] = others
        return answer(place, method, response) + updates

    def _update(self, place: Place, message: Value, at: int) -> list[Effect]:
        peer = message.get("peer", {})
        try:
            updates = self._registry.update(message["sender_id"], peer, place.peer)
        except Refusal as refusal:
            if refusal.code != "NOT_FOUND":
                raise
            return answer(place, "UpdateNodeInfo", {"success": False, "message": refusal.text})
        self._refresh(message, place.peer, at)
        return answer(place, "UpdateNodeInfo", {"success": True, "message": "Updated"}) + updates

    def _refresh(self, message: Value, peer: str, at: int) -> bool:
        """Note that a node is alive; whether it is registered, and by this peer."""
        node = self._registry.nodes.get(message["sender_id"]) if message else None
        if node is None or node["owner"] != peer:
            return False
        node["seen"] = at
        return True

    def _forget(self, name: str) -> list[Effect]:
        """Deregister a node, and end the sessions with it."""
        if name not in self._registry.nodes:
            return []
        return self._registry.remove(name) + self._routing.removed(name)
