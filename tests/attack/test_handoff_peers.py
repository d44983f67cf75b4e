"""Attacks of agents that take part in durable handoff: on ids, answers, reports, names, and the agents behind them."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import httpx
import pytest
from handoffs import DATA, Inbox, World, drained, until

from treaty_agent import Identity
from treaty_consensus.errors import Malformed, Unauthorized, Unavailable
from treaty_handoff import Coordinator, Handling, Kind, Outcome, Permissions, SenderGrant, Status, Step
from treaty_handoff.envelopes import asking_proof, envelope
from treaty_handoff.http import create_app

TASK, NOTE, STATUS, ASK = Kind.TASK_TRANSFER, Kind.NOTIFICATION, Kind.STATUS_UPDATE, Kind.REQUEST_INFORMATION


def raw(message: object) -> bytes:
    """An envelope without a proof, of a message of any form."""
    return json.dumps({"handoff": message}).encode()


async def queued(world: World, name: str, body: bytes) -> None:
    """Put bytes into a queue, as another agent that has the key can."""
    queue = world.name(name)
    assert world.seal is not None
    await (await world.broker()).publish(queue, world.seal.close(body, f"queue/{queue}"), 3)


@pytest.mark.sample(1)
@pytest.mark.threat(260)
@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("message_id", 7),
        ("message_id", None),
        ("task_id", "t\nLOG INFO root logged in"),
        ("correlation_id", "a\0b"),
        ("sender_id", "a\u2028b"),
        ("timestamp", "0000-01-01T00:00:00.000Z"),
        ("expiration_time", "0001-01-01T00:00:00.000+23:59"),
        ("expiration_time", "9999-12-31T23:59:59.999-23:59"),
    ],
)
async def test_odd_members_are_refused_and_hold_up_nothing(anywhere: World, place: str, value: object) -> None:
    support = await anywhere.agent("support")
    effects = Inbox(support, NOTE)
    odd: Any = anywhere.message(TASK, "desk", "support")
    odd["metadata"][place] = value
    await queued(anywhere, "support", raw(odd))
    good = anywhere.message(NOTE, "desk", "support")
    await queued(anywhere, "support", raw(good))
    await anywhere.run(support)
    assert await effects.wait() == [good]
    await until(lambda: support.metrics.total("refused") == 1)
    assert await support.set_aside() == {anywhere.name("support"): 0}


@pytest.mark.sample(1)
@pytest.mark.threat(261)
@pytest.mark.parametrize("name", ["x" * 256, "中" * 100, "amq.reply", "support.later", "a b/c?*#"])
async def test_no_name_stops_the_outbox(anywhere: World, name: str) -> None:
    desk, odd = await anywhere.agent("desk"), anywhere.message(TASK, "desk", "support")
    odd["metadata"]["recipient_id"] = name
    good = anywhere.message(NOTE, "desk", "support")
    await desk.send(odd)
    await desk.send(good)
    support = await anywhere.agent("support")
    effects = Inbox(support)
    await anywhere.run(desk, support)
    assert await effects.wait() == [good]
    await until(lambda: drained(anywhere))


@pytest.mark.deep
@pytest.mark.threat(262)
async def test_only_a_proved_sender_gets_a_report(here: World) -> None:
    """The id of a coordinator's step can be computed: a forged message with it must not make the agent report on it."""
    lead_key, worker_key = Identity.create(), Identity.create()
    lead = await here.agent("lead", identity=lead_key, permissions=Permissions.of({here.name("worker"): worker_key.did}))
    worker = await here.agent("worker", identity=worker_key, permissions=Permissions.of({here.name("lead"): lead_key.did}))
    coordinator = Coordinator(lead, [Step(here.name("worker"), "One.")], clock=here.clock)
    done, begun, finish = Inbox(worker, NOTE), asyncio.Event(), asyncio.Event()

    @worker.handles(TASK)
    async def work(handling: Handling) -> None:
        begun.set()
        await finish.wait()

    async def position() -> str:
        async with here.journals[lead.name].transaction() as transaction:
            return await coordinator.position(transaction, "task-1")

    await here.run(lead, worker)
    step = await coordinator.start("task-1", {})
    await begun.wait()
    forged = here.message(TASK, "lead", "worker", message_id=step)
    forged["payload"]["data"] = {"objective": 7}
    for body in (raw(forged), envelope(forged, Identity.create())):
        processed = await worker.receive(body)
        assert processed.answers == [] and processed.error is not None
    assert await position() == ""
    # A proved sender gets its report, once however often the invalid message comes.
    proved = here.message(TASK, "lead", "worker")
    proved["payload"]["data"] = {"objective": 7}
    for _ in range(2):
        (answer,) = (await worker.receive(envelope(proved, lead_key))).answers
        assert answer["payload"]["data"]["status"] == "REJECTED"
    finish.set()

    async def is_done() -> bool:
        return await position() == "0/COMPLETED"

    await until(is_done)
    assert done.messages == []


