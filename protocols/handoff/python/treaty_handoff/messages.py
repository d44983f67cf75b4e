"""Build, read and check handoff messages: docs/specification/handoff.md, and protocols/handoff/1.0/document.md.

>>> message = build(Kind.NOTIFICATION, {"event": "DONE"}, sender="a", recipient="b", task="t", state="CLOSED", now=now)
>>> read(encode(message)) == message
True
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any, Final, TypeAlias

import rfc8785

from treaty_consensus.errors import Malformed, Refused, TooLarge
from treaty_handler import decode_json
from treaty_io.extras import naming_extras

from .codes import HandoffCode

with naming_extras("handoff"):
    import jsonschema_rs

Message: TypeAlias = dict[str, Any]
"""A message of document.md."""

VERSION = "1.0.0"
"""The version of the messages that are built here."""
MAX_MESSAGE: Final = 1024 * 1024
"""Bytes of a message with its proof. Counted before parsing."""
MAX_ISSUES = 10


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


@cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema of document.md."""
    return json.loads(files(__package__).joinpath("handoff.schema.json").read_bytes())  # type: ignore[no-any-return]


@cache
def _validator() -> jsonschema_rs.Draft202012Validator:
    # Without this switch a library may ignore `format`.
    return jsonschema_rs.Draft202012Validator(schema(), validate_formats=True)


def issues(message: object) -> list[str]:
    """Return the faults of a message, a sentence each, at most ten. They name places and rules, and no values."""
    problems: dict[str, list[str]] = {}
    for error in islice(_validator().iter_errors(message), MAX_ISSUES):
        rule, name = _rule(error)
        place = ".".join(map(str, error.instance_path)) or "message"
        problems.setdefault(f"{place} {rule}", []).extend(name)
    return [f"{rule}{' ' * bool(names)}{', '.join(names)}." for rule, names in problems.items()]


def _rule(error: jsonschema_rs.ValidationError) -> tuple[str, list[str]]:
    """Return the broken rule, and the names that belong to it: those of the schema, none of the message."""
    match error.kind:
        case jsonschema_rs.ValidationErrorKind.Required(property=name):
            return "lacks", [name]
        case jsonschema_rs.ValidationErrorKind.AdditionalProperties():
            return "has a member that is not allowed", []
    return f"breaks the rule {error.schema_path[-1] if error.schema_path else 'form'}", []


def check(message: object) -> None:
    """Check the form. Raises `Malformed` with the faults, and `Refused` for another major version."""
    if problems := issues(message):
        raise Malformed(HandoffCode.FORM, " ".join(problems))
    assert isinstance(message, dict)
    version = str(message["metadata"]["protocol_version"])
    if version.partition(".")[0] != VERSION.partition(".")[0]:
        raise Refused(HandoffCode.FORM, f"Version {version} is not spoken here.", fix=f"Send messages of version {VERSION}.")


def read(data: bytes) -> Message:
    """Parse a message of any author. Raises `TooLarge`, `Malformed` or `Refused`."""
    if len(data) > MAX_MESSAGE:
        raise TooLarge(HandoffCode.TOO_LARGE, f"A message has at most {MAX_MESSAGE} bytes.")
    try:
        message = decode_json(data)
    except ValueError as error:
        raise Malformed(HandoffCode.FORM, f"The message is not JSON: {error}.") from error
    return accept(message)


def accept(message: object) -> Message:
    """Return a parsed message as this version reads it. Raises `Malformed` or `Refused`."""
    pruned = without_later_members(message)
    check(pruned)
    assert isinstance(pruned, dict)
    return pruned


def without_later_members(message: object) -> object:
    """Return a message of a later minor version without the members that this version does not know; others unchanged.

    Versions of one major differ by optional members only, so nothing that this version needs is lost.
    """
    try:
        major, minor = (int(part) for part in message["metadata"]["protocol_version"].split(".")[:2])  # type: ignore[index]
    except (TypeError, KeyError, ValueError, AttributeError):
        return message
    mine = [int(part) for part in VERSION.split(".")]
    return _pruned(message, schema()) if major == mine[0] and minor > mine[1] else message


def _pruned(value: object, form: Mapping[str, Any]) -> object:
    if "$ref" in form:
        form = schema()["$defs"][form["$ref"].rpartition("/")[2]]
    if isinstance(value, list):
        return [_pruned(item, form.get("items", {})) for item in value]
    if not isinstance(value, dict) or "properties" not in form:
        return value
    properties = dict(form["properties"])
    if "handoff_type" in properties and isinstance(value.get("handoff_type"), str):
        properties["data"] = schema()["$defs"].get(value["handoff_type"].lower(), {})
    is_closed = form.get("additionalProperties") is False
    return {name: _pruned(item, properties.get(name, {})) for name, item in value.items() if name in properties or not is_closed}


def encode(message: Message) -> bytes:
    """Return the canonical bytes (RFC 8785), which are also the signed ones."""
    return rfc8785.dumps(message)


def build(
    kind: Kind,
    data: Mapping[str, Any],
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
        "payload": {"handoff_type": str(kind), "data": dict(data)},
        "instructions": dict(instructions or {}),
    }
    check(message)
    return message


def respond(about: Message, kind: Kind, data: Mapping[str, Any], *, sender: str, state: str, now: datetime, key: str) -> Message:
    """Build an answer to the sender of a message, in its task and flow, with its priority.

    `key`: makes the id. The same answer to the same message has the same id, so that a repetition has no second effect.
    """
    metadata = about["metadata"]
    return build(
        kind,
        {**data, "in_reply_to": metadata["message_id"]},
        sender=sender,
        recipient=metadata["sender_id"],
        task=metadata["task_id"],
        state=state,
        now=now,
        priority=priority_of(about),
        flow=metadata.get("correlation_id"),
        # Two senders may have used the same id: each gets an answer of its own.
        message_id=derived_id(metadata["message_id"], f"{sender}/{metadata['sender_id']}/{key}"),
    )


def derived_id(message_id: str, key: str) -> str:
    """Return the id of a message that follows from another one."""
    return str(uuid.uuid5(uuid.UUID(message_id), key))


def moment(at: datetime) -> str:
    """Return a time with a zone as the protocol writes it: UTC with milliseconds."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def kind_of(message: Message) -> Kind:
    """Return the type of a valid message."""
    return Kind(message["payload"]["handoff_type"])


def priority_of(message: Message) -> Priority:
    """Return the priority of a valid message."""
    return Priority(message["metadata"]["priority"])


def id_of(message: Message) -> str:
    """Return the id of a valid message in lower case: UUIDs are equal whatever their case."""
    return str(message["metadata"]["message_id"]).lower()


def sender_of(message: Message) -> str:
    """Return the sender of a valid message."""
    return str(message["metadata"]["sender_id"])


def recipients_of(message: Message) -> tuple[str, ...]:
    """Return the recipients of a valid message."""
    recipient = message["metadata"]["recipient_id"]
    return (recipient,) if isinstance(recipient, str) else tuple(recipient)


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
