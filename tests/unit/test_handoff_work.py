"""The work on a handoff: instructions, limits, failures, feedback, and flows of several agents."""

from __future__ import annotations

from typing import Any

import pytest
from handoffs import Inbox, World, drained, until

from treaty_consensus.errors import Unavailable
from treaty_handoff import (
    Coordinator,
    Handling,
    Kind,
    Outcome,
    Routes,
    Status,
    Step,
    subscription,
)
from treaty_handoff.handler.rules import time_limit

TASK, STATUS, ASK = Kind.TASK_TRANSFER, Kind.STATUS_UPDATE, Kind.REQUEST_INFORMATION


async def test_004_04_the_recipient_acts_on_the_instructions(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    seen: list[Any] = []

    @support.handles(TASK)
    async def work(handling: Handling) -> Outcome:
        seen.append(handling.message["instructions"])
        return Outcome(done=tuple(handling.message["instructions"]["required_actions"]))

    feedback = Inbox(desk, STATUS)
    await here.run(desk, support)
    expected = {"next_steps_suggestion": "Look at the logs.", "required_actions": ["DIAGNOSE"]}
    await desk.send(here.message(TASK, "desk", "support", instructions=expected))
    await feedback.wait()
    assert seen == [expected] and feedback.statuses == ["COMPLETED"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("PT1H", 3600), ("PT2M", 120), ("PT3S", 3), ("PT1H2M3S", 3723), ("PT0S", 0), (None, None)]
)
def test_004_16_a_time_limit_has_hours_minutes_and_seconds(text: str | None, seconds: float | None) -> None:
    constraints = {} if text is None else {"time_limit": text}
    assert time_limit({"instructions": {"constraints": constraints}}) == seconds


