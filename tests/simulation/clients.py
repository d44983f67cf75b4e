"""The authors of a history: they send statements to any process, again and again until they have a receipt or a final refusal.
The operator closes epochs."""

from __future__ import annotations

from typing import Any

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_registry.log.entry import Logged
from treaty_registry.storage.postgres import DATABASE_ERRORS

from .processes import Process, World
from .wishes import Wish, draw, grant

_PATIENCE = 40.0
"""Seconds that an author waits for an answer. The registry promises one sooner."""


class Clients:
    """All authors of a history."""

    def __init__(self, world: World, duration: float) -> None:
        self._world = world
        self._rng = rng = world.scheduler.rng
        self.wishes = draw(rng)
        self.open = 0
        """Attempts that are under way."""
        self._copies = 0
        self._loss = rng.choice((0.0, 0.0, 0.1, 0.3))
        world.write_more = self._write_more
        for _ in range(rng.choice((0, 0, 1, 2))):
            world.scheduler.at(rng.random() * duration, None, self._close_epoch)
        waiting = list(self.wishes)
        rng.shuffle(waiting)
        while waiting:
            batch = [waiting.pop() for _ in range(min(len(waiting), rng.choice((1, 1, 2, 4))))]
            world.scheduler.at(rng.random() * duration, None, lambda batch=batch: self._send(batch))  # type: ignore[misc]

    @property
    def settled(self) -> bool:
        """Whether every statement has its answer."""
        return not self.open and all(wish.settled for wish in self.wishes)

    def _send(self, batch: list[Wish]) -> None:
        world, rng = self._world, self._rng
        serving = [process for process in world.processes if process.registry is not None]
        later = [wish for wish in batch if not (serving and wish.ready)]
        if later:
            world.scheduler.after(1.0, None, lambda: self._send(later))
            batch = [wish for wish in batch if wish not in later]
        if not batch:
            return
        for wish in batch:
            wish.sign(rng.choice(serving).registry.head.note.decode(), world.server.tables)  # type: ignore[union-attr]
        self._attempt(rng.choice(serving), batch)
        # An author that is in a hurry sends the same to another one, or twice.
        # A few times only: each copy is answered and sent again on its own.
        if rng.random() < 0.15 and self._copies < 5:
            self._copies += 1
            self._attempt(rng.choice(serving), batch[: rng.randrange(1, len(batch) + 1)])

    def _write_more(self) -> None:
        wish = grant(40 + len(self.wishes))
        self.wishes.append(wish)
        self._send([wish])

    def _close_epoch(self) -> None:
        world = self._world
        serving = [process for process in world.processes if process.registry is not None and process.registry.leader.leads]
        if not serving:
            return
        process = self._rng.choice(serving)
        registry: Any = process.registry
        world.scheduler.note(f"the operator closes the epoch at {process.name}")

        async def close() -> None:
            try:
                decided = await registry.decide()
                world.scheduler.note(f"{process.name}: closed the epoch with decisions {[item.index for item in decided]}")
            except TreatyError as error:
                world.scheduler.note(f"{process.name}: did not close the epoch: {error.code}")
            except Exception as error:
                if process.alive and not isinstance(error, DATABASE_ERRORS):
                    world.found(f"{process.name} did not close the epoch because of an internal error: {error!r}")

        world.scheduler.after(0.0, process.loop, lambda: process.loop.create_task(close()))

    def _attempt(self, process: Process, batch: list[Wish]) -> None:
        world, registry = self._world, process.registry
        assert registry is not None
        self.open += 1
        done = False
        acknowledged = [wish.index is not None for wish in batch]
        recoveries = world.faults.recoveries
        world.scheduler.note(f"{', '.join(wish.name for wish in batch)} → {process.name}")

        def finish(outcome: list[Logged | TreatyError] | None) -> None:
            nonlocal done
            if not done:
                done = True
                self.open -= 1
                self._answered(process, batch, acknowledged, recoveries, outcome)

        async def submit() -> None:
            outcome: Any
            try:
                for wish in batch:
                    for data in wish.blobs if wish.index is None else ():
                        await self._upload(registry, wish, data)
                outcome = await registry.submit([wish.leaf for wish in batch])
            except TreatyError as error:
                outcome = [error] * len(batch)
            except Exception as error:
                if process.alive:  # otherwise it is only collected
                    world.found(f"A submission to {process.name} failed with an internal error: {error!r}")
                return
            # After the last fault every answer arrives: a loss costs an author 40 seconds, and all must settle.
            if self._rng.random() >= self._loss or self._world.faults.healed:
                world.scheduler.after(self._rng.random() * 0.1, None, lambda: finish(outcome))

        world.scheduler.after(self._rng.random() * 0.1, process.loop, lambda: process.loop.create_task(submit()))
        world.scheduler.after(_PATIENCE if self._rng.random() < 0.7 else 3.0, None, lambda: finish(None))

    async def _upload(self, registry: Any, wish: Wish, data: bytes) -> None:
        try:
            await registry.put_blob(hex_digest(data), wish.leaf, data)
        except Unavailable:
            raise
        except TreatyError as error:
            # It may be logged, and its blob withdrawn since. The statement tells.
            self._world.scheduler.note(f"{wish.name}: upload refused: {error.code}")

    def _answered(
        self,
        process: Process,
        batch: list[Wish],
        acknowledged: list[bool],
        recoveries: int,
        outcome: list[Logged | TreatyError] | None,
    ) -> None:
        world = self._world
        # What is read from an old backup is old: a blob that a statement names is not there, for example.
        old = world.faults.restored or world.faults.recoveries > recoveries
        again: list[Wish] = []
        for number, wish in enumerate(batch):
            answer = outcome[number] if outcome is not None else None
            if isinstance(answer, Logged):
                self._logged(process, wish, answer)
                if self._rng.random() < 0.3:
                    again.append(wish)
            elif answer is None or isinstance(answer, Unavailable) or old:
                world.scheduler.note(f"{wish.name}: {answer.code if answer else 'no answer'} from {process.name}")
                again.append(wish)
            else:
                world.scheduler.note(f"{wish.name}: refused by {process.name}: {answer.code}")
                if acknowledged[number]:
                    world.found(f"{process.name} refused {wish.name}, which has a receipt: {answer.code}.")
                wish.refusal = wish.refusal or answer
        if again:
            pause = 0.2 + self._rng.random() * 3
            world.scheduler.after(pause, None, lambda: self._send(again))

    def _logged(self, process: Process, wish: Wish, answer: Logged) -> None:
        self._world.scheduler.note(f"{wish.name}: leaf {answer.index} by {process.name}")
        if answer.id != wish.id:
            self._world.found(f"{wish.name} got the receipt of another statement.")
        if wish.index not in (None, answer.index):
            self._world.found(f"{wish.name} is leaf {wish.index} and leaf {answer.index}.")
        wish.index = answer.index
        wish.receipts.append(answer.receipt)
