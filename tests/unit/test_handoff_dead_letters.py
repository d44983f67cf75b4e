"""Messages that end or always fail their receiver are set aside: an operator looks at them and gives them back."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from handoff_process import LONG, POISON
from handoffs import DATA, Inbox, World, until, world
from rabbitmq_server import RabbitServer

from treaty_consensus.errors import Malformed, NotFound
from treaty_handoff import Handling, HandoffAgent, Kind, Outcome, Seal, Status
from treaty_handoff import dead_letters as dead_letters_module
from treaty_handoff.dead_letters import BEGINNINGS
from treaty_handoff.envelopes import envelope
from treaty_handoff.journal import Journal

DRAIN = 10
"""Seconds after SIGTERM in which a container is killed."""
PROGRAM = Path(__file__).parents[1] / "support" / "handoff_process.py"
TASK, STATUS = Kind.TASK_TRANSFER, Kind.STATUS_UPDATE


@pytest.fixture(params=["postgres", "rabbitmq"])
async def bare(request: pytest.FixtureRequest, database: str) -> AsyncIterator[tuple[World, list[str]]]:
    """Agents without encryption at rest, and the URLs for a process that joins them."""
    rabbit: RabbitServer | None = request.getfixturevalue("rabbit") if request.param == "rabbitmq" else None
    urls = [database] if rabbit is None else [database, rabbit.url]
    async with world(database, None if rabbit is None else rabbit.url) as scene:
        yield scene, urls


async def deaths_of(arguments: list[str], healthy: asyncio.Event) -> int:
    """Run a receiver, and start it again whenever it dies. Return how often it died before it is healthy."""
    deaths = 0
    while True:
        process = await asyncio.create_subprocess_exec(sys.executable, PROGRAM, *arguments)
        try:
            ended, over = asyncio.create_task(process.wait()), asyncio.create_task(healthy.wait())
            await asyncio.wait([ended, over], return_when=asyncio.FIRST_COMPLETED)
            if healthy.is_set():
                return deaths
            deaths += 1
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.threat(245)
async def test_a_lethal_message_is_set_aside_and_can_return(bare: tuple[World, list[str]]) -> None:
    place, urls = bare
    desk, support = await place.agent("desk"), place.name("support")
    feedback, healthy = Inbox(desk, STATUS), asyncio.Event()
    async with place.journals[desk.name].transaction() as transaction:
        await transaction.connection.execute("create table effect (message_id text not null)")
    await place.run(desk)
    poison = place.message(TASK, "desk", "support", data={**DATA[TASK], "objective": POISON})
    await desk.send(poison)
    running = asyncio.create_task(deaths_of(["receiver", desk.name, support, *urls], healthy))
    (update,) = await feedback.wait(1)
    assert update["payload"]["data"]["in_reply_to"] == poison["metadata"]["message_id"]
    assert update["payload"]["data"]["status"] == "FAILED" and "never ended" in update["payload"]["data"]["detail"]
    # The receiver lives, and takes the next message.
    await desk.send(place.message(TASK, "desk", "support"))
    await feedback.wait(2)
    assert feedback.statuses == ["FAILED", "COMPLETED"]
    healthy.set()
    assert await running == BEGINNINGS
    # The operator looks at it, repairs the receiver, and gives it back.
    repaired = await place.agent("support")
    done = Inbox(repaired, TASK)
    (letter,) = await repaired.dead_letters.list(support)
    assert (letter.message_id, letter.queue) == (poison["metadata"]["message_id"], support)
    assert await repaired.set_aside() == {support: 1}
    assert f'handoff_set_aside{{queue="{support}"}} 1' in repaired.metrics.exposition({}, await repaired.set_aside())
    await repaired.dead_letters.give_back(letter.number)
    await place.run(repaired)
    assert await done.wait() == [poison]
    await feedback.wait(3)
    assert feedback.statuses == ["FAILED", "COMPLETED", "COMPLETED"]
    assert await repaired.set_aside() == {support: 0}


@pytest.mark.sample(1)
async def test_004_08_and_22_a_killed_receiver_loses_nothing(
    bare: tuple[World, list[str]],
) -> None:
    made, urls = bare
    desk, support = await made.agent("desk"), made.name("support")
    await made.run(desk)
    async with made.journals[desk.name].transaction() as transaction:
        await transaction.connection.execute("create table effect (message_id text not null)")
    task = made.message(TASK, "desk", "support", data={**DATA[TASK], "objective": LONG})
    await desk.send(task)
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAM, "receiver", desk.name, support, *urls, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"WORKING\n"
        process.terminate()
        async with asyncio.timeout(DRAIN):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    async with made.journals[desk.name].transaction() as transaction:
        assert await transaction.connection.fetch("select * from effect") == []
        # An orderly end is no attempt that failed.
        assert not await transaction.connection.fetchval("select sum(times) from handoff_begun where queue = $1", support)
    again = await made.agent("support")
    done = Inbox(again, TASK)
    await made.run(again)
    assert await done.wait() == [task]


@pytest.mark.sample(1)
@pytest.mark.threat(245)
async def test_an_always_failing_message_is_set_aside(anywhere: World) -> None:
    desk, support = await anywhere.agent("desk"), await anywhere.agent("support")
    feedback, attempts = Inbox(desk, STATUS), 0

    @support.handles(TASK)
    async def work(handling: Handling) -> Outcome:
        nonlocal attempts
        attempts += 1
        await handling.report(Status.IN_PROGRESS, "Begun.", None)
        raise RuntimeError("The line is dead.")

    await anywhere.run(desk, support)
    task = anywhere.message(TASK, "desk", "support", instructions={"failure_handling_strategy": {"retry_count": 2}})
    await desk.send(task)
    await feedback.wait(2)
    # The report of the first attempt stands for those of the others, too.
    assert attempts == 3 and sorted(feedback.statuses) == ["FAILED", "IN_PROGRESS"]
    for round_number in (1, 2):
        (letter,) = await support.dead_letters.list(anywhere.name("support"))
        assert letter.reason == "RuntimeError" and letter.message_id == task["metadata"]["message_id"]
        await support.dead_letters.give_back(letter.number)
        # Each further failure is a further report, and the message is set aside again.
        await feedback.wait(2 + round_number)
        assert attempts == 3 * (round_number + 1)
    (letter,) = await support.dead_letters.list(anywhere.name("support"))
    await support.dead_letters.delete(letter.number)
    for missing in (letter.number, 0):
        with pytest.raises(NotFound):
            await support.dead_letters.give_back(missing)
    assert await support.set_aside() == {anywhere.name("support"): 0}


@pytest.mark.threat(245)
async def test_a_message_that_the_database_refuses_is_invalid(here: World) -> None:
    """PostgreSQL writes no zero byte into a text. Without a rule for it, the error would come with each attempt."""
    desk, support = await here.agent("desk"), await here.agent("support")
    effects, queue = Inbox(support, TASK), here.name("support")
    assert here.seal is not None
    for place in ("task_id", "correlation_id", "sender_id"):
        message = here.message(TASK, "desk", "support")
        message["metadata"][place] = "a\0b"
        with pytest.raises(Malformed):
            await desk.send(message)
        await (await here.broker()).publish(queue, here.seal.close(envelope(message, None), f"queue/{queue}"), 0)
    await here.run(support)
    await until(lambda: support.metrics.total("refused") == 3)
    assert effects.messages == [] and await support.set_aside() == {queue: 0}


@pytest.mark.sample(1)
@pytest.mark.threat(248)
async def test_unopened_messages_are_kept_for_the_operator(anywhere: World) -> None:
    """A receiver that lost its key destroys nothing: with the key, the operator gives the messages back."""
    desk, support, queue = await anywhere.agent("desk"), await anywhere.agent("support"), anywhere.name("support")
    message = anywhere.message(TASK, "desk", "support")
    await anywhere.run(desk)
    await desk.send(message)
    async with Journal.open(anywhere.url, queue, seal=Seal(b"x" * 32)) as journal:
        stranger = HandoffAgent(queue, journal, await anywhere.broker())
        effects = Inbox(stranger)
        async with stranger.running():
            await until(lambda: stranger.metrics.total("refused") == 1)
        assert effects.messages == []
    done = Inbox(support, TASK)
    (letter,) = await support.dead_letters.list(queue)
    assert letter.message_id == "" and "not sealed with a key" in letter.reason
    await support.dead_letters.give_back(letter.number)
    await anywhere.run(support)
    assert await done.wait() == [message]


@pytest.mark.deep
@pytest.mark.threat(244)
async def test_a_flood_of_unreadable_messages_is_bounded(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters_module, "MAX_DEAD", 3)
    support, broker = await here.agent("support"), await here.broker()
    for number in range(5):
        await broker.publish(here.name("support"), b"garbage %d" % number, 0)
    await here.run(support)
    await until(lambda: support.metrics.total("refused") == 5)
    assert await support.set_aside() == {here.name("support"): 3}
    assert [entry.event for entry in await here.journals[here.name("support")].events("")].count("dropped") == 2


@pytest.mark.deep
async def test_ends_and_unreadable_documents_are_no_failures(here: World) -> None:
    desk, support = await here.agent("desk"), await here.agent("support")
    started, feedback = asyncio.Event(), Inbox(desk, STATUS)

    @support.handles(TASK)
    async def hang(handling: Handling) -> None:
        started.set()
        await asyncio.sleep(3600)

    await here.run(desk)
    await desk.send(here.message(TASK, "desk", "support"))
    for _ in range(BEGINNINGS + 1):
        started.clear()
        async with support.running():
            await started.wait()
    Inbox(support, TASK)
    await here.run(support)
    await feedback.wait()
    assert feedback.statuses == ["COMPLETED"]
    assert await support.set_aside() == {here.name("support"): 0}


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.parametrize("times", [1, 2])
async def test_the_command_shows_gives_back_and_deletes(here: World, times: int) -> None:
    support, broker, queue = await here.agent("support"), await here.broker(), here.name("support")
    async with support.running():
        for number in range(times):
            await broker.publish(queue, b"garbage %d" % number, 0)
        await until(lambda: support.metrics.total("refused") == times)

    async def command(*arguments: str) -> tuple[int | None, str]:
        pipe = asyncio.subprocess.PIPE
        program = [sys.executable, "-m", "treaty_handoff", *arguments]
        process = await asyncio.create_subprocess_exec(*program, stdout=pipe, stderr=pipe)
        out, err = await process.communicate()
        return process.returncode, (out + err).decode()

    code, text = await command("list", here.url, queue)
    lines = text.splitlines()
    assert code == 0 and len(lines) == times and all("not sealed with a key" in line for line in lines)
    message_id = lines[0].split()[0]
    assert (await command("give-back" if times == 1 else "delete", here.url, queue, message_id)) == (0, "")
    assert await support.set_aside() == {queue: times - 1}
    assert await here.journals[queue].waiting() == (1 if times == 1 else 0)
    code, text = await command("delete", here.url, queue, message_id)
    assert code != 0 and "is set aside" in text
