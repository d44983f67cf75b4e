"""Handoff between agents through real brokers: the rules of the checklist about delivery and work."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import trustme
import uvicorn
from handoffs import Inbox, World, shown, until, world
from ports import free_port
from rabbitmq_server import RabbitServer, rabbitmq

from treaty_client import Identity
from treaty_consensus.errors import Conflict, Malformed, Refused, TreatyError, Unauthorized, Unavailable
from treaty_handoff import (
    Coordinator,
    Handling,
    Kind,
    Outcome,
    Permissions,
    PostgresBroker,
    Priority,
    Routes,
    Rule,
    Seal,
    SenderGrant,
    Status,
    Step,
    subscription,
)
from treaty_handoff.envelopes import envelope
from treaty_handoff.http import create_app, post
from treaty_handoff.messages import MAX_MESSAGE, Message, encode

ID = "00000000-0000-4000-8000-000000000001"
TASK, STATUS, ASK = Kind.TASK_TRANSFER, Kind.STATUS_UPDATE, Kind.REQUEST_INFORMATION


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitServer]:
    """A RabbitMQ for the tests of this module."""
    with rabbitmq() as server:
        yield server


@pytest.fixture
async def here(database: str) -> AsyncIterator[World]:
    """Agents with the queues of PostgreSQL."""
    async with world(database, None, seal=Seal(b"k" * 32)) as made:
        yield made


@pytest.fixture(params=["postgres", "rabbitmq"])
async def anywhere(request: pytest.FixtureRequest, database: str) -> AsyncIterator[World]:
    """Agents with the queues of each broker."""
    url = request.getfixturevalue("rabbit").url if request.param == "rabbitmq" else None
    async with world(database, url, seal=Seal(b"k" * 32)) as made:
        yield made


async def test_004_04_the_recipient_acts_on_the_instructions(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    seen: list[Any] = []

    @support.handles(TASK)
    async def work(handling: Handling) -> Outcome:
        seen.append(handling.message["instructions"])
        return Outcome(done=tuple(handling.message["instructions"]["required_actions"]))

    feedback = Inbox(desk, STATUS)
    await here.run(desk, support)
    wanted = {"next_steps_suggestion": "Look at the logs.", "required_actions": ["DIAGNOSE"]}
    await desk.send(here.message(TASK, "desk", "support", instructions=wanted))
    await feedback.wait()
    assert seen == [wanted] and feedback.statuses == ["COMPLETED"]


async def test_004_05_messages_are_stored_retrievable_and_auditable(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    Inbox(support, TASK)
    feedback = Inbox(desk, STATUS)
    await here.run(desk, support)
    message = here.message(TASK, "desk", "support", flow="flow-1")
    await desk.send(message)
    await feedback.wait()
    journal = here.journals[here.name("desk")]
    traced = await journal.flow("flow-1")
    assert traced[0].holder == here.name("desk") and traced[0].direction == "sent"
    assert next(entry.message for entry in traced if entry.direction == "received") == message
    events = [entry.event for entry in await journal.events(message["metadata"]["message_id"])]
    assert sorted(events) == ["completed", "published", "sent"]
    # At rest, neither the message nor the queue shows anything of it.
    async with journal.transaction() as transaction:
        rows = await transaction.connection.fetch("select body from handoff_message")
    assert rows and not any(b"Restore" in bytes(row["body"]) for row in rows)


async def test_old_messages_are_pruned_and_those_on_their_way_stay(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    inbox, journal = Inbox(support, Kind.NOTIFICATION), here.journals[here.name("desk")]
    async with desk.running(), support.running():
        await desk.send(here.message(Kind.NOTIFICATION, "desk", "support", flow="f"))
        await inbox.wait()
        await until(lambda: support.metrics.total("completed") == 1)
        await until(lambda: _drained(here))
    waiting = here.message(Kind.NOTIFICATION, "desk", "support", flow="f")
    await desk.send(waiting)
    broker = await here.broker()
    assert isinstance(broker, PostgresBroker)
    await broker.prune()
    assert await journal.prune(here.clock() - timedelta(hours=1)) == 0
    assert await journal.prune(here.clock() + timedelta(hours=1)) == 2
    assert [entry.message for entry in await journal.flow("f")] == [waiting]


async def test_004_07_and_21_an_invalid_message_is_reported_to_its_sender(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    effects, feedback = Inbox(support), Inbox(desk, STATUS)
    await here.run(desk, support)
    broker, broken = await here.broker(), here.message(TASK, "desk", "support")
    del broken["payload"]["data"]["objective"]
    seal = here.seal
    assert seal is not None
    queue = here.name("support")
    await broker.publish(queue, seal.close(envelope(broken, None), f"queue/{queue}"), 1)
    for garbage in (b"", b"{}", b'{"handoff": 1}', b'{"handoff": {"metadata": 7}}'):
        await broker.publish(queue, seal.close(garbage, f"queue/{queue}"), 1)
    await broker.publish(queue, b"not sealed", 1)
    (update,) = await feedback.wait()
    assert update["payload"]["data"]["status"] == "REJECTED"
    assert "payload.data" in update["payload"]["data"]["issues"][0]
    assert update["payload"]["data"]["in_reply_to"] == broken["metadata"]["message_id"]
    await until(lambda: support.metrics.total("refused") == 6)
    assert effects.messages == [] and (await support.backlog())[queue] == 0


async def test_004_21_a_kind_without_a_function_is_reported(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    feedback = Inbox(desk, STATUS)
    await here.run(desk, support)
    await desk.send(here.message(Kind.APPROVAL_REQUEST, "desk", "support"))
    (update,) = await feedback.wait()
    assert update["payload"]["data"]["status"] == "REJECTED" and "no function" in update["payload"]["data"]["detail"]


async def test_004_08_a_repetition_has_no_second_effect(anywhere: World) -> None:
    desk, support, again = await anywhere.agent("desk"), await anywhere.agent("support"), await anywhere.agent("support")
    effects, others = Inbox(support, TASK), Inbox(again, TASK)
    feedback = Inbox(desk, STATUS)
    await anywhere.run(desk, support, again)
    message = anywhere.message(TASK, "desk", "support")
    await asyncio.gather(*(desk.send(message) for _ in range(3)))
    broker, queue = await anywhere.broker(), anywhere.name("support")
    assert anywhere.seal is not None
    upper = {**message, "metadata": {**message["metadata"]}}
    for _ in range(5):
        await broker.publish(queue, anywhere.seal.close(envelope(upper, None), f"queue/{queue}"), 1)
    await until(lambda: support.metrics.total("duplicate") + again.metrics.total("duplicate") == 5)
    await feedback.wait()
    assert len(effects.messages) + len(others.messages) == 1
    assert feedback.statuses == ["COMPLETED"]


async def test_004_08_another_message_with_the_id_is_refused(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    effects = Inbox(support, TASK)
    await here.run(desk, support)
    message = here.message(TASK, "desk", "support")
    await desk.send(message)
    other = json.loads(encode(message))
    other["payload"]["data"]["objective"] = "Something else."
    with pytest.raises(Conflict):
        await desk.send(other)
    await effects.wait()
    processed = await support.receive(envelope(other, None))
    assert processed.status is Status.REJECTED and effects.messages == [message]


async def test_004_09_an_expired_message_is_not_processed(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    effects, feedback = Inbox(support, TASK), Inbox(desk, STATUS)
    message = here.message(TASK, "desk", "support", lifetime=timedelta(seconds=60))
    await desk.send(message)
    async with desk.running():
        await until(lambda: _published(here, message))
    here.shift = timedelta(seconds=61)
    late = here.message(TASK, "desk", "support")
    await desk.send(late)
    await here.run(desk, support)
    await feedback.wait(2)
    assert sorted(feedback.statuses) == ["COMPLETED", "EXPIRED"]
    assert effects.messages == [late]
    with pytest.raises(Refused, match="expired"):
        await desk.send({**message, "metadata": {**message["metadata"], "message_id": ID}})


async def test_004_09_what_expires_in_the_outbox_does_not_leave_it(here: World) -> None:
    desk = await here.agent("desk")
    message = here.message(TASK, "desk", "support", lifetime=timedelta(seconds=60))
    await desk.send(message)
    here.shift = timedelta(seconds=61)
    journal = here.journals[here.name("desk")]
    await here.run(desk)
    await until(lambda: _drained(here))
    assert [entry.event for entry in await journal.events(message["metadata"]["message_id"])] == ["sent", "expired"]
    assert await (await here.broker()).backlog(here.name("support")) == 0


async def _published(here: World, message: Message) -> bool:
    events = await here.journals[here.name("desk")].events(message["metadata"]["message_id"])
    return any(entry.event == "published" for entry in events)


async def _drained(here: World) -> bool:
    return await here.journals[here.name("desk")].waiting() == 0


async def test_004_11_a_message_to_a_group_goes_to_one_member(anywhere: World) -> None:
    desk = await anywhere.agent("desk")
    members = [await anywhere.agent(name, groups=("pool",)) for name in ("anna", "ben")]
    inboxes = [Inbox(member, TASK) for member in members]
    feedback = Inbox(desk, STATUS)
    await anywhere.run(desk, *members)
    for _ in range(6):
        await desk.send(anywhere.message(TASK, "desk", "pool"))
    await feedback.wait(6)
    assert sum(len(inbox.messages) for inbox in inboxes) == 6
    both = anywhere.message(Kind.NOTIFICATION, "desk", "anna")
    both["metadata"]["recipient_id"] = [anywhere.name("anna"), anywhere.name("ben")]
    notes = [Inbox(member, Kind.NOTIFICATION) for member in members]
    await desk.send(both)
    for inbox in notes:
        assert await inbox.wait() == [both]


async def test_004_12_the_correlation_id_traces_a_flow(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")

    @support.handles(TASK)
    async def work(handling: Handling) -> None:
        await handling.report(Status.IN_PROGRESS, "Half of it.", 50)

    feedback = Inbox(desk, STATUS)
    await here.run(desk, support)
    await desk.send(here.message(TASK, "desk", "support", flow="flow-7"))
    await desk.send(here.message(Kind.NOTIFICATION, "desk", "support", flow="flow-8"))
    await feedback.wait(2)
    traced = await here.journals[here.name("desk")].flow("flow-7")
    assert {entry.message["metadata"]["correlation_id"] for entry in traced} == {"flow-7"}
    sent = [shown(entry.message) for entry in traced if entry.direction == "sent"]
    assert sorted(sent) == [("STATUS_UPDATE", "support"), ("STATUS_UPDATE", "support"), ("TASK_TRANSFER", "desk")]


async def test_004_13_the_most_urgent_message_comes_first(anywhere: World) -> None:
    desk, support = await anywhere.agent("desk"), await anywhere.agent("support")
    inbox = Inbox(support, Kind.NOTIFICATION)
    order = [Priority.LOW, Priority.CRITICAL, Priority.MEDIUM, Priority.HIGH, Priority.LOW, Priority.CRITICAL]
    await anywhere.run(desk)
    for priority in order:
        await desk.send(anywhere.message(Kind.NOTIFICATION, "desk", "support", priority=priority))
        # One by one, so that the outbox does not put them in order.
        await until(lambda: _drained(anywhere))
    broker = await anywhere.broker()

    async def is_queued() -> bool:
        return await broker.backlog(anywhere.name("support")) == len(order)

    await until(is_queued)
    await anywhere.run(support)
    ranks = [Priority(message["metadata"]["priority"]).rank for message in await inbox.wait(len(order))]
    assert ranks == sorted(ranks, reverse=True)


async def test_004_15_required_actions_bind_and_suggestions_do_not(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    Inbox(support, TASK, outcome=Outcome(done=("A",)))
    feedback = Inbox(desk, STATUS)
    await here.run(desk, support)
    await desk.send(here.message(TASK, "desk", "support", instructions={"required_actions": ["A", "B"]}))
    await feedback.wait(1)
    await desk.send(here.message(TASK, "desk", "support", instructions={"next_steps_suggestion": "B"}))
    await feedback.wait(2)
    assert feedback.statuses == ["FAILED", "COMPLETED"]
    assert "B" in feedback.messages[0]["payload"]["data"]["detail"]


async def test_004_16_the_time_limit_ends_the_work(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")

    @support.handles(TASK)
    async def work(handling: Handling) -> None:
        await handling.transaction.set_state("effect", True)
        await asyncio.sleep(3600)

    feedback = Inbox(desk, STATUS)
    await here.run(desk, support)
    await desk.send(here.message(TASK, "desk", "support", instructions={"constraints": {"time_limit": "PT1S"}}))
    await feedback.wait()
    assert feedback.statuses == ["FAILED"]
    async with here.journals[here.name("support")].transaction() as transaction:
        assert await transaction.state("effect") is None


@pytest.mark.parametrize(("met", "status"), [(True, "COMPLETED"), (False, "FAILED"), (None, "FAILED")])
async def test_004_17_success_criteria_are_judged(here: World, met: bool | None, status: str) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    Inbox(support, TASK, outcome=Outcome(criteria_met=met))
    feedback = Inbox(desk, STATUS)
    await here.run(desk, support)
    await desk.send(here.message(TASK, "desk", "support", instructions={"success_criteria": "The line is up for an hour."}))
    await feedback.wait()
    assert feedback.statuses == [status]


async def test_004_18_failed_work_is_retried_then_escalated_then_falls_back(anywhere: World) -> None:
    desk, support, experts = await anywhere.agent("desk"), await anywhere.agent("support"), await anywhere.agent("experts")
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


async def test_004_19_the_sender_collects_builds_serialises_and_sends(here: World) -> None:
    desk = await here.agent("desk")
    actions = [{"action_type": "GREETED", "details": "Said hello.", "timestamp": "2023-10-27T10:20:05.000Z"}]
    history = [{"type": "CHAT", "sender": "User", "content": "Help!", "timestamp": "2023-10-27T10:21:00.000Z"}]
    message = here.message(TASK, "desk", "support", actions=actions, history=history, summary="It drops.")
    assert message["context"]["previous_actions"] == actions and message["context"]["user_interaction_history"] == history
    with pytest.raises(Malformed):
        here.message(TASK, "desk", "support", actions=[{"action_type": "GREETED"}])
    with pytest.raises(Malformed):
        await desk.send({**message, "payload": {"handoff_type": "TASK_TRANSFER", "data": {}}})
    assert await here.journals[here.name("desk")].waiting() == 0
    await desk.send(message)
    await here.run(desk)
    await until(lambda: _drained(here))
    assert await (await here.broker()).backlog(here.name("support")) == 1


async def test_004_20_the_receiver_deserialises_validates_and_dispatches(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    inboxes = {kind: Inbox(support, kind) for kind in Kind}
    await here.run(desk, support)
    sent = {kind: here.message(kind, "desk", "support") for kind in Kind}
    for message in sent.values():
        await desk.send(message)
    for kind, inbox in inboxes.items():
        assert await inbox.wait() == [sent[kind]]


async def test_004_22_messages_wait_while_the_receiver_is_down(anywhere: World) -> None:
    desk = await anywhere.agent("desk")
    messages = [anywhere.message(Kind.NOTIFICATION, "desk", "support") for _ in range(5)]
    for message in messages:
        await desk.send(message)
    async with desk.running():
        await until(lambda: _drained(anywhere))
    support = await anywhere.agent("support")
    inbox = Inbox(support, Kind.NOTIFICATION)
    await anywhere.run(support)
    assert await inbox.wait(5) == messages


async def test_004_23_and_24_routes_reach_the_agents_that_they_name(anywhere: World) -> None:
    rules = [
        Rule((anywhere.name("experts"),), kinds={Kind.ESCALATION}, where={"issue_category": "NETWORK_CONNECTIVITY"}),
        Rule((anywhere.name("vip"),), priority=Priority.CRITICAL),
    ]
    desk = await anywhere.agent("desk", routes=Routes(rules))
    names = ("support", "experts", "vip")
    agents = {name: await anywhere.agent(name) for name in names}
    inboxes = {name: Inbox(agent) for name, agent in agents.items()}
    await anywhere.run(desk, *agents.values())
    sent = {
        "support": anywhere.message(Kind.NOTIFICATION, "desk", "support"),
        "experts": anywhere.message(Kind.ESCALATION, "desk", "support"),
        "vip": anywhere.message(Kind.NOTIFICATION, "desk", "support", priority=Priority.CRITICAL),
    }
    for message in sent.values():
        await desk.send(message)
    for name, inbox in inboxes.items():
        assert await inbox.wait() == [sent[name]]


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
    found = {entry["payload"]["data"]["status"]: entry["payload"]["data"] for entry in feedback.messages}
    key = message["metadata"]["message_id"]
    assert found == {
        "IN_PROGRESS": {"in_reply_to": key, "status": "IN_PROGRESS", "progress": 50, "detail": "Half of it."},
        "COMPLETED": {"in_reply_to": key, "status": "COMPLETED", "detail": "Done.", "result": {"cause": "cable"}},
    }


async def test_004_27_agents_of_different_temper_act_differently_on_the_same_message(here: World) -> None:
    desk = await here.agent("desk")
    terse, thorough = await here.agent("terse"), await here.agent("thorough")
    read: dict[str, list[str]] = {}

    @terse.handles(Kind.ESCALATION)
    async def skim(handling: Handling) -> Outcome:
        read["terse"] = [handling.message["context"]["historical_data_summary"]]
        return Outcome(detail="OK")

    @thorough.handles(Kind.ESCALATION)
    async def study(handling: Handling) -> Outcome:
        read["thorough"] = [entry["details"] for entry in handling.message["context"]["previous_actions"]]
        return Outcome(detail="Every step was read before anything was done.")

    feedback = Inbox(desk, STATUS)
    await here.run(desk, terse, thorough)
    actions = [{"action_type": "PING", "details": f"Step {n}", "timestamp": "2023-10-27T10:20:05.000Z"} for n in range(3)]
    message = here.message(Kind.ESCALATION, "desk", "terse", actions=actions, summary="It drops.")
    message["metadata"]["recipient_id"] = [here.name("terse"), here.name("thorough")]
    await desk.send(message)
    await feedback.wait(2)
    assert read == {"terse": ["It drops."], "thorough": ["Step 0", "Step 1", "Step 2"]}
    assert feedback.statuses == ["COMPLETED", "COMPLETED"]


async def test_004_29_only_permitted_senders_have_an_effect(here: World) -> None:
    alice, mallory = Identity.create(), Identity.create()
    permissions = Permissions({here.name("desk"): SenderGrant(alice.did, frozenset({TASK}))})
    support = await here.agent("support", permissions=permissions, identity=Identity.create())
    desk, forger = await here.agent("desk", identity=alice), await here.agent("desk", identity=mallory)
    effects = Inbox(support)
    await here.run(support)
    for sender, kind in ((forger, TASK), (desk, Kind.NOTIFICATION), (desk, TASK)):
        message = here.message(kind, "desk", "support")
        async with sender.running():
            await sender.send(message)
            await until(lambda: _drained(here))
    assert await effects.wait() == [message]
    await until(lambda: support.metrics.total("refused") == 2)
    journal = here.journals[here.name("support")]
    async with journal.transaction() as transaction:
        notes = await transaction.connection.fetch("select detail from handoff_event where event = 'refused' order by number")
    assert [row["detail"].partition(":")[0] for row in notes] == ["handoff.proof", "handoff.permission"]


async def test_004_30_and_31_sending_receiving_and_processing_are_logged_without_personal_data(
    here: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "treaty_handoff")
    desk, support = await here.agent("desk"), await here.agent("support")
    Inbox(support, Kind.ESCALATION)
    feedback = Inbox(desk, STATUS)
    await here.run(desk, support)
    message = here.message(Kind.ESCALATION, "desk", "support", flow="flow-9", summary="John Doe has called.")
    await desk.send(message)
    await feedback.wait()
    text, key = caplog.text, message["metadata"]["message_id"]
    assert f"sent ESCALATION {key} flow=flow-9" in text and f"completed ESCALATION {key} flow=flow-9" in text
    assert f"received ESCALATION {key}" in text
    assert "John" not in text and "555" not in text


async def test_004_32_backlog_latency_and_errors_are_measured(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    for _ in range(3):
        await desk.send(here.message(Kind.NOTIFICATION, "desk", "support"))
    assert (await desk.backlog())["outbox"] == 3
    async with desk.running():
        await until(lambda: _drained(here))
    assert (await support.backlog())[here.name("support")] == 3
    Inbox(support)
    await here.run(support)
    await support.receive(b"garbage")
    await until(lambda: support.metrics.total("completed") == 3)
    text = support.metrics.exposition(await support.backlog())
    assert 'handoff_events_total{event="completed",kind="NOTIFICATION"} 3' in text
    assert 'handoff_events_total{event="refused",kind=""} 1' in text
    assert "handoff_latency_seconds_count 3" in text


async def test_004_35_state_outlives_the_process_and_a_failed_attempt_changes_nothing(here: World) -> None:
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
    billing, desk = await here.agent("billing"), await here.agent("desk")

    @billing.handles(Kind.NOTIFICATION)
    async def credit(handling: Handling) -> None:
        await handling.send(here.message(Kind.NOTIFICATION, "billing", "desk", data={"event": "CREDITED"}))

    inbox = Inbox(desk)
    await here.run(support, billing, desk)
    await support.send(here.message(Kind.NOTIFICATION, "support", "desk", data={"event": "OTHER"}))
    await support.send(here.message(Kind.NOTIFICATION, "support", "desk"))
    found = await inbox.wait(3)
    assert sorted(entry["payload"]["data"]["event"] for entry in found) == ["CREDITED", "LINE_RESTORED", "OTHER"]
    assert billing.metrics.total("completed") == 1


@pytest.fixture
async def server(here: World) -> AsyncIterator[tuple[World, Any, str, ssl.SSLContext, Identity]]:
    """An agent behind HTTPS, with a certificate of a test authority."""
    alice = Identity.create()
    permissions = Permissions({here.name("desk"): SenderGrant(alice.did, frozenset(Kind) - {Kind.APPROVAL_REQUEST})})
    support = await here.agent("support", permissions=permissions)
    authority, port = trustme.CA(), free_port()
    certificate = authority.issue_cert("127.0.0.1")
    config = uvicorn.Config(create_app(support), host="127.0.0.1", port=port, log_level="warning", lifespan="off")
    config.load()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    config.ssl = context
    running = uvicorn.Server(config)
    task = asyncio.create_task(running.serve())
    await until(lambda: running.started)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    yield here, support, f"https://127.0.0.1:{port}", trusting, alice
    running.should_exit = True
    await task


async def test_004_28_and_38_synchronous_delivery_over_https(server: Any) -> None:
    here, support, url, trusting, alice = server
    inbox = Inbox(support, ASK, TASK, outcome=Outcome(information={"level": "gold"}))
    request = here.message(ASK, "desk", "support")
    async with httpx.AsyncClient(verify=trusting) as client:
        (answer,) = await post(client, url, request, alice)
        assert answer["payload"]["data"]["information"] == {"level": "gold"}
        assert answer["payload"]["data"]["in_reply_to"] == request["metadata"]["message_id"]
        assert await post(client, url, request, alice) == []
        (update,) = await post(client, url, here.message(TASK, "desk", "support"), alice)
        assert update["payload"]["data"]["status"] == "COMPLETED"
    assert len(inbox.messages) == 2
    async with httpx.AsyncClient() as client:
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            await post(client, url, request, alice)


async def test_004_38_refusals_have_the_status_codes_of_http(server: Any) -> None:
    here, support, url, trusting, alice = server
    inbox = Inbox(support, TASK, Kind.APPROVAL_REQUEST)
    message = here.message(TASK, "desk", "support", lifetime=timedelta(seconds=60))
    async with httpx.AsyncClient(verify=trusting) as client:
        for body, code in ((b"x", 400), (envelope(message, None), 401), (b" " * (MAX_MESSAGE + 1), 413)):
            assert (await client.post(f"{url}/handoffs", content=body)).status_code == code
        assert (await client.get(f"{url}/handoffs")).status_code == 404
        with pytest.raises(Unauthorized):
            await post(client, url, message, Identity.create())
        with pytest.raises(Refused):
            await post(client, url, here.message(Kind.APPROVAL_REQUEST, "desk", "support"), alice)
        here.shift = timedelta(seconds=61)
        with pytest.raises(Refused, match="expired"):
            await post(client, url, message, alice)
        here.shift = timedelta()

        async def fail(handling: Handling) -> None:
            raise RuntimeError("No.")

        support.handles(TASK)(fail)
        (update,) = await post(client, url, here.message(TASK, "desk", "support"), alice)
        assert update["payload"]["data"]["status"] == "FAILED"
    assert inbox.messages == []


async def test_the_loss_of_the_server_is_waited_out(database: str, rabbit: RabbitServer) -> None:
    async with world(database, rabbit.url) as made:
        desk, support = await made.agent("desk"), await made.agent("support")
        inbox = Inbox(support)
        await made.run(desk, support)
        await desk.send(made.message(Kind.NOTIFICATION, "desk", "support"))
        await inbox.wait(1)
        rabbit.kill()
        for _ in range(3):
            await desk.send(made.message(Kind.NOTIFICATION, "desk", "support"))
        await asyncio.to_thread(rabbit.start)
        await inbox.wait(4)
        assert len({entry["metadata"]["message_id"] for entry in inbox.messages}) == len(inbox.messages) == 4


async def test_a_lost_database_is_an_error_of_this_package(tmp_path: Any) -> None:
    async with world(f"postgresql://x@/x?host={tmp_path}", None) as made:
        with pytest.raises(TreatyError) as caught:
            await made.agent("desk")
    assert caught.value.code == "handoff.journal"
