"""The parameter and the result of an application's function for a message."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from treaty_agent import ProvedPeer
from treaty_consensus.errors import Refused

from .codes import HandoffCode
from .journal import Connection, Transaction
from .messages import Kind, Message, id_of, sender_of

_DURATION = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?")


class Status(StrEnum):
    """The states that a STATUS_UPDATE reports."""

    ACCEPTED = "ACCEPTED"
    DUPLICATE = "DUPLICATE"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    ESCALATED = "ESCALATED"
    FELL_BACK = "FELL_BACK"
    APPROVED = "APPROVED"
    DENIED = "DENIED"


@dataclass(frozen=True)
class Outcome:
    """How the work on a message ended.

    `done`: the actions that were done; all `required_actions` must be among them. `criteria_met`: the judgement by the message's
    `success_criteria`; it must be True where the message has some. `information`: the answer to a REQUEST_INFORMATION.
    `result`, `detail`: for the STATUS_UPDATE.
    """

    status: Status = Status.COMPLETED
    done: tuple[str, ...] = ()
    criteria_met: bool | None = None
    information: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""

    def check(self, message: Message) -> None:
        """Check against the instructions. Raises `Refused`: the work failed."""
        instructions = message["instructions"]
        # Work that goes on, or that a person declined, is judged when it ends.
        if self.status in (Status.IN_PROGRESS, Status.DENIED):
            return
        missing = [action for action in instructions.get("required_actions", ()) if action not in self.done]
        if missing:
            raise Refused(HandoffCode.INCOMPLETE, f"Required actions were not done: {', '.join(missing)}.")
        if "success_criteria" in instructions and self.criteria_met is not True:
            raise Refused(HandoffCode.INCOMPLETE, "The success criteria are not met, or were not judged.")


@dataclass(frozen=True)
class Handling:
    """The work on one message.

    `message`: valid, authentic and not expired. `queue`: the agent or group that received it. `signer`: the agent that signed it.
    """

    message: Message
    queue: str
    signer: ProvedPeer | None
    transaction: Transaction
    send: Callable[[Message], Awaitable[str]]
    """Send a message that follows from this one: it leaves only if the work succeeds."""
    report: Callable[[Status, str, int | None], Awaitable[None]]
    """Tell the sender how the work goes, at once, whether it succeeds or not: status, a sentence, and the progress in percent."""

    @property
    def connection(self) -> Connection:
        """The transaction of the effect. Changes that are written with it happen exactly once."""
        return self.transaction.connection

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt: for effects outside the database, where the other side removes repetitions."""
        return f"{self.queue}/{sender_of(self.message)}/{id_of(self.message)}"

    @property
    def data(self) -> Mapping[str, Any]:
        """`payload.data`."""
        return self.message["payload"]["data"]  # type: ignore[no-any-return]


Work: TypeAlias = Callable[[Handling], Awaitable[Outcome | None]]

REPORTED = frozenset((Kind.TASK_TRANSFER, Kind.ESCALATION, Kind.APPROVAL_REQUEST, Kind.REQUEST_INFORMATION))
"""The kinds whose end is reported: the others tell something, and expect nothing."""


def time_limit(message: Message) -> float | None:
    """Return the seconds of `constraints.time_limit`; None without one."""
    match = _DURATION.fullmatch(message["instructions"].get("constraints", {}).get("time_limit", ""))
    if match is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600.0 + minutes * 60 + seconds


def strategy(message: Message) -> Mapping[str, Any]:
    """Return the `failure_handling_strategy`."""
    return message["instructions"].get("failure_handling_strategy", {})  # type: ignore[no-any-return]
