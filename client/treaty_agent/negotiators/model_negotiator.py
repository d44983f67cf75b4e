"""Negotiate with a language model, and let it write the handler.

    agent = Agent(…, negotiators=ModelNegotiators(OpenAIModel.from_environment()))

The model's answers are read strictly (`questions`). The code that it writes runs only in a sandbox (`handler_check`). The cost of
a session is bounded (`Allowance`). The writer asks for code, builds it and tries it; then it reports a failure and asks again, a
bounded number of times.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.printable import printable
from treaty_io.codes import NegotiationCode, SandboxCode
from treaty_sandbox import SandboxLimits, SandboxPool
from treaty_sandbox.isolation import at_least

from . import questions
from .documents import NegotiatedDocument, resolve
from .handler_check import try_handler
from .language_model import Allowance, Budget, LanguageModel, Prompt
from .negotiator import (
    Acceptance,
    FaultAdmitted,
    Implementation,
    ModelSpend,
    NegotiationContext,
    Proposal,
    Rejection,
    Verdict,
)
from .package import Written, build, project_files, read_project
from .questions import Task
from .spending import Spending
from .test_cases import read_test_cases

# The model cannot repair a sandbox that is missing or closing.
_NOT_ITS_FAULT = frozenset({SandboxCode.UNAVAILABLE, SandboxCode.CLOSED, SystemCode.MISSING})


class PromptRunner(Protocol):
    """Send a prompt to the language model. Raises the errors of `LanguageModel.complete`."""

    def __call__(self, prompt: Prompt[T]) -> Awaitable[T]: ...


class WrittenHandler(NamedTuple):
    """The code that the model wrote, and the implementation built from it."""

    written: Written
    implementation: Implementation


class Writer:
    """Writes handlers for one session."""

    def __init__(self, ask: PromptRunner, pool: SandboxPool, *, fix_rounds: int, licence: str) -> None:
        """Set the pool and the limits. `pool`: must isolate, because the author of this code is not trusted."""
        self._ask, self._pool, self._fix_rounds, self._licence = ask, pool, fix_rounds, licence

    async def write(self, task: Task) -> WrittenHandler:
        """Return a handler that passes.

        Raises `Refused` (`negotiation.handler`) with the last failure when no handler passed within the rounds, `Unavailable`
        (`sandbox.unavailable`), and the errors of asking.
        """
        return await self._until_passing(task, await self._ask(questions.handler(task)), self._fix_rounds)

    async def repair(self, task: Task, written: Written, failure: str) -> WrittenHandler:
        """Repair a handler that failed; return one that passes. Raises the errors of `write`."""
        # Without rounds there is no repair; the failure is final.
        if self._fix_rounds == 0:
            raise _given_up(0, failure)
        return await self._until_passing(task, await self._ask(questions.repair(task, written, failure)), self._fix_rounds - 1)

    async def check(self, task: Task, written: Written) -> WrittenHandler | str:
        """Try written code: return the handler, or a description of the failure. Raises `Unavailable` (`sandbox.unavailable`)."""
        try:
            return WrittenHandler(written, await self._try(task, written))
        except TreatyError as error:
            # A missing sandbox is not the model's fault, so it is not asked to repair anything.
            if error.code in _NOT_ITS_FAULT:
                raise
            return f"{error.message} ({error.code})"

    async def _until_passing(self, task: Task, written: Written, rounds: int) -> WrittenHandler:
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
        # Built again: the published wheel contains the vectors, and both sides shall run the code that one of them publishes.
        package = await build(files, document.uri)
        return Implementation(document.uri, topic, package, files)


def _given_up(rounds: int, failure: str) -> Refused:
    return Refused(
        NegotiationCode.HANDLER,
        f"The language model wrote no handler that passes its test cases in {rounds} repairs. The last failure: {failure}",
    )


# Both sides have ten messages together; a cap keeps a changed limit from growing every prompt.
MAX_HISTORY = 20
MAX_NOTED = 300
"""Characters of a summary in the history."""

T = TypeVar("T")


class ModelNegotiators:
    """Implements `Negotiators`."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        allowance: Allowance | None = None,
        fix_rounds: int = 3,
        licence: str = "Apache-2.0",
        limits: SandboxLimits | None = None,
    ) -> None:
        """Set the model and the limits.

        `allowance`: for each session.
        `fix_rounds`: the number of times that a failing handler is returned to the model.
        `licence`: of the code that the model writes, an SPDX expression.
        `limits`: of the sandbox that tries the code.
        """
        self._model, self._spending = model, Spending(model.budget)
        self._allowance, self._fix_rounds, self._licence = allowance or Allowance(), fix_rounds, licence
        # No idle workers: handlers are tried rarely.
        self._pool = SandboxPool(size=0, levels=at_least("process"), limits=limits)

    def open(self, situation: NegotiationContext) -> ModelNegotiator:
        """Return a negotiator with its own budget. An initiator's own capabilities are left out: they do not concern its
        requirement."""
        budget = Budget(self._allowance, within=self._spending.budgets(situation.payer))
        # Its offers are for others; a model would propose them although they were not asked for.
        if situation.role == "initiator":
            situation = replace(situation, capabilities=())

        async def ask(prompt: Prompt[T]) -> T:
            return await self._model.complete(prompt, budget)

        writer = Writer(ask, self._pool, fix_rounds=self._fix_rounds, licence=self._licence)
        return ModelNegotiator(self._model, budget, writer, situation)

    def spent(self) -> ModelSpend:
        """See `Negotiators`."""
        return self._spending.snapshot()

    async def aclose(self) -> None:
        """Close the sandbox and the model."""
        await self._pool.close()
        await self._model.aclose()


