"""Read messages liberally, and write them strictly.

A reader takes null for absent, a time with 0 to 9 decimals, and a time without a zone for UTC. The message that it returns is as
this version writes it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice

from treaty_handler import Value, decode_json, derive_id

from .forms import KINDS, PRIORITIES, SCHEMA
from .schemas import check

MAX_MESSAGE = 16 * 1024
"""Bytes of a message that a session takes: it is part of the session's snapshot, which has 64 KiB."""
MAX_ISSUES = 10
VERSION = "1.0.0"
MAJOR, MINOR = VERSION.split(".")[:2]
_TIME = re.compile(r"([0-9-]{10})[Tt ]([0-9:]{8})(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})?")


def read(data: bytes) -> tuple[Value, list[str]]:
    """A message of a session, and its faults. The message is None where the bytes are none."""
    if len(data) > 4 * MAX_MESSAGE:
        return None, [f"A message has at most {MAX_MESSAGE} bytes here."]
    try:
        message = accepted(decode_json(data))
    except ValueError as error:
        return None, [f"The message is not JSON: {error}."]
    # Parsed all the same: its sender is told that it is too large.
    return message, [f"A message has at most {MAX_MESSAGE} bytes here."] if len(data) > MAX_MESSAGE else issues(message)


def accepted(message: Value) -> Value:
    """A parsed message as this version writes it. A fault of its form stays."""
    return _written(message, SCHEMA, is_later=_is_later(message))


def issues(message: Value) -> list[str]:
    """The faults of a message, a sentence each, at most ten. They name members, and no values."""
    if _is_later(message) and is_unknown(message):
        # A type that a later version added has a form that is not known here. Everything around it is.
        if not isinstance(message["payload"].get("data"), dict):
            return ["payload.data is not of type object."]
        message = {**message, "payload": {**message["payload"], "handoff_type": "NOTIFICATION", "data": {}}}
    problems = list(islice(check(SCHEMA, message, SCHEMA), MAX_ISSUES))
    version = "" if problems else message["metadata"]["protocol_version"]
    if version and version.partition(".")[0] != MAJOR:
        return [f"Version {version} in metadata.protocol_version is not spoken here. Send {VERSION}."]
    return problems


def is_unknown(message: Value) -> bool:
    """Whether the type of a message is none of this version. A recipient does not handle it."""
    payload = message.get("payload") if isinstance(message, dict) else None
    kind = payload.get("handoff_type") if isinstance(payload, dict) else None
    return isinstance(kind, str) and kind not in KINDS and re.fullmatch("[A-Z][A-Z0-9_]{0,63}", kind) is not None


def kind_of(message: Value) -> str:
    """The type of a valid message."""
    return str(message["payload"]["handoff_type"])


def id_of(message: Value) -> str:
    """The id of a valid message in lower case: UUIDs are equal whatever their case."""
    return str(message["metadata"]["message_id"]).lower()


def recipients_of(message: Value) -> tuple[str, ...]:
    """The recipients of a valid message."""
    recipient = message["metadata"]["recipient_id"]
    return (recipient,) if isinstance(recipient, str) else tuple(recipient)


def in_reply_to(message: Value) -> str:
    """The id of the message that a valid message answers, in lower case; "" if it answers none."""
    return str(message["payload"]["data"].get("in_reply_to", "")).lower()


def rank(message: Value) -> int:
    """The order of work: a smaller number comes first."""
    return -PRIORITIES.index(message["metadata"]["priority"])


def expires(message: Value) -> int | None:
    """When the message expires, in milliseconds since 1970; None if never."""
    text = message["metadata"].get("expiration_time")
    return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)


