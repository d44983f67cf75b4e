"""An environment and its members in one process, without agents and without a network.

    team = Team()
    team.add(Member("Bob", "Writer", Flow.in_order("Write")), writer)
    team.publish({"content": "A poem about rain", "send_to": ["Bob"]})
    while not team.is_idle:
        await team.run()

A member's application has the functions of the role `member`, `act` and perhaps `think`, with the arguments and results of the
manifest. So the same application serves an agent. The sandbox does not import this module.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from .environment import Environment, Full
from .member import Act, Member, Rest
from .memory import Memory
from .message import Message, complete, draft_faults

_log = logging.getLogger(__name__)


class Application(Protocol):
    """What a member does. With a choice of states, it has `think(state, choices, news)` too, whose result is `{"state": …}`."""

    async def act(self, action: str, news: list[dict[str, Any]]) -> Mapping[str, Any]:
        """Do an action; return `{"publish": [DRAFT, …], "response": DRAFT, TEXT or None}`, each of which may be missing."""


class Team:
    """An environment whose members are in this process. For one event loop."""

    def __init__(self, history: Memory | None = None) -> None:
        """Have no members. `history`: where the messages are kept, for other bounds than those of a session."""
        self._environment = Environment(history)
        self._members: dict[str, tuple[Member, Any]] = {}

    @property
    def history(self) -> Memory:
        """Return the messages that were published."""
        return self._environment.history

    @property
    def is_idle(self) -> bool:
        """Return whether all members are idle (rule 8)."""
        return self._environment.is_idle

    def add(self, member: Member, application: Application) -> None:
        """Add a member. Raises `ValueError` where its name is the name or the class of another."""
        if reason := self._environment.join(member.name, member.address, shares=True):
            raise ValueError(reason)
        self._members[member.name] = member, application

    def publish(self, draft: Mapping[str, Any]) -> Message:
        """Publish a message of the user. Raises `ValueError` for one with faults, and `Full`; then nothing has changed."""
        if faults := draft_faults(dict(draft)):
            raise ValueError(faults[0])
        message = complete(draft, _make_id)
        self._deliver(message)
        return message

    async def run(self) -> None:
        """Run one round: the members that are not idle react, all at once (rule 9).

        An error of one ends its reaction alone. It is raised after the round, with those of others, in an `ExceptionGroup`.
        """
        # All look at their messages before one of them acts, as they do across processes.
        begun = [(name, self._members[name][0].begin()) for name in self._environment.begin_round()]
        outcomes = await asyncio.gather(*(self._react(name, step) for name, step in begun), return_exceptions=True)
        if errors := [outcome for outcome in outcomes if isinstance(outcome, Exception)]:
            raise ExceptionGroup("members failed", errors)

    async def _react(self, name: str, step: Any) -> None:
        member, application = self._members[name]
        try:
            for message in member.waited():
                self._deliver_of(member, message)
            while not isinstance(step, Rest):
                news = [message.to_value() for message in member.news]
                if isinstance(step, Act):
                    step = self._acted(member, await application.act(step.action, news))
                else:
                    choice = await application.think(member.state, list(step.choices), news)
                    step = member.decide(choice["state"])
            if step.response is not None:
                self._send_out(member, step.response)
        except BaseException:  # also of a cancelled round: the next one begins anew
            member.failed()
            raise
        finally:
            self._environment.rest(name, is_busy=not member.is_idle)

    def _acted(self, member: Member, answer: Mapping[str, Any]) -> Any:
        published, responses = answer.get("publish", []), member.response_drafts(answer.get("response"))
        if faults := member.answer_faults(published, responses):
            raise ValueError(faults[0])
        for draft in published:
            self._send_out(member, complete(draft, _make_id))
        complete_ones = [member.outgoing(complete(draft, _make_id))[0] for draft in responses]
        return member.acted(complete_ones[0] if complete_ones else None)

    def _send_out(self, member: Member, message: Message) -> None:
        own, is_own = member.outgoing(message)
        if not is_own:
            if member.leaves_now(own):
                self._deliver_of(member, own)
        elif not member.put_own(own):
            _log.warning("Too many messages of %s to itself wait.", member.name)

    def _deliver_of(self, member: Member, message: Message) -> None:
        try:
            self._deliver(message, member.name)
        except Full as error:
            # As across processes: the rest of the answer is published.
            _log.warning("A message of %s was not published: %s", member.name, error)

    def _deliver(self, message: Message, author: str = "") -> None:
        receivers, missed = self._environment.publish(message, author)
        if missed:
            _log.warning("%d members had no room for the message %s.", missed, message.id)
        if not receivers:
            _log.warning("The message %s has no recipient.", message.id)
        for name in receivers:
            self._members[name][0].put(message)


def _make_id() -> str:
    return uuid.uuid4().hex
