"""Build, read and check handoff messages: docs/specification/handoff.md, and protocols/handoff/1.0/document.md.

>>> message = build(Kind.NOTIFICATION, {"event": "DONE"}, sender="a", recipient="b", task="t", state="CLOSED", now=now)
>>> read(encode(message)) == message
True
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias

import rfc8785

from treaty_consensus.errors import Malformed, Refused, TooLarge
from treaty_handler import decode_json

from .codes import HandoffCode
from .handler.messages import VERSION, accepted, derived_id, id_of, in_reply_to, issues, kind_of, moment, recipients_of
from .handler.messages import respond as respond_to
from .typed import Data

__all__ = ["derived_id", "id_of", "in_reply_to", "kind_of", "moment", "recipients_of"]

Message: TypeAlias = dict[str, Any]
"""A message of document.md."""

MAX_MESSAGE: Final = 1024 * 1024
"""Bytes of a message with its proof, unless the owner of an agent sets another cap. Counted before parsing."""


class Kind(StrEnum):
    """The types of handoff."""

    TASK_TRANSFER = "TASK_TRANSFER"
    REQUEST_INFORMATION = "REQUEST_INFORMATION"
    PROVIDE_INFORMATION = "PROVIDE_INFORMATION"
    ESCALATION = "ESCALATION"
    NOTIFICATION = "NOTIFICATION"
    STATUS_UPDATE = "STATUS_UPDATE"
    APPROVAL_REQUEST = "APPROVAL_REQUEST"


class Priority(StrEnum):
    """The priorities, the least urgent first."""

    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"
    CRITICAL = "CRITICAL"

    @property
    def rank(self) -> int:
        """Return 0 for `LOW` to 3 for `CRITICAL`."""
        return list(Priority).index(self)


def check(message: object) -> None:
    """Check the form. Raises `Malformed` with the faults, and `Refused` for another major version."""
    if problems := issues(message):
        # The form is right, and of another version.
        kind = Refused if "is not spoken here" in problems[0] else Malformed
        raise kind(HandoffCode.FORM, " ".join(problems))


def read(data: bytes, limit: int = MAX_MESSAGE) -> Message:
    """Parse a message of any author. Raises `TooLarge`, `Malformed` or `Refused`."""
    if len(data) > limit:
        raise TooLarge(HandoffCode.TOO_LARGE, f"A message has at most {limit} bytes.")
    try:
        message = decode_json(data)
    except ValueError as error:
        raise Malformed(HandoffCode.FORM, f"The message is not JSON: {error}.") from error
    return accept(message)


def accept(message: object) -> Message:
    """Return a parsed message as this version writes it. Raises `Malformed` or `Refused`.

    Null is absent, a time without a zone is UTC, and a time has milliseconds afterwards.
    """
    written = accepted(message)
    check(written)
    assert isinstance(written, dict)
    return written


def encode(message: Message) -> bytes:
    """Return the canonical bytes (RFC 8785), which are also the signed ones."""
    return rfc8785.dumps(message)


def build(
    kind: Kind | Data,
    data: Mapping[str, Any] | None = None,
    *,
    sender: str,
    recipient: str | Sequence[str],
    task: str,
    state: str,
    now: datetime,
    priority: Priority = Priority.MEDIUM,
    flow: str | None = None,
    lifetime: timedelta | None = None,
    actions: Iterable[Mapping[str, Any]] = (),
    history: Iterable[Mapping[str, Any]] | None = None,
    summary: str | None = None,
    instructions: Mapping[str, Any] | None = None,
    message_id: str | None = None,
) -> Message:
    """Build a message of this version, and check it. Raises `Malformed`.

    `kind`: the type with its `data` beside it, or an object of `treaty_handoff.typed`, which has both.
    `recipient`: an agent, a group, or several. `flow`: the `correlation_id`; a new one where it is left out.
    `lifetime`: after it, the message has no effect. `message_id`: a new UUID unless given.
    """
    metadata = {
        "message_id": message_id or str(uuid.uuid4()),
        "timestamp": moment(now),
        "protocol_version": VERSION,
        "sender_id": sender,
        "recipient_id": recipient if isinstance(recipient, str) else list(recipient),
        "correlation_id": flow or str(uuid.uuid4()),
        "task_id": task,
        "priority": str(priority),
        "expiration_time": None if lifetime is None else moment(now + lifetime),
    }
    context = {
        "workflow_state": state,
        "previous_actions": [dict(action) for action in actions],
        "historical_data_summary": summary,
        "user_interaction_history": None if history is None else [dict(entry) for entry in history],
    }
    message: Message = {
        "metadata": _present(metadata),
        "context": _present(context),
        "payload": kind.payload() if isinstance(kind, Data) else {"handoff_type": str(kind), "data": dict(data or {})},
        "instructions": dict(instructions or {}),
    }
    return accept(message)


def respond(about: Message, kind: Kind, data: Mapping[str, Any], *, sender: str, state: str, now: datetime, key: str) -> Message:
    """Build an answer to the sender of a message, in its task and flow, with its priority.

    `key`: makes the id. The same answer to the same message has the same id, so that a repetition has no second effect.
    """
    sender_id = sender_of(about)
    message: Message = respond_to(
        about,
        str(kind),
        data,
        sender=sender,
        state=state,
        timestamp=moment(now),
        # Two senders may have used the same id: each gets an answer of its own.
        message_id=derived_id(id_of(about), f"{sender}/{sender_id}/{key}"),
    )
    return accept(message)


def priority_of(message: Message) -> Priority:
    """Return the priority of a valid message."""
    return Priority(message["metadata"]["priority"])


def sender_of(message: Message) -> str:
    """Return the sender of a valid message."""
    return str(message["metadata"]["sender_id"])


def expires_at(message: Message) -> datetime | None:
    """Return when a valid message expires; None if never."""
    text = message["metadata"].get("expiration_time")
    return None if text is None else datetime.fromisoformat(text)


def is_expired(message: Message, now: datetime) -> bool:
    """Whether the time of a valid message is over."""
    at = expires_at(message)
    return at is not None and at <= now


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
