"""The rules of a member: it looks at its messages, keeps those that concern it, and answers them by its actions.

A reaction is a row of steps. `begin` returns the first; `decide` and `acted` report what became of a step, and return the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from treaty_handler import Value

from .environment import PARTS
from .flow import IDLE, Flow
from .load import Buffer, Load
from .memory import Memory
from .message import TO_SELF, USER_REQUIREMENT, Message, complete, draft_faults


@dataclass(frozen=True, slots=True)
class Think:
    """Choose one of these states."""

    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Act:
    """Do this action."""

    action: str


@dataclass(frozen=True, slots=True)
class Rest:
    """The reaction is over. `response`: the message of its last action, which is to be published, or None."""

    response: Message | None


Step = Think | Act | Rest


class Member:
    """One member. `watch`: the causes of the messages that it subscribes to; those of the user unless it says so (rule 10)."""

    def __init__(self, name: str, address: str, flow: Flow, watch: Iterable[str] = (), *, memory: Memory | None = None) -> None:
        self.name, self.address, self.flow = name, address, flow
        self.watch = frozenset(watch) or frozenset({USER_REQUIREMENT})
        self.memory = Memory() if memory is None else memory
        self.news: tuple[Message, ...] = ()
        self.state = IDLE
        # Two, because the environment counts on the room of the first.
        self._buffer, self._own = Buffer(), Buffer()
        # What it published in this round, and what has to wait for the next one.
        self._share, self._outbox = Load(), Buffer()
        self._steps = 0
        self._response: Message | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether it has no news, nothing to do and nothing buffered (rule 8). It has news until it has nothing to do."""
        return not (self.news or self._buffer or self._own or self._outbox)

    def put(self, message: Message) -> bool:
        """Buffer a message of the environment until the next reaction. Return False where there is no room, and it is lost."""
        return self._buffer.put(message)

    def put_own(self, message: Message) -> bool:
        """Buffer a message of the member to itself. Return False where there is no room, and it is lost."""
        return self._own.put(message)

    def answer_faults(self, published: list[Value], responses: list[Value]) -> list[str]:
        """Return the faults of an action's answer, a sentence each. Nothing of an answer with a fault may happen."""
        drafts = [*published, *responses]
        if faults := [fault for draft in drafts for fault in draft_faults(draft)]:
            return faults
        if any(draft.get("sent_from") not in (None, "", self.name, self.address) for draft in drafts):
            return ["sent_from is the name or the class of another."]
        own, waiting, left = Load(), self._outbox.load, replace(self._share)
        for number, draft in enumerate(drafts):
            message, is_own = self.outgoing(complete(draft, str))
            size = message.size
            if is_own:
                fits = number >= len(published) or own.add(size)  # a response to itself is noted where it has no room
            elif not waiting.messages and left.has_room(size, PARTS):
                fits = left.add(size)
            else:
                fits = waiting.add(size)
            if not fits:
                return ["An action publishes more at once than may wait for a round."]
        return []

    def leaves_now(self, message: Message) -> bool:
        """Return whether a message goes to the environment in this round. One beyond the share of the round waits for the
        next, as do those after it."""
        if self._outbox or not self._share.has_room(message.size, PARTS):
            self._outbox.put(message)
            return False
        self.count(message)
        return True

    def count(self, message: Message) -> None:
        """Count a message into the share of this round, as the environment does."""
        self._share.add(message.size)

    def outgoing(self, message: Message) -> tuple[Message, bool]:
        """Return a message of this member as it leaves, and whether it goes to the member alone (rule 6). Such a message is for
        its own buffer; the environment does not see it."""
        recipients = frozenset(self.address if name == TO_SELF else name for name in message.send_to)
        own = message.readdressed(message.sent_from or self.address, recipients)
        return own, recipients <= {self.address, self.name}

    def response_drafts(self, response: Value) -> list[Value]:
        """Return the draft of an action's response, or none. A mere text becomes a message of the action."""
        if isinstance(response, str):
            return [{"content": response, "cause_by": self.state, "sent_from": self.address}]
        return [] if response is None else [response]

    def waited(self) -> list[Message]:
        """Return the messages that waited for this round and leave in it, after `begin`."""
        waiting, self._outbox = list(self._outbox), Buffer()
        return [message for message in waiting if self.leaves_now(message)]

    def begin(self) -> Step:
        """Take the messages from the buffer, and react to those that are news (rule 3). Of the member's own, those are taken that
        fit into an action beside the others; the rest stays for the next reaction."""
        buffer, own = self._buffer, list(self._own)
        while own and buffer.put(own[0]):
            own.pop(0)
        buffered, self._buffer, self._own = list(buffer), Buffer(), Buffer(own)
        # Kept too, if it is no news: an application may read it in the memory.
        new = [message for message in buffered if self.memory.add(message)]
        self.news = tuple(message for message in new if message.cause_by in self.watch or self.name in message.send_to)
        self._steps, self._response, self._share = 0, None, Load()
        return self._next() if self.news else self._rest()

    def decide(self, choice: str) -> Step:
        """Report the state that was chosen. One that was not offered ends the reaction."""
        if choice == IDLE or choice not in self.flow.after(self.state):
            return self._rest()
        self.state = choice
        return Act(choice)

    def acted(self, response: Message | None) -> Step:
        """Report the end of an action. `response`: kept in the memory; published if the action is the last."""
        if response is not None:
            self.memory.add(response)
        self._response = response
        self._steps += 1
        return self._next()

    def failed(self) -> Step:
        """Report that a choice or an action failed. It ends the reaction, and nothing is published."""
        self._response = None
        return self._rest()

    def _next(self) -> Step:
        choices = self.flow.after(self.state)
        if self._steps >= self.flow.limit:
            return self._rest()
        return self.decide(choices[0]) if len(choices) == 1 else Think(choices)

    def _rest(self) -> Rest:
        response, self._response = self._response, None
        self.news, self.state, self._steps = (), IDLE, 0
        return Rest(response)

    def to_value(self) -> dict[str, Value]:
        """Return the state as a JSON value, for a snapshot."""
        return {
            "name": self.name,
            "address": self.address,
            "transitions": self.flow.transitions,
            "limit": self.flow.limit,
            "watch": sorted(self.watch),
            "memory": self.memory.to_value(),
            "buffer": [message.to_value() for message in self._buffer],
            "own": [message.to_value() for message in self._own],
            "outbox": [message.to_value() for message in self._outbox],
            "share": asdict(self._share),
            "news": [message.to_value() for message in self.news],
            "state": self.state,
            "steps": self._steps,
            "response": None if self._response is None else self._response.to_value(),
        }

    @classmethod
    def from_value(cls, value: dict[str, Value]) -> Member:
        """Return the member of `to_value`."""
        member = cls(value["name"], value["address"], Flow(value["transitions"], value["limit"]), value["watch"])
        member.memory = Memory.from_value(value["memory"])
        names = ("buffer", "own", "outbox")
        member._buffer, member._own, member._outbox = (Buffer(complete(one, str) for one in value[name]) for name in names)
        member._share = Load(**value["share"])
        member.news = tuple(complete(message, str) for message in value["news"])
        member.state, member._steps = value["state"], value["steps"]
        member._response = None if value["response"] is None else complete(value["response"], str)
        return member
