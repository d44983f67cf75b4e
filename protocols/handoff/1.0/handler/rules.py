"""The rules of the work on a message. They are the same in a session, at a broker, over HTTP and in queues.

An *outcome* is a JSON object that tells how the work ended: `status`, `detail`, `actions_done`, `criteria_met`, `information` and
`result`, each of which may be absent.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from treaty_handler import Value

from .messages import kind_of

REPORTED = ("TASK_TRANSFER", "ESCALATION", "APPROVAL_REQUEST", "REQUEST_INFORMATION")
"""The types whose end is reported: the others tell something, and expect nothing."""
ANSWERS = ("STATUS_UPDATE", "PROVIDE_INFORMATION")
"""The types that answer a message."""
LONGEST_PAUSE = 300.0
"""Seconds between two attempts at most."""
TIME_OVER = "The time limit is over."
_UNJUDGED = ("IN_PROGRESS", "DENIED")
"""Work that goes on, or that a person declined, is judged when it ends."""
_DURATION = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?")


class Answer(NamedTuple):
    """An answer to the sender of a message: its type, its workflow state, and its data without `in_reply_to`."""

    kind: str
    state: str
    data: dict[str, Value]


def unhandled(message: Value) -> str:
    """Return the sentence of a recipient that has no function for the type of a message."""
    return f"Messages of the type {kind_of(message)} are not handled here."


def time_limit(message: Value) -> float | None:
    """Return the seconds that the work may last, by `constraints.time_limit`; None without one."""
    match = _DURATION.fullmatch(message["instructions"].get("constraints", {}).get("time_limit", ""))
    if match is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600.0 + minutes * 60 + seconds


def unmet(message: Value, outcome: Value) -> str:
    """Return why an outcome counts as a failure, by the instructions of its message; "" if it does not."""
    instructions = message["instructions"]
    if kind_of(message) == "STATUS_UPDATE" or outcome.get("status") in _UNJUDGED:
        return ""
    if outcome.get("status") == "FAILED":
        return outcome.get("detail") or "The work failed."
    done = outcome.get("actions_done", ())
    missing = [action for action in instructions.get("required_actions", ()) if action not in done]
    if missing:
        return f"Required actions were not done: {', '.join(missing)}."
    if "success_criteria" in instructions and outcome.get("criteria_met") is not True:
        return "The success criteria are not met, or were not judged."
    return ""


def strategy(message: Value) -> Value:
    """Return the `failure_handling_strategy`."""
    return message["instructions"].get("failure_handling_strategy", {})


def after_failure(message: Value, step: str, tries: int) -> str:
    """Return the next step after a failed one: `handOff` again, then `escalate`, then `fallBack`; "" if none is left.

    `tries`: the attempts that failed before this one.
    """
    plan = strategy(message)
    if step == "handOff" and tries < plan.get("retry_count", 0):
        return "handOff"
    if step == "handOff" and "escalate_to" in plan:
        return "escalate"
    return "fallBack" if step != "fallBack" and "fallback_action" in plan else ""


def pause(tries: int, first: float = 1.0) -> float:
    """Return the seconds before the next attempt. Each pause is twice as long as the one before, five minutes at most."""
    return min(first * 2.0 ** min(tries, 16), LONGEST_PAUSE)


def answer(message: Value, outcome: Value) -> Answer | None:
    """Return the answer to a request, or the report on other work; None for a type whose end is not reported."""
    kind, status = kind_of(message), outcome.get("status", "COMPLETED")
    if kind not in REPORTED:
        return None
    if kind == "REQUEST_INFORMATION" and status == "COMPLETED":
        information = outcome.get("information", {})
        missing = [key for key in message["payload"]["data"]["requested_info_keys"] if key not in information]
        return Answer("PROVIDE_INFORMATION", "INFORMATION_PROVIDED", {"information": information, "missing_keys": missing})
    details = {name: outcome.get(name) for name in ("detail", "actions_done", "criteria_met", "result")}
    return Answer(
        "STATUS_UPDATE",
        status,
        {"status": status, **{n: v for n, v in details.items() if v is not None and v not in ("", [], {})}},
    )
