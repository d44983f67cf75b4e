"""The initiator's side of sessions between agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treaty_handler import Effect, Failure, Invoke, Return, Value

from .conversation import QUESTS, response_fault, stopped
from .frames import MAX_NAME, Frame, send
from .outgoing import NO_GATEWAY


class Clients:
    """State: `clients`, session_id → {receiver, sender, method, address, call, last}. One with a call is occupied."""

    def __init__(self, state: Value, peer: str, new_call: Callable[[], str], most: int, *, direct: bool) -> None:
        """Continue from a state. `most`: clients. `direct`: whether the peer is the other agent, and no gateway."""
        self._clients: dict[str, dict[str, Any]] = state.get("clients", {})
        self._peer, self._new_call, self._most, self._direct = peer, new_call, most, direct

    def state(self) -> dict[str, Value]:
        """Return the state for a snapshot."""
        return {"clients": self._clients}

    def create(self, call: str, arguments: Value) -> list[Effect]:
        """Add a client, unoccupied. One with an address speaks to it directly."""
        name = arguments["session_id"]
        if name in self._clients:
            return [Return(call=call, error=Failure(code=409, message="There is a client of this session."))]
        if len(self._clients) >= self._most or not 1 <= len(name) <= MAX_NAME:
            return [
                Return(call=call, error=Failure(code=429, message=f"There are {self._most} clients, or the name is too long."))
            ]
        address = arguments.get("address", "")
        method = arguments.get("method") or ("CallAgent" if address or self._direct else "RouteAgentCalling")
        receiver = arguments["receiver_id"]
        self._clients[name] = {"receiver": receiver, "sender": "", "method": method, "address": address, "call": "", "last": ""}
        return [Return(call=call, value=True)]

    def submit(self, call: str, message: Value, status: str | None, gateway: str | None) -> list[Effect]:
        """Send an inquiry. Without a status it begins the session, or goes on with it. `gateway`: its address; None if none."""
        client = self._clients.get(message["session_id"])
        fault = self._fault(client, message, status, gateway)
        if fault is not None or client is None:
            return [Return(call=call, error=fault)]
        begins = not client["call"]
        client["last"] = status or ("START_QUEST" if begins else "HOLD_QUEST")
        if begins:
            client["call"], client["sender"] = self._new_call(), message.get("sender_id", "")
        # A peer without a gateway and without an address speaks to the other side of its session.
        address = (client["address"] or gateway or "") if begins else ""
        filled = message | {"session_status": client["last"]}
        return [send(self._peer, Frame("REQUEST", client["method"], client["call"], filled, address=address)), Return(call=call)]

    def close(self, call: str, session_id: str, receiver: str) -> list[Effect]:
        """Remove a client, and cancel its stream."""
        client = self._clients.get(session_id)
        if client is None or client["receiver"] != receiver:
            return [Return(call=call, value=False)]
        del self._clients[session_id]
        cancel = [send(self._peer, Frame("CANCEL", client["method"], client["call"]))] if client["call"] else []
        return [*cancel, Return(call=call, value=True)]

    def returned(self, frame: Frame) -> list[Effect]:
        """Give an answer to the application. The end of a stream that no STOP_RESPONSE announced is told as one."""
        entry = next(((name, each) for name, each in self._clients.items() if each["call"] and each["call"] == frame.call), None)
        if entry is None:
            return []
        name, client = entry
        if frame.kind != "RESPONSE":
            client["call"] = ""
            reason = "The receiver ended the stream." if frame.code == "OK" else f"{frame.code}: {frame.text}"
            return [self._feedback(stopped(name, client["receiver"], client["sender"], reason))]
        if fault := response_fault({"session_id": name, **client}, frame.message):
            call, client["call"] = client["call"], ""
            cancel = send(self._peer, Frame("CANCEL", client["method"], call))
            return [cancel, self._feedback(stopped(name, client["receiver"], client["sender"], fault))]
        if frame.message["session_status"] == "STOP_RESPONSE":
            # The session is over, and the client may begin another one. The receiver ends the stream.
            client["call"] = ""
        return [self._feedback(frame.message)]

    def ended(self, session_id: str) -> list[Effect]:
        """Cancel the stream of a session whose application takes no more feedback."""
        client = self._clients.get(session_id)
        if client is None or not client["call"]:
            return []
        call, client["call"] = client["call"], ""
        return [send(self._peer, Frame("CANCEL", client["method"], call))]

    def lost(self) -> list[Effect]:
        """Tell the application that all open sessions are over."""
        effects: list[Effect] = []
        for name, client in self._clients.items():
            if client["call"]:
                client["call"] = ""
                effects.append(self._feedback(stopped(name, client["receiver"], client["sender"], "The peer is gone.")))
        return effects

    def _feedback(self, message: Value) -> Effect:
        return Invoke(call=self._new_call(), operation="feedback", arguments={"message": message})

    def _fault(self, client: Value, message: Value, status: str | None, gateway: str | None) -> Failure | None:
        if client is None or client["receiver"] != message["receiver_id"]:
            return Failure(code=404, message="There is no client of this session and receiver.")
        if not client["address"] and gateway is None:
            return NO_GATEWAY
        if status is not None and status not in QUESTS:
            return Failure(code=400, message="An inquiry has no status of a response.")
        if client["call"] and (status == "START_QUEST" or client["last"] == "STOP_QUEST"):
            return Failure(code=409, message="The session has begun, or is being stopped.")
        if not client["call"] and status in ("HOLD_QUEST", "STOP_QUEST"):
            return Failure(code=409, message="The session has not begun.")
        return None