async def test_004_16_the_application_judges_the_resource_limit(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")

    @support.handles(TASK)
    async def work(handling: Handling) -> Outcome:
        limit = handling.message["instructions"]["constraints"]["resource_limit"]["euros"]
        if limit < 100:
            raise RuntimeError("A router costs 100.")
        return Outcome(result={"bought": limit})

    feedback = Inbox(desk, STATUS)
    await here.run(desk, support)
    for euros in (100, 99):
        limits = {"constraints": {"time_limit": "PT1H", "resource_limit": {"euros": euros}}}
        await desk.send(here.message(TASK, "desk", "support", instructions=limits))
        await until(lambda: drained(here, "support"))
    await feedback.wait(2)
    assert sorted(feedback.statuses) == ["COMPLETED", "FAILED"]


@pytest.mark.sample(1)
async def test_004_18_failed_work_is_retried_escalated_or_replaced(anywhere: World) -> None:
    desk, experts = await anywhere.agent("desk"), await anywhere.agent("experts")
    support = await anywhere.agent("support", escalates_to=[anywhere.name("experts")])
    attempts: list[str] = []

    @support.handles(TASK)
    async def work(handling: Handling) -> None:
        attempts.append(handling.idempotency_key)
        await handling.send(anywhere.message(Kind.NOTIFICATION, "support", "desk"))
        raise RuntimeError("The line is dead.")

    @support.falls_back("notify_customer_of_delay")
    async def notify(handling: Handling) -> None:
        await handling.send(anywhere.message(Kind.NOTIFICATION, "support", "desk", data={"event": "DELAYED"}))

    feedback, notes, level3 = Inbox(desk, STATUS), Inbox(desk, Kind.NOTIFICATION), Inbox(experts, TASK)
    await anywhere.run(desk, support, experts)
    plan = {"retry_count": 2, "escalate_to": anywhere.name("experts"), "fallback_action": "notify_customer_of_delay"}
    message = anywhere.message(TASK, "desk", "support", flow="f", instructions={"failure_handling_strategy": plan})
    await desk.send(message)
    (escalated,) = await level3.wait()
    await feedback.wait()
    assert len(attempts) == 3 and len(set(attempts)) == 1
    assert feedback.statuses[0] == "ESCALATED"
    assert escalated["metadata"]["correlation_id"] == "f" and escalated["metadata"]["task_id"] == message["metadata"]["task_id"]
    assert escalated["context"]["previous_actions"][-1]["action_type"] == "ESCALATED"
    del plan["escalate_to"], plan["retry_count"]
    await desk.send(anywhere.message(TASK, "desk", "support", instructions={"failure_handling_strategy": plan}))
    (note,) = await notes.wait()
    assert note["payload"]["data"] == {"event": "DELAYED"}
    plan["fallback_action"] = "unknown"
    await desk.send(anywhere.message(TASK, "desk", "support", instructions={"failure_handling_strategy": plan}))
    await until(lambda: set(feedback.statuses) >= {"ESCALATED", "FELL_BACK", "FAILED"})
    assert len(notes.messages) == 1, "what the failed work sent must not leave"


async def test_004_18_work_is_not_escalated_to_who_failed(here: World) -> None:
    desk = await here.agent("desk")
    own = [here.name("support"), here.name("helpers")]
    support = await here.agent("support", groups=("helpers",), escalates_to=own)
    attempts: list[str] = []

    @support.handles(TASK)
    async def work(handling: Handling) -> None:
        attempts.append(handling.message["metadata"]["message_id"])
        raise RuntimeError("The line is dead.")

    feedback = Inbox(desk, STATUS)
    await here.run(desk, support)
    for queue, target in (("support", own[0]), ("helpers", own[1]), ("helpers", own[0])):
        plan = {"failure_handling_strategy": {"escalate_to": target}}
        await desk.send(here.message(TASK, "desk", queue, instructions=plan))
    await feedback.wait(3)
    assert feedback.statuses == ["FAILED"] * 3 and len(attempts) == 3


async def test_004_20_a_receiver_validates_and_dispatches(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    inboxes = {kind: Inbox(support, kind) for kind in Kind}
    await here.run(desk, support)
    sent = {kind: here.message(kind, "desk", "support") for kind in Kind}
    for message in sent.values():
        await desk.send(message)
    for kind, inbox in inboxes.items():
        assert await inbox.wait() == [sent[kind]]


@pytest.mark.sample(1)
async def test_004_25_a_request_is_answered_by_provide(anywhere: World) -> None:
    desk, profiles = await anywhere.agent("desk"), await anywhere.agent("profiles")
    Inbox(profiles, ASK, outcome=Outcome(information={"level": "gold"}))
    await anywhere.run(desk, profiles)
    request = anywhere.message(ASK, "desk", "profiles", data={"requested_info_keys": ["level", "age"]}, flow="f")
    answer = await desk.ask(request, 60)
    assert answer["payload"] == {
        "handoff_type": "PROVIDE_INFORMATION",
        "data": {
            "in_reply_to": request["metadata"]["message_id"],
            "information": {"level": "gold"},
            "missing_keys": ["age"],
        },
    }
    assert answer["metadata"]["correlation_id"] == "f"
    silent = anywhere.message(ASK, "desk", "nobody")
    with pytest.raises(Unavailable, match="No answer"):
        await desk.ask(silent, 0.2)


async def test_004_26_feedback_is_a_status_update_or_a_request(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")

    @support.handles(TASK)
    async def work(handling: Handling) -> Outcome:
        await handling.report(Status.IN_PROGRESS, "Half of it.", 50)
        await handling.send(here.message(ASK, "support", "desk"))
        return Outcome(detail="Done.", result={"cause": "cable"})

    feedback, questions = Inbox(desk, STATUS), Inbox(desk, ASK)
    await here.run(desk, support)
    message = here.message(TASK, "desk", "support")
    await desk.send(message)
    await questions.wait()
    await feedback.wait(2)
    reports = {entry["payload"]["data"]["status"]: entry["payload"]["data"] for entry in feedback.messages}
    key = message["metadata"]["message_id"]
    assert reports == {
        "IN_PROGRESS": {"in_reply_to": key, "status": "IN_PROGRESS", "progress": 50, "detail": "Half of it."},
        "COMPLETED": {"in_reply_to": key, "status": "COMPLETED", "detail": "Done.", "result": {"cause": "cable"}},
    }


async def test_004_26_each_new_attempt_has_its_feedback(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    attempts: list[int] = []

    @support.handles(TASK)
    async def work(handling: Handling) -> Outcome:
        attempts.append(len(attempts) + 1)
        await handling.report(Status.IN_PROGRESS, "It begins.", 0)
        await handling.report(Status.IN_PROGRESS, f"Attempt {attempts[-1]}.", 10 * attempts[-1])
        await handling.send(here.message(ASK, "support", "desk", data={"requested_info_keys": [f"key-{attempts[-1]}"]}))
        if attempts[-1] < 3:
            raise RuntimeError("Not yet.")
        return Outcome()

    feedback, questions = Inbox(desk, STATUS), Inbox(desk, ASK)
    await here.run(desk, support)
    plan = {"failure_handling_strategy": {"retry_count": 2}}
    await desk.send(here.message(TASK, "desk", "support", instructions=plan))
    await until(lambda: "COMPLETED" in feedback.statuses and questions.messages)
    await until(lambda: drained(here, "support"))
    await feedback.wait(5)
    steps = [(data["status"], data.get("progress")) for data in (entry["payload"]["data"] for entry in feedback.messages)]
    expected = {("IN_PROGRESS", 0), ("IN_PROGRESS", 10), ("IN_PROGRESS", 20), ("IN_PROGRESS", 30), ("COMPLETED", None)}
    assert set(steps) == expected and len(steps) == 5 and attempts == [1, 2, 3]
    # The questions of failed attempts were undone with them.
    assert [entry["payload"]["data"]["requested_info_keys"] for entry in questions.messages] == [["key-3"]]


async def test_004_27_a_message_means_the_same_to_all_agents(here: World) -> None:
    desk, seen = await here.agent("desk"), dict[str, Any]()
    outcomes = {
        "terse": Outcome(done=("REPLACE",), criteria_met=True, detail="OK"),
        "thorough": Outcome(done=("READ_ALL", "REPLACE"), criteria_met=True, detail="Every step was read.", result={"read": 3}),
        "careless": Outcome(done=("GUESS",), criteria_met=True, detail="Surely fine."),
        "modest": Outcome(done=("REPLACE",), criteria_met=False, detail="It may drop again."),
    }
    agents = {name: await here.agent(name) for name in outcomes}
    for name, agent in agents.items():

        async def work(handling: Handling, name: str = name) -> Outcome:
            seen[name] = handling.message
            return outcomes[name]

        agent.handles(Kind.ESCALATION)(work)
    feedback = Inbox(desk, STATUS)
    await here.run(desk, *agents.values())
    actions = [{"action_type": "PING", "details": f"Step {n}", "timestamp": "2023-10-27T10:20:05.000Z"} for n in range(3)]
    instructions = {"required_actions": ["REPLACE"], "success_criteria": "The line is up."}
    parts: dict[str, Any] = {"actions": actions, "summary": "It drops.", "instructions": instructions}
    message = here.message(Kind.ESCALATION, "desk", "terse", **parts)
    message["metadata"]["recipient_id"] = [here.name(name) for name in outcomes]
    await desk.send(message)
    await feedback.wait(4)
    # Each has the whole message, and the instructions bind each of them alike, however it acts.
    assert seen == dict.fromkeys(outcomes, message)
    answers = {entry["metadata"]["sender_id"].partition(".")[0]: entry["payload"]["data"] for entry in feedback.messages}
    statuses = {name: data["status"] for name, data in answers.items()}
    assert statuses == {"terse": "COMPLETED", "thorough": "COMPLETED", "careless": "FAILED", "modest": "FAILED"}
    assert {data["in_reply_to"] for data in answers.values()} == {message["metadata"]["message_id"]}
    assert answers["terse"]["detail"] == "OK" and answers["thorough"]["result"] == {"read": 3}


async def test_004_35_state_outlives_processes_and_failed_attempts(here: World) -> None:
    desk = await here.agent("desk")
    first = await here.agent("support")

    async def count(handling: Handling) -> Outcome:
        seen = (await handling.transaction.state("seen") or 0) + 1
        await handling.transaction.set_state("seen", seen)
        if handling.data["event"] == "BAD":
            raise RuntimeError("Too late.")
        return Outcome()

    first.handles(Kind.NOTIFICATION)(count)
    await here.run(desk)
    async with first.running():
        for event in ("GOOD", "BAD", "GOOD"):
            await desk.send(here.message(Kind.NOTIFICATION, "desk", "support", data={"event": event}))
        await until(lambda: first.metrics.total("completed") == 2 and first.metrics.total("failed") == 1)
    second = await here.agent("support")
    second.handles(Kind.NOTIFICATION)(count)
    await here.run(second)
    await desk.send(here.message(Kind.NOTIFICATION, "desk", "support"))
    await until(lambda: second.metrics.total("completed") == 1)
    async with here.journals[here.name("support")].transaction() as transaction:
        assert await transaction.state("seen") == 3


async def test_004_36_a_coordinator_leads_a_task_through_its_steps(here: World) -> None:
    lead, collect, review = await here.agent("lead"), await here.agent("collect"), await here.agent("review")
    order: list[tuple[str, Any]] = []

    @collect.handles(TASK)
    async def first(handling: Handling) -> Outcome:
        order.append(("collect", handling.data["inputs"]))
        return Outcome(result={"pages": 3})

    @review.handles(TASK)
    async def second(handling: Handling) -> Outcome:
        order.append(("review", handling.data["inputs"]))
        return Outcome()

    steps = [Step(here.name("collect"), "Collect the reports."), Step(here.name("review"), "Review them.")]
    coordinator = Coordinator(lead, steps, clock=here.clock)
    await here.run(lead, collect, review)
    await coordinator.start("task-9", {"year": 2023})

    async def is_done() -> bool:
        async with here.journals[here.name("lead")].transaction() as transaction:
            return await coordinator.position(transaction, "task-9") == "1/COMPLETED"

    await until(is_done)
    assert order == [("collect", {"year": 2023}), ("review", {"pages": 3})]


async def test_004_37_agents_react_to_events_without_a_coordinator(here: World) -> None:
    routes = Routes([subscription(here.name("billing"), Kind.NOTIFICATION, event="LINE_RESTORED")])
    support = await here.agent("support", routes=routes)
    billing, desk = await here.agent("billing", routes=routes), await here.agent("desk")

    @billing.handles(Kind.NOTIFICATION)
    async def credit(handling: Handling) -> None:
        await handling.send(here.message(Kind.NOTIFICATION, "billing", "desk", data={"event": "CREDITED"}))

    inbox = Inbox(desk)
    await here.run(support, billing, desk)
    await support.send(here.message(Kind.NOTIFICATION, "support", "desk", data={"event": "OTHER"}))
    await support.send(here.message(Kind.NOTIFICATION, "support", "desk"))
    events = await inbox.wait(3)
    assert sorted(entry["payload"]["data"]["event"] for entry in events) == ["CREDITED", "LINE_RESTORED", "OTHER"]
    assert billing.metrics.total("completed") == 1
