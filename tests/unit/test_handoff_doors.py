"""One meaning, four doors: each rule of handoff, in a queue, over HTTP, in a session of two and at a broker.

`ELSEWHERE` has the doors at which a rule cannot apply, and why. A test with the number of a rule runs at all others.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from docs.generate.rules import SOURCES, rules_of
from handoff_doors import DOORS, NEVER, SYMPTOMS, UNPERMITTED, WATCHED, Door, LibraryDoor, door
from handoffs import DATA

from treaty_handoff import Kind, Priority

TASK, ASK = Kind.TASK_TRANSFER, Kind.REQUEST_INFORMATION
NOTE, ESCALATION = Kind.NOTIFICATION, Kind.ESCALATION

_HOST = "The host has it: the log, the metrics and the home of the agent that holds the session."
_TWO = "Two agents: the peer that the Hello names is the only sender, and the only recipient."
_AT_ONCE = "A request is worked on when it comes, beside others. Where no one takes it, its sender posts it again."
_PROGRAM = "A coordinator is a sender as any other, by any door: test_handoff_work.py."
ELSEWHERE: dict[int, dict[str, str]] = {
    11: {"session": _TWO},
    13: {"http": _AT_ONCE},
    22: {"http": _AT_ONCE},
    23: {"session": _TWO},
    24: {"session": _TWO},
    28: {"session": _HOST, "broker": _HOST},
    29: {"session": _TWO},
    31: {"session": _HOST, "broker": _HOST},
    32: {"session": _HOST, "broker": _HOST},
    36: dict.fromkeys(DOORS, _PROGRAM),
    37: {"session": _TWO},
    38: {"queue": "It is the other way: no one waits.", "broker": "It is the other way: the recipient may be away."},
}
"""Rule → door → why it cannot apply there."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test at the doors where all its rules apply."""
    if "way" in metafunc.fixturenames:
        absent = {name for number in _numbers(metafunc.function.__name__) for name in ELSEWHERE.get(number, ())}
        metafunc.parametrize("way", [name for name in DOORS if name not in absent], indirect=True)


def _numbers(name: str) -> set[int]:
    return {number for _, number in rules_of(name)}


def test_each_rule_has_a_test_at_each_door_or_a_reason() -> None:
    names = [name for name in globals() if re.match("test_004_[0-9]", name)]
    tested = {(number, entry) for name in names for number in _numbers(name) for entry in _doors(_numbers(name))}
    every = {(number, entry) for number in range(1, SOURCES["004"] + 1) for entry in DOORS}
    assert every - tested == {(number, entry) for number, reasons in ELSEWHERE.items() for entry in reasons}


def _doors(numbers: set[int]) -> set[str]:
    return {entry for entry in DOORS if not any(entry in ELSEWHERE.get(number, ()) for number in numbers)}


@pytest.fixture
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


async def test_004_03_and_10_and_20_null_and_foreign_times_are_read(way: Door) -> None:
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


async def test_004_05_and_35_a_restart_finds_the_messages(way: Door) -> None:
    message = way.message(TASK, DATA[TASK])
    assert statuses(await way.hand_off(message)) == ["COMPLETED"]
    way.restart()
    await way.hand_off(message)
    assert way.worked == [message]


def by_priority(way: Door) -> list[dict[str, Any]]:
    """Three messages, not in the order of their priorities."""
    order = (Priority.MEDIUM, Priority.LOW, Priority.CRITICAL)
    ids = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(3)]
    return [way.message(NOTE, DATA[NOTE], priority=each, message_id=ids[number]) for number, each in enumerate(order)]


async def test_004_13_and_22_urgent_messages_wait_and_come_first(way: Door) -> None:
    sent = by_priority(way)
    await way.send(*sent, is_away=True)
    assert len(way.worked) == 3 and all(message in way.worked for message in sent)
    assert way.worked.index(sent[2]) < way.worked.index(sent[1])


async def test_004_19_a_senders_own_code_sends_the_message(way: Door) -> None:
    message = way.message(TASK, DATA[TASK], summary="It drops.", instructions={"required_actions": []})
    await way.send(message)
    assert way.worked == [message] and statuses([entry["payload"]["data"] for entry in way.told]) == ["COMPLETED"]


async def test_004_11_and_23_and_24_and_29_and_37_right_agents_work(way: Door) -> None:
    escalated = {**DATA[ESCALATION], "technical_details": {"symptoms": SYMPTOMS}}
    taken = [
        way.message(TASK, DATA[TASK], recipient="pool"),
        way.message(NOTE, WATCHED, recipient="desk"),
        way.message(ESCALATION, escalated, recipient="front", priority=Priority.HIGH),
    ]
    for message in taken:
        await way.hand_off(message)
    assert way.worked == taken
    way.told.clear()
    refused = [
        way.message(NOTE, DATA[NOTE], recipient="front"),
        way.message(ESCALATION, escalated, recipient="front"),
        way.message(ESCALATION, DATA[ESCALATION] | {"technical_details": {"symptoms": "x"}}, recipient="front"),
        way.message(TASK, DATA[TASK], sender="mallory"),
    ]
    refused += [way.message(UNPERMITTED, DATA[UNPERMITTED])] if isinstance(way, LibraryDoor) else []
    for message in refused:
        await way.hand_off(message)
    assert way.worked == taken and {*statuses([entry["payload"]["data"] for entry in way.told])} == {"REJECTED"}


async def test_004_20_and_27_a_message_means_the_same_to_all_agents(way: Door) -> None:
    sent = [way.message(TASK, DATA[TASK], instructions={"required_actions": ["A"]}) for _ in range(2)]
    await way.hand_off(sent[0])
    way.work = returning({"status": "COMPLETED", "actions_done": ["A"]})
    assert statuses(await way.hand_off(sent[1])) == ["FAILED", "COMPLETED"]
    assert way.worked == sent


async def test_004_30_personal_data_are_in_no_record_at_every_door(way: Door, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    good = way.message(ESCALATION, DATA[ESCALATION], summary="John Doe is angry.")
    bad = {**good, "metadata": {**good["metadata"], "message_id": "00000000-0000-4000-8000-000000000009"}}
    bad = {**bad, "payload": {**good["payload"], "data": {**DATA[ESCALATION], "severity": "John Doe"}}}
    for message in (good, bad):
        await way.hand_off(message)
    assert way.worked == [good] and (caplog.records or way.audited)
    shown = caplog.text + "".join(way.audited)
    assert not any(private in shown for private in ("John", "+1-555", "angry"))


async def test_004_28_and_31_and_32_stored_is_sealed_and_all_is_logged(
    way: LibraryDoor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await way.hand_off(way.message(TASK, DATA[TASK]))
    async with way.world.journals[way.agent.name].transaction() as transaction:
        bodies = await transaction.connection.fetch("select body from handoff_message")
    assert len(bodies) == 2 and not any(DATA[TASK]["objective"].encode() in row["body"] for row in bodies)
    assert [event in caplog.text for event in ("received TASK_TRANSFER", "completed TASK_TRANSFER")] == [True, True]
    assert way.agent.metrics.total("received") == 1


async def test_004_38_a_waiting_sender_gets_the_outcome(way: Door) -> None:
    way.work = returning({"status": "COMPLETED", "result": {"n": 1}})
    (told,) = await way.hand_off(way.message(TASK, DATA[TASK]))
    assert told["result"] == {"n": 1}