@pytest.mark.deep
@pytest.mark.threat(263)
async def test_an_answer_counts_from_a_recipient_of_the_request_only(here: World) -> None:
    keys = {name: Identity.create() for name in ("desk", "oracle", "anna", "mallory")}
    grants = {here.name(name): SenderGrant(key.did) for name, key in keys.items()}
    grants[here.name("anna")] = SenderGrant(keys["anna"].did, groups=frozenset({here.name("pool")}))
    desk = await here.agent("desk", identity=keys["desk"], permissions=Permissions(grants))

    def answer(request: Any, sender: str) -> bytes:
        data = {"in_reply_to": request["metadata"]["message_id"], "information": {"from": sender}}
        return envelope(here.message(Kind.PROVIDE_INFORMATION, sender, "desk", data=data), keys[sender])

    for recipient, answerer in (("oracle", "oracle"), ("pool", "anna")):
        request = here.message(ASK, "desk", recipient)
        asking = asyncio.create_task(desk.ask(request, 60))

        async def is_sent(message: Any = request) -> bool:
            return bool(await here.journals[desk.name].events(message["metadata"]["message_id"]))

        await until(is_sent)
        for stranger in {"mallory", "oracle", "anna"} - {answerer}:
            processed = await desk.receive(answer(request, stranger))
            assert processed.error is not None and processed.error.code == "handoff.permission"
        await desk.receive(answer(request, answerer))
        assert (await asking)["payload"]["data"]["information"] == {"from": answerer}
    # A report on a step that was not sent yet moves nothing.
    coordinator = Coordinator(desk, [Step(here.name("oracle"), "One.")], clock=here.clock)
    key = await (await here.agent("desk")).send(here.message(NOTE, "desk", "desk"))
    report = here.message(STATUS, "mallory", "desk", data={"status": "COMPLETED", "in_reply_to": key})
    await desk.receive(envelope(report, keys["mallory"]))
    async with here.journals[desk.name].transaction() as transaction:
        assert await coordinator.position(transaction, "task-1") == ""


@pytest.mark.sample(1)
@pytest.mark.threat(264)
async def test_a_message_to_another_agent_has_no_effect_in_any_queue(anywhere: World) -> None:
    key = Identity.create()
    support = await anywhere.agent("support", permissions=Permissions.of({anywhere.name("desk"): key.did}))
    effects = Inbox(support)
    await queued(anywhere, "support", envelope(anywhere.message(TASK, "desk", "billing"), key))
    good = anywhere.message(TASK, "desk", "support")
    await queued(anywhere, "support", envelope(good, key))
    await anywhere.run(support)
    assert await effects.wait() == [good]
    await until(lambda: support.metrics.total("refused") == 1)


@pytest.mark.threat(264)
async def test_a_message_to_a_group_has_one_effect_by_queue_and_http(here: World) -> None:
    support = await here.agent("support", groups=("pool",))
    effects, message = Inbox(support), here.message(TASK, "desk", "pool")
    first = await support.receive(envelope(message, None), queue=here.name("pool"))
    again = await support.receive(envelope(message, None))
    assert (first.status, again.status) == (Status.COMPLETED, Status.DUPLICATE) and effects.messages == [message]


@pytest.mark.threat(265)
async def test_an_id_belongs_to_its_sender(here: World) -> None:
    desk_key, mallory_key = Identity.create(), Identity.create()
    permissions = Permissions.of({here.name("desk"): desk_key.did, here.name("mallory"): mallory_key.did})
    support = await here.agent("support", permissions=permissions)
    effects, keys = [], set()

    @support.handles(TASK)
    async def work(handling: Handling) -> None:
        effects.append(handling.message)
        keys.add(handling.idempotency_key)

    task = here.message(TASK, "desk", "support")
    same = here.message(TASK, "mallory", "support", message_id=task["metadata"]["message_id"])
    first, second = await support.receive(envelope(same, mallory_key)), await support.receive(envelope(task, desk_key))
    assert (first.status, second.status) == (Status.COMPLETED, Status.COMPLETED)
    assert effects == [same, task] and len(keys) == 2
    assert first.answers[0]["metadata"]["message_id"] != second.answers[0]["metadata"]["message_id"]
    # Nor does it get the answers of the other, and an agent that proves nothing gets none.
    message_id = task["metadata"]["message_id"]
    for key, processed in ((desk_key, second), (mallory_key, first)):
        answer = await support.asked(message_id, asking_proof(message_id, key))
        assert answer is not None and answer.answers == processed.answers
    assert await support.asked(message_id) is None
    assert await support.asked(message_id, asking_proof(message_id, Identity.create())) is None
    with pytest.raises(Unauthorized):  # the proof is of another id
        await support.asked(message_id, asking_proof(str(uuid.uuid4()), desk_key))


