"""The nodes of a gateway and the subscriptions to their changes."""

from __future__ import annotations

from typing import Any

from treaty_handler import Effect, Value, encode_json

from .frames import MAX_NAME, Place, finish, respond
from .speakers import Speakers

MAX_NODES = 256
"""Nodes, and subscriptions, where the host names no other bound."""
MAX_STATE = 24_000
"""Bytes of all nodes and subscriptions as JSON, where the host names no other bound: a session's whole state has 64 KiB."""
MAX_DESCRIPTION = 16_384
"""Bytes of one node's description as JSON."""
WILDCARD = "default"


class Refusal(Exception):
    """A request is refused with this status. Nothing has changed."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def node_id(peer: Value) -> str:
    """Return the id of the node that a Peer describes, or ""."""
    info = peer.get("agent_info") or peer.get("tool_info") or {}
    return str(info.get("agent_id") or info.get("tool_id") or "")


def info_of(peer: Value) -> dict[str, Any]:
    """Return the AgentInfo or ToolInfo in a Peer."""
    return dict(peer.get("agent_info") or peer.get("tool_info") or {})


class Registry:
    """State: `nodes`, id → {peer, owner, seen}; `subscriptions`, a list of {subscriber, nodes, without, peer, call}."""

    def __init__(self, state: Value, max_nodes: int, max_state: int, speakers: Speakers) -> None:
        self.nodes: dict[str, dict[str, Any]] = state.get("nodes", {})
        self.subscriptions: list[dict[str, Any]] = state.get("subscriptions", [])
        self._max_nodes, self._max_state, self._speakers = max_nodes, max_state, speakers

    def state(self) -> dict[str, Value]:
        """Return the state for a snapshot."""
        return {"nodes": self.nodes, "subscriptions": self.subscriptions}

    def owned(self, name: str, owner: str) -> None:
        """Check that a node is not of another peer. Raises `Refusal`."""
        node = self.nodes.get(name)
        if node is not None and node["owner"] != owner:
            raise Refusal("PERMISSION_DENIED", "This node was registered by another agent.")

    def speaks(self, name: str, caller: str) -> None:
        """Check that a caller may send as a node. Raises `Refusal`."""
        self.owned(name, caller)
        if name not in self.nodes and self._speakers.denies(name, caller):
            raise Refusal("PERMISSION_DENIED", "The sender is not registered, and its id is not the caller's.")

    def add(self, peer: Value, owner: str, at: int) -> list[Effect]:
        """Register a node, and tell subscribers. Raises `Refusal`."""
        name = self._checked(peer)
        if self._speakers.denies_node(name, owner):
            raise Refusal("PERMISSION_DENIED", "This id is of another caller.")
        if name in self.nodes:
            raise Refusal("ALREADY_EXISTS", "A node with this id is registered.")
        self._free_address(peer, name)
        if not self._speakers.has_room(owner, 1, self._max_nodes, [(node["owner"], 1) for node in self.nodes.values()]):
            raise Refusal("RESOURCE_EXHAUSTED", f"The gateway has {self._max_nodes} nodes, and leaves some to other callers.")
        self._put(name, {"peer": peer, "owner": owner, "seen": at})
        return self.tell("ADDED", name, peer)

    def update(self, name: str, peer: Value, owner: str) -> list[Effect]:
        """Replace the description of a node, and tell subscribers. Raises `Refusal`."""
        self.owned(name, owner)
        node = self.nodes.get(name)
        if node is None or self._checked(peer) != name or node["peer"].keys() != peer.keys():
            raise Refusal("NOT_FOUND", "No node of this id and kind is registered.")
        self._free_address(peer, name)
        self._put(name, {**node, "peer": peer})
        return self.tell("UPDATED", name, peer)

    def remove(self, name: str) -> list[Effect]:
        """Forget a node, tell subscribers, and end its own subscriptions."""
        node = self.nodes.pop(name)
        ended = [each for each in self.subscriptions if each["subscriber"] == name]
        self.subscriptions = [each for each in self.subscriptions if each["subscriber"] != name]
        effects: list[Effect] = [finish(Place(each["peer"], each["call"]), "SubscribeToUpdates") for each in ended]
        return effects + self.tell("REMOVED", name, node["peer"])

    def listed(self, domain: str) -> list[Value]:
        """Return the nodes of a domain; the domain "default", and none, are all."""
        every = [node["peer"] for node in self.nodes.values()]
        return [peer for peer in every if domain in ("", WILDCARD) or info_of(peer).get("domain") == domain]

    def subscribe(self, subscriber: str, nodes: list[str], place: Place) -> list[Effect]:
        """Begin a subscription; no nodes are all. It replaces the subscriber's former one. Raises `Refusal`."""
        if subscriber not in self.nodes:
            raise Refusal("NOT_FOUND", "A subscriber is a registered node.")
        self.owned(subscriber, place.peer)
        if len(self.subscriptions) >= self._max_nodes or len(nodes) > self._max_nodes:
            raise Refusal("RESOURCE_EXHAUSTED", f"The gateway has {self._max_nodes} subscriptions.")
        previous = [each for each in self.subscriptions if each["subscriber"] == subscriber]
        names = sorted({name[:MAX_NAME] for name in nodes})
        added = {"subscriber": subscriber, "nodes": names, "without": [], "peer": place.peer, "call": place.call}
        subscriptions = [each for each in self.subscriptions if each not in previous] + [added]
        self._check_room(place.peer, self.nodes, subscriptions)
        self.subscriptions = subscriptions
        return [finish(Place(each["peer"], each["call"]), "SubscribeToUpdates") for each in previous]

    def unsubscribe(self, subscriber: str, nodes: list[str], owner: str) -> tuple[bool, list[Effect]]:
        """Leave some nodes out, or end the subscription: whether there was one, and the effects. Raises `Refusal`."""
        self.owned(subscriber, owner)
        matches = [each for each in self.subscriptions if each["subscriber"] == subscriber]
        effects: list[Effect] = []
        for each in matches:
            if each["nodes"]:
                each["nodes"] = [name for name in each["nodes"] if name not in nodes]
            else:
                each["without"] = sorted({*each["without"], *(name for name in nodes if name in self.nodes)})
            if not nodes or (not each["nodes"] and not each["without"]):
                self.subscriptions.remove(each)
                effects.append(finish(Place(each["peer"], each["call"]), "SubscribeToUpdates"))
        return bool(matches), effects

    def drop(self, place: Place) -> None:
        """Forget the subscription of a call that its client ended."""
        self.subscriptions = [each for each in self.subscriptions if (each["peer"], each["call"]) != place]

    def tell(self, change: str, name: str, peer: Value) -> list[Effect]:
        """Return the updates for those who subscribed to this node."""
        update = {"update_type": change, "node_id": name, "peer": peer}
        return [
            respond(Place(each["peer"], each["call"]), "SubscribeToUpdates", update)
            for each in self.subscriptions
            if (name in each["nodes"] or not each["nodes"]) and name not in each["without"]
        ]

    def _checked(self, peer: Value) -> str:
        name, info = node_id(peer), info_of(peer)
        if not 1 <= len(name) <= MAX_NAME or not 1 <= len(info["address"]) <= MAX_NAME:
            raise Refusal("INVALID_ARGUMENT", f"A node has an id and an address of 1 to {MAX_NAME} characters.")
        if len(encode_json(peer)) > MAX_DESCRIPTION:
            raise Refusal("RESOURCE_EXHAUSTED", f"The description of a node has at most {MAX_DESCRIPTION} bytes.")
        return name

    def _free_address(self, peer: Value, name: str) -> None:
        address = info_of(peer)["address"]
        if any(info_of(node["peer"])["address"] == address for other, node in self.nodes.items() if other != name):
            raise Refusal("ALREADY_EXISTS", "A node with this address is registered.")

    def _put(self, name: str, node: dict[str, Any]) -> None:
        nodes = {**self.nodes, name: node}
        self._check_room(node["owner"], nodes, self.subscriptions)
        self.nodes = nodes

    def _check_room(self, caller: str, nodes: dict[str, dict[str, Any]], subscriptions: list[dict[str, Any]]) -> None:
        """Check what a caller would use of the bound with these nodes and subscriptions. Raises `Refusal`."""
        holdings = [(node["owner"], len(encode_json(node)) + len(name)) for name, node in nodes.items()]
        holdings += [(each["peer"], len(encode_json(each))) for each in subscriptions]
        if not self._speakers.has_room(caller, 0, self._max_state, holdings):
            raise Refusal("RESOURCE_EXHAUSTED", "The descriptions of the nodes and the subscriptions are too long together.")
