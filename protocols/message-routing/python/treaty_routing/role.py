"""A role: the application of a member, with the names of the source.

A member of the protocol asks its application to `act`, and to `think` where its transitions leave a choice. A role answers by
`_act` and `_think`, so that the same class is a member in one process and at an agent.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from .action import Action, UserRequirement
from .handler.flow import IDLE, Flow
from .message import Message, any_to_str, any_to_str_set, received

Actions: TypeAlias = Iterable[Action | type[Action]]
BY_ORDER, REACT = "by_order", "react"
_published: ContextVar[list[Message] | None] = ContextVar("published", default=None)


def published_by_action(message: Message) -> bool:
    """Keep a message for the end of the action that runs now. Return False outside of an action."""
    waiting = _published.get()
    if waiting is not None:
        waiting.append(message)
    return waiting is not None


class RoleEnvironment(Protocol):
    """The environment, as a role uses it: `environment.Environment`, or `agents.JoinedEnvironment` at another agent."""

    def publish_message(self, message: Message) -> bool:
        """Publish a message."""

    async def recall(self, role: Role) -> list[Message]:
        """Return the messages that the role has seen, oldest first."""


@dataclass
class RoleContext:
    """The situation of a role.

    `news`: the messages to react to. `history`: all that it has seen, oldest first; where older messages are gone, the first one
    says how many. `todo`: the action to do. `watch`: the causes that it subscribes to.
    """

    env: RoleEnvironment | None = None
    news: list[Message] = field(default_factory=list)
    history: list[Message] = field(default_factory=list)
    todo: Action | None = None
    watch: set[str] = field(default_factory=set)
    react_mode: str = REACT
    max_react_loop: int = 1


class Role:
    """One member, with the given actions and causes, or those that a derived class sets by `set_actions` and `_watch`. Further
    keyword arguments become attributes.

    `name`: unique in the environment; the environment gives a name of its class and a number to a role without one.
    """

    name: str = ""
    profile = goal = constraints = desc = ""

    def __init__(self, *, actions: Actions = (), watch: Iterable[object] = (UserRequirement,), **kwargs: Any) -> None:
        self.rc = RoleContext()
        self.set_actions(actions)
        self._watch(watch)
        for attribute, value in kwargs.items():
            setattr(self, attribute, value)

    @property
    def states(self) -> list[str]:
        """Return the names of the actions."""
        return [any_to_str(action) for action in self.actions]

    def set_actions(self, actions: Actions) -> None:
        """Set the actions, classes or objects. Raises `ValueError` for two of one class."""
        self.actions = [action() if isinstance(action, type) else action for action in actions]
        if len(set(self.states)) < len(self.actions):
            raise ValueError("A role has one action of a class.")

    def set_todo(self, action: Action | type[Action] | None) -> None:
        """Choose the next action, in `_think`; None for none."""
        self.rc.todo = None if action is None else self.actions[self.states.index(any_to_str(action))]

    @property
    def flow(self) -> Flow:
        """Return the transitions between the actions. Raises `ValueError` for a role without actions."""
        if len(self.states) > 1 and self.rc.react_mode == REACT:
            free = {IDLE: self.states, **{state: [*self.states, IDLE] for state in self.states}}
            return Flow(free, self.rc.max_react_loop)
        return Flow.in_order(*self.states)

    def _watch(self, actions: Iterable[object]) -> None:
        """Subscribe to the messages that these actions caused."""
        self.rc.watch = any_to_str_set(tuple(actions))

    def _set_react_mode(self, react_mode: str, max_react_loop: int = 1) -> None:
        """Do all actions `by_order`, or let `_think` choose, up to `max_react_loop` times (`react`, the default)."""
        if react_mode not in (BY_ORDER, REACT):
            raise ValueError(f"react_mode is {BY_ORDER} or {REACT}.")
        self.rc.react_mode, self.rc.max_react_loop = react_mode, max_react_loop

    async def _think(self) -> bool:
        """Choose the next of several actions by `set_todo`. Return False to end the reaction. One action needs no choice."""
        raise NotImplementedError(f"{type(self).__name__} has several actions: override _think, or use {BY_ORDER}.")

    async def _act(self) -> Message | None:
        """Do `rc.todo`, and return its message, which is published after the last action."""
        assert self.rc.todo is not None
        response = await self.rc.todo.run(self.rc.history)
        if isinstance(response, Message):
            return response
        return Message(content=str(response or ""), role="assistant", cause_by=self.rc.todo, sent_from=self)

    # Called by the member

    async def act(self, action: str, news: list[dict[str, Any]]) -> dict[str, Any]:
        """Do an action."""
        await self._observe(news)
        self.rc.todo = self.actions[self.states.index(action)]
        published: list[Message] = []
        token = _published.set(published)
        try:
            response = await self._act()
        finally:
            _published.reset(token)
        drafts = [message.to_draft() for message in published]
        return {"publish": drafts, "response": None if response is None else response.to_draft()}

    async def think(self, state: str, choices: list[str], news: list[dict[str, Any]]) -> dict[str, str]:
        """Choose a state."""
        await self._observe(news)
        self.rc.todo = None
        todo = await self._think() and self.rc.todo
        return {"state": any_to_str(todo) if todo else IDLE}

    async def _observe(self, news: list[dict[str, Any]]) -> None:
        assert self.rc.env is not None, "the role has no environment"
        self.rc.news, self.rc.history = received(news), await self.rc.env.recall(self)
