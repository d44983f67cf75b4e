"""The receiver's side: sessions that other agents began, and requests to a tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treaty_handler import Effect, Failure, Invoke, Return, SetTimer, Value, encode_json

from .conversation import RESPONSES, due_response, first_fault, quest_fault, stopped, tool_answer_ids, tool_ids
from .frames import MAX_NAME, Frame, Place, answer, finish, respond
from .speakers import Speakers

MAX_SESSIONS = 128
SESSION_SECONDS = 300.0
"""Seconds without a message after which a session ends, and for the answer of a tool."""
MAX_INQUIRIES = 256
"""Inquiries that the application has not taken."""
MAX_NAMES = 30_000
"""Bytes of the names of all sessions and requests as JSON, before one more, where the host names no other bound.

The whole state of a session has 64 KiB."""
MAX_MESSAGE_ID = 64
"""Characters of a message's id that an answer names by itself. Each open session has one in its state."""
ENDED_SHARE = 8
"""The part of `MAX_NAMES` for sessions whose end the application was told, and has not answered."""

_SHARES = "One caller has at most as many as are free."
_OTHER_RECEIVER = "This node is not the receiver that the message names."
_FOREIGN = "The caller has not proved that it is the sender. Its id is its DID, or one that this node names for that DID."


class Served:
    """State: `sessions`, own id → a session of another agent; `requests`, own id → a request of a tool; `ended`, session_id →
    initiator of the last sessions whose end the application was told."""

    def __init__(
        self,
        state: Value,
        parameters: Mapping[str, Value],
        speakers: Speakers,
        new_call: Callable[[], str],
        own_id: Callable[[], str],
    ) -> None:
        """Continue from a state. `own_id`: of this node, "" if not known."""
        self._sessions: dict[str, dict[str, Any]] = state.get("sessions", {})
        self._requests: dict[str, dict[str, Any]] = state.get("requests", {})
        self._inquiries: dict[str, str] = state.get("inquiries", {})
        self._ended: dict[str, str] = state.get("ended", {})
        self._seconds = float(parameters.get("session_seconds", SESSION_SECONDS))
        self._most = int(parameters.get("max_sessions", MAX_SESSIONS))
        self._most_bytes = int(parameters.get("max_names", MAX_NAMES))
        self._speakers, self._new_call, self._own_id = speakers, new_call, own_id

    def state(self) -> dict[str, Value]:
        """Return the state for a snapshot."""
        return {"sessions": self._sessions, "requests": self._requests, "inquiries": self._inquiries, "ended": self._ended}

    def stream(self, place: Place, frame: Frame) -> list[Effect]:
        """Take a frame of an initiator."""
        session_name = next((name for name, each in self._sessions.items() if (each["peer"], each["call"]) == place), None)
        if frame.kind == "CANCEL":
            return [] if session_name is None else self._end(session_name, "The initiator gave the session up, or is gone.")
        if frame.kind == "BROKEN":
            ending: list[Effect] = [] if session_name is None else self._end(session_name, frame.text)
            return [*ending, finish(place, "CallAgent", "INVALID_ARGUMENT", frame.text)]
        if session_name is None:
            return self._begin(place, frame)
        session = self._sessions[session_name]
        if frame.kind == "END":
            # The initiator sends no more; one that asked to stop still gets its answer.
            return [] if session["last"] == "STOP_QUEST" else self._stop(session_name, "The initiator ended the stream.")
        if fault := quest_fault(session, frame.message):
            return [
                *self._end(session_name, fault),
                *self._stopped(session, fault),
                finish(place, "CallAgent", "INVALID_ARGUMENT", fault),
            ]
        if len(self._inquiries) >= MAX_INQUIRIES:
            return self._stop(session_name, f"{MAX_INQUIRIES} inquiries wait for this agent.")
        session |= {"last": frame.message["session_status"], "inquiry": _short(frame.message["message_id"])}
        return [SetTimer(name=session_name, seconds=self._seconds), self._inquiry(session_name, frame.message)]

    def submit(self, call: str, message: Value, status: str | None) -> list[Effect]:
        """Send feedback. Without a status and a reply_to_message_id it answers the last inquiry; a STOP_RESPONSE ends the stream.

        The first answer to the end of a session goes nowhere: an application may answer each inquiry.
        """
        session_name = next((name for name, each in self._sessions.items() if each["session_id"] == message["session_id"]), None)
        session = self._sessions.get(session_name or "")
        if session_name is None and self._ended.get(message["session_id"]) == message["receiver_id"]:
            del self._ended[message["session_id"]]
            return [Return(call=call)]
        if session_name is None or session is None or session["sender"] != message["receiver_id"]:
            return [Return(call=call, error=Failure(code=404, message="There is no open session of this id and agent."))]
        if status is not None and status not in RESPONSES:
            return [Return(call=call, error=Failure(code=400, message="Feedback has the status of a response."))]
        filled = {"reply_to_message_id": session["inquiry"], **message, "session_status": status or due_response(session)}
        place = Place(session["peer"], session["call"])
        sent: list[Effect] = [respond(place, "CallAgent", filled), Return(call=call)]
        if filled["session_status"] == "STOP_RESPONSE":
            sent += [*self._drop(session_name), finish(place, "CallAgent")]
        return sent

    def request(self, place: Place, frame: Frame) -> list[Effect]:
        """Take a frame of a request to this tool."""
        if frame.kind == "CANCEL":
            self._requests = {name: each for name, each in self._requests.items() if (each["peer"], each["call"]) != place}
            return []
        if frame.kind == "END":
            return []
        if frame.kind == "BROKEN":
            return [finish(place, "CallTool", "INVALID_ARGUMENT", frame.text)]
        ids = tool_ids(frame.message)
        if any(len(name) > MAX_NAME for name in ids.values()):
            return [finish(place, "CallTool", "INVALID_ARGUMENT", f"A name has at most {MAX_NAME} characters.")]
        if self._speakers.denies(frame.message["sender_id"], place.peer):
            return [finish(place, "CallTool", "PERMISSION_DENIED", _FOREIGN)]
        if self._is_foreign(frame.message):
            return [finish(place, "CallTool", "NOT_FOUND", _OTHER_RECEIVER)]
        request = {"peer": place.peer, "call": place.call, **ids}
        if not self._has_room(request, self._requests):
            return [finish(place, "CallTool", "RESOURCE_EXHAUSTED", f"The tool works on {self._most} requests. {_SHARES}")]
        own = self._new_call()
        self._requests[own] = request
        return [Invoke(call=own, operation="process_request", arguments={"request": frame.message})]

    def result(self, call: str, value: Value, error: Failure | None) -> list[Effect]:
        """Take the application's answer. A failure of a tool is a response; one of an inquiry ends its session."""
        session = self._inquiries.pop(call, None)
        if session is not None:
            if error is None or session not in self._sessions:
                return []
            # The application has failed, or took no inquiry: it is not told of the end.
            ended = self._sessions[session]
            place = Place(ended["peer"], ended["call"])
            return [*self._drop(session), *self._stopped(ended, error.message), finish(place, "CallAgent")]
        request = self._requests.pop(call, None)
        if request is None:
            return []
        place = Place(request["peer"], request["call"])
        back = tool_answer_ids(request)
        if error is not None:
            return list(answer(place, "CallTool", back | {"is_error": True, "error_message": error.message}))
        # The application need not fill the ids, and cannot answer another request by them.
        return list(answer(place, "CallTool", value | back))

    def expired(self, name: str) -> list[Effect]:
        """End a session that was silent too long."""
        return self._stop(name, "The session was silent too long.") if name in self._sessions else []

    def lost(self, peer: str) -> list[Effect]:
        """Forget the sessions and requests of a lost peer."""
        self._requests = {name: each for name, each in self._requests.items() if each["peer"] != peer}
        own = [name for name, each in self._sessions.items() if each["peer"] == peer]
        return [effect for name in own for effect in self._end(name, "The initiator is gone.")]

    def _begin(self, place: Place, frame: Frame) -> list[Effect]:
        if frame.kind == "END":
            return [finish(place, "CallAgent", "ABORTED", "The stream ended before its first message.")]
        message = frame.message
        fault = first_fault(message)
        if not fault and self._speakers.denies(message["sender_id"], place.peer):
            return [finish(place, "CallAgent", "PERMISSION_DENIED", _FOREIGN)]
        if fault or any(each["session_id"] == message["session_id"] for each in self._sessions.values()):
            return [finish(place, "CallAgent", "INVALID_ARGUMENT", fault or "This session is open.")]
        if self._is_foreign(message):
            return [finish(place, "CallAgent", "NOT_FOUND", _OTHER_RECEIVER)]
        members = {"session_id": message["session_id"], "sender": message["sender_id"], "receiver": message["receiver_id"]}
        members["inquiry"] = _short(message["message_id"])
        session = {"peer": place.peer, "call": place.call, "last": "START_QUEST", **members}
        if not self._has_room(session, self._sessions) or len(self._inquiries) >= MAX_INQUIRIES:
            return [finish(place, "CallAgent", "RESOURCE_EXHAUSTED", f"The agent has {self._most} open sessions. {_SHARES}")]
        own = self._new_call()
        self._sessions[own] = session
        self._ended.pop(session["session_id"], None)
        return [SetTimer(name=own, seconds=self._seconds), self._inquiry(own, message)]

    def _is_foreign(self, message: Value) -> bool:
        return self._own_id() not in ("", message["receiver_id"])

    def _has_room(self, added: dict[str, Any], places: dict[str, dict[str, Any]]) -> bool:
        peer, every = added["peer"], (*self._sessions.values(), *self._requests.values())
        # Kept with each: to count all of them again for each new one would cost more with each.
        added["size"] = len(encode_json(added))
        return self._speakers.has_room(
            peer, 1, self._most, [(each["peer"], 1) for each in places.values()]
        ) and self._speakers.has_room(peer, added["size"], self._most_bytes, [(each["peer"], each["size"]) for each in every])

    def _inquiry(self, session: str, message: Value) -> Effect:
        call = self._new_call()
        self._inquiries[call] = session
        return Invoke(call=call, operation="inquiry", arguments={"message": message})

    def _stop(self, name: str, reason: str) -> list[Effect]:
        """End a session towards both, the initiator and the application."""
        session = self._sessions[name]
        place = Place(session["peer"], session["call"])
        return [*self._end(name, reason), *self._stopped(session, reason), finish(place, "CallAgent")]

    def _stopped(self, session: Value, reason: str) -> list[Effect]:
        message = stopped(session["session_id"], session["receiver"], session["sender"], reason)
        return [respond(Place(session["peer"], session["call"]), "CallAgent", message)]

    def _end(self, name: str, reason: str) -> list[Effect]:
        """Drop a session, and tell the application by a STOP_QUEST with the reason; one that was asked to stop knows."""
        session = self._sessions[name]
        effects = self._drop(name)
        self._ended[session["session_id"]] = session["sender"]
        # The oldest ones go: an application that never answers an end keeps none alive.
        while len(encode_json(self._ended)) > self._most_bytes // ENDED_SHARE:
            del self._ended[next(iter(self._ended))]
        if session["last"] == "STOP_QUEST":
            return effects
        message = stopped(session["session_id"], session["sender"], session["receiver"], reason, "STOP_QUEST")
        return [*effects, Invoke(call=self._new_call(), operation="inquiry", arguments={"message": message})]

    def _drop(self, name: str) -> list[Effect]:
        del self._sessions[name]
        return [SetTimer(name=name, seconds=None)]


def _short(message_id: str) -> str:
    return message_id if len(message_id) <= MAX_MESSAGE_ID else ""
