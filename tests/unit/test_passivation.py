"""Sessions without workers: who has one, who waits, and what comes back is what went."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from treaty_agent.testing.virtual_time import run
from treaty_consensus.errors import Malformed, Refused, TreatyError, Unavailable
from treaty_handler import Effect, Event, Opened, Received, Send, Timer
from treaty_io.admission.message_turns import HEAVY
from treaty_io.places import asker
from treaty_sandbox.passivation import Passivation, PassiveHandler, WorkerPool

PEER = "did:wba:peer.example"


class Worker:
    """A pretended worker, and the sum that its handler knows. `seconds`: for one event."""

    def __init__(self, total: int) -> None:
        self.alive, self.total, self.seconds = True, total, 0.0


class Counter:
    """A session of a handler that adds up what it receives. It has no snapshot of a sum over a hundred. `has_calls`: whether its
    next event comes soon. `may_go_on`: whether `snapshot` is that of the last event."""

    kept = None
    has_calls = may_go_on = False

    def __init__(self, case: Case) -> None:
        self._case = case
        case.sessions.append(self)
        self.worker = case.hire(0)
        self.snapshot = 0

    @property
    def alive(self) -> bool:
        return self.worker.alive

    async def handle(self, event: Event) -> Sequence[Effect]:
        await asyncio.sleep(self.worker.seconds)
        if not self.alive:
            raise Unavailable("sandbox.died", "It is dead.")
        if isinstance(event, Received) and event.data == b"bad":
            raise Malformed("operation.arguments", "Not delivered.")
        if isinstance(event, Received) and event.data == b"fatal":
            self.worker.alive = False
            raise Refused("handler.failed", "The handler raised.")
        if isinstance(event, Timer):
            self.worker.alive = False
            raise Unavailable("sandbox.died", "It died.")
        if not isinstance(event, Received):
            return []
        if event.data == b"deadly":
            self.worker.alive = False
            raise Unavailable("sandbox.died", "It died.")
        self.worker.total += int(event.data)
        if self.may_go_on:
            self.snapshot = self.worker.total
        return [Send(peer=PEER, data=str(self.worker.total).encode())]

    async def rest(self) -> None:
        self._case.snapshots += 1
        await asyncio.sleep(0.01)
        if not self.alive:
            raise Unavailable("sandbox.died", "It is dead.")
        if self.worker.total > 100:
            raise Refused("session.snapshot", "Too large.")
        self.snapshot = self.worker.total

    async def resume(self) -> None:
        assert not self.alive
        await asyncio.sleep(0.1)
        if self._case.broken:
            raise Refused("handler.failed", "The handler raised.")
        self.worker = self._case.hire(self.snapshot)

    async def close(self) -> None:
        self.worker.alive = False


class Case:
    """A pool, and every worker that was started."""

    def __init__(self, **limits: float) -> None:
        self.pool = WorkerPool(Passivation(**limits))  # type: ignore[arg-type]
        self.workers: list[Worker] = []
        self.sessions: list[Counter] = []
        self.broken = False
        self.ended = self.snapshots = 0

    def hire(self, total: int) -> Worker:
        self.workers.append(Worker(total))
        return self.workers[-1]

    async def open(self) -> PassiveHandler:
        async def start() -> Counter:
            await asyncio.sleep(0.1)
            return Counter(self)

        handler = await self.pool.open(start, self._count)
        await handler.handle(Opened())
        return handler

    def _count(self) -> None:
        self.ended += 1

    @property
    def living(self) -> int:
        return sum(worker.alive for worker in self.workers)


async def add(handler: PassiveHandler, number: int) -> int:
    (effect,) = await handler.handle(Received(peer=PEER, data=str(number).encode()))
    assert isinstance(effect, Send)
    return int(effect.data)


async def open_for(network: str, case: Case) -> PassiveHandler:
    token = asker.set(network)
    handler = await case.open()
    asker.reset(token)
    return handler


def simulated(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Runs a test in virtual time."""

    def wrapper() -> None:
        async def main() -> None:
            await test()

        run(main())

    wrapper.__name__ = test.__name__
    return wrapper


@simulated
async def test_an_idle_session_resumes_in_another_worker() -> None:
    case = Case(idle=30)
    handler = await case.open()
    assert [await add(handler, 1), await add(handler, 2)] == [1, 3]
    await asyncio.sleep(29)
    assert case.living == 1
    await asyncio.sleep(20)
    assert case.living == 0
    assert await add(handler, 4) == 7
    assert (len(case.workers), case.living) == (2, 1)


