"""The authors of a history: they send statements to any process, again and again until they have a receipt or a final refusal."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from signers import Signer, domain_signer

from treaty_consensus import kinds
from treaty_consensus.did import parse_did
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_registry.log.entry import Logged

from .processes import Process, World

AUTHORS = [domain_signer(f"{name}.example") for name in ("alice", "bob", "carol")]
TOPIC = "commerce/product-info"
_PATIENCE = 40.0
"""Seconds that an author waits for an answer. The registry promises one sooner."""


@dataclass
class Wish:
    """A statement that its author wants logged. `index`, `receipt`: of the first answer. `refusal`: it is final."""

    author: Signer
    body: kinds.Body | None
    name: str
    leaf: bytes = b""
    id: str = ""
    index: int | None = None
    receipts: list[bytes] = field(default_factory=list)
    refusal: TreatyError | None = None

    @property
    def settled(self) -> bool:
        """Whether the author knows what became of it."""
        return self.index is not None or self.refusal is not None


@cache
def grant(number: int) -> tuple[Signer, kinds.Body]:
    """Return a grant; some of them take another back."""
    author = AUTHORS[number % len(AUTHORS)]
    return author, kinds.Grant(
        parse_did(author.did).namespace, f"did:wba:friend-{number // 2 % 4}.example", withdrawn=number % 5 == 4
    )


@cache
def vouch(number: int) -> tuple[Signer, kinds.Body]:
    """Return a vouch; of several with one number the log takes one."""
    author, to = AUTHORS[number % 3], AUTHORS[(number + 1) % 3]
    return author, kinds.Vouch(to.did, number // 6, number % 2 == 1)


@cache
def _signed(author: Signer, body: kinds.Body) -> tuple[bytes, str]:
    made = author.statement(body)
    return made.leaf, made.id


class Clients:
    """All authors of a history."""

    def __init__(self, world: World, duration: float) -> None:
        self._world = world
        self._rng = rng = world.scheduler.rng
        self.wishes: list[Wish] = []
        self.open = 0
        """Attempts that are under way."""
        self._copies = 0
        self._loss = rng.choice((0.0, 0.0, 0.1, 0.3))
        for number in rng.sample(range(40), rng.randrange(2, 7)):
            self.wishes.append(Wish(*grant(number), name=f"grant {number}"))
        for number in rng.sample(range(18), rng.randrange(0, 4)):
            self.wishes.append(Wish(*vouch(number), name=f"vouch {number}"))
        for number in range(rng.randrange(0, 3)):
            # It is signed when it is sent, because it carries a checkpoint.
            self.wishes.append(Wish(rng.choice(AUTHORS), None, name=f"ballot {number}"))
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
        if not serving or not all(wish.leaf or self._sign(wish, rng.choice(serving)) for wish in batch):
            world.scheduler.after(1.0, None, lambda: self._send(batch))
            return
        self._attempt(rng.choice(serving), batch)
        # An author that is in a hurry sends the same to another one, or twice.
        # A few times only: each copy is answered and sent again on its own.
        if rng.random() < 0.15 and self._copies < 5:
            self._copies += 1
            self._attempt(rng.choice(serving), batch[: rng.randrange(1, len(batch) + 1)])

    def _sign(self, wish: Wish, process: Process) -> bool:
        body = wish.body
        if body is None:
            assert process.registry is not None
            body = kinds.Ballot(TOPIC, 0, ((kinds.NONE,),), process.registry.head.note.decode())
        wish.leaf, wish.id = _signed(wish.author, body)
        return True

    def _attempt(self, process: Process, batch: list[Wish]) -> None:
        world, registry = self._world, process.registry
        assert registry is not None
        self.open += 1
        done = False
        acknowledged = [wish.index is not None for wish in batch]
        world.scheduler.note(f"{', '.join(wish.name for wish in batch)} → {process.name}")

        def finish(outcome: list[Logged | TreatyError] | None) -> None:
            nonlocal done
            if not done:
                done = True
                self.open -= 1
                self._answered(process, batch, acknowledged, outcome)

        async def submit() -> None:
            outcome: Any
            try:
                outcome = await registry.submit([wish.leaf for wish in batch])
            except TreatyError as error:
                outcome = [error] * len(batch)
            except Exception as error:
                if process.alive:  # otherwise it is only collected
                    world.found(f"A submission to {process.name} failed with an internal error: {error!r}")
                return
            if self._rng.random() >= self._loss:
                world.scheduler.after(self._rng.random() * 0.1, None, lambda: finish(outcome))

        world.scheduler.after(self._rng.random() * 0.1, process.loop, lambda: process.loop.create_task(submit()))
        world.scheduler.after(_PATIENCE if self._rng.random() < 0.7 else 3.0, None, lambda: finish(None))

    def _answered(
        self, process: Process, batch: list[Wish], acknowledged: list[bool], outcome: list[Logged | TreatyError] | None
    ) -> None:
        world = self._world
        again: list[Wish] = []
        for number, wish in enumerate(batch):
            answer = outcome[number] if outcome is not None else None
            if isinstance(answer, Logged):
                self._logged(process, wish, answer)
                if self._rng.random() < 0.2:
                    again.append(wish)
            elif answer is None or isinstance(answer, Unavailable):
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
