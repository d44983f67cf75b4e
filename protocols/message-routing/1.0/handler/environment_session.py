"""The session of an environment. All its members are peers of one session."""

from __future__ import annotations

from treaty_handler import (
    Audit,
    Call,
    Cancelled,
    Close,
    Effect,
    End,
    Event,
    Failure,
    Multicast,
    Opened,
    PeerJoined,
    PeerLost,
    Persist,
    Received,
    Return,
    Send,
    SetTimer,
    Timer,
    Value,
    decode_json,
    encode_json,
)

from .environment import Environment, Full
from .load import fitting
from .memory import Memory
from .message import Message, complete, draft_faults
from .wire import MAX_TEXT, make_id, pack, read

ROUND, PATIENCE = "round", 3600
"""The timer of a round, and the seconds after which a member that has not finished its part has to leave, unless `configure` set
others."""
MAX_SNAPSHOT = 64 * 1024
"""Bytes of a session without a worker, as the host bounds them."""
MAX_PAGE = 100
MAX_FAILURES = 100
_HISTORY = "history:"


class EnvironmentSession:
    """Each message of the history is stored before it is given to a member, under its number. A crash leaves the history up to a
    message that was not confirmed; a new session begins with it, and without members.

    `stored`: the number of the oldest message that is stored. `names`: peer → name of the member. `proved`: peers that proved
    their DID. `settings`: of `configure`. `run`: the call that runs rounds, or "". `left`: the rounds that it has left.
    """

    def __init__(self, seed: str, state: dict[str, Value]) -> None:
        self.seed = seed
        self.environment = Environment.from_value(state["environment"]) if state else Environment()
        self.stored: int = state.get("stored", 0)
        self.names: dict[str, str] = state.get("names", {})
        self.proved: list[str] = state.get("proved", [])
        self.settings: dict[str, Value] = state.get("settings", {"patience": PATIENCE, "proved": False})
        self.made: int = state.get("made", 0)
        self.round: int = state.get("round", 0)
        self.run: str = state.get("run", "")
        self.left: int = state.get("left", 0)
        self.done: int = state.get("done", 0)
        self.failures: list[Value] = state.get("failures", [])

    def snapshot(self) -> bytes:
        """Return the state. Of the history it has the newest messages, as many as fit: a session without a snapshot could neither
        rest nor go to another worker, so that messages of much random content would end it for all."""
        environment, count = self.environment.to_value(), len(self.environment.history)
        while len(packed := self._pack(environment)) > MAX_SNAPSHOT and count:
            count //= 2
            environment["history"] = self.environment.history.newest(count).to_value()
        return packed

    def _pack(self, environment: Value) -> bytes:
        names = ("stored", "names", "proved", "settings", "made", "round", "run", "left", "done", "failures")
        return pack({"environment": environment, **{name: getattr(self, name) for name in names}})

    def handle(self, event: Event) -> list[Effect]:
        """Answer the application's calls and the members' messages."""
        match event:
            case Opened(stored=stored) if stored:
                self._restore(stored)
            case Call(call=call, operation=operation, arguments=arguments):
                return self._called(call, operation, arguments)
            case Cancelled(call=call) if call == self.run:
                self.run, self.left = "", 0  # the members finish their round, and no other follows
            case Received(peer=peer, data=data):
                return self._received(peer, data)
            case PeerJoined(peer=peer, is_proved=True):
                self.proved.append(peer)
            case Timer(name=name) if name == ROUND:
                late = [peer for peer, member in self.names.items() if self.environment.members[member].is_running]
                return self._lose(late, "did not finish the round, and left")
            case PeerLost(peer=peer):
                self.proved = [other for other in self.proved if other != peer]
                return self._lose([peer], "left") if peer in self.names else []
            case Close():
                return [End()]
        return []

    def _called(self, call: str, operation: str, arguments: dict[str, Value]) -> list[Effect]:
        match operation:
            case "publish":
                if faults := draft_faults(arguments):
                    return [_failed(call, 400, faults[0])]
                return self._publish_own(call, complete(arguments, self._make_id))
            case "run":
                if self.run or self.environment.is_running:
                    return [_failed(call, 409, "A round is not over.")]
                self.run, self.left, self.done, self.failures = call, arguments.get("rounds", 1), 0, []
                return self._go_on()
            case "configure":
                self.settings.update(arguments)
                return [Return(call=call, value={})]
            case "readHistory":
                return [Return(call=call, value=self._page(arguments["start"], arguments.get("count", MAX_PAGE)))]
            case _:
                listed = [self._described(peer, name) for peer, name in self.names.items()]
                return [Return(call=call, value={"idle": self.environment.is_idle, "members": listed})]

    def _described(self, peer: str, name: str) -> dict[str, Value]:
        member = self.environment.members[name]
        return {"name": name, "address": member.address, "idle": member.is_idle, "proved": peer in self.proved}

    def _publish_own(self, call: str, message: Message) -> list[Effect]:
        try:
            effects = self._publish(message)
        except Full as error:
            return [_failed(call, 429, str(error))]
        return [*effects, Return(call=call, value={"id": message.id})]

    def _received(self, peer: str, data: bytes) -> list[Effect]:
        try:
            message = read(data, "member")
        except ValueError as error:
            return [Audit(text=f"Ignored a message of {peer[:MAX_TEXT]}: {str(error)[:MAX_TEXT]}"[:1_000])]
        name = self.names.get(peer)
        if message["type"] == "join":
            return [self._joined(peer, message)]
        if name is None:
            return [_refused(peer, message["id"], 403, "Join first.")] if "id" in message else []
        if message["type"] == "state":
            return self._rested(name, message)
        return self._publish_foreign(peer, name, message)

    def _joined(self, peer: str, message: dict[str, Value]) -> Send:
        if peer in self.names:
            return _refused(peer, message["id"], 409, "This peer has joined already.")
        if self.settings["proved"] and peer not in self.proved:
            return _refused(peer, message["id"], 403, "Prove the DID: here a member needs a proof.")
        if reason := self.environment.join(message["name"], message["address"], shares=message["shared"]):
            return _refused(peer, message["id"], 409, reason)
        self.names[peer] = message["name"]
        return _say(peer, type="accepted", id=message["id"])

    def _publish_foreign(self, peer: str, name: str, request: dict[str, Value]) -> list[Effect]:
        message = complete(request["message"], self._make_id)
        # A member speaks for itself alone: others decide by the sender whom they believe.
        if message.sent_from not in self.environment.members[name].addresses:
            return [_refused(peer, request["id"], 403, "sent_from is the name or the class of another.")]
        try:
            effects = self._publish(message, name)
        except Full as error:
            return [_refused(peer, request["id"], 429, str(error))]
        return [*effects, _say(peer, type="accepted", id=request["id"])]

    def _publish(self, message: Message, author: str = "") -> list[Effect]:
        history = self.environment.history
        last = history.total
        receivers, missed = self.environment.publish(message, author)
        value = message.to_value()
        # What was forgotten goes first: the host has room for one history.
        effects: list[Effect] = [Persist(key=_place(number), value=None) for number in range(self.stored, history.forgotten)]
        self.stored = history.forgotten
        effects += [Persist(key=_place(last), value=encode_json(value))] if history.total > last else []
        if missed:
            effects.append(Audit(text=f"{missed} members had no room for the message {message.id}."))
        if not receivers:
            return [*effects, Audit(text=f"The message {message.id} has no recipient.")]
        return [*effects, self._tell(receivers, type="message", message=value)]

    def _tell(self, names: list[str], **message: Value) -> Multicast:
        """Send a message to these members. It crosses to the host once, because the copies for 256 members would be too many
        bytes."""
        peers = {name: peer for peer, name in self.names.items()}
        return Multicast(peers=tuple(peers[name] for name in names), data=encode_json(message))

    def _restore(self, stored: dict[str, bytes]) -> None:
        """Begin with the history of an earlier session."""
        numbers = sorted(int(key.removeprefix(_HISTORY)) for key in stored)
        messages = (complete(decode_json(stored[_place(number)]), str) for number in numbers)
        self.environment.history = Memory(messages, forgotten=numbers[0])
        self.stored = numbers[0]

    def _rested(self, name: str, message: dict[str, Value]) -> list[Effect]:
        member = self.environment.members[name]
        if not member.is_running:
            member.is_busy = not message["idle"]
            return []
        if message["round"] != self.round:
            return []  # sent before it got the round
        self.environment.rest(name, is_busy=not message["idle"])
        if message["error"] and len(self.failures) < MAX_FAILURES:
            self.failures.append({"name": name, "reason": message["error"]})
        return self._go_on()

    def _go_on(self) -> list[Effect]:
        """Begin the next round once all members have finished this one, or answer the call."""
        if self.environment.is_running:
            return []
        running = self.environment.begin_round() if self.left else []
        if running:
            self.round, self.left, self.done = self.round + 1, self.left - 1, self.done + 1
            return [
                SetTimer(name=ROUND, seconds=float(self.settings["patience"])),
                self._tell(running, type="run", round=self.round),
            ]
        if not self.run:
            return [SetTimer(name=ROUND, seconds=None)]
        answer = {"idle": self.environment.is_idle, "rounds": self.done, "failures": self.failures}
        call, self.run, self.left, self.failures = self.run, "", 0, []
        return [SetTimer(name=ROUND, seconds=None), Return(call=call, value=answer)]

    def _lose(self, peers: list[str], reason: str) -> list[Effect]:
        """Remove members. The others go on, and a round that waited for these alone is over."""
        names = [self.names.pop(peer) for peer in peers]
        was_running = any(self.environment.members[name].is_running for name in names)
        for name in names:
            self.environment.leave(name)
        return [Audit(text=f"{', '.join(names)[:MAX_TEXT]}: {reason}."), *(self._go_on() if was_running else [])]

    def _page(self, start: int, count: int) -> dict[str, Value]:
        history = self.environment.history
        first = max(start, history.forgotten)
        page = fitting(list(history)[first - history.forgotten :], count)
        messages = [message.to_value() for message in page]
        return {"start": first, "messages": messages, "total": history.total, "forgotten": history.forgotten}

    def _make_id(self) -> str:
        self.made += 1
        return make_id(self.seed, self.made)


def _place(number: int) -> str:
    return f"{_HISTORY}{number}"


def _say(peer: str, **message: Value) -> Send:
    return Send(peer=peer, data=encode_json(message))


def _refused(peer: str, request: str, code: int, reason: str) -> Send:
    return _say(peer, type="refused", id=request, code=code, reason=reason)


def _failed(call: str, code: int, reason: str) -> Return:
    return Return(call=call, error=Failure(code=code, message=reason))
