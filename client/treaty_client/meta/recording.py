"""The hook by which a session is written down: every call of a machine, with the actions that it returned.

A machine is deterministic: whoever makes it anew with the arguments of its first note, and repeats the calls of the others,
gets the same actions. So the notes are a transcript, and a replay of them is a check.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from .actions import Action


class Recorder(Protocol):
    """Whoever keeps the notes. It must not call the machine."""

    def note(self, name: str, arguments: Mapping[str, Any], now: float | None, actions: Sequence[Action]) -> None:
        """A machine was made (`source`, `destination`) or called: by which method, with which arguments except `now`, when (None
        for the methods that take no time), and what it returned. A call that raised changed nothing, and is not noted."""


class Recorded(Protocol):
    """Something with a recorder, or None."""

    recorder: Recorder | None


_Self = TypeVar("_Self", bound=Recorded)
_P = ParamSpec("_P")


def recorded(method: Callable[Concatenate[_Self, _P], list[Action]]) -> Callable[Concatenate[_Self, _P], list[Action]]:
    """Have each call of a method noted by the recorder of its object."""
    signature = inspect.signature(method)

    @wraps(method)
    def call(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> list[Action]:
        actions = method(self, *args, **kwargs)
        if self.recorder is not None:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            arguments = dict(bound.arguments)
            del arguments["self"]
            self.recorder.note(method.__name__, arguments, arguments.pop("now", None), actions)
        return actions

    return call
