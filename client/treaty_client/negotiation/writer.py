"""Writing a handler until it passes: ask, build, try in the sandbox, tell what failed, ask again, a bounded number of times."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol, TypeVar

from treaty_consensus.errors import Refused, TreatyError

from ..handlers import SandboxPool
from ..model.port import Prompt
from . import questions
from .negotiator import Implementation
from .package import Written, build, project_files
from .questions import Task
from .trial import try_handler

_NOT_ITS_FAULT = frozenset({"sandbox.unavailable", "sandbox.closed"})

T = TypeVar("T")


class Ask(Protocol):
    """Puts a prompt to the language model. Raises as `LanguageModel.complete` does."""

    def __call__(self, prompt: Prompt[T]) -> Awaitable[T]: ...


class Handler(NamedTuple):
    """What was written, and what became of it."""

    written: Written
    implementation: Implementation


class Writer:
    """Writes handlers for one session."""

    def __init__(self, ask: Ask, pool: SandboxPool, *, fix_rounds: int, licence: str) -> None:
        """`pool`: isolates by bubblewrap, always: nobody vouches for this code."""
        self._ask, self._pool, self._fix_rounds, self._licence = ask, pool, fix_rounds, licence

    async def write(self, task: Task) -> Handler:
        """A handler that passes.

        Raises `Refused` (`negotiation.handler`) when none did within the rounds, with the last failure, `Unavailable`
        (`sandbox.unavailable`), and what asking raises.
        """
        return await self._mended(task, await self._ask(questions.handler(task)), self._fix_rounds)

    async def mend(self, task: Task, written: Written, failure: str) -> Handler:
        """A handler that passes, made from one that does not. Raises as `write` does."""
        if self._fix_rounds == 0:
            raise _given_up(0, failure)
        return await self._mended(task, await self._ask(questions.repair(task, written, failure)), self._fix_rounds - 1)

    async def check(self, task: Task, written: Written) -> Handler | str:
        """Try what was written before: the handler, or what is wrong with it. Raises `Unavailable` (`sandbox.unavailable`)."""
        try:
            return Handler(written, await self._try(task, written))
        except TreatyError as error:
            if error.code in _NOT_ITS_FAULT:
                raise
            return f"{error.message} ({error.code})"

    async def _mended(self, task: Task, written: Written, rounds: int) -> Handler:
        while isinstance(outcome := await self.check(task, written), str):
            if rounds == 0:
                raise _given_up(self._fix_rounds, outcome)
            rounds -= 1
            written = await self._ask(questions.repair(task, written, outcome))
        return outcome

    async def _try(self, task: Task, written: Written) -> Implementation:
        document, situation = task.document, task.situation
        topic = document.topic or (situation.requirement.topic if situation.requirement else "")
        files = project_files(document, written, topic=topic, licence=self._licence, vectors={})
        package = await build(files, document.uri)
        vectors = await try_handler(self._pool, package, task.agreed or written.cases)
        files = project_files(document, written, topic=topic, licence=self._licence, vectors=vectors)
        return Implementation(document.uri, topic, package, files)


def _given_up(rounds: int, failure: str) -> Refused:
    return Refused(
        "negotiation.handler",
        f"The language model wrote no handler that passes its test cases, mending it {rounds} times. The last failure: {failure}",
    )
