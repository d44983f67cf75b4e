"""Sessions of the AIP handler without any transport: frames in, frames out, and a clock that the test sets."""

from __future__ import annotations

from typing import Any

from treaty_aip.handler import handler
from treaty_aip.handler.frames import Frame, read, write
from treaty_handler import (
    Call,
    Effect,
    Failure,
    Invoke,
    Opened,
    PeerJoined,
    PeerLost,
    Received,
    Result,
    Return,
    Send,
    SetTimer,
    Timer,
)

SEED = "0" * 32


def agent(name: str, address: str = "", domain: str = "default") -> dict[str, Any]:
    """An AgentInfo."""
    return {"agent_id": name, "address": address or f"{name}:1", "domain": domain}


def tool(name: str, address: str = "") -> dict[str, Any]:
    """A ToolInfo."""
    return {"tool_id": name, "address": address or f"{name}:1"}


def quest(
    status: str = "START_QUEST", session: str = "s", sender: str = "a", receiver: str = "b", text: str = ""
) -> dict[str, Any]:
    """An AgentMessage."""
    ids = {"sender_id": sender, "receiver_id": receiver, "session_id": session}
    return {**ids, "session_status": status, "content": [{"text": text}] if text else []}


class Driven:
    """One session. `is_proved`: whether its peer proved its DID. `at`: milliseconds.

    It moves by snapshot before each event, so that nothing is kept outside of it."""

    def __init__(self, role: str, **parameters: Any) -> None:
        is_proved = bool(parameters.pop("is_proved", False))
        self._parameters = {"local": "did:example:local", "peer": "gw", "seed": SEED, **parameters}
        self._role, self._session = role, handler.open(role, self._parameters)
        self.at = 0
        self.timers: dict[str, float] = {}
        self.returned: dict[str, Any] = {}
        self.invoked: list[Invoke] = []
        self._calls = 0
        self._handle(Opened(is_proved=is_proved))

    def receive(self, peer: str, frame: Frame) -> list[tuple[str, Frame]]:
        """Give it a frame of a peer: the frames that it sends."""
        return self._handle(Received(peer=peer, data=write(frame), at=self.at))

    def raw(self, peer: str, data: bytes) -> list[tuple[str, Frame]]:
        """Give it any bytes."""
        return self._handle(Received(peer=peer, data=data, at=self.at))

    def request(self, peer: str, method: str, message: Any, call: str = "c") -> list[tuple[str, Frame]]:
        """Give it a request."""
        return self.receive(peer, Frame("REQUEST", method, call, message))

    def expire(self, name: str) -> list[tuple[str, Frame]]:
        """Let a timer run out."""
        self.at += int(self.timers.pop(name) * 1000)
        return self._handle(Timer(name=name, at=self.at))

    def join(self, peer: str, *, is_proved: bool) -> None:
        """Let a member join, where the session is shared."""
        self._handle(PeerJoined(peer=peer, role="node", is_proved=is_proved, at=self.at))

    def lose(self, peer: str) -> list[tuple[str, Frame]]:
        """Lose a peer."""
        return self._handle(PeerLost(peer=peer, at=self.at))

    def call(self, operation: str, **arguments: Any) -> tuple[Any, list[tuple[str, Frame]]]:
        """Call an operation: its answer, or None if there is none yet, and the frames that it sends."""
        self._calls += 1
        call = f"app{self._calls}"
        sent = self._handle(Call(call=call, operation=operation, arguments=arguments, at=self.at))
        return self.returned.pop(call, None), sent

    def state(self) -> bytes:
        """Its snapshot."""
        return self._session.snapshot()

    def result(self, value: Any = None, error: Failure | None = None) -> list[tuple[str, Frame]]:
        """Answer the oldest invocation."""
        return self._handle(Result(call=self.invoked.pop(0).call, value=value, error=error, at=self.at))

    def _handle(self, event: Any) -> list[tuple[str, Frame]]:
        snapshot = self._session.snapshot()
        if not isinstance(event, Opened):
            self._session = handler.open(self._role, self._parameters, snapshot)
        return [sent for effect in self._session.handle(event) for sent in self._performed(effect)]

    def _performed(self, effect: Effect) -> list[tuple[str, Frame]]:
        match effect:
            case Send(peer=peer, data=data):
                return [(peer, read(data))]
            case SetTimer(name=name, seconds=None):
                self.timers.pop(name, None)
            case SetTimer(name=name, seconds=seconds):
                self.timers[name] = float(seconds or 0)
            case Invoke():
                self.invoked.append(effect)
            case Return(call=call, value=value, error=error):
                self.returned[call] = error if error is not None else (True if value is None else value)
        return []


def statuses(sent: list[tuple[str, Frame]]) -> list[str]:
    """The codes of the calls that ended."""
    return [frame.code for _, frame in sent if frame.kind == "STATUS"]


def messages(sent: list[tuple[str, Frame]], kind: str = "RESPONSE") -> list[Any]:
    """The messages of one kind."""
    return [frame.message for _, frame in sent if frame.kind == kind]


def gateway_with(*nodes: dict[str, Any], **parameters: Any) -> Driven:
    """A gateway with nodes; each has registered as the peer of its own id."""
    gateway = Driven("gateway", **parameters)
    for node in nodes:
        method = "RegisterAgent" if "agent_id" in node else "RegisterTool"
        sent = gateway.request(node.get("agent_id") or node["tool_id"], method, node)
        assert statuses(sent) == ["OK"], sent
    return gateway
