"""The session of a member, whose application chooses states and does the actions."""

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
    Invoke,
    PeerLost,
    Received,
    Result,
    Return,
    Send,
    Value,
    derive_id,
    encode_json,
)

from .flow import Flow, flow_faults
from .load import fitting
from .member import Act, Member, Rest, Step, Think
from .message import NAME_FORM, Message, complete, draft_faults, is_name
from .wire import MAX_TEXT, make_id, pack, read

MAX_RECALLED = 100


class MemberSession:
    """`open`: id of a request → the call that it answers, or "" where no call waits, and the call's value. `joining`: the
    member that asks to join. `invoked`: the id of the step that the application works on, or "". `round`: the round that the
    member works on, or was last in. `error`: the reason for which its reaction failed, or ""."""

    def __init__(self, peer: str, seed: str, state: dict[str, Value]) -> None:
        self.peer, self.seed = peer, seed
        self.member = Member.from_value(state["member"]) if state.get("member") else None
        self.joining: dict[str, Value] = state.get("joining", {})
        self.open: dict[str, list[Value]] = state.get("open", {})
        self.made: int = state.get("made", 0)
        self.round: int = state.get("round", 0)
        self.invoked: str = state.get("invoked", "")
        self.error: str = state.get("error", "")

    def snapshot(self) -> bytes:
        """Return the whole state."""
        names = ("joining", "open", "made", "round", "invoked", "error")
        member = None if self.member is None else self.member.to_value()
        return pack({"member": member, **{name: getattr(self, name) for name in names}})

    def handle(self, event: Event) -> list[Effect]:
        """Answer the application's calls, react when a round begins, and follow the steps of a reaction."""
        match event:
            case Call(call=call, operation="join", arguments=arguments):
                return self._join(call, arguments)
            case Call(call=call) if self.member is None:
                return [_failed(call, 403, "Join first.")]
            case Call(call=call, operation="publish", arguments=arguments):
                faults = draft_faults(arguments)
                return [_failed(call, 400, faults[0])] if faults else self._publish(arguments, call)
            case Call(call=call, arguments=arguments):
                return [Return(call=call, value=self._recall(arguments.get("causes", [])))]
            case Cancelled(call=given_up):
                for waiting in self.open.values():
                    waiting[0] = "" if waiting[0] == given_up else waiting[0]
            case Received(data=data):
                return self._received(data)
            case Result(call=call, value=value, error=error) if call == self.invoked:
                self.invoked = ""
                return self._answered(value, error)
            case PeerLost():
                failed = [_failed(call, 503, "The environment is gone.") for call, _ in self.open.values() if call]
                return [*failed, End(status="failed" if failed else "completed")]
            case Close():
                return [End()]
        return []

    def _join(self, call: str, arguments: dict[str, Value]) -> list[Effect]:
        if self.member is not None or self.joining:
            return [_failed(call, 409, "This session has a member.")]
        faults = flow_faults(arguments["transitions"])
        names = (arguments["name"], arguments["address"], *arguments.get("watch", ()))
        faults += [f"{name!r} is not {NAME_FORM}." for name in names if not is_name(name)]
        if faults:
            return [_failed(call, 400, faults[0][:MAX_TEXT])]
        self.joining = arguments
        request = self._request(call, {})
        shared = arguments.get("shared", False)
        return [self._say(type="join", id=request, name=arguments["name"], address=arguments["address"], shared=shared)]

    def _received(self, data: bytes) -> list[Effect]:
        try:
            message = read(data, "environment")
        except ValueError as error:
            return [Audit(text=f"Ignored a message of the environment: {str(error)[:MAX_TEXT]}")]
        match message["type"]:
            case "accepted" | "refused":
                return self._settled(message) if message["id"] in self.open else []
            case _ if self.member is None:
                return []
            case "message":
                return self._put(self.member, complete(message["message"], str))
            case _:
                return self._run(self.member, message["round"])

    def _settled(self, answer: dict[str, Value]) -> list[Effect]:
        """Answer the call of a request. A request of `act` has none: its refusal is noted."""
        (call, value), joining = self.open.pop(answer["id"]), self.joining
        self.joining = {}
        refused = answer["type"] == "refused"
        if joining and not refused:
            flow = Flow(joining["transitions"], joining.get("maxActions", 0))
            self.member = Member(joining["name"], joining["address"], flow, joining.get("watch", ()))
        if not call:
            return [Audit(text=f"The environment refused a message: {answer['reason']}")] if refused else []
        return [_failed(call, answer["code"], answer["reason"]) if refused else Return(call=call, value=value)]

    def _run(self, member: Member, number: int) -> list[Effect]:
        if self.invoked:
            return [Audit(text="Ignored a round that began before the last was over.")]
        self.round, self.error = number, ""
        step = member.begin()
        # Before those of this round, which come after them.
        waited = [self._say_publish(message, "") for message in member.waited()]
        return [*waited, *self._follow(member, step)]

    def _follow(self, member: Member, step: Step) -> list[Effect]:
        """Ask the application for the next step, or end the round."""
        news = [message.to_value() for message in member.news]
        match step:
            case Think(choices=choices):
                return self._invoke("think", {"state": member.state, "choices": list(choices), "news": news})
            case Act(action=action):
                return self._invoke("act", {"action": action, "news": news})
            case Rest(response=response):
                published = [] if response is None else self._send_out(member, response, "")
                return [*published, self._state(member)]

    def _answered(self, value: Value, error: Failure | None) -> list[Effect]:
        member = self.member
        assert member is not None  # only a member is asked to think or to act
        published = value.get("publish", []) if error is None else []
        responses = member.response_drafts(value.get("response")) if error is None else []
        faults = member.answer_faults(published, responses)
        if error or faults:
            # Nothing of the answer happens, and the round goes on without this member.
            self.error = (error.message if error else faults[0])[:MAX_TEXT] or "The action failed."
            return self._follow(member, member.failed())
        if "state" in value:
            return self._follow(member, member.decide(value["state"]))
        # Sent first: the environment counts them before it hears that the round is over.
        effects = [effect for draft in published for effect in self._publish(draft, "")]
        notes = [effect for effect in effects if isinstance(effect, Audit)]
        # One note for all: the host bounds the notes of an event.
        effects = [effect for effect in effects if not isinstance(effect, Audit)] + notes[:1]
        complete_ones = [member.outgoing(complete(draft, self._make_id))[0] for draft in responses]
        return [*effects, *self._follow(member, member.acted(complete_ones[0] if complete_ones else None))]

    def _publish(self, draft: dict[str, Value], call: str) -> list[Effect]:
        member = self.member
        assert member is not None
        return self._send_out(member, complete(draft, self._make_id), call)

    def _send_out(self, member: Member, message: Message, call: str) -> list[Effect]:
        """Publish a message. One for the member alone stays here (rule 6)."""
        own, is_own = member.outgoing(message)
        if not is_own:
            if not call:
                return [self._say_publish(own, "")] if member.leaves_now(own) else []
            member.count(own)  # the environment answers the call, which waits for no round
            return [self._say_publish(own, call)]
        if not member.put_own(own):
            reason = "Too many messages of this member to itself wait."
            return [_failed(call, 429, reason)] if call else [Audit(text=reason)]
        # The environment has to know that there is something to do; in a round it learns so at the end.
        states = [] if self.invoked or not call else [self._state(member)]
        return [*states, *([Return(call=call, value={"id": own.id})] if call else [])]

    def _say_publish(self, message: Message, call: str) -> Send:
        return self._say(type="publish", id=self._request(call, {"id": message.id}), message=message.to_value())

    def _put(self, member: Member, message: Message) -> list[Effect]:
        return [] if member.put(message) else [Audit(text="Dropped a message: the environment sent more than may wait.")]

    def _recall(self, causes: list[str]) -> dict[str, Value]:
        assert self.member is not None
        newest = fitting(reversed(self.member.memory.caused_by(causes)), MAX_RECALLED)
        return {"messages": [message.to_value() for message in reversed(newest)], "forgotten": self.member.memory.forgotten}

    def _invoke(self, operation: str, arguments: dict[str, Value]) -> list[Effect]:
        self.made += 1
        self.invoked = derive_id(self.seed, self.made)
        return [Invoke(call=self.invoked, operation=operation, arguments=arguments)]

    def _state(self, member: Member) -> Send:
        return self._say(type="state", round=self.round, idle=member.is_idle, error=self.error)

    def _request(self, call: str, value: Value) -> str:
        self.made += 1
        request = derive_id(self.seed, self.made)
        self.open[request] = [call, value]
        return request

    def _make_id(self) -> str:
        self.made += 1
        return make_id(self.seed, self.made)

    def _say(self, **message: Value) -> Send:
        return Send(peer=self.peer, data=encode_json(message))


def _failed(call: str, code: int, reason: str) -> Return:
    return Return(call=call, error=Failure(code=code, message=reason))