class ModelNegotiator:
    """Implements `Negotiator`. Made by `ModelNegotiators.open`."""

    def __init__(self, model: LanguageModel, budget: Budget, writer: Writer, situation: NegotiationContext) -> None:
        self._model, self._budget, self._writer, self._situation = model, budget, writer, situation
        self._own = self._own_cases = self._on_the_table = ""
        self._history: list[str] = []
        self._task: Task | None = None
        self._handler: WrittenHandler | None = None
        # Whether the code was tested in an earlier session. A peer must not have it written anew by test cases of its own.
        self._is_kept = False

    async def draft(self) -> Proposal | Rejection:
        """See `Negotiator`, as for all methods."""
        return self._said(await self._ask(questions.draft(self._situation)))

    async def consider(self, document: str, summary: str, *, last: bool) -> Verdict:
        # The session refused a text whose pinned base cannot be had.
        resolved = await resolve(document, self._situation.documents)
        self._on_the_table = document
        prompt = questions.consider(
            self._situation, resolved, summary, own=self._own, history=self._history[-MAX_HISTORY:], last=last
        )
        self._note("peer", summary or f"proposed {resolved.title}")
        verdict = await self._ask(prompt)
        return self._said(verdict) if isinstance(verdict, Proposal | Rejection) else verdict

    async def implement(self, document: str, *, error: str = "") -> Implementation:
        task = await self._task_for(document)
        self._on_the_table = document
        if self._handler is None:
            self._handler = await self._kept(task.document) or await self._writer.write(task)
        elif error:
            self._handler = await self._writer.repair(task, self._handler.written, f"The other agent says: {error}")
            self._is_kept = False
        return self._handler.implementation

    async def draft_tests(self, document: str) -> Proposal | None:
        task = await self._task_for(document)
        written = self._handler.written if self._handler is not None else None
        self._own_cases = await self._ask(questions.tests(self._situation, task.document, written))
        return Proposal(self._own_cases) if self._own_cases else None

    async def consider_tests(self, test_cases: str, summary: str, *, last: bool) -> Verdict:
        task = self._agreed()
        objection = ""
        try:
            questions.check_peer_cases(task, test_cases)
        except TreatyError as error:
            objection = printable(error.message, questions.MAX_REASON)
        # In the last round only a rejection remains, so the model is not asked.
        if objection and last:
            return Rejection(objection)
        if self._is_kept and not objection:
            return Acceptance()
        # Text that is no case in our form is no objection: tests are optional, and the session passes it over.
        unread = "" if read_test_cases(test_cases).whole else questions.UNREAD
        prompt = questions.consider_tests(
            task, test_cases, summary, own=self._own_cases, objection=objection, unread=unread, last=last
        )
        verdict = await self._ask(prompt)
        if isinstance(verdict, Proposal):
            self._own_cases = verdict.text
        return verdict

    async def test(self, test_cases: str) -> Implementation | str:
        handler = self._written()
        task = self._agreed().with_cases(questions.check_peer_cases(self._agreed(), test_cases))
        outcome = await self._writer.check(task, handler.written)
        if self._is_kept:
            return outcome if isinstance(outcome, str) else handler.implementation
        try:
            handler = await self._writer.repair(task, handler.written, outcome) if isinstance(outcome, str) else outcome
        except Refused as error:
            if error.code != NegotiationCode.HANDLER:
                raise
            return error.message
        # Only after the tests passed: a failed repair leaves the code as it was.
        self._task, self._handler = task, handler
        return handler.implementation

    async def judge(self, description: str) -> FaultAdmitted | Rejection:
        return await self._ask(questions.judge(self._agreed(), self._written().written, description))

    async def answer(self, question: str) -> str:
        return await self._ask(questions.answer(self._situation, self._on_the_table, question))

    async def aclose(self) -> None:
        """Do nothing: all calls were awaited, and their work in the sandbox has ended."""

    async def _ask(self, prompt: Prompt[T]) -> T:
        return await self._model.complete(prompt, self._budget)

    async def _kept(self, document: NegotiatedDocument) -> WrittenHandler | None:
        """Return the code that this agent keeps for a document: the same hash needs no model."""
        store = await self._situation.written(document.text) if self._situation.written is not None else None
        self._is_kept = store is not None
        return WrittenHandler(read_project(store.files), store) if store is not None else None

    async def _task_for(self, document: str) -> Task:
        if self._task is None or self._task.document.text != document:
            self._task, self._handler = Task(self._situation, await resolve(document, self._situation.documents)), None
        return self._task

    def _agreed(self) -> Task:
        assert self._task is not None, "implement comes first"
        return self._task

    def _written(self) -> WrittenHandler:
        assert self._handler is not None, "implement comes first"
        return self._handler

    def _said(self, verdict: Proposal | Rejection) -> Proposal | Rejection:
        if isinstance(verdict, Proposal):
            self._own = self._on_the_table = verdict.text
            self._note("this side", verdict.summary or "made the first proposal")
        return verdict

    def _note(self, who: str, what: str) -> None:
        self._history.append(f"{len(self._history) + 1}. {who}: {printable(what, MAX_NOTED)}")
