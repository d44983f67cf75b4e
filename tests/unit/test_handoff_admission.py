"""Which handoffs are admitted and reported; what is logged and measured."""

from __future__ import annotations

import logging
import re

import pytest
from handoffs import Inbox, World, drained, until

from treaty_agent import Identity
from treaty_consensus.errors import Malformed
from treaty_handoff import (
    Kind,
    Permissions,
    SenderGrant,
)
from treaty_handoff.envelopes import envelope

TASK, STATUS = Kind.TASK_TRANSFER, Kind.STATUS_UPDATE


async def test_004_07_and_21_an_invalid_message_is_reported(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    effects, feedback = Inbox(support), Inbox(desk, STATUS)
    await here.run(desk, support)
    broker, broken = await here.broker(), here.message(TASK, "desk", "support")
    broken["payload"]["data"]["objective"] = 7
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
    assert update["payload"]["data"]["status"] == "REJECTED" and "are not handled here" in update["payload"]["data"]["detail"]


async def test_004_21_proved_senders_get_one_report_a_message(here: World) -> None:
    alice = Identity.create()
    grant = SenderGrant(alice.did, frozenset({TASK, Kind.APPROVAL_REQUEST}))
    desk = await here.agent("desk", identity=alice)
    support = await here.agent("support", permissions=Permissions({here.name("desk"): grant}), identity=Identity.create())
    effects, feedback = Inbox(support, TASK), Inbox(desk, STATUS)
    await here.run(desk, support)
    invalid, forbidden = here.message(TASK, "desk", "support"), here.message(Kind.ESCALATION, "desk", "support")
    invalid["payload"]["data"]["sub_tasks"] = {}
    unhandled, good = here.message(Kind.APPROVAL_REQUEST, "desk", "support"), here.message(TASK, "desk", "support")
    # Each comes three times, as after a crash before the confirmation.
    for message in (invalid, forbidden, unhandled, good) * 3:
        await support.receive(envelope(message, alice), queue=here.name("support"))
    await feedback.wait(4)
    await until(lambda: drained(here, "support"))
    about = {entry["payload"]["data"]["in_reply_to"]: entry["payload"]["data"] for entry in feedback.messages}
    reports = [about[message["metadata"]["message_id"]] for message in (invalid, forbidden, unhandled, good)]
    assert [data["status"] for data in reports] == ["REJECTED", "REJECTED", "REJECTED", "COMPLETED"]
    assert (
        "sub_tasks" in reports[0]["issues"][0]
        and "may not send" in reports[1]["issues"][0]
        and "not handled" in reports[2]["detail"]
    )
    assert len(feedback.messages) == 4 and effects.messages == [good]


async def test_004_19_the_sender_collects_builds_serialises_and_sends(here: World) -> None:
    desk = await here.agent("desk")
    actions = [{"action_type": "GREETED", "details": "Said hello.", "timestamp": "2023-10-27T10:20:05.000Z"}]
    history = [{"type": "CHAT", "sender": "User", "content": "Help!", "timestamp": "2023-10-27T10:21:00.000Z"}]
    message = here.message(TASK, "desk", "support", actions=actions, history=history, summary="It drops.")
    assert message["context"]["previous_actions"] == actions and message["context"]["user_interaction_history"] == history
    with pytest.raises(Malformed):
        here.message(TASK, "desk", "support", actions=[{"action_type": "GREETED"}])
    with pytest.raises(Malformed):
        await desk.send({**message, "payload": {"handoff_type": "ESCALATION", "data": {}}})
    assert await here.journals[here.name("desk")].waiting() == 0
    await desk.send(message)
    await here.run(desk)
    await until(lambda: drained(here))
    assert await (await here.broker()).backlog(here.name("support")) == 1


@pytest.mark.threat(240)
async def test_004_29_only_permitted_senders_have_an_effect(here: World) -> None:
    alice, mallory = Identity.create(), Identity.create()
    permissions = Permissions({here.name("desk"): SenderGrant(alice.did, frozenset({TASK}))})
    support = await here.agent("support", permissions=permissions, identity=Identity.create())
    desk, forger = await here.agent("desk", identity=alice), await here.agent("desk", identity=mallory)
    effects, note_id = Inbox(support), ""
    await here.run(support)
    for sender, kind in ((forger, TASK), (desk, Kind.NOTIFICATION), (desk, TASK)):
        message = here.message(kind, "desk", "support")
        note_id = message["metadata"]["message_id"] if kind is Kind.NOTIFICATION else note_id
        async with sender.running():
            await sender.send(message)
            await until(lambda: drained(here))
    assert await effects.wait() == [message]
    await until(lambda: support.metrics.total("refused") == 2)
    journal = here.journals[here.name("support")]
    # The one that is proved is named in its record; the other has no name.
    unproved = [entry.detail.partition(":")[0] for entry in await journal.events("") if entry.event == "refused"]
    assert unproved == ["handoff.proof"]
    refused = [entry.detail.partition(":")[0] for entry in await journal.events(note_id) if entry.event == "refused"]
    assert refused == ["handoff.permission"]


@pytest.mark.threat(246)
async def test_004_30_and_31_logs_contain_no_personal_data(here: World, caplog: pytest.LogCaptureFixture) -> None:
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
    # Without the ids, which are random and may have any digits.
    without_ids = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "", text)
    assert "John" not in without_ids and "555" not in without_ids


async def test_004_32_backlog_latency_and_errors_are_measured(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    for _ in range(3):
        await desk.send(here.message(Kind.NOTIFICATION, "desk", "support"))
    assert (await desk.backlog())["outbox"] == 3
    async with desk.running():
        await until(lambda: drained(here))
    assert (await support.backlog())[here.name("support")] == 3
    Inbox(support)
    await here.run(support)
    await support.receive(b"garbage")
    await until(lambda: support.metrics.total("completed") == 3)
    text = support.metrics.exposition(await support.backlog(), await support.set_aside())
    assert 'handoff_events_total{event="completed",kind="NOTIFICATION"} 3' in text
    assert 'handoff_events_total{event="refused",kind=""} 1' in text
    assert "handoff_latency_seconds_count 3" in text
