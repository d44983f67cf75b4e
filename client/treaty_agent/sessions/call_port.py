"""The interface of a session to the table of its calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .call_context import CallOrigin
from .handler_port import HostedHandler
from .interfaces import Step
from .middleware import CallPipeline


class Phase(Enum):
    """When calls may be given to the handler: not yet, as early data, or always."""

    WAITING = "waiting"
    EARLY = "early"
    RUNNING = "running"


@dataclass(frozen=True)
class CallPort:
    """The functions that a call table uses from its session.

    `wait_writable`: wait until the application may send more.
    `origin`: return what the calls of the session have in common.
    `pipeline`: the middleware around each call.
    `handler`: the present handler of the session.
    `phase`: see `Phase`.
    `time_limit`: seconds that a call of an operation may take.
    `is_reissued`: whether the session ran already, so that a call may be given to a second handler.
    `sent`: the messages that were sent on the connection so far.
    """

    post: Callable[[Step], None]
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    wait_writable: Callable[[], Awaitable[None]]
    origin: Callable[[], CallOrigin]
    pipeline: CallPipeline
    handler: Callable[[], HostedHandler | None]
    phase: Callable[[], Phase]
    time_limit: Callable[[str], float]
    is_reissued: Callable[[], bool]
    on_first_reply: Callable[[], None]
    sent: Callable[[], int] = lambda: 0
    on_outcome: Callable[[float, bool], None] = lambda seconds, succeeded: None
    on_fault: Callable[[str], Awaitable[None]] | None = None
    may_report_fault: Callable[[], bool] = lambda: False
