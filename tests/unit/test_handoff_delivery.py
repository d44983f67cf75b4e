"""Handoff between agents through real brokers: queues, outbox, journal and order."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from handoffs import Inbox, World, drained, shown, until, world
from rabbitmq_server import RabbitServer

from treaty_consensus.errors import Conflict, Malformed, Refused, TreatyError, Unavailable
from treaty_handoff import (
    Handling,
    HandoffAgent,
    Journal,
    Kind,
    Outcome,
    PostgresBroker,
    Priority,
    Routes,
    Rule,
    Status,
)
from treaty_handoff.codes import HandoffCode
from treaty_handoff.envelopes import envelope
from treaty_handoff.messages import Message, encode

ID = "00000000-0000-4000-8000-000000000001"
TASK, STATUS = Kind.TASK_TRANSFER, Kind.STATUS_UPDATE


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


@pytest.mark.threat(248)
async def test_004_28_no_content_is_readable_in_any_table(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    feedback = Inbox(desk, STATUS)

    @support.handles(TASK)
    async def work(handling: Handling) -> Outcome:
        async with here.journals[support.name].transaction() as other:
            await other.set_state("note", "secret-state")
        await handling.report(Status.IN_PROGRESS, "secret-report", 50)
        if handling.data["objective"] == "secret-failing":
            raise RuntimeError("secret-error")
        return Outcome(detail="secret-detail", result={"a": "secret-result"})

    async with desk.running(), support.running():
        for objective in ("secret-working", "secret-failing"):
            await desk.send(here.message(TASK, "desk", "support", data={"objective": objective, "sub_tasks": []}))
        await until(lambda: {"COMPLETED", "FAILED"} <= set(feedback.statuses))
        # One waits in a queue, and one in the outbox.
        queued = here.message(TASK, "desk", "absent", data={"objective": "secret-queued", "sub_tasks": []})
        await desk.send(queued)
        await until(lambda: drained(here))
    await desk.send(here.message(TASK, "desk", "absent", data={"objective": "secret-outbox", "sub_tasks": []}))
    async with here.journals[desk.name].transaction() as transaction:
        read = transaction.connection.fetch
        tables = [row["tablename"] for row in await read("select tablename from pg_tables where schemaname = 'public'")]
        rows = {table: "\n".join(row[0] for row in await read(f'select t::text from "{table}" t')) for table in tables}
    # Each way to store something was used.
    for table in ("handoff_message", "handoff_outbox", "handoff_event", "handoff_state", "handoff_dead", "pgqueuer"):
        assert rows[table], table
    for table, text in rows.items():
        assert "secret" not in text and b"secret".hex() not in text, table


async def test_old_messages_are_pruned_and_those_on_their_way_stay(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    inbox, journal = Inbox(support, Kind.NOTIFICATION), here.journals[here.name("desk")]
    async with desk.running(), support.running():
        await desk.send(here.message(Kind.NOTIFICATION, "desk", "support", flow="f"))
        await inbox.wait()
        await until(lambda: support.metrics.total("completed") == 1)
        await until(lambda: drained(here))
    waiting = here.message(Kind.NOTIFICATION, "desk", "support", flow="f")
    await desk.send(waiting)
    broker = await here.broker()
    assert isinstance(broker, PostgresBroker)
    await broker.prune()
    assert await journal.prune(here.clock() - timedelta(hours=1)) == 0
    assert await journal.prune(here.clock() + timedelta(hours=1)) == 2
    assert [entry.message for entry in await journal.flow("f")] == [waiting]


@pytest.mark.sample(1)
@pytest.mark.threat(241)
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


@pytest.mark.threat(242)
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
    await until(lambda: drained(here))
    assert [entry.event for entry in await journal.events(message["metadata"]["message_id"])] == ["sent", "expired"]
    assert await (await here.broker()).backlog(here.name("support")) == 0


async def _published(here: World, message: Message) -> bool:
    events = await here.journals[here.name("desk")].events(message["metadata"]["message_id"])
    return any(entry.event == "published" for entry in events)


@pytest.mark.sample(1)
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


@pytest.mark.sample(1)
async def test_004_13_the_most_urgent_message_comes_first(anywhere: World) -> None:
    desk, support = await anywhere.agent("desk"), await anywhere.agent("support")
    inbox = Inbox(support, Kind.NOTIFICATION)
    order = [Priority.LOW, Priority.CRITICAL, Priority.MEDIUM, Priority.HIGH, Priority.LOW, Priority.CRITICAL]
    await anywhere.run(desk)
    for priority in order:
        await desk.send(anywhere.message(Kind.NOTIFICATION, "desk", "support", priority=priority))
        # One by one, so that the outbox does not put them in order.
        await until(lambda: drained(anywhere))
    broker = await anywhere.broker()

    async def is_queued() -> bool:
        return await broker.backlog(anywhere.name("support")) == len(order)

    await until(is_queued)
    await anywhere.run(support)
    ranks = [Priority(message["metadata"]["priority"]).rank for message in await inbox.wait(len(order))]
    assert ranks == sorted(ranks, reverse=True)


@pytest.mark.sample(1)
async def test_004_22_messages_wait_while_the_receiver_is_down(anywhere: World) -> None:
    desk = await anywhere.agent("desk")
    messages = [anywhere.message(Kind.NOTIFICATION, "desk", "support") for _ in range(5)]
    for message in messages:
        await desk.send(message)
    async with desk.running():
        await until(lambda: drained(anywhere))
    support = await anywhere.agent("support")
    inbox = Inbox(support, Kind.NOTIFICATION)
    await anywhere.run(support)
    assert await inbox.wait(5) == messages


@pytest.mark.sample(1)
async def test_004_23_and_24_routes_reach_the_agents_that_they_name(anywhere: World) -> None:
    rules = [
        Rule((anywhere.name("experts"),), kinds={Kind.ESCALATION}, where={"issue_category": "NETWORK_CONNECTIVITY"}),
        Rule((anywhere.name("vip"),), priority=Priority.CRITICAL),
    ]
    # All agents have the routes: a receiver takes messages to others only if a route brings them.
    routes = Routes(rules)
    desk = await anywhere.agent("desk", routes=routes)
    names = ("support", "experts", "vip")
    agents = {name: await anywhere.agent(name, routes=routes) for name in names}
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


@pytest.mark.deep
async def test_the_loss_of_the_server_is_waited_out(database: str, rabbit: RabbitServer) -> None:
    async with world(database, rabbit.url) as scene:
        desk, support = await scene.agent("desk"), await scene.agent("support")
        inbox = Inbox(support)
        await scene.run(desk, support)
        await desk.send(scene.message(Kind.NOTIFICATION, "desk", "support"))
        await inbox.wait(1)
        rabbit.kill()
        for _ in range(3):
            await desk.send(scene.message(Kind.NOTIFICATION, "desk", "support"))
        await asyncio.to_thread(rabbit.start)
        await inbox.wait(4)
        assert len({entry["metadata"]["message_id"] for entry in inbox.messages}) == len(inbox.messages) == 4


async def test_a_lost_database_is_an_error_of_this_package(tmp_path: Any) -> None:
    async with world(f"postgresql://x@/x?host={tmp_path}", None) as scene:
        with pytest.raises(TreatyError) as caught:
            await scene.agent("desk")
    assert caught.value.code == "handoff.journal"


async def test_004_13_the_outbox_publishes_urgent_messages_first(here: World) -> None:
    desk = await here.agent("desk")
    for priority in (Priority.LOW, Priority.CRITICAL, Priority.MEDIUM, Priority.HIGH):
        await desk.send(here.message(Kind.NOTIFICATION, "desk", priority.lower(), priority=priority))
    published: list[str] = []

    async def publish(queue: str, body: bytes, priority: int) -> None:
        published.append(queue.partition(".")[0])
        if published == ["critical"]:
            raise Refused("handoff.settings", "Another client owns this queue.")

    journal = here.journals[desk.name]
    assert await journal.flush(publish, here.clock()) == 3
    assert published == ["critical", "high", "medium", "low"]
    # The refused one waits, and comes again.
    assert await journal.flush(publish, here.clock()) == 0 and await journal.waiting() == 1
    assert await journal.flush(publish, here.clock() + timedelta(seconds=2)) == 1
    assert published[-1] == "critical" and await journal.waiting() == 0


@pytest.mark.parametrize("url", ["sqlite:///x", "", "/var/run/postgresql"])
async def test_a_url_that_is_not_of_postgresql_is_malformed(url: str) -> None:
    with pytest.raises(Malformed):
        async with Journal.open(url, "desk"):
            pass
    with pytest.raises(Malformed):
        async with PostgresBroker.open(url):
            pass


async def test_an_agent_ends_despite_an_error_of_its_driver(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, flushes = asyncio.Event(), list[None]()

    async def flush(*_: object) -> int:
        begun.set()
        flushes.append(None)
        try:
            return await asyncio.sleep(60, 0)
        except asyncio.CancelledError:
            if len(flushes) > 1:
                raise  # the second cancellation is this test's own, so that a failure does not hang
            raise Unavailable(HandoffCode.JOURNAL, "The connection is closed.") from None

    monkeypatch.setattr(Journal, "flush", flush)
    broker = await here.broker()
    async with (
        asyncio.timeout(15),
        Journal.open(here.url, "support", seal=here.seal) as journal,
        HandoffAgent("support", journal, broker).running(),
    ):
        await begun.wait()
    assert len(flushes) == 1
