"""Epochs by schedule: closed when they are due, not before, not twice; and with nothing to decide, not again and again."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from open_electorates import anchor, draft, write
from registries import TOPIC, Web, ballot, contents, log, operator_in, settings_for
from signers import NOW, Signer

from treaty_agent.testing.virtual_time import run
from treaty_consensus import kinds
from treaty_consensus.audit import Replay
from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_registry.operator.schedule import Schedule, Timetable
from treaty_registry.registry import Registry

PERIOD = 100


@dataclass
class Epochs:
    """A log's epochs in virtual time, by the rule of admission. `closings`: when each was closed, in seconds from the start.
    `empty`: seconds in which there is nothing to decide; `failures`: how many more attempts fail."""

    empty: range = range(0)
    failures: int = 0
    opened: int = 0
    epoch: int = 0
    closings: list[float] = field(default_factory=list)
    attempts: list[float] = field(default_factory=list)
    looks: int = 0

    def __post_init__(self) -> None:
        self._loop_start = asyncio.get_running_loop().time()

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time() - self._loop_start

    def clock(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)

    async def timetable(self) -> Timetable | None:
        self.looks += 1
        return Timetable(self.epoch, self.opened + PERIOD, PERIOD)

    async def close(self) -> list[str]:
        self.attempts.append(self.now)
        due = self.opened + PERIOD
        if self.failures:
            self.failures -= 1
            raise Unavailable("some.code", "Not now.")
        if int(self.now) in self.empty:
            return []
        assert self.now >= due, "admission refuses what comes too early"
        self.closings.append(self.now)
        self.opened, self.epoch = int(self.now) - (int(self.now) - due) % PERIOD, self.epoch + 1
        return ["decision"]


def scheduled(seconds: float, **options: object) -> Epochs:
    """What a schedule does in so many virtual seconds."""

    async def work() -> Epochs:
        epochs = Epochs(**options)  # type: ignore[arg-type]
        running = asyncio.create_task(Schedule(epochs.timetable, epochs.close, epochs.clock).run())
        await asyncio.sleep(seconds)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return epochs

    return run(work())


def test_epochs_close_when_due_without_drift() -> None:
    epochs = scheduled(1_050)
    assert [round(at) for at in epochs.closings] == list(range(100, 1_001, 100))
    assert len(epochs.attempts) == len(epochs.closings)
    assert epochs.looks < 1_050 / 5 * 2, "nobody is kept busy by waiting"


def test_an_empty_epoch_is_retried_when_next_due() -> None:
    epochs = scheduled(550, empty=range(350))
    assert [round(at) for at in epochs.attempts] == [100, 200, 300, 400, 500]
    assert [round(at) for at in epochs.closings] == [400, 500]


def test_what_fails_is_tried_again() -> None:
    epochs = scheduled(350, failures=3)
    assert [round(at) for at in epochs.closings] == [115, 200, 300]


def test_a_registry_that_was_away_goes_on_with_the_schedule() -> None:
    epochs = scheduled(250, opened=-930)
    assert [round(at) for at in epochs.closings] == [0, 70, 170]


@pytest.mark.parametrize(
    ("now", "after"), [(0, 100), (99.9, 100), (100, 200), (100.5, 200), (199, 200), (200, 300), (1234, 1300)]
)
def test_the_times_of_an_epoch_without_news(now: float, after: int) -> None:
    assert Timetable(0, 100, 100).after(now) == after


# A real log, whose clock stands still unless a test moves it.


@dataclass
class Clock:
    """`seconds` since the test began."""

    seconds: float = 0

    def __call__(self) -> datetime:
        return datetime.fromtimestamp(NOW + self.seconds, UTC)


@asynccontextmanager
async def opened(data: Path, database: str, web: Web, clock: Clock) -> AsyncIterator[Registry]:
    """A registry whose log begins with an open electorate, when it is new."""
    settings = replace(settings_for(data / "registry", database), parameters=write(data, PERIOD))
    async with Registry.open(settings, clock=clock, resolve=web.resolve) as registry:
        yield registry


@pytest.fixture
def voter(web: Web) -> Signer:
    agent = anchor(0)
    web.serve(agent)
    return agent


async def closed(registry: Registry) -> int:
    """Let the schedule look at the clock; returns the open epoch."""
    with suppress(Refused):  # the registry's own task may have looked at the same moment
        await registry.schedule.close_if_due()
    return (await registry.parameters_status()).epoch


async def test_a_log_begins_open_and_closes_by_its_clock(tmp_path: Path, database: str, web: Web, voter: Signer) -> None:
    clock = Clock()
    async with opened(tmp_path, database, web, clock) as registry:
        status = await registry.parameters_status()
        assert (status.in_force.parameters, status.announced, status.closes) == (draft(PERIOD).parameters, None, NOW + PERIOD)
        assert status.in_force.parameters.electorate == "open"
        await log(registry, ballot(registry), voter)
        clock.seconds = PERIOD - 1
        before = await contents(registry)
        with pytest.raises(Refused) as refusal:
            await registry.decide()
        assert refusal.value.code == "decision.early"
        assert datetime.fromtimestamp(NOW + PERIOD, UTC).isoformat() in refusal.value.message
        assert await closed(registry) == 0
        assert await contents(registry) == before
        clock.seconds = 2 * PERIOD + 7
        assert await closed(registry) == 1
        assert (await registry.parameters_status()).closes == NOW + 3 * PERIOD
        assert await closed(registry) == 1


async def test_a_restart_goes_on_and_audit_agrees(tmp_path: Path, database: str, web: Web, voter: Signer) -> None:
    clock = Clock()
    async with opened(tmp_path, database, web, clock) as registry:
        await log(registry, ballot(registry), voter)
    clock.seconds = PERIOD
    async with opened(tmp_path, database, web, clock) as registry:
        assert await closed(registry) == 1
        replay = Replay(registry.blobs.reader())
        leaves = await registry.leaves(range(registry.head.size))
        await asyncio.to_thread(lambda: [replay.append(leaves[index]) for index in range(registry.head.size)])
        assert replay.root() == registry.head.root
        assert not (await registry.rebuild()).differed


async def test_an_epoch_without_news_stays_open(tmp_path: Path, database: str, web: Web, voter: Signer) -> None:
    clock = Clock(PERIOD)
    async with opened(tmp_path, database, web, Clock()) as registry:
        assert (await registry.parameters_status()).closes == NOW + PERIOD
    async with opened(tmp_path, database, web, clock) as registry:
        assert await closed(registry) == 0
        await log(registry, ballot(registry), voter)
        clock.seconds += PERIOD - 1
        assert await closed(registry) == 0
        clock.seconds += 1
        assert await closed(registry) == 1


async def test_from_development_to_an_open_electorate(registry: Registry, web: Web, voter: Signer) -> None:
    assert (await registry.parameters_status()).closes is None
    await log(registry, ballot(registry), voter)
    announced = await registry.announce(draft(PERIOD))
    status = await registry.parameters_status()
    assert (announced.epoch, status.epoch, status.in_force.parameters.electorate) == (1, 0, "development")
    assert status.announced is not None
    assert (status.announced.statement, status.announced.index) == (announced.statement, announced.index)
    (decided,) = await registry.decide()
    assert decided.decision.electorate == "development"
    status = await registry.parameters_status()
    assert (status.in_force.statement, status.announced, status.closes) == (announced.statement, None, NOW + PERIOD)
    with pytest.raises(Refused, match="closes by itself"):
        await registry.decide()


async def test_whoever_submits_parameters_uploads_their_list_first(registry: Registry, tmp_path: Path) -> None:
    body = draft().parameters
    statement = operator_in(tmp_path / "registry").state(body, issued=registry.clock()).statement
    before = await contents(registry)
    (refused,) = await registry.submit([statement.leaf])
    assert isinstance(refused, TreatyError)
    assert refused.code == "blob.missing"
    assert await contents(registry) == before


async def test_only_the_operator_states_parameters(registry: Registry, web: Web, voter: Signer) -> None:
    assert isinstance(draft().suffix_list, bytes)
    digest = hashlib.sha256(draft().suffix_list or b"").hexdigest()
    await registry.uploads.hold(digest, draft().suffix_list or b"", None)
    (refused,) = await registry.submit([voter.statement(draft().parameters).leaf])
    assert isinstance(refused, TreatyError)
    assert refused.code == "statement.not-operator"
    assert (await registry.parameters_status()).announced is None


async def test_two_who_close_close_one_epoch(tmp_path: Path, database: str, web: Web, voter: Signer) -> None:
    clock = Clock()
    async with opened(tmp_path, database, web, clock) as registry:
        await log(registry, ballot(registry, 0, kinds.NONE), voter)
        clock.seconds = PERIOD
        outcomes = await asyncio.gather(registry.decide(), registry.decide(), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
        assert [error.code for error in refused] == ["decision.early"]
        assert (await registry.parameters_status()).epoch == 1
        topics = [item.decision.topic for outcome in outcomes if isinstance(outcome, list) for item in outcome]
        assert topics == [TOPIC]
