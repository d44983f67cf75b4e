"""The parameter and the result of an application's function for a message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from treaty_agent import ProvedPeer
from treaty_consensus.errors import Refused

from .codes import HandoffCode
from .handler.rules import unmet
from .journal import Connection, Transaction
from .messages import Message, id_of, sender_of
from .typed import Data

_Data = TypeVar("_Data", bound=Data)


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

    def value(self) -> dict[str, Any]:
        """Return the outcome as the rules of the protocol take it."""
        return {
            "status": str(self.status),
            "detail": self.detail,
            "actions_done": list(self.done),
            "criteria_met": self.criteria_met,
            "information": dict(self.information),
            "result": dict(self.result),
        }

    def check(self, message: Message) -> None:
        """Check against the instructions. Raises `Refused`: the work failed."""
        if why := unmet(message, self.value()):
            raise Refused(HandoffCode.INCOMPLETE, why)


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

    def read(self, kind: type[_Data]) -> _Data:
        """Return `payload.data` as an object of `treaty_handoff.typed`. Raises `Malformed` for data of another form."""
        return kind.read(self.data)


Work: TypeAlias = Callable[[Handling], Awaitable[Outcome | None]]
