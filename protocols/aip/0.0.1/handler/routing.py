"""The calls that a gateway forwards: one stream to the receiver for each session, and one call for each request to a tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treaty_handler import Effect, SetTimer, Value, encode_json

from .conversation import first_fault, quest_fault, response_fault, stopped, tool_answer_fault, tool_answer_ids, tool_ids
from .frames import MAX_NAME, Frame, Place, finish, respond, send
from .registry import Refusal, Registry, info_of
from .speakers import Speakers

MAX_SESSIONS = 128
"""Open streams and open calls of tools, each."""
SESSION_SECONDS = 300.0
"""Seconds without a message after which a session, or a call of a tool, ends."""
MAX_ROUTES = 30_000
"""Bytes of all sessions and calls as JSON, where the host names no other bound: a session's whole state has 64 KiB."""

_ROUTE, _CALL = "RouteAgentCalling", "CallAgent"


class Routing:
    """State: `sessions` and `requests`, both by the id of the gateway's own call."""

    def __init__(
        self,
        state: Value,
        parameters: Mapping[str, Value],
        registry: Registry,
        speakers: Speakers,
        new_call: Callable[[], str],
    ) -> None:
        """Continue from a state. `new_call`: returns the id of a new call of the gateway."""
        self._sessions: dict[str, dict[str, Any]] = state.get("sessions", {})
        self._requests: dict[str, dict[str, Any]] = state.get("requests", {})
        self._seconds = float(parameters.get("session_seconds", SESSION_SECONDS))
        self._most = int(parameters.get("max_sessions", MAX_SESSIONS))
        self._most_bytes = int(parameters.get("max_names", MAX_ROUTES))
        self._registry, self._speakers, self._new_call = registry, speakers, new_call

    def state(self) -> dict[str, Value]:
        """Return the state for a snapshot."""
        return {"sessions": self._sessions, "requests": self._requests}

    def stream(self, place: Place, frame: Frame) -> list[Effect]:
        """Take a frame of an initiator: begin its session, or go on with it."""
        session_name = next((name for name, each in self._sessions.items() if (each["peer"], each["call"]) == place), None)
        if frame.kind == "CANCEL":
            return [] if session_name is None else self._give_up(session_name)
        if frame.kind == "BROKEN":
            ending: list[Effect] = [] if session_name is None else self._give_up(session_name)
            return [*ending, finish(place, _ROUTE, "INVALID_ARGUMENT", frame.text)]
        if session_name is None and frame.kind == "END":
            # The end of a stream that was refused, or of one without any message.
            return [finish(place, _ROUTE, "ABORTED", "The stream ended before its first message.")]
        if session_name is None:
            try:
                return self._begin(place, frame.message)
            except Refusal as refusal:
                return [finish(place, _ROUTE, refusal.code, refusal.text)]
        session = self._sessions[session_name]
        if frame.kind == "END":
            return [self._forward(session_name, Frame("END", _CALL, session_name))]
        if fault := quest_fault(session, frame.message):
            stop = respond(place, _ROUTE, stopped(session["session_id"], session["receiver"], session["sender"], fault))
            return [*self._give_up(session_name), stop, finish(place, _ROUTE, "INVALID_ARGUMENT", fault)]
        session["last"] = frame.message["session_status"]
        return [self._wait(session_name), self._forward(session_name, Frame("REQUEST", _CALL, session_name, frame.message))]

    def tool(self, place: Place, message: Value) -> list[Effect]:
        """Forward a request to a tool. Raises `Refusal`."""
        self._registry.speaks(message["sender_id"], place.peer)
        node = self._node(message["receiver_id"], "tool_info")
        ids = tool_ids(message)
        if any(len(name) > MAX_NAME for name in ids.values()):
            raise Refusal("INVALID_ARGUMENT", f"A name has at most {MAX_NAME} characters.")
        request = {"peer": place.peer, "call": place.call, "to": node["owner"], **ids}
        call = self._new_call()
        self._requests = self._added(self._requests, call, request)
        address = info_of(node["peer"])["address"]
        return [self._wait(call), send(node["owner"], Frame("REQUEST", "CallTool", call, message, address=address))]

    def returned(self, place: Place, frame: Frame) -> list[Effect]:
        """Take a frame of a receiver. Its failure ends this session or call alone: a stranger may have caused it."""
        request, session = self._requests.get(frame.call), self._sessions.get(frame.call)
        if request is not None and request["to"] == place.peer:
            return self._tool_returned(request, frame)
        if session is None or session["to"] != place.peer:
            return []
        caller = Place(session["peer"], session["call"])
        if frame.kind == "RESPONSE":
            if fault := response_fault(session, frame.message):
                return [*self.end(frame.call, fault), self._cancel(session, frame.call)]
            stopping = frame.message["session_status"] == "STOP_RESPONSE"
            ending: list[Effect] = [*self._drop(frame.call), finish(caller, _ROUTE)] if stopping else [self._wait(frame.call)]
            return [respond(caller, _ROUTE, frame.message), *ending]
        return self.end(frame.call, f"{frame.code}: {frame.text}" if frame.code != "OK" else "The receiver ended the stream.")

    def cancelled(self, place: Place) -> list[Effect]:
        """Pass on that a caller gave up a tool."""
        names = [name for name, each in self._requests.items() if (each["peer"], each["call"]) == place]
        return [effect for name in names for effect in self._withdraw(name)]

    def expired(self, name: str) -> list[Effect]:
        """End a session or a call that was silent too long."""
        if name in self._sessions:
            session = self._sessions[name]
            return [*self.end(name, "The session was silent too long."), self._cancel(session, name)]
        if name not in self._requests:
            return []
        request = self._requests.pop(name)
        caller = Place(request["peer"], request["call"])
        cancel = send(request["to"], Frame("CANCEL", "CallTool", name))
        return [finish(caller, "RouteToolCalling", "DEADLINE_EXCEEDED", "The tool did not answer in time."), cancel]

    def removed(self, name: str) -> list[Effect]:
        """End the sessions and calls whose receiver is not registered any more, on both sides."""
        sessions = [(call, each) for call, each in self._sessions.items() if each["receiver"] == name]
        requests = [call for call, each in self._requests.items() if each["receiver_id"] == name]
        effects: list[Effect] = []
        for call, session in sessions:
            effects += [*self.end(call, "The receiver is not registered any more."), self._cancel(session, call)]
        for call in requests:
            caller = Place(self._requests[call]["peer"], self._requests[call]["call"])
            effects += [*self._withdraw(call), finish(caller, "RouteToolCalling", "UNAVAILABLE", "The tool is gone.")]
        return effects

    def lost(self, peer: str) -> list[Effect]:
        """End the sessions and calls that a lost peer began."""
        sessions = [call for call, each in self._sessions.items() if each["peer"] == peer]
        requests = [call for call, each in self._requests.items() if each["peer"] == peer]
        ended = [effect for call in sessions for effect in self._give_up(call)]
        return ended + [effect for call in requests for effect in self._withdraw(call)]

    def end(self, call: str, reason: str) -> list[Effect]:
        """End a session towards its initiator."""
        session = self._sessions[call]
        caller = Place(session["peer"], session["call"])
        message = stopped(session["session_id"], session["receiver"], session["sender"], reason)
        return [*self._drop(call), respond(caller, _ROUTE, message), finish(caller, _ROUTE)]

    def _begin(self, place: Place, message: Value) -> list[Effect]:
        if fault := first_fault(message):
            raise Refusal("INVALID_ARGUMENT", fault)
        self._registry.speaks(message["sender_id"], place.peer)
        node = self._node(message["receiver_id"], "agent_info")
        if any(each["session_id"] == message["session_id"] for each in self._sessions.values()):
            raise Refusal("INVALID_ARGUMENT", "This session is open.")
        call = self._new_call()
        session = {
            "peer": place.peer,
            "call": place.call,
            "to": node["owner"],
            "session_id": message["session_id"],
            "sender": message["sender_id"],
            "receiver": message["receiver_id"],
            "last": "START_QUEST",
        }
        self._sessions = self._added(self._sessions, call, session)
        address = info_of(node["peer"])["address"]
        return [self._wait(call), self._forward(call, Frame("REQUEST", _CALL, call, message, address=address))]

    def _added(self, routes: dict[str, dict[str, Any]], call: str, route: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return sessions or requests with one more. Raises `Refusal` where the caller has too many, or too long ones."""
        peer = route["peer"]
        if not self._speakers.has_room(peer, 1, self._most, [(each["peer"], 1) for each in routes.values()]):
            raise Refusal("RESOURCE_EXHAUSTED", f"The gateway has {self._most} routes, and leaves some to other callers.")
        # Kept with the route: to count all of them again for each new one would cost more with each.
        route["size"] = len(encode_json(route))
        holdings = [(each["peer"], each["size"]) for each in (*self._sessions.values(), *self._requests.values())]
        if not self._speakers.has_room(peer, route["size"], self._most_bytes, holdings):
            raise Refusal("RESOURCE_EXHAUSTED", "The names of the open sessions are too long together.")
        return {**routes, call: route}

    def _node(self, name: str, kind: str) -> dict[str, Any]:
        node = self._registry.nodes.get(name)
        if node is None or kind not in node["peer"]:
            raise Refusal("NOT_FOUND", "No receiver of this id is registered.")
        return node

    def _tool_returned(self, request: Value, frame: Frame) -> list[Effect]:
        caller, method = Place(request["peer"], request["call"]), "RouteToolCalling"
        if frame.kind == "RESPONSE" and not (fault := tool_answer_fault(request, frame.message)):
            return [respond(caller, method, frame.message | tool_answer_ids(request))]
        if frame.kind == "RESPONSE":
            return [*self._withdraw(frame.call), finish(caller, method, "INTERNAL", fault)]
        del self._requests[frame.call]
        return [SetTimer(name=frame.call, seconds=None), finish(caller, method, frame.code, frame.text)]

    def _forward(self, call: str, frame: Frame) -> Effect:
        return send(self._sessions[call]["to"], frame)

    def _cancel(self, session: Value, call: str) -> Effect:
        return send(session["to"], Frame("CANCEL", _CALL, call))

    def _wait(self, call: str) -> Effect:
        return SetTimer(name=call, seconds=self._seconds)

    def _give_up(self, call: str) -> list[Effect]:
        """Cancel a session towards its receiver."""
        return [self._cancel(self._sessions[call], call), *self._drop(call)]

    def _withdraw(self, call: str) -> list[Effect]:
        """Cancel a request to a tool."""
        request = self._requests.pop(call)
        return [SetTimer(name=call, seconds=None), send(request["to"], Frame("CANCEL", "CallTool", call))]

    def _drop(self, call: str) -> list[Effect]:
        del self._sessions[call]
        return [SetTimer(name=call, seconds=None)]