@pytest.mark.threat(266)
async def test_a_sender_cannot_make_the_agent_sign_for_others(here: World) -> None:
    support = await here.agent("support", identity=Identity.create(), escalates_to=[here.name("experts")])

    @support.handles(TASK)
    async def work(handling: Handling) -> None:
        raise RuntimeError("password=hunter2")

    def task(target: str) -> Any:
        plan = {"failure_handling_strategy": {"escalate_to": here.name(target)}}
        return here.message(TASK, "desk", "support", instructions=plan)

    refused, allowed = await support.receive(raw(task("bank"))), await support.receive(raw(task("experts")))
    assert (refused.status, allowed.status) == (Status.FAILED, Status.ESCALATED)
    assert [answer["metadata"]["recipient_id"] for answer in refused.answers] == [here.name("desk")]
    # The text of an unforeseen error stays here.
    assert refused.answers[0]["payload"]["data"]["detail"] == "RuntimeError"
    with pytest.raises(Unauthorized):
        await support.send(here.message(NOTE, "desk", "support"))


@pytest.mark.deep
@pytest.mark.threat(267)
async def test_work_that_cannot_be_reported_is_a_failure_with_a_record(here: World) -> None:
    support, reports = await here.agent("support"), []
    outcomes: list[Outcome | Exception] = [
        Outcome(result={"text": "x" * 2_000_000}),
        Outcome(detail="x" * 20_000),
        Malformed("handoff.form", "x" * 20_000),
    ]

    @support.handles(TASK)
    async def work(handling: Handling) -> Outcome:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    for status in (Status.FAILED, Status.COMPLETED, Status.FAILED):
        message = here.message(TASK, "desk", "support")
        processed = await support.receive(raw(message))
        reports += processed.answers
        assert processed.status is status
        events = await here.journals[support.name].events(message["metadata"]["message_id"])
        assert status.lower() in [entry.event for entry in events]
    assert [report["payload"]["data"]["status"] for report in reports] == ["FAILED", "COMPLETED", "FAILED"]


@pytest.mark.threat(268)
async def test_stored_states_and_texts_of_errors_are_sealed(here: World) -> None:
    support = await here.agent("support")

    @support.handles(TASK)
    async def work(handling: Handling) -> Outcome:
        await handling.transaction.set_state("customer", {"name": "Secret Person"})
        if handling.data["objective"] == "fail":
            raise RuntimeError("Secret Person is unknown.")
        return Outcome(detail="Secret Person was called.")

    await support.receive(raw(here.message(TASK, "desk", "support")), queue=here.name("support"))
    failed = here.message(TASK, "desk", "support", data={**DATA[TASK], "objective": "fail"})
    await support.receive(raw(failed))
    journal = here.journals[support.name]
    async with journal.transaction() as transaction:
        assert await transaction.state("customer") == {"name": "Secret Person"}
        for table in ("event", "state", "message", "outbox", "dead"):
            rows = await transaction.connection.fetch(f"select * from handoff_{table}")
            assert rows and not any(b"Secret" in bytes(c) for row in rows for c in row.values() if isinstance(c, bytes))
            assert not any("Secret" in c for row in rows for c in row.values() if isinstance(c, str))
    events = await journal.events(failed["metadata"]["message_id"])
    assert any("Secret Person is unknown." in entry.detail for entry in events)


@pytest.mark.threat(269)
async def test_requests_without_a_proof_leave_no_row(here: World) -> None:
    key = Identity.create()
    support = await here.agent("support", permissions=Permissions.of({here.name("desk"): key.did}))
    transport = httpx.ASGITransport(create_app(support))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        for body in (b"", b"{}", raw(here.message(TASK, "desk", "support")), raw({"metadata": {"sender_id": ["x"]}})):
            assert (await client.post("/handoffs", content=body)).status_code in (400, 401)

        @support.handles(TASK)
        async def work(handling: Handling) -> None:
            raise Unavailable("handoff.broker", "Elsewhere.")

        failed = await client.post("/handoffs", content=envelope(here.message(TASK, "desk", "support"), key))
        assert failed.status_code == 422
    async with here.journals[support.name].transaction() as transaction:
        assert await transaction.connection.fetchval("select count(*) from handoff_event where event = 'refused'") == 0