@simulated
async def test_the_longest_idle_worker_gives_way() -> None:
    case = Case(max_workers=2, idle=1000)
    first, second, third = [await case.open() for _ in range(3)]
    assert [worker.alive for worker in case.workers] == [False, True, True]
    assert await add(second, 5) == 5
    assert await add(first, 7) == 7  # in the place of the third
    assert [worker.alive for worker in case.workers] == [False, True, False, True]
    assert await add(third, 9) == 9
    assert case.living == 2


@simulated
async def test_who_waits_for_a_worker_waits_bounded() -> None:
    case = Case(max_workers=1, wait=8)
    busy = await case.open()
    case.workers[0].seconds = 60
    working = asyncio.create_task(add(busy, 1))
    await asyncio.sleep(0)
    begun = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable) as failure:
        await case.open()
    assert failure.value.code == "session.busy"
    assert asyncio.get_running_loop().time() - begun == pytest.approx(8, abs=0.1)
    assert await working == 1
    other = await case.open()
    assert await add(other, 2) == 2
    assert case.living == 1


@simulated
async def test_an_event_that_waited_too_long_may_come_again() -> None:
    case = Case(max_workers=1, wait=8)
    passive = await case.open()
    assert await add(passive, 1) == 1
    busy = await case.open()
    case.workers[1].seconds = 60
    working = asyncio.create_task(add(busy, 1))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable) as failure:
        await add(passive, 5)
    assert failure.value.code == "session.busy"
    assert await working == 1
    assert await add(passive, 2) == 3


@simulated
async def test_so_many_workers_start_at_the_same_time() -> None:
    case = Case(max_workers=48, starts=4, wait=8)
    opening = [asyncio.create_task(case.open()) for _ in range(10)]
    seen = []
    for _ in range(4):
        await asyncio.sleep(0.099)
        seen.append((case.living, case.pool.waiting))
    assert seen == [(0, 8), (2, 6), (4, 4), (6, 2)], "one network has half of the starts"
    await asyncio.gather(*opening)
    assert case.living == 10


@simulated
async def test_a_session_with_an_open_call_keeps_its_worker() -> None:
    case = Case(max_workers=2)
    calling, idle = await case.open(), await case.open()
    for handler, worker in zip((calling, idle), case.workers, strict=True):
        assert await add(handler, 1) == 1
        assert worker.alive
    case.sessions[0].has_calls = True
    await case.open()
    assert [worker.alive for worker in case.workers] == [True, False, True]
    case.sessions[2].has_calls = True
    await add(idle, 1)
    assert [worker.alive for worker in case.workers] == [False, False, True, True], "all have calls: the one idle longest"


@simulated
async def test_a_strangers_sessions_delay_another_by_one_start() -> None:
    case = Case(max_workers=48, starts=1)
    order = list[str]()

    async def open_for(network: str) -> None:
        token = asker.set(network)
        await case.open()
        asker.reset(token)
        order.append(network)

    flood = [asyncio.create_task(open_for("203.0.113.0/24")) for _ in range(20)]
    await asyncio.sleep(0.05)
    await asyncio.gather(open_for(""), *flood)
    assert order.index("") <= 2


@pytest.mark.threat(340)
@simulated
async def test_a_network_leaves_workers_for_others() -> None:
    case = Case(max_workers=12)
    flood = await asyncio.gather(*(open_for("203.0.113.0/24", case) for _ in range(20)))
    assert [await add(handler, 1) for handler in flood] == [1] * 20
    assert case.living == 10
    rested = case.snapshots
    others = [await open_for("198.51.100.0/24", case), await open_for("192.0.2.0/24", case)]
    assert (case.living, case.snapshots) == (12, rested), "there was room for them"
    await open_for("198.51.100.0/24", case)
    assert [await add(handler, 2) for handler in flood] == [3] * 20
    assert all(handler.has_worker for handler in others), "those of the greedy network gave way"


@pytest.mark.threat(340)
@simulated
async def test_a_network_exchanges_two_workers_at_once() -> None:
    case, clock = Case(max_workers=12), asyncio.get_running_loop().time
    sessions = await asyncio.gather(*(open_for("203.0.113.0/24", case) for _ in range(20)))
    assert [await add(handler, 1) for handler in sessions] == [1] * 20
    resting, began = [handler for handler in sessions if not handler.has_worker], clock()
    assert await asyncio.gather(*(add(handler, 0) for handler in resting)) == [1] * 10
    assert 5 * 0.11 <= clock() - began < 6 * 0.11
    assert case.living == 10


