"""Virtual time: one queue of events for all simulated processes, and an event loop of asyncio for each process.

Nothing here reads a clock or a descriptor. A process is an event loop: a killed one runs no further callback, so that no
`finally`
and no `except` of the product takes part in a crash. A suspended one runs its events later.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
from asyncio import _set_running_loop
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """The process ends inside a call into the simulation."""


def settle(future: asyncio.Future[Any], value: Any) -> None:
    """Answer a task that may have given up."""
    if not future.done():
        future.set_result(value)


class Event:
    """A callback with its time. It is also the handle that asyncio gets."""

    __slots__ = ("_call", "_context", "_time", "cancelled_")

    def __init__(self, time: float, call: Callable[[], Any], context: contextvars.Context | None = None) -> None:
        self._time = time
        self._call: Callable[[], Any] | None = call
        self._context = context
        self.cancelled_ = False

    def cancel(self) -> None:
        """Do not run the callback."""
        self.cancelled_, self._call = True, None

    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self.cancelled_

    def when(self) -> float:
        """Return the time."""
        return self._time

    def run(self) -> None:
        """Run the callback, once."""
        call, self._call = self._call, None
        if call is not None:
            if self._context is None:
                call()
            else:
                self._context.run(call)


class Scheduler:
    """All events in the order of their times. `rng` is the only source of chance of a history."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.steps: list[str] = []
        """The history, in readable steps."""
        self._events: list[tuple[float, int, Event, SimulatedLoop | None]] = []
        self._numbers = itertools.count()

    def note(self, step: str) -> None:
        """Add a step to the history."""
        self.steps.append(f"{self.now:10.4f}  {step}")

    def at(self, time: float, loop: SimulatedLoop | None, call: Callable[[], Any]) -> Event:
        """Run `call` at `time`, in a process or, with None, in the world around them."""
        return self.push(Event(max(time, self.now), call), loop)

    def after(self, delay: float, loop: SimulatedLoop | None, call: Callable[[], Any]) -> Event:
        """Run `call` after `delay` seconds."""
        return self.at(self.now + delay, loop, call)

    def push(self, event: Event, loop: SimulatedLoop | None) -> Event:
        """Enter an event."""
        heapq.heappush(self._events, (event.when(), next(self._numbers), event, loop))
        return event

    def run(self, until: Callable[[], bool], limit: float) -> bool:
        """Run events until a condition holds, and return whether it does; at the latest until the time `limit`."""
        while not until():
            if not self._events or self._events[0][0] > limit:
                return False
            time, _, event, loop = heapq.heappop(self._events)
            if event.cancelled_ or (loop is not None and loop.dead):
                continue
            self.now = max(self.now, time)
            if loop is None:
                event.run()
            else:
                loop.turn(event)
        return True


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The event loop of one process."""

    def __init__(self, scheduler: Scheduler, process: Any, delay: Callable[[], float]) -> None:
        """`process`: the simulated process that runs on it. `delay`: seconds that a job in a thread takes."""
        self.process = process
        self.dead = False
        self.errors: list[str] = []
        """Errors that no task handled."""
        self._scheduler = scheduler
        self._delay = delay
        self._ready: deque[Event] = deque()
        self._held: list[Event] | None = None
        self._threads: defaultdict[int, float] = defaultdict(float)

    # The process's life.

    def kill(self) -> None:
        """End the process: none of its callbacks runs any more."""
        self.dead = True
        self._ready.clear()

    def suspend(self) -> None:
        """Stop the process, as SIGSTOP does."""
        self._held = [] if self._held is None else self._held

    @property
    def suspended(self) -> bool:
        """Whether it is stopped."""
        return self._held is not None

    def resume(self) -> None:
        """Continue. Everything that came due meanwhile runs now, in its order."""
        events, self._held = self._held or [], None
        for event in events:
            self._scheduler.push(Event(self._scheduler.now, event.run), self)

    def turn(self, event: Event) -> None:
        """Run an event, and everything that it makes ready."""
        if self._held is not None:
            self._held.append(event)
            return
        _set_running_loop(self)
        try:
            event.run()
            while self._ready and not self.dead:
                self._ready.popleft().run()
        except Killed:
            assert self.dead
        finally:
            _set_running_loop(None)

    # The part of asyncio's interface that the product uses.

    def time(self) -> float:
        return self._scheduler.now

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Event:  # type: ignore[override]
        event = Event(self._scheduler.now, lambda: callback(*args), contextvars.copy_context() if context is None else context)
        if not self.dead:
            self._ready.append(event)
        return event

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Event:  # type: ignore[override]
        event = Event(
            max(when, self._scheduler.now), lambda: callback(*args), contextvars.copy_context() if context is None else context
        )
        return event if self.dead else self._scheduler.push(event, self)

    def call_later(self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Event:  # type: ignore[override]
        return self.call_at(self._scheduler.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run a job in a simulated thread. Jobs of one executor follow each other."""
        future = self.create_future()
        delay, key = self._delay(), id(executor)
        # The work takes effect before it is reported, so a process can be killed in between.
        self._threads[key] = ends = max(self._threads[key], self._scheduler.now) + delay
        self._scheduler.at(ends - delay * self._scheduler.rng.random(), self, lambda: self._job(future, ends, func, args))
        return future

    def _job(self, future: asyncio.Future[Any], ends: float, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        result: Any = None
        error: Exception | None = None
        try:
            result = func(*args)
        except Exception as raised:
            error = raised

        def report() -> None:
            if not future.done():  # the waiting task may have given up
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(result)

        self._scheduler.at(ends, self, report)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Collect the error of a task that nothing awaits."""
        if not self.dead and context.get("exception") is not None:
            self.errors.append(f"{context['message']}: {context['exception']!r}")