def respond(
    about: Value, kind: str, data: Mapping[str, Value], *, sender: str, state: str, timestamp: str, message_id: str
) -> Value:
    """An answer to the sender of a message, in its task and flow, with its priority."""
    metadata = about["metadata"]
    shared = {name: metadata[name] for name in ("correlation_id", "task_id", "priority") if name in metadata}
    return {
        "metadata": {
            "message_id": message_id,
            "timestamp": timestamp,
            "protocol_version": VERSION,
            "sender_id": sender,
            "recipient_id": metadata["sender_id"],
            **shared,
        },
        "context": {"workflow_state": state, "previous_actions": []},
        "payload": {"handoff_type": kind, "data": {"in_reply_to": metadata["message_id"], **data}},
        "instructions": {},
    }


def reply(seed: str, number: int, at: int, about: Value, kind: str, state: str, data: Mapping[str, Value]) -> Value:
    """An answer of a session, whose ids follow from its seed."""
    digits = derive_id(seed, 2 * number) + derive_id(seed, 2 * number + 1)
    return respond(
        about,
        kind,
        data,
        sender=recipients_of(about)[0],
        state=state,
        timestamp=moment(datetime.fromtimestamp(at / 1000, UTC)),
        message_id=f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}",
    )


def status_update(
    seed: str, number: int, at: int, about: Value, status: str, *, faults: Iterable[str] = (), detail: str = "", pause: int = 0
) -> Value:
    """Feedback of a session on a message. `pause`: the seconds after which the same message may be sent again."""
    data = {"status": status, "detail": detail[:500], "issues": list(faults), "retry_after": pause}
    return reply(seed, number, at, about, "STATUS_UPDATE", status, {name: value for name, value in data.items() if value})


def rejection(seed: str, number: int, at: int, message: Value, faults: Iterable[str]) -> Value:
    """The report of a session on an invalid message; None if the message does not say who sent it, or is a report itself."""
    try:
        report = status_update(seed, number, at, message, "REJECTED", faults=faults)
        return None if kind_of(message) == "STATUS_UPDATE" or issues(report) else report
    except (KeyError, TypeError, IndexError):
        return None


def derived_id(message_id: str, key: str) -> str:
    """The id of a message that follows from another one (RFC 9562, version 5)."""
    digits = hashlib.sha1(bytes.fromhex(message_id.replace("-", "")) + key.encode(), usedforsecurity=False).hexdigest()
    variant = f"{int(digits[16], 16) & 3 | 8:x}"
    return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


def moment(at: datetime) -> str:
    """A time with a zone as the protocol writes it: UTC with milliseconds."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_later(message: Value) -> bool:
    """Whether a message is of a later minor version: such versions differ by optional members and by types."""
    try:
        major, minor = message["metadata"]["protocol_version"].split(".")[:2]
        return bool(major == MAJOR and int(minor) > int(MINOR))
    except (TypeError, KeyError, ValueError, AttributeError):
        return False


def _written(value: Value, form: Value, *, is_later: bool) -> Value:
    """A value as this version writes it, by its form. Members that a later minor version added are left out."""
    if "$ref" in form:
        form = SCHEMA["$defs"][form["$ref"].rpartition("/")[2]]
    if isinstance(value, str) and form.get("format") == "date-time":
        return _written_time(value)
    if isinstance(value, list):
        return [_written(item, form.get("items", {}), is_later=is_later) for item in value]
    if not isinstance(value, dict) or "properties" not in form:
        return value
    properties, is_closed = dict(form["properties"]), form.get("additionalProperties") is False
    if "handoff_type" in properties and value.get("handoff_type") in KINDS:
        properties["data"] = {"$ref": f"#/$defs/{value['handoff_type'].lower()}"}
    return {
        name: _written(item, properties.get(name, {}), is_later=is_later)
        for name, item in value.items()
        if (name in properties and item is not None)
        or (name not in properties and not (is_closed and (is_later or item is None)))
    }


def _written_time(text: str) -> str:
    match = _TIME.fullmatch(text)
    if match is None:
        return text
    date, time, decimals, zone = match.groups()
    zone = "+00:00" if zone in (None, "Z", "z") else zone
    try:
        return moment(datetime.fromisoformat(f"{date}T{time}.{(decimals or '')[:3]:0<3}{zone}"))
    except (ValueError, OverflowError):
        return text