@simulated
async def test_a_waiting_session_gets_the_first_idle_worker() -> None:
    case = Case(max_workers=1, wait=8)
    busy = await case.open()
    case.workers[0].seconds = 5
    working = asyncio.create_task(add(busy, 1))
    await asyncio.sleep(0)
    other = await case.open()
    assert working.done()
    assert await add(other, 3) == 3
    assert await add(busy, 1) == 2


@simulated
async def test_who_waits_gets_a_worker_although_all_are_always_busy() -> None:
    case = Case(max_workers=2, wait=8)
    sessions = [await case.open() for _ in range(2)]
    for worker in case.workers:
        worker.seconds = 1

    async def chatter(handler: PassiveHandler) -> int:
        for _ in range(100):
            total = await add(handler, 1)  # the next event is there when the last one is done
        return total

    talking = [asyncio.create_task(chatter(handler)) for handler in sessions]
    await asyncio.sleep(0)
    begun = asyncio.get_running_loop().time()
    other = await case.open()
    assert asyncio.get_running_loop().time() - begun < 3
    assert await add(other, 3) == 3
    assert await asyncio.gather(*talking) == [100, 100]


@simulated
async def test_a_handler_without_a_usable_snapshot_leaves_no_worker() -> None:
    case = Case(idle=1)
    handler = await case.open()
    await add(handler, 1)
    await asyncio.sleep(5)
    case.broken = True
    for _ in range(2):
        with pytest.raises(Refused) as failure:
            await add(handler, 1)
        assert failure.value.code == "handler.failed"
    assert case.living == 0
    await handler.close()
    case.broken = False
    assert await add(await case.open(), 1) == 1  # the place is free again


@simulated
async def test_an_event_that_was_not_delivered_changes_nothing() -> None:
    case = Case(idle=1)
    handler = await case.open()
    with pytest.raises(Malformed):
        await handler.handle(Received(peer=PEER, data=b"bad"))
    assert await add(handler, 1) == 1
    await asyncio.sleep(5)
    assert await add(handler, 1) == 2


@simulated
async def test_what_kills_the_worker_ends_the_session() -> None:
    case = Case()
    handler = await case.open()
    for _ in range(2):
        with pytest.raises(Refused) as failure:
            await handler.handle(Received(peer=PEER, data=b"fatal"))
        assert failure.value.code == "handler.failed"


@simulated
async def test_a_worker_that_died_between_two_events_is_not_replaced() -> None:
    case = Case(idle=1, max_workers=1)
    handler = await case.open()
    case.workers[0].alive = False
    await asyncio.sleep(5)
    assert case.pool.is_full is False
    with pytest.raises(Unavailable) as failure:
        await add(handler, 1)
    assert failure.value.code == "sandbox.died"
    assert len(case.workers) == 1


@simulated
async def test_a_session_without_snapshot_keeps_an_unwanted_worker() -> None:
    case = Case(max_workers=2, idle=1)
    handler = await case.open()
    await add(handler, 200)
    await asyncio.sleep(60)
    assert (case.living, case.snapshots) == (1, 1)  # it is asked once, not again and again
    other = await case.open()
    assert await add(other, 1) == 1
    third = await case.open()  # the other one can rest
    assert await add(handler, -150) == 50
    await asyncio.sleep(60)
    assert case.living == 0
    assert [await add(session, 1) for session in (handler, other, third)] == [51, 2, 1]


@simulated
async def test_those_without_a_snapshot_do_not_lock_everybody_else_out() -> None:
    case = Case(max_workers=4, idle=1)
    hoarders = [await case.open() for _ in range(4)]
    for handler in hoarders:
        await add(handler, 200)
    await add(hoarders[0], 1)
    await asyncio.sleep(60)
    assert case.living == 4
    other = await case.open()
    assert await add(other, 7) == 7
    assert [worker.alive for worker in case.workers] == [True, False, True, True, True]
    for _ in range(2):
        with pytest.raises(Unavailable) as failure:
            await add(hoarders[1], 1)  # idle longest
        assert failure.value.code == "session.no-worker"
    await hoarders[1].close()
    assert [await add(hoarders[number], 1) for number in (0, 2, 3)] == [202, 201, 201]


@simulated
async def test_even_if_they_are_always_busy() -> None:
    case = Case(max_workers=1, idle=1)
    hoarder = await case.open()
    await add(hoarder, 200)
    case.workers[0].seconds = 1

    async def chatter() -> None:
        while True:
            await add(hoarder, 1)

    talking = asyncio.create_task(chatter())
    await asyncio.sleep(0)
    assert await add(await case.open(), 7) == 7
    with pytest.raises(Unavailable) as failure:
        await talking
    assert failure.value.code == "session.no-worker"


