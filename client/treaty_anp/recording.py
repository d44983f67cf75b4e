"""Record every call of a machine with the actions that it returned.

A machine is deterministic: a new machine with the arguments of the first note and the calls of the other notes returns the same
actions. So the notes form a transcript, and a replay checks it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class Recorder(Protocol):
    """Keep the notes. A recorder must not call the machine."""

    def note(
        self, name: str, arguments: Mapping[str, Any], now: object, actions: Sequence[object], drawn: Sequence[str] = ()
    ) -> None:
        """Record that a machine was made (`initiator`, `responder`) or called.

        `name`: the method. `arguments`: all except `now`. `now`: None for methods without a time. `actions`: the result. `drawn`:
        the random ids that the call used. A call that raised changed nothing, and is not recorded.
        """


class Recorded(Protocol):
    """A machine with an optional recorder. `drawn`: the random ids of the last call."""

    recorder: Recorder | None
    drawn: list[str]


_Self = TypeVar("_Self", bound=Recorded)
_P = ParamSpec("_P")
_R = TypeVar("_R", bound=Sequence[object])


def recorded(method: Callable[Concatenate[_Self, _P], _R]) -> Callable[Concatenate[_Self, _P], _R]:
    """Decorate a method so that the recorder of its object notes each call."""
    signature = inspect.signature(method)

    @wraps(method)
    def call(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        self.drawn.clear()  # an earlier call may have drawn ids and raised
        actions = method(self, *args, **kwargs)
        if self.recorder is not None:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            arguments = dict(bound.arguments)
            del arguments["self"]
            now = arguments.pop("now", None)
            self.recorder.note(method.__name__, arguments, now, actions, tuple(self.drawn))
        return actions

    return call
