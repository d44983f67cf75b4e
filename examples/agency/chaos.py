"""Faults of a running agency. Each is one method; `Chaos.run` does them one after the other while trips are arranged.

No method waits for a quiet moment, and none tells an agent that a fault comes.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from processes import Actor
from stage import REGISTRY

from .world import DRIVERS, FLIGHTS, HERE, HOTELS, PAYMENTS, PLANNER, RIDES, TRAVELLER, World

MINUTES_5 = 300
PAUSES = (2.5, 5.0, 10.0)
"""Seconds of pauses of a machine, one after the other. An event of a handler with code may take less."""


@dataclass(frozen=True)
class Fault:
    """A fault that happened. `began`, `ended`: by the monotonic clock, which all processes share."""

    name: str
    began: float
    ended: float


@dataclass
class Chaos:
    """The faults of one world. `down`: seconds that the registry is away, or a process is stopped. `happened`: in order. `now`:
    the name of the one under way, or ""."""

    world: World
    down: float
    happened: list[Fault] = field(default_factory=list)
    now: str = ""

    def __post_init__(self) -> None:
        self._pauses = itertools.cycle(PAUSES)

    def run(self, faults: Sequence[str], *, trips: int, finished: Callable[[], int]) -> None:
        """Do the faults, spread over a number of trips. `finished`: returns the number of trips that are over."""
        for number, name in enumerate(faults, start=1):
            while finished() < number * trips // (len(faults) + 1):
                time.sleep(0.05)
            with self._noting(name):
                getattr(self, name)()

    # Faults

    def registry_restarts(self) -> None:
        """The registry is ended, is away for a while, and starts again on its log."""
        with self._registry_away():
            time.sleep(self.down)

    def registry_hangs(self) -> None:
        """The registry takes connections and answers nothing."""
        self._stop(REGISTRY)

    def vendor_killed(self) -> None:
        """A vendor dies, and its operator starts it again."""
        self._restart(FLIGHTS)

    def vendor_killed_without_registry(self) -> None:
        """A vendor dies and starts again while the registry is away."""
        with self._registry_away():
            self._restart(HOTELS)

    def planner_killed(self) -> None:
        """The agency dies in the midst of trips."""
        self._restart(PLANNER)

    def planner_deployed(self) -> None:
        """The agency is ended by SIGTERM, and started again."""
        self._deploy(PLANNER)

    def bank_killed(self) -> None:
        """The bank dies in the midst of payments."""
        self._restart(PAYMENTS)

    def room_killed(self) -> None:
        """The dispatch dies in the midst of auctions, with ten drivers in its room."""
        self._restart(RIDES)

    def room_deployed(self) -> None:
        """The dispatch is ended by SIGTERM, and started again."""
        self._deploy(RIDES)

    def drivers_killed(self) -> None:
        """All drivers die in the midst of auctions."""
        _kill(self.world.actors[DRIVERS])
        self.world.start_agent(DRIVERS)

    def vendor_hangs(self) -> None:
        """A vendor takes connections and answers nothing."""
        self._stop(HOTELS)

    def bank_hangs(self) -> None:
        """The bank takes connections and answers nothing."""
        self._stop(PAYMENTS)

    def planner_paused(self) -> None:
        """The machine of the agency is paused in the midst of trips."""
        self._stop(PLANNER, next(self._pauses))

    def vendor_paused(self) -> None:
        """The machine of a vendor is paused."""
        self._stop(FLIGHTS, next(self._pauses))

    def bank_paused(self) -> None:
        """The machine of the bank is paused in the midst of payments, whose handler is in a sandbox."""
        self._stop(PAYMENTS, next(self._pauses))

    def room_paused(self) -> None:
        """The machine of the dispatch is paused in the midst of auctions."""
        self._stop(RIDES, next(self._pauses))

    def drivers_paused(self) -> None:
        """The machine of the drivers is paused in the midst of auctions."""
        self._stop(DRIVERS, next(self._pauses))

    def traveller_paused(self) -> None:
        """The machine of the traveller is paused, with calls and approvals under way."""
        self._stop(TRAVELLER, next(self._pauses))

    def vendor_moves(self) -> None:
        """A vendor starts at another address; the old process dies when the domain names the new one."""
        before = self.world.actors[HOTELS]
        self.world.start_agent(HOTELS, side=self._other_side(HOTELS))
        self.world.wait(HOTELS)
        _kill(before)

    def bank_moves(self) -> None:
        """The bank dies, and starts at another address."""
        _kill(self.world.actors[PAYMENTS])
        self.world.start_agent(PAYMENTS, side=self._other_side(PAYMENTS))
        self.world.wait(PAYMENTS)

    def version_published(self) -> None:
        """A new version of the offers is published, and the vendors provide both versions."""
        project = self.world.stage.root / "offers-1.1"
        shutil.copytree(HERE / "protocols" / "offers", project)
        toml = project / "protocol.toml"
        toml.write_text(toml.read_text().replace('version = "1.0"', 'version = "1.1"'))
        self.world.publish(project)
        for vendor in (FLIGHTS, HOTELS):
            self._restart(vendor)

    def handler_yanked(self) -> None:
        """The handler of the old offers is taken back. Agents that renew their proofs cannot use this version any more."""
        old = next(uri for uri in self.world.wheels if uri.endswith("/travel-offers/1.0"))
        self.world.stage.treaty(PLANNER, "yank", old, "--wheel", self.world.wheels[old])
        self._restart(FLIGHTS)

    def key_rotated(self) -> None:
        """The bank gets a new key. Its web server names it, and then the agent starts with it."""
        document = self.world.stage.root / "domains" / PAYMENTS / "did.json"
        self.world.stage.treaty(PAYMENTS, "identity", "rotate", "--document", str(document))
        self._restart(PAYMENTS)
        self.world.stage.treaty(PAYMENTS, "identity", "confirm")

    def clocks_differ(self) -> None:
        """A vendor's clock is five minutes fast, the bank's five minutes slow."""
        for domain, seconds in ((FLIGHTS, MINUTES_5), (PAYMENTS, -MINUTES_5)):
            self._restart(domain, seconds)

    def clocks_right(self) -> None:
        """All clocks are right again."""
        for domain in (FLIGHTS, PAYMENTS):
            self._restart(domain)

    # Parts of faults

    @contextmanager
    def _registry_away(self) -> Iterator[None]:
        registry = self.world.actors[REGISTRY]
        registry.terminate()
        registry.end()
        yield
        self.world.start_registry()
        self.world.actors[REGISTRY].listens(self.world.stage.ports["registry"])

    def _deploy(self, domain: str) -> None:
        actor = self.world.actors[domain]
        actor.terminate()
        actor.end()
        self._restart(domain)

    def _restart(self, domain: str, seconds: int = 0) -> None:
        _kill(self.world.actors[domain])
        shifted = {"PYTHONPATH": f"{HERE.parent}:{HERE / 'clock'}", "CLOCK_OFFSET": str(seconds)} if seconds else {}
        self.world.start_agent(domain, environment=shifted)
        self.world.wait(domain)

    def _stop(self, name: str, seconds: float = 0.0) -> None:
        process = self.world.actors[name].process
        process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds or self.down)
        finally:
            process.send_signal(signal.SIGCONT)

    def _other_side(self, domain: str) -> str:
        return "b" if self.world.hosts[domain].startswith("a.") else "a"

    @contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        began, self.now = time.monotonic(), name
        self.world.tell(f"{name}: {getattr(self, name).__doc__}")
        yield
        self.happened.append(Fault(name, began, time.monotonic()))
        self.now = ""


SHORT = ("vendor_killed", "registry_restarts", "bank_hangs", "vendor_moves", "planner_killed")
PAUSED = ("bank_paused", "planner_paused", "vendor_paused", "traveller_paused", "bank_paused")
"""Five, so that each agent has a pause of another length in each round."""
ROOM = ("room_killed", "room_paused", "drivers_killed", "room_deployed", "drivers_paused")
ONCE = ("version_published", "handler_yanked")
"""Faults that can happen only once in a world, in this order."""
FULL = (
    "vendor_killed",
    "registry_hangs",
    "planner_killed",
    "registry_restarts",
    "vendor_hangs",
    "bank_killed",
    "vendor_moves",
    "vendor_killed_without_registry",
    "clocks_differ",
    "version_published",
    "bank_hangs",
    "bank_moves",
    "handler_yanked",
    "key_rotated",
    "planner_deployed",
    "vendor_moves",
    "clocks_right",
)


def of_rounds(faults: Sequence[str], rounds: int) -> list[str]:
    """Return faults, several times."""
    return [*faults, *(name for name in [*faults] * (rounds - 1) if name not in ONCE)]


def _kill(actor: Actor) -> None:
    actor.process.kill()
    actor.process.wait()