@simulated
async def test_a_session_goes_on_when_its_successor_left() -> None:
    case = Case(max_workers=1, idle=1000, wait=8)
    hoarder = await case.open()
    await add(hoarder, 200)
    await hoarder.yield_worker()
    assert await add(hoarder, 1) == 201
    assert len(case.workers) == 1


@simulated
async def test_who_stops_waiting_interrupts_no_snapshot() -> None:
    case = Case(max_workers=1)
    handler = await case.open()
    await add(handler, 1)
    asking = asyncio.create_task(case.open())
    await asyncio.sleep(0.005)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.sleep(1)
    assert (case.living, case.snapshots) == (0, 1)
    assert await add(handler, 1) == 2


@simulated
async def test_a_session_is_closed_with_and_without_a_worker() -> None:
    case = Case(idle=1)
    live, passive = await case.open(), await case.open()
    await asyncio.sleep(5)
    await add(live, 1)
    await asyncio.gather(live.close(), passive.close(), live.close())
    assert (case.living, case.ended) == (0, 1)
    for handler in (live, passive):
        with pytest.raises(TreatyError) as failure:
            await add(handler, 1)
        assert failure.value.code == "session.closed"
    assert len(case.workers) == 3
    await case.pool.close()


@simulated
async def test_one_that_is_closed_while_it_is_rebuilt_leaves_no_worker() -> None:
    case = Case(idle=1, max_workers=1)
    handler = await case.open()
    await asyncio.sleep(5)
    waking = asyncio.create_task(add(handler, 1))
    await asyncio.sleep(0.05)
    await handler.close()
    with pytest.raises(TreatyError):
        await waking
    assert case.living == 0
    assert await add(await case.open(), 1) == 1


@simulated
async def test_a_cancelled_rebuild_can_be_repeated() -> None:
    case = Case(idle=1, max_workers=1)
    handler = await case.open()
    await add(handler, 1)
    await asyncio.sleep(5)
    waking = asyncio.create_task(add(handler, 1))
    await asyncio.sleep(0.05)
    waking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waking
    assert case.living == 0
    assert await add(handler, 1) == 2


@simulated
async def test_workers_in_waiting_count_and_give_way() -> None:
    spares = ["a", "b"]
    case = Case()
    case.pool = WorkerPool(Passivation(max_workers=3), spares=lambda: len(spares), release_spare=lambda: spares.remove(spares[0]))
    first = await case.open()
    assert spares == ["a", "b"]
    second = await case.open()
    assert spares == ["b"]
    third = await case.open()
    assert spares == []
    assert case.living == 3
    assert [await add(handler, 1) for handler in (first, second, third)] == [1, 1, 1]


@pytest.mark.threat(340)
def test_large_messages_of_a_network_share_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    large = Received(peer=PEER, data=b" " * HEAVY + b"1")

    async def main() -> None:
        case, ended = Case(), dict[str, list[float]]()
        loop = asyncio.get_running_loop()

        async def handle(network: str, event: Received, handler: PassiveHandler) -> None:
            asker.set(network)
            await handler.handle(event)
            ended.setdefault(network, []).append(round(loop.time() - begun))

        handlers = [await case.open() for _ in range(10)]
        for worker in case.workers:
            worker.seconds = 1.0
        begun = loop.time()
        small = Received(peer=PEER, data=b"1")
        works = [*[("flood", large)] * 8, ("honest", large), ("small", small)]
        await asyncio.gather(*(handle(*work, handler) for work, handler in zip(works, handlers, strict=True)))
        assert ended == {"flood": [1, 1, 2, 2, 3, 3, 4, 4], "honest": [1], "small": [1]}

    run(main())


@simulated
@pytest.mark.threat(379)
async def test_a_fresh_snapshot_outlives_its_worker() -> None:
    case = Case()
    handler = await case.open()
    case.sessions[0].may_go_on = True
    assert await add(handler, 1) == 1
    case.workers[0].alive = False
    assert await add(handler, 2) == 3
    case.workers[1].alive = False
    case.broken = True
    with pytest.raises(Refused):
        await add(handler, 4)
    case.broken = False
    assert await add(handler, 4) == 7
    with pytest.raises(Refused) as refused:
        await handler.handle(Received(peer=PEER, data=b"deadly"))
    assert (refused.value.code, case.living) == ("session.message", 0)
    assert await add(handler, 1) == 8  # the message cost its sender alone
    with pytest.raises(Unavailable):
        await handler.handle(Timer(name="deadly"))
    with pytest.raises(Unavailable):
        await add(handler, 1)
    assert (len(case.workers), case.living) == (6, 0)
