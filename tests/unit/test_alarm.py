"""One timer for a deadline that moves."""

from __future__ import annotations

import asyncio
import math
import os
from typing import Any

import pytest
from pauses import pause

from treaty_agent.testing.virtual_time import run
from treaty_io.alarm import Alarm
from treaty_io.alarm_timeout import AlarmTimeout
from treaty_io.shared_timer import SharedCall, SharedTimer


class Rung:
    """An alarm, when it rang, and the timers that it took."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.times: list[float] = []
        self.timers = 0
        self._began, self._call_at = loop.time(), loop.call_at
        loop.call_at = self._count  # type: ignore[method-assign]
        self.alarm = Alarm(lambda: self.times.append(round(loop.time() - self._began, 3)))

    def _count(self, *arguments: object, **options: object) -> asyncio.TimerHandle:
        self.timers += 1
        return self._call_at(*arguments, **options)  # type: ignore[arg-type]


def test_postponing_a_deadline_costs_no_timer() -> None:
    async def main() -> None:
        rung = Rung()
        for _ in range(100):
            rung.alarm.set_in(10)
            await asyncio.sleep(0.1)
        assert (rung.times, rung.timers) == ([], 102)  # the sleeps take one each, and the alarm looked again after ten seconds
        await asyncio.sleep(20)
        assert rung.times == [19.9]

    run(main())


def test_a_shared_timer_makes_each_call_at_its_time() -> None:
    async def main() -> None:
        loop, timer, made = asyncio.get_running_loop(), SharedTimer(), list[tuple[str, float]]()
        began, call_at, timers = loop.time(), loop.call_at, list[float]()

        def counted(when: float, callback: Any) -> asyncio.TimerHandle:
            timers.append(when - began)
            return call_at(when, callback)

        def call(name: str, seconds: float) -> SharedCall:
            return timer.call_at(began + seconds, lambda: made.append((name, round(loop.time() - began, 3))))

        failures = list[Any]()
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        loop.call_at = counted  # type: ignore[method-assign, assignment]
        call("late", 20)
        call("early", 5)
        cancelled = call("cancelled", 8)
        timer.call_at(began + 10, lambda: others[0].cancel())  # noqa: PLW0108 (made below)
        others = [call("cancelled at its time", 10)]
        timer.call_at(began + 20, lambda: 1 / 0)
        call("after the failure", 20)
        assert timers == [20, 5], "one timer at a time"
        loop.call_at = call_at  # type: ignore[method-assign]
        cancelled.cancel()
        await asyncio.sleep(30)
        assert made == [("early", 5), ("late", 20), ("after the failure", 20)]
        assert [type(failure) for failure in failures] == [ZeroDivisionError]

    run(main())


def test_alarms_share_a_timer() -> None:
    async def main() -> None:
        timer, rung = SharedTimer(), list[str]()
        alarm = Alarm(lambda: rung.append("alarm"), timer)
        alarm.set_in(20)
        with pytest.raises(TimeoutError):
            async with AlarmTimeout(asyncio.get_running_loop().time() + 6, timer):
                await asyncio.sleep(60)
        assert rung == []
        await asyncio.sleep(15)
        assert rung == ["alarm"]

    run(main())


def test_an_earlier_time_rings_earlier_and_only_once() -> None:
    async def main() -> None:
        rung = Rung()
        rung.alarm.set_in(10)
        rung.alarm.set_in(2)
        await asyncio.sleep(30)
        assert rung.times == [2.0]

    run(main())


def test_an_alarm_can_be_set_again_when_it_rings() -> None:
    async def main() -> None:
        rung = Rung()
        ring = rung.alarm.ring

        def again() -> None:
            ring()
            if len(rung.times) < 3:
                rung.alarm.set_in(5)

        rung.alarm.ring = again
        rung.alarm.set_in(5)
        await asyncio.sleep(60)
        assert rung.times == [5.0, 10.0, 15.0]

    run(main())


def test_a_cancelled_alarm_and_one_without_a_time_never_ring() -> None:
    async def main() -> None:
        cancelled, never = Rung(), Rung()
        cancelled.alarm.set_in(1)
        cancelled.alarm.cancel()
        never.alarm.set_in(1)
        never.alarm.set(math.inf)
        await asyncio.sleep(60)
        assert cancelled.times == never.times == []

    run(main())


def test_after_a_pause_what_had_arrived_goes_before_what_was_due() -> None:
    async def main() -> None:
        loop, (ours, theirs), happened = asyncio.get_running_loop(), os.pipe(), []
        alarms = [Alarm(lambda name=name: happened.append(name)) for name in ("first", "second")]  # type: ignore[misc]
        alarms[0].set_in(0.05)
        alarms[1].set_in(0.35)
        due = loop.time() + 0.05

        def read() -> None:
            happened.append(os.read(ours, 1).decode())
            alarms[0].set(due)

        loop.add_reader(ours, read)
        await asyncio.sleep(0)
        os.write(theirs, b"abc")
        pause(0.6)  # a process that is stopped: three messages wait, each of which takes a turn of the loop
        try:
            with pytest.raises(TimeoutError):
                async with AlarmTimeout(due):
                    await asyncio.sleep(60)
            # Messages that set the due time again delay it no further.
            async with asyncio.timeout(5):
                while len(happened) < 5:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert happened[:3] == ["a", "b", "c"]
            assert set(happened[3:]) == {"first", "second"}
        finally:
            loop.remove_reader(ours)
            os.close(ours)
            os.close(theirs)

    asyncio.run(main())
