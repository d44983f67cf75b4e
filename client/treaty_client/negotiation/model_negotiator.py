"""The negotiator that asks a language model.

    agent = Agent(…, negotiators=ModelNegotiators(OpenAIModel.from_environment()))

What the model says is read strictly (`questions`), what it writes runs in a sandbox only (`trial`), and what a session may cost
is bounded (`Allowance`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.printable import printable

from ..handlers import Limits, SandboxPool
from ..model.budget import Allowance, Budget
from ..model.port import LanguageModel, Prompt
from . import questions
from .documents import resolve
from .negotiator import Guilty, Implementation, Proposal, Reject, Situation, Verdict
from .questions import Task
from .writer import Handler, Writer

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
        limits: Limits | None = None,
    ) -> None:
        """`allowance`: of each session. `fix_rounds`: how often a handler that fails is given back to the model. `licence`: of
        what the model writes, an SPDX expression. `limits`: of the sandbox in which it is tried."""
        self._model = model
        self._allowance, self._fix_rounds, self._licence = allowance or Allowance(), fix_rounds, licence
        self._pool = SandboxPool(size=0, isolation="bubblewrap", limits=limits)

    def open(self, situation: Situation) -> ModelNegotiator:
        """A negotiator with a budget of its own. What a source offers to others has nothing to do with what it wants, and is left
        out."""
        budget = Budget(self._allowance)
        if situation.side == "source":
            situation = replace(situation, capabilities=())

        async def ask(prompt: Prompt[T]) -> T:
            return await self._model.complete(prompt, budget)

        writer = Writer(ask, self._pool, fix_rounds=self._fix_rounds, licence=self._licence)
        return ModelNegotiator(self._model, budget, writer, situation)

    async def aclose(self) -> None:
        """Close the sandbox and the model."""
        await self._pool.close()
        await self._model.aclose()


class ModelNegotiator:
    """Implements `Negotiator`. Made by `ModelNegotiators.open`."""

    def __init__(self, model: LanguageModel, budget: Budget, writer: Writer, situation: Situation) -> None:
        self._model, self._budget, self._writer, self._situation = model, budget, writer, situation
        self._own = self._own_cases = self._on_the_table = ""
        self._history: list[str] = []
        self._task: Task | None = None
        self._handler: Handler | None = None

    async def draft(self) -> Proposal | Reject:
        """See `Negotiator`; so are the others."""
        return self._said(await self._ask(questions.draft(self._situation)))

    async def consider(self, document: str, summary: str, *, last: bool) -> Verdict:
        try:
            resolved = await resolve(document, self._situation.documents)
        except TreatyError as error:
            if not error.code.startswith(("document.", "negotiation.base")):
                raise
            return Reject(printable(error.message, questions.MAX_REASON))  # it is their own text that is wrong
        self._on_the_table = document
        prompt = questions.consider(
            self._situation, resolved, summary, own=self._own, history=self._history[-MAX_HISTORY:], last=last
        )
        self._note("peer", summary or f"proposed {resolved.title}")
        verdict = await self._ask(prompt)
        return self._said(verdict) if isinstance(verdict, Proposal | Reject) else verdict

    async def implement(self, document: str, *, error: str = "") -> Implementation:
        task = await self._task_for(document)
        self._on_the_table = document
        if self._handler is None:
            self._handler = await self._writer.write(task)
        elif error:
            self._handler = await self._writer.mend(task, self._handler.written, f"The other agent says: {error}")
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
        if objection and last:
            return Reject(objection)
        prompt = questions.consider_tests(task, test_cases, summary, own=self._own_cases, objection=objection, last=last)
        verdict = await self._ask(prompt)
        if isinstance(verdict, Proposal):
            self._own_cases = verdict.text
        return verdict

    async def test(self, test_cases: str) -> Implementation | str:
        handler = self._written()
        task = self._agreed().with_cases(questions.check_peer_cases(self._agreed(), test_cases))
        outcome = await self._writer.check(task, handler.written)
        try:
            handler = await self._writer.mend(task, handler.written, outcome) if isinstance(outcome, str) else outcome
        except Refused as error:
            if error.code != "negotiation.handler":
                raise
            return error.message
        self._task, self._handler = task, handler
        return handler.implementation

    async def judge(self, description: str) -> Guilty | Reject:
        return await self._ask(questions.judge(self._agreed(), self._written().written, description))

    async def answer(self, question: str) -> str:
        return await self._ask(questions.answer(self._situation, self._on_the_table, question))

    async def aclose(self) -> None:
        """Nothing of it runs on: its calls were awaited, and what they started in the sandbox ended with them."""

    async def _ask(self, prompt: Prompt[T]) -> T:
        return await self._model.complete(prompt, self._budget)

    async def _task_for(self, document: str) -> Task:
        if self._task is None or self._task.document.text != document:
            self._task, self._handler = Task(self._situation, await resolve(document, self._situation.documents)), None
        return self._task

    def _agreed(self) -> Task:
        assert self._task is not None, "implement comes first"
        return self._task

    def _written(self) -> Handler:
        assert self._handler is not None, "implement comes first"
        return self._handler

    def _said(self, verdict: Proposal | Reject) -> Proposal | Reject:
        if isinstance(verdict, Proposal):
            self._own = self._on_the_table = verdict.text
            self._note("this side", verdict.summary or "made the first proposal")
        return verdict

    def _note(self, who: str, what: str) -> None:
        self._history.append(f"{len(self._history) + 1}. {who}: {printable(what, MAX_NOTED)}")
