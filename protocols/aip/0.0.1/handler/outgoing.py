"""The requests with one answer that a node sends: to its gateway, and to tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treaty_handler import Effect, Failure, Return, SetTimer, Value

from .conversation import tool_answer_fault, tool_answer_ids
from .frames import Frame, send

FAILURE_OF = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 412,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""The failure of an operation for each code of a call; 502 for any other."""
NO_GATEWAY = Failure(code=412, message="This node is not registered at a gateway.")


def failure(code: str, text: str) -> Failure:
    """Return the failure for the status of a call."""
    return Failure(code=FAILURE_OF.get(code, 502), message=f"{code}: {text}"[:500])


class Outgoing:
    """State: the calls of this node that have one answer, each with its purpose."""

    def __init__(self, state: Value, peer: str, seconds: float, tool_seconds: float, new_call: Callable[[], str]) -> None:
        """Continue from a state. `seconds`, `tool_seconds`: the time for an answer of a gateway, and of a tool."""
        self._tool_seconds = tool_seconds
        self._calls: dict[str, dict[str, Any]] = state.get("outgoing", {})
        self._peer, self._seconds, self._new_call = peer, seconds, new_call

    def state(self) -> dict[str, Value]:
        """Return the state for a snapshot."""
        return {"outgoing": self._calls}

    def ask(self, method: str, message: Value, *, call: str = "", then: str = "", address: str = "") -> list[Effect]:
        """Send a request. `call`: of the application, which gets the response. `then`: a purpose of the node itself."""
        own = self._new_call()
        self._calls[own] = {"method": method, "call": call, "then": then}
        to_tool = method in ("CallTool", "RouteToolCalling")
        if to_tool:
            self._calls[own]["ids"] = {name: message.get(name, "") for name in ("sender_id", "receiver_id", "session_id")}
        timer = SetTimer(name=own, seconds=self._tool_seconds if to_tool else self._seconds)
        return [timer, send(self._peer, Frame("REQUEST", method, own, message, address=address))]

    def returned(self, frame: Frame) -> tuple[str, Value, list[Effect]] | None:
        """Take a frame of an answer: the purpose, the response and the effects; None if no request of its method waits for it."""
        waiting = self._calls.get(frame.call)
        # The message was read as one of the frame's method, so it may be no result of the operation.
        if waiting is None or waiting["method"] != frame.method:
            return None
        del self._calls[frame.call]
        effects: list[Effect] = [SetTimer(name=frame.call, seconds=None)]
        response = frame.message if frame.kind == "RESPONSE" else None
        if response is not None and "ids" in waiting:
            fault = tool_answer_fault(waiting["ids"], response)
            response |= tool_answer_ids(waiting["ids"])
            if fault:
                return waiting["then"], None, [*effects, Return(call=waiting["call"], error=failure("INTERNAL", fault))]
        if waiting["call"] and response is not None:
            effects.append(Return(call=waiting["call"], value=response))
        elif waiting["call"]:
            effects.append(Return(call=waiting["call"], error=failure(frame.code, frame.text)))
        return waiting["then"], response, effects

    def expired(self, name: str) -> list[Effect]:
        """Give up a request that is not answered."""
        waiting = self._calls.pop(name, None)
        if waiting is None:
            return []
        cancel = send(self._peer, Frame("CANCEL", waiting["method"], name))
        late = Failure(code=504, message="The call was not answered in time.")
        return [cancel, *([Return(call=waiting["call"], error=late)] if waiting["call"] else [])]
