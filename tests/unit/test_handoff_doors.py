"""One meaning, four doors: each rule of the work on a message, in a queue, over HTTP, in a session of two and at a broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from handoff_doors import DOORS, NEVER, Door, door
from handoffs import DATA

from treaty_handoff import Kind

TASK, ASK = Kind.TASK_TRANSFER, Kind.REQUEST_INFORMATION


@pytest.fixture(params=DOORS)
def way(request: pytest.FixtureRequest) -> Door:
    return door(request.param, lambda: request.getfixturevalue("here"))


def statuses(answers: list[dict[str, Any]]) -> list[str]:
    return [data.get("status", "") for data in answers]


async def test_004_01_and_07_and_21_invalid_members_are_reported(way: Door) -> None:
    message = way.message(TASK, {})
    message["payload"]["data"]["objective"] = 7
    answers = await way.hand_off(message)
    assert statuses(answers) == ["REJECTED"] and "payload.data.objective" in answers[0]["issues"][0] and way.worked == []
    assert answers[0]["in_reply_to"] == message["metadata"]["message_id"]
    # A name that occurs twice has two readings: it is no message.
    text = json.dumps(way.message(TASK, DATA[TASK]))
    await way.hand_off(text.replace('"priority":', '"priority": "LOW", "priority":').encode())
    assert way.worked == []


async def test_004_03_and_10_null_and_foreign_times_are_read(way: Door) -> None:
    strict = way.message(TASK, DATA[TASK], lifetime=timedelta(hours=1))
    liberal = json.loads(json.dumps(strict))
    liberal["metadata"]["timestamp"] = strict["metadata"]["timestamp"].replace("Z", "999")
    liberal["metadata"]["expiration_time"] = strict["metadata"]["expiration_time"].replace("Z", "+00:00")
    liberal["context"]["historical_data_summary"] = liberal["payload"]["data"]["progress"] = None
    liberal["instructions"]["required_actions"] = None
    assert statuses(await way.hand_off(liberal)) == ["COMPLETED"]
    assert way.worked == [strict]


async def test_004_02_and_04_histories_and_instructions_arrive(way: Door) -> None:
    instructions = {"next_steps_suggestion": "Look at the logs.", "required_actions": ["A"], "constraints": {"resource_limit": 3}}
    entry = {"action_type": "LOOKED", "details": "", "timestamp": "2023-10-27T10:20:05.000Z"}
    message = way.message(TASK, DATA[TASK], instructions=instructions, summary="x" * 5_000, actions=[entry] * 100)
    await way.hand_off(message)
    assert way.worked[0] == message


async def test_004_06_and_14_foreign_and_printed_forms_pass(way: Door) -> None:
    for kind, data in ((TASK, {"title": "x"}), (Kind.NOTIFICATION, {"message": "x"}), (Kind.STATUS_UPDATE, {"state": "x"})):
        await way.hand_off(way.message(kind, data))
        assert way.worked[-1]["payload"]["data"] == data
    way.told.clear()
    closed = way.message(ASK, DATA[ASK])
    closed["payload"]["data"]["surprise"] = 1
    assert statuses(await way.hand_off(closed)) == ["REJECTED"] and len(way.worked) == 3


async def test_004_08_a_repetition_has_no_second_effect(way: Door) -> None:
    message = way.message(TASK, DATA[TASK])
    await way.hand_off(message)
    answers = await way.hand_off(dict(reversed(message.items())))
    assert len(way.worked) == 1 and set(statuses(answers)) == {"COMPLETED"}
    way.told.clear()
    other = {**message, "payload": {"handoff_type": str(TASK), "data": {"objective": "Something else."}}}
    assert statuses(await way.hand_off(other)) == ["REJECTED"] and len(way.worked) == 1


async def test_004_09_an_expired_message_has_no_effect_at_every_door(way: Door) -> None:
    message = way.message(TASK, DATA[TASK], now=way.now - timedelta(hours=2), lifetime=timedelta(hours=1))
    assert statuses(await way.hand_off(message)) == ["EXPIRED"] and way.worked == []


async def test_004_12_and_26_a_report_has_its_flow_and_outcome(way: Door) -> None:
    outcome = {"status": "COMPLETED", "detail": "Done.", "actions_done": ["A"], "criteria_met": True, "result": {"n": 1}}
    way.work = lambda message: outcome
    message = way.message(TASK, DATA[TASK])
    assert await way.hand_off(message) == [{"in_reply_to": message["metadata"]["message_id"], **outcome}]
    for name in ("correlation_id", "task_id", "priority"):
        assert way.told[0]["metadata"][name] == message["metadata"][name]
    # A report is never answered by a report, and a notification expects none.
    for kind in (Kind.STATUS_UPDATE, Kind.NOTIFICATION):
        await way.hand_off(way.message(kind, DATA[kind]))
    assert len(way.worked) == 3 and len(way.told) == 1


def returning(outcome: Any) -> Callable[[Any], Any]:
    return lambda message: outcome


BINDING: list[tuple[Any, Any, str, str]] = [
    ({"required_actions": ["A", "B"]}, {"actions_done": ["A"]}, "FAILED", "B"),
    ({"required_actions": ["A", "B"]}, {"actions_done": ["B", "A"]}, "COMPLETED", ""),
    ({"next_steps_suggestion": "B"}, {}, "COMPLETED", ""),
    ({"success_criteria": "It works."}, {"criteria_met": False}, "FAILED", "criteria"),
    ({"success_criteria": "It works."}, {}, "FAILED", "criteria"),
    ({"success_criteria": "It works."}, {"criteria_met": True}, "COMPLETED", ""),
]
"""Instructions, an outcome, and the report on it."""


async def test_004_15_and_17_instructions_bind_at_every_door(way: Door) -> None:
    for instructions, outcome, status, words in BINDING:
        way.work = returning({"status": "COMPLETED", **outcome})
        answers = await way.hand_off(way.message(TASK, DATA[TASK], instructions=instructions))
        assert answers[-1]["status"] == status and words in answers[-1].get("detail", "")
    assert len(way.told) == len(BINDING)


async def test_004_16_the_time_limit_ends_the_work_at_every_door(way: Door) -> None:
    way.work = lambda message: NEVER
    limit = {"constraints": {"time_limit": "PT1S"}}
    (answer,) = await way.hand_off(way.message(TASK, DATA[TASK], instructions=limit))
    assert answer["status"] == "FAILED" and len(way.worked) == 1
    # The next message is worked on.
    way.work = lambda message: {"status": "COMPLETED"}
    assert statuses(await way.hand_off(way.message(TASK, DATA[TASK], instructions=limit))) == ["FAILED", "COMPLETED"]


def failing(times: int) -> Callable[[Any], Any]:
    """Work that fails so often."""
    left = [times]

    def work(message: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise RuntimeError("The line is dead.")
        return {"status": "COMPLETED"}

    return work


PLANS: list[tuple[Any, int, str, int]] = [
    ({"retry_count": 1}, 1, "COMPLETED", 2),
    ({"retry_count": 1, "escalate_to": "experts", "fallback_action": "call_back"}, 9, "ESCALATED", 2),
    ({"escalate_to": "nobody", "fallback_action": "call_back"}, 9, "FELL_BACK", 1),
    ({"fallback_action": "unknown"}, 9, "FAILED", 1),
]
"""A strategy, how often the work fails, the report, and how often the work began."""


async def test_004_18_failed_work_is_retried_and_escalated(way: Door) -> None:
    for plan, fails, status, tries in PLANS:
        way.work, named = failing(fails), {**plan}
        if "escalate_to" in plan:
            named["escalate_to"] = way.name(plan["escalate_to"])
        before = len(way.worked)
        answers = await way.hand_off(way.message(TASK, DATA[TASK], instructions={"failure_handling_strategy": named}))
        assert answers[-1]["status"] == status and len(way.worked) == before + tries
    assert len(way.told) == len(PLANS) and (way.escalated, way.fell_back) == (["experts"], ["call_back"])


async def test_004_25_provide_information_answers_a_question(way: Door) -> None:
    way.work = lambda message: {"status": "COMPLETED", "information": {"level": "gold"}}
    question = way.message(ASK, {"requested_info_keys": ["level", "plan"]})
    (answer,) = await way.hand_off(question)
    assert way.told[0]["payload"]["handoff_type"] == "PROVIDE_INFORMATION"
    assert answer == {
        "in_reply_to": question["metadata"]["message_id"],
        "information": {"level": "gold"},
        "missing_keys": ["plan"],
    }


async def test_004_33_and_34_versions_are_recognised_at_every_door(way: Door) -> None:
    plain = way.message(TASK, DATA[TASK])
    later = json.loads(json.dumps(plain))
    later["metadata"] |= {"protocol_version": "1.3.0", "tenant": "t"}
    assert statuses(await way.hand_off(later)) == ["COMPLETED"]
    assert way.worked == [{**plain, "metadata": {**plain["metadata"], "protocol_version": "1.3.0"}}]
    way.told.clear()
    # A type that a later version added is not handled. In this version it is invalid, and so is another major version.
    for number, words in (("1.3.0", "not handled"), ("1.0.0", "handoff_type"), ("2.0.0", "handoff_type")):
        other = way.message(TASK, DATA[TASK])
        other["metadata"]["protocol_version"], other["payload"]["handoff_type"] = number, "DELEGATION"
        answers = await way.hand_off(other)
        assert answers[-1]["status"] == "REJECTED"
        assert words in " ".join([answers[-1].get("detail", ""), *answers[-1].get("issues", ())])
    other = way.message(TASK, DATA[TASK])
    other["metadata"]["protocol_version"] = "2.0.0"
    assert statuses(await way.hand_off(other)) == ["REJECTED"] * 4 and len(way.worked) == 1
