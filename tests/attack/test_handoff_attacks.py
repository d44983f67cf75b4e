"""Attacks on durable handoff: by clients of the broker, by the broker, by permitted senders, and on what is stored."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import pytest
from handoffs import DATA, Inbox, World, drained, until, world

from treaty_agent import Identity
from treaty_consensus.errors import Untrusted
from treaty_handoff import Handling, HandoffAgent, Journal, Kind, Permissions, Priority, Seal, SenderGrant, Status
from treaty_handoff.envelopes import envelope
from treaty_handoff.messages import MAX_MESSAGE, encode

TASK, NOTE, STATUS = Kind.TASK_TRANSFER, Kind.NOTIFICATION, Kind.STATUS_UPDATE
FORMER, KEY = b"f" * 32, b"k" * 32


@pytest.fixture(params=["postgres", "rabbitmq"])
async def unsealed(request: pytest.FixtureRequest, database: str) -> AsyncIterator[World]:
    """Agents without a key: a client of the broker can write to every queue."""
    url = request.getfixturevalue("rabbit").url if request.param == "rabbitmq" else None
    async with world(database, url) as scene:
        yield scene


@pytest.mark.sample(1)
@pytest.mark.threat(240)
async def test_a_sender_has_the_kinds_of_its_grant_alone(unsealed: World) -> None:
    alice, mallory = Identity.create(), Identity.create()
    grants = {
        unsealed.name("desk"): SenderGrant(alice.did, frozenset({TASK})),
        unsealed.name("mallory"): SenderGrant(mallory.did),
    }
    support = await unsealed.agent("support", permissions=Permissions(grants))
    effects, broker, queue = Inbox(support), await unsealed.broker(), unsealed.name("support")
    await unsealed.run(support)
    forged = unsealed.message(TASK, "desk", "support")
    stolen = json.loads(envelope(unsealed.message(TASK, "desk", "support"), alice))
    stolen["handoff"]["payload"]["data"]["objective"] = "Pay Mallory."
    for body in (
        envelope(forged, None),
        envelope(forged, mallory),
        json.dumps(stolen).encode(),
        envelope(unsealed.message(Kind.APPROVAL_REQUEST, "desk", "support"), alice),
        envelope(unsealed.message(TASK, "stranger", "support"), mallory),
    ):
        await broker.publish(queue, body, 3)
    honest = unsealed.message(TASK, "desk", "support")
    await broker.publish(queue, envelope(honest, alice), 0)
    assert await effects.wait() == [honest]
    await until(lambda: support.metrics.total("refused") == 5)
    assert effects.messages == [honest]


@pytest.mark.sample(1)
@pytest.mark.threat(241)
async def test_a_replayed_message_has_no_second_effect(unsealed: World) -> None:
    alice = Identity.create()
    permissions = Permissions.of({unsealed.name("desk"): alice.did})
    support = await unsealed.agent("support", permissions=permissions)
    billing = await unsealed.agent("billing", permissions=permissions)
    effects, others, broker = Inbox(support), Inbox(billing), await unsealed.broker()
    await unsealed.run(support)
    captured = envelope(unsealed.message(TASK, "desk", "support"), alice)
    for _ in range(20):
        await broker.publish(unsealed.name("support"), captured, 0)
    await until(lambda: support.metrics.total("duplicate") == 19)
    # Over HTTP, where no queue brings a message to its recipient, another agent refuses it.
    processed = await billing.receive(captured)
    assert processed.status is Status.REJECTED and processed.error is not None and processed.error.code == "handoff.permission"
    assert len(effects.messages) == 1 and others.messages == []


@pytest.mark.sample(1)
@pytest.mark.threat(242)
async def test_other_content_under_a_known_id_has_no_effect(unsealed: World) -> None:
    support, broker, queue = await unsealed.agent("support"), await unsealed.broker(), unsealed.name("support")
    effects = Inbox(support)
    await unsealed.run(support)
    message = unsealed.message(TASK, "desk", "support")
    await broker.publish(queue, envelope(message, None), 0)
    await effects.wait()
    other = json.loads(encode(message))
    other["payload"]["data"]["objective"] = "Something else."
    # In capitals, too: a UUID is the same.
    loud = json.loads(encode(other))
    loud["metadata"]["message_id"] = loud["metadata"]["message_id"].upper()
    for changed in (other, loud, other):
        await broker.publish(queue, envelope(changed, None), 0)
    last = unsealed.message(TASK, "desk", "support")
    await broker.publish(queue, envelope(last, None), 0)
    assert await effects.wait(2) == [message, last]
    await until(lambda: support.metrics.total("refused") == 3)


@pytest.mark.sample(1)
@pytest.mark.threat(243)
async def test_huge_messages_are_refused_before_they_are_parsed(unsealed: World) -> None:
    support, broker, queue = await unsealed.agent("support"), await unsealed.broker(), unsealed.name("support")
    effects = Inbox(support)
    await unsealed.run(support)
    deep = b"[" * 200_000
    many = b'{"handoff":{"metadata":[' + b"0," * 400_000 + b"0]}}"
    for body in (b" " * (MAX_MESSAGE + 1), b"{" + b" " * (4 * MAX_MESSAGE), deep, many):
        await broker.publish(queue, body, 3)
    small = unsealed.message(NOTE, "desk", "support")
    await broker.publish(queue, envelope(small, None), 0)
    assert await effects.wait() == [small]
    await until(lambda: support.metrics.total("refused") == 4)
    async with Journal.open(unsealed.url, queue) as journal, journal.transaction() as transaction:
        stored = await transaction.connection.fetchval("select coalesce(sum(length(body)), 0) from handoff_message")
    assert stored < 10_000


@pytest.mark.sample(1)
@pytest.mark.threat(244)
async def test_a_flood_does_not_delay_what_is_urgent(unsealed: World) -> None:
    desk, support = await unsealed.agent("desk"), await unsealed.agent("support")
    broker, queue = await unsealed.broker(), unsealed.name("support")
    for _ in range(200):
        await broker.publish(queue, envelope(unsealed.message(NOTE, "desk", "support", priority=Priority.LOW), None), 0)
    urgent = unsealed.message(NOTE, "desk", "support", priority=Priority.CRITICAL)
    await desk.send(urgent)
    async with desk.running():
        await until(lambda: drained(unsealed))
    effects = Inbox(support)
    await unsealed.run(support)
    await effects.wait()
    assert effects.messages[0] == urgent


@pytest.mark.threat(246)
async def test_no_personal_data_are_logged_also_when_work_fails(here: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "treaty_handoff")
    desk, support = await here.agent("desk"), await here.agent("support")
    feedback = Inbox(desk, STATUS)

    @support.handles(Kind.ESCALATION)
    async def work(handling: Handling) -> None:
        raise RuntimeError(f"{handling.data['customer_info']['name']} has no line.")

    await here.run(desk, support)
    await desk.send(here.message(Kind.ESCALATION, "desk", "support", summary="John Doe has called."))
    broken = here.message(Kind.ESCALATION, "desk", "support")
    broken["payload"]["data"]["severity"] = "John Doe"
    assert here.seal is not None
    queue = here.name("support")
    await (await here.broker()).publish(queue, here.seal.close(envelope(broken, None), f"queue/{queue}"), 0)
    await feedback.wait(2)
    assert sorted(feedback.statuses) == ["FAILED", "REJECTED"]
    await until(lambda: support.metrics.total("refused") == 1)
    assert "failed ESCALATION" in caplog.text
    assert "John" not in caplog.text and "john.doe" not in caplog.text and "555-123" not in caplog.text


@pytest.mark.threat(248)
async def test_stored_messages_survive_a_key_change_encrypted(here: World) -> None:
    desk, flow = await here.agent("desk"), "flow-1"
    message = here.message(TASK, "desk", "support", flow=flow)
    await desk.send(message)
    async with desk.running():
        await until(lambda: drained(here))
    name, queue = here.name("desk"), here.name("support")
    # After the change, the former key opens what is stored and queued; new messages are sealed with the new one.
    async with Journal.open(here.url, queue, seal=Seal(b"n" * 32, KEY)) as journal:
        assert [entry.message for entry in await journal.flow(flow)] == [message]
        changed = HandoffAgent(queue, journal, await here.broker())
        effects = Inbox(changed)
        async with changed.running():
            assert await effects.wait() == [message]
            await until(lambda: changed.metrics.total("completed") == 1)
    # Without the key nothing opens, and nothing is lost.
    async with Journal.open(here.url, name, seal=Seal(b"x" * 32)) as journal:
        with pytest.raises(Untrusted):
            await journal.flow(flow)
        async with journal.transaction() as transaction:
            stored = [bytes(row["body"]) for row in await transaction.connection.fetch("select body from handoff_message")]
    assert len(stored) >= 2 and not any(b"Restore" in body for body in stored)


@pytest.mark.sample(1)
@pytest.mark.threat(249)
async def test_a_hostile_broker_reads_and_changes_nothing(anywhere: World) -> None:
    """It also confirms a message that it forgets: then only the silence is seen."""
    desk, support, billing = await anywhere.agent("desk"), await anywhere.agent("support"), await anywhere.agent("billing")
    effects, others, broker = Inbox(support), Inbox(billing), await anywhere.broker()
    message = anywhere.message(TASK, "desk", "support", data={**DATA[TASK], "objective": "A secret objective."})
    await desk.send(message)
    async with desk.running():
        await until(lambda: drained(anywhere))
    queue = anywhere.name("support")
    deliveries = broker.deliveries(queue)
    delivery = await anext(deliveries)
    seen = delivery.body
    await delivery.confirm()
    await deliveries.aclose()
    assert b"secret" not in seen and message["metadata"]["message_id"].encode() not in seen
    await broker.publish(anywhere.name("billing"), seen, 0)
    for changed in (seen[:-1], seen[:40] + bytes([seen[40] ^ 1]) + seen[41:], b"", seen[:20]):
        await broker.publish(queue, changed, 3)
    await broker.publish(queue, seen, 0)
    await broker.publish(queue, seen, 0)
    await anywhere.run(support, billing)
    assert await effects.wait() == [message]
    await until(lambda: support.metrics.total("duplicate") == 1)
    await until(lambda: support.metrics.total("refused") == 4 and billing.metrics.total("refused") == 1)
    assert others.messages == [] and len(effects.messages) == 1
    await asyncio.sleep(0)
