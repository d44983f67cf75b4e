"""Turns at the registry's work: whose turn it is, how much goes in, and what is measured."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from treaty_consensus.errors import Unavailable
from treaty_registry.admission import fair_queue
from treaty_registry.admission.fair_queue import LEAST, MAX_WAITING, RECOVERY, FairQueue

FLOOD, HONEST, OTHER = "192.0.2.1", "198.51.100.1", "203.0.113.1"


@dataclass
class Work:
    """A queue on a clock of the test's, and submissions that work until they are told to end."""

    now: float = 1_000.0
    order: list[tuple[str, int]] = field(default_factory=list)

    async def measure(self) -> None:
        """Let the queue measure a machine that finishes a hundred leaves a second."""
        await self.finish_all([asyncio.create_task(self.submit(f"192.1.{number}.1", 16)) for number in range(20)])
        self.order.clear()

    def __post_init__(self) -> None:
        self.queue = FairQueue(lambda: self.now, capacity=100)
        self.ends: list[tuple[asyncio.Event, int]] = []

    async def submit(self, source: str, leaves: int) -> None:
        begun = False
        while leaves:
            async with self.queue.turn(source, leaves, begun=begun) as granted:
                begun = True
                self.order.append((source, granted))
                leaves -= granted
                end = asyncio.Event()
                self.ends.append((end, granted))
                await end.wait()

    async def finish_all(self, tasks: list[asyncio.Task[None]], rate: float = 100) -> None:
        """Work on one turn after the other, at so many leaves a second, until all is done."""
        while not all(task.done() for task in tasks):
            await settle()
            if self.ends:
                end, granted = self.ends.pop(0)
                self.now += granted / rate
                end.set()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_lone_batch_enters_up_to_the_work_at_a_time() -> None:
    work = Work()
    tasks = [asyncio.create_task(work.submit(FLOOD, 100))]
    await work.finish_all(tasks)
    assert work.order == [(FLOOD, 24)] * 4 + [(FLOOD, 4)]


@pytest.mark.threat(77)
async def test_one_statement_waits_for_a_turn_and_not_for_a_flood() -> None:
    work = Work()
    tasks = [asyncio.create_task(work.submit(FLOOD, 64)) for _ in range(4)]
    await settle()
    tasks.append(asyncio.create_task(work.submit(HONEST, 1)))
    await work.finish_all(tasks)
    before = work.order[: work.order.index((HONEST, 1))]
    assert sum(granted for _, granted in before) <= LEAST, "of 256 leaves that were there before it"


@pytest.mark.threat(77)
async def test_networks_take_turns_whatever_they_submit() -> None:
    work = Work()
    tasks = [asyncio.create_task(work.submit(f"192.0.2.{number}", 1)) for number in range(200)]
    await settle()
    tasks += [asyncio.create_task(work.submit(source, 1)) for source in (HONEST, OTHER, HONEST)]
    await work.finish_all(tasks)
    places = [place for place, (source, _) in enumerate(work.order) if source in (HONEST, OTHER)]
    assert places[-1] <= LEAST + 6


async def test_before_anything_was_measured_nobody_is_sent_away() -> None:
    work = Work()
    tasks = [asyncio.create_task(work.submit(FLOOD, 250)) for _ in range(8)]
    await settle()
    assert not any(task.done() for task in tasks)
    await work.finish_all(tasks)


@pytest.mark.threat(77)
async def test_who_would_wait_too_long_is_sent_away_and_others_are_not() -> None:
    work = Work()
    await work.measure()
    tasks = [asyncio.create_task(work.submit(FLOOD, 100)) for _ in range(8)]
    await settle()
    assert [task.done() for task in tasks] == [False] * 6 + [True] * 2, "500 leaves are 5 seconds"
    for task in tasks[6:]:
        with pytest.raises(Unavailable) as error:
            task.result()
        assert error.value.code == "quota.total"
    honest = asyncio.create_task(work.submit(HONEST, 1))
    await settle()
    assert not honest.done()
    await work.finish_all([*tasks[:6], honest])
    assert (HONEST, 1) in work.order


async def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "PATIENCE", 1e9)
    work = Work()
    tasks = [asyncio.create_task(work.submit(f"10.{number // 250}.{number % 250}.1", 256)) for number in range(40)]
    await settle()
    refused = [task for task in tasks if task.done()]
    assert len(refused) == 40 - MAX_WAITING // 256 - 2, "two of them are being worked on"
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError, Unavailable):
            await task


