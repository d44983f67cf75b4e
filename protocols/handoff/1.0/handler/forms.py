"""The form of a handoff message: one JSON Schema, the one in document.md. A test compares the copies."""

from __future__ import annotations

from treaty_handler import Value

KINDS = (
    "TASK_TRANSFER",
    "REQUEST_INFORMATION",
    "PROVIDE_INFORMATION",
    "ESCALATION",
    "NOTIFICATION",
    "STATUS_UPDATE",
    "APPROVAL_REQUEST",
)
PRIORITIES = ("LOW", "MEDIUM", "HIGH", "CRITICAL")
STATUSES = (
    "ACCEPTED",
    "DUPLICATE",
    "REJECTED",
    "EXPIRED",
    "IN_PROGRESS",
    "COMPLETED",
    "FAILED",
    "ESCALATED",
    "FELL_BACK",
    "APPROVED",
    "DENIED",
)
_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_DATE = "^[1-8][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T"
_ZONE = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"

UUID = {"type": "string", "pattern": "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"}
# Both the pattern and the format: the format knows the days of each month, the pattern refuses times without a zone.
MOMENT = {"type": "string", "format": "date-time", "pattern": f"{_DATE}{_TIME}(\\.[0-9]{{1,9}})?{_ZONE}"}
MILLISECONDS = {"type": "string", "format": "date-time", "pattern": f"{_DATE}{_TIME}\\.[0-9]{{3}}{_ZONE}"}
# No zero byte: databases that keep names take none.
NAME = {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[^\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]+$"}
TEXT = {"type": "string"}
_VERSION, _DURATION = "^[0-9]{1,4}\\.[0-9]{1,4}\\.[0-9]{1,4}$", "^PT([0-9]{1,4}H)?([0-9]{1,6}M)?([0-9]{1,8}S)?$"
_EXAMPLE = "a time such as 2023-10-27T10:30:00.123Z"
FITTING: dict[Value, str] = {
    UUID["pattern"]: "a UUID",
    NAME["pattern"]: "a text of 1 to 256 characters without control characters",
    MOMENT["pattern"]: _EXAMPLE,
    MILLISECONDS["pattern"]: _EXAMPLE,
    _VERSION: "a version such as 1.0.0",
    _DURATION: "a duration such as PT2H",
}
"""By its pattern the text that fits: a sender is told."""
FLAG = {"type": "boolean"}
FREE = {"type": "object"}
PERCENT = {"type": "integer", "minimum": 0, "maximum": 100}


def _ref(name: str) -> Value:
    return {"$ref": f"#/$defs/{name}"}


def _object(required: str, properties: dict[str, Value], *, is_open: bool = False) -> Value:
    """The form of an object. `is_open`: it may have further members."""
    return {
        "type": "object",
        "required": required.split(),
        "properties": properties,
        "additionalProperties": is_open,
    }


def _list(items: Value) -> Value:
    return {"type": "array", "items": items}


_METADATA = _object(
    "message_id timestamp protocol_version sender_id recipient_id task_id priority",
    {
        "message_id": _ref("uuid"),
        "timestamp": _ref("milliseconds"),
        "protocol_version": {"type": "string", "pattern": _VERSION},
        "sender_id": _ref("name"),
        "recipient_id": {
            "oneOf": [_ref("name"), {"type": "array", "items": _ref("name"), "minItems": 1, "maxItems": 64, "uniqueItems": True}]
        },
        "correlation_id": _ref("name"),
        "task_id": _ref("name"),
        "priority": _ref("priority"),
        "expiration_time": _ref("milliseconds"),
    },
)
_CONTEXT = _object(
    "workflow_state previous_actions",
    {
        "workflow_state": _ref("name"),
        "previous_actions": _list(
            _object(
                "action_type details timestamp",
                {"action_type": _ref("name"), "details": _ref("text"), "timestamp": _ref("moment")},
                is_open=True,
            )
        ),
        "historical_data_summary": _ref("text"),
        "user_interaction_history": _list(
            _object(
                "type sender content timestamp",
                {"type": _ref("name"), "sender": _ref("name"), "content": _ref("text"), "timestamp": _ref("moment")},
                is_open=True,
            )
        ),
    },
)
_INSTRUCTIONS = _object(
    "",
    {
        "next_steps_suggestion": _ref("text"),
        "required_actions": _ref("names"),
        "constraints": {
            "type": "object",
            "properties": {
                "time_limit": {"type": "string", "pattern": _DURATION, "minLength": 4},
                "resource_limit": {},
            },
        },
        "success_criteria": _ref("text"),
        "failure_handling_strategy": _object(
            "",
            {
                "retry_count": {"type": "integer", "minimum": 0, "maximum": 100},
                "escalate_to": _ref("name"),
                "fallback_action": _ref("name"),
            },
        ),
    },
)
# The source prints forms for ESCALATION and REQUEST_INFORMATION alone. Of the other types, what has these names has these forms,
# and everything else is the sender's: an owner who needs more gives a schema of his own.
_TASK_TRANSFER = _object(
    "",
    {
        "objective": _ref("text"),
        "sub_tasks": _list(
            _object(
                "",
                {
                    "sub_task_id": _ref("name"),
                    "description": _ref("text"),
                    "status": {"enum": ["PENDING", "IN_PROGRESS", "COMPLETED"]},
                    "depends_on": _ref("names"),
                },
                is_open=True,
            )
        ),
        "inputs": FREE,
        "progress": _ref("percent"),
    },
    is_open=True,
)
_REQUEST_INFORMATION = _object("requested_info_keys", {"requested_info_keys": _ref("names"), "query_parameters": FREE})
_PROVIDE_INFORMATION = _object(
    "", {"in_reply_to": _ref("uuid"), "information": FREE, "missing_keys": _ref("names")}, is_open=True
)
_ESCALATION = _object(
    "issue_category severity customer_info technical_details",
    {
        "issue_category": _ref("name"),
        "severity": _ref("priority"),
        "customer_info": _object("user_id name", {"user_id": _ref("name"), "name": _ref("name"), "contact_number": _ref("name")}),
        "technical_details": _object(
            "",
            {
                "router_model": _ref("name"),
                "isp": _ref("name"),
                "symptoms": _ref("text"),
                "logs_attached": FLAG,
                "log_references": _ref("names"),
            },
            is_open=True,
        ),
    },
)
_NOTIFICATION = _object("", {"event": _ref("name"), "detail": _ref("text"), "attributes": FREE}, is_open=True)
_STATUS_UPDATE = _object(
    "",
    {
        "in_reply_to": _ref("uuid"),
        "status": {"enum": list(STATUSES)},
        "progress": _ref("percent"),
        "detail": _ref("text"),
        "issues": _list(_ref("text")),
        "actions_done": _ref("names"),
        "criteria_met": FLAG,
        "result": FREE,
        "retry_after": {"type": "integer", "minimum": 1, "maximum": 3600},
    },
    is_open=True,
)
_APPROVAL_REQUEST = _object(
    "", {"subject": _ref("text"), "options": _ref("names"), "details": FREE, "deadline": _ref("milliseconds")}, is_open=True
)
_DATA = (
    _TASK_TRANSFER,
    _REQUEST_INFORMATION,
    _PROVIDE_INFORMATION,
    _ESCALATION,
    _NOTIFICATION,
    _STATUS_UPDATE,
    _APPROVAL_REQUEST,
)

_PAYLOAD = {
    **_object("handoff_type data", {"handoff_type": {"enum": list(KINDS)}, "data": FREE}),
    # Beside `data`, not inside it: a condition inside `data` does not see `handoff_type`.
    "allOf": [
        {
            "if": {"properties": {"handoff_type": {"const": kind}}, "required": ["handoff_type"]},
            "then": {"properties": {"data": _ref(kind.lower())}},
        }
        for kind in KINDS
    ],
}

SCHEMA: dict[str, Value] = {
    "$defs": {
        "uuid": UUID,
        "moment": MOMENT,
        "milliseconds": MILLISECONDS,
        "name": NAME,
        "names": {"type": "array", "items": {"$ref": "#/$defs/name"}, "maxItems": 64},
        "text": TEXT,
        "priority": {"enum": list(PRIORITIES)},
        "percent": PERCENT,
        **{kind.lower(): form for kind, form in zip(KINDS, _DATA, strict=True)},
    },
    **_object(
        "metadata context payload instructions",
        {"metadata": _METADATA, "context": _CONTEXT, "payload": _PAYLOAD, "instructions": _INSTRUCTIONS},
    ),
}
"""JSON Schema 2020-12. `schemas.check` evaluates the keywords that it uses."""