async def test_one_network_takes_half_of_the_places_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    work.queue = FairQueue(lambda: work.now, width=1, waiting=64, code="registry.busy")
    tasks = [asyncio.create_task(work.submit(FLOOD, 1)) for _ in range(100)]
    await settle()
    refused = [task for task in tasks if task.done()]
    assert len(refused) == 100 - 1 - 32
    with pytest.raises(Unavailable) as error:
        refused[0].result()
    assert error.value.code == "registry.busy"
    honest = asyncio.create_task(work.submit(HONEST, 1))
    await settle()
    assert not honest.done()
    for task in refused:
        task.exception()
    await work.finish_all([honest, *tasks])
    assert work.order[1] == (HONEST, 1) or work.order[2] == (HONEST, 1)


@pytest.mark.parametrize("early", [True, False])
async def test_a_submitter_that_goes_away_leaves_its_room_to_the_next(early: bool) -> None:
    work = Work()
    working = asyncio.create_task(work.submit(FLOOD, LEAST))
    await settle()
    gone = [asyncio.create_task(work.submit(FLOOD, LEAST)) for _ in range(3)]
    await settle()
    if not early:
        work.ends.pop(0)[0].set()  # the first of them is granted its turn in the very moment in which it is cancelled
    for task in gone:
        task.cancel()
    await settle()
    honest = asyncio.create_task(work.submit(HONEST, LEAST))
    await work.finish_all([honest, working])
    assert sum(granted for source, granted in work.order if source == HONEST) == LEAST


async def test_the_capacity_is_what_was_done_while_others_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "PATIENCE", 1e9)
    work = Work()
    assert work.queue.capacity == 100
    tasks = [asyncio.create_task(work.submit(f"192.0.{number}.1", 160)) for number in range(20)]
    await work.finish_all(tasks, rate=400)
    assert 350 < work.queue.capacity < 450
    tasks = [asyncio.create_task(work.submit(HONEST, 1)) for _ in range(3)]
    await work.finish_all(tasks, rate=0.01)
    assert work.queue.capacity > 350, "an idle registry measures nothing"


async def test_what_was_slow_once_is_tried_again() -> None:
    work = Work()
    tasks = [asyncio.create_task(work.submit(f"192.0.{number}.1", 16)) for number in range(20)]
    await work.finish_all(tasks, rate=8)
    slow = work.queue.capacity
    work.now += RECOVERY
    assert work.queue.capacity == pytest.approx(2 * slow, rel=0.1)
    work.now += 1_000_000
    assert work.queue.capacity == 100, "the largest known, and no more"


async def test_there_is_room_at_once_for_the_next_network_to_come() -> None:
    work = Work()
    flood = [asyncio.create_task(work.submit(FLOOD, 64)) for _ in range(4)]
    await settle()
    honest = asyncio.create_task(work.submit(HONEST, 1))
    await settle()
    assert work.order[-1] == (HONEST, 1)
    await work.finish_all([*flood, honest])


async def test_a_leaf_that_waits_for_another_host_takes_no_room() -> None:
    work, answered = Work(), asyncio.Event()

    async def learn(source: str) -> None:
        async with work.queue.turn(source, 1):
            with work.queue.aside(source):
                await answered.wait()

    slow = [asyncio.create_task(learn(f"192.0.{number}.1")) for number in range(4 * LEAST)]
    await settle()
    honest = asyncio.create_task(work.submit(HONEST, 1))
    await settle()
    assert work.order == [(HONEST, 1)]
    answered.set()
    await asyncio.gather(*slow)
    await work.finish_all([honest])
    last = asyncio.create_task(work.submit(OTHER, 2 * LEAST))
    await work.finish_all([last])
    assert work.order[1] == (OTHER, 24), "all room is there again"


@pytest.mark.threat(73)
async def test_a_fixed_width() -> None:
    work = Work()
    work.queue = FairQueue(lambda: work.now, capacity=100, width=2)
    tasks = [asyncio.create_task(work.submit(source, 1)) for source in (FLOOD, FLOOD, FLOOD, HONEST, OTHER)]
    await settle()
    assert [source for source, _ in work.order] == [FLOOD, HONEST], "one of them is left for others"
    await work.finish_all(tasks)
    assert [source for source, _ in work.order] == [FLOOD, HONEST, FLOOD, OTHER, FLOOD]


async def test_a_slow_machine_takes_less_into_work() -> None:
    work = Work()
    tasks = [asyncio.create_task(work.submit(f"192.0.{number}.1", 16)) for number in range(20)]
    await work.finish_all(tasks, rate=8)
    assert 10 <= work.queue.capacity < 20


async def test_work_behind_hanging_work_waits_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "PATIENCE", 0.05)
    work = Work()
    work.queue = FairQueue(lambda: work.now, width=1, code="registry.busy")
    hangs = asyncio.create_task(work.submit(FLOOD, 1))
    await settle()
    with pytest.raises(Unavailable) as error:
        await work.submit(HONEST, 1)
    assert error.value.code == "registry.busy"
    await work.finish_all([hangs])
    await work.finish_all([asyncio.create_task(work.submit(HONEST, 1))])
    assert work.order == [(FLOOD, 1), (HONEST, 1)]
