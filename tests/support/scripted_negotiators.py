"""Negotiators that do as a test says, where a language model would decide: they speak of product-info, and write its real
handler.

A `Script` holds what is said; whatever it leaves open is what a reasonable model would do. `calls` notes every question, as the
name of the method and its first argument.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from meetings import PROTOCOLS, TOPIC
from sandboxed import ENTRY_POINT, handler_sources, sandboxed_product_info

from treaty_agent.negotiators.negotiator import (
    Acceptance,
    FaultAdmitted,
    Implementation,
    ModelSpend,
    NegotiationContext,
    Negotiator,
    Proposal,
    Rejection,
    Requirement,
    Verdict,
)
from treaty_agent.negotiators.test_cases import CaseMessage, Success, TestCase, format_test_cases
from treaty_client.protocols.project import load_project
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import read_wheel
from treaty_handler import Failure, Value

PLACEHOLDER = "https://negotiated.invalid/protocols/negotiated.invalid/product-info/1.0"
DOCUMENT = (PROTOCOLS / "1.0" / "document.md").read_text()
CHANGED = DOCUMENT.replace("## Purpose\n", "## Purpose\n\nFor buyers of laptops.\n")
WANTED = Requirement("Get a product by its id.", "a product id", "the product", TOPIC)

NO_PRODUCT = ('messages.OK, "Success", value)', 'messages.OK, "Success", None)')
"""A bug of a provider: it answers without the product, which no requester accepts."""
WRONG_PRICE = ('messages.OK, "Success", value)', 'messages.OK, "Success", {**value, "price": 1})')
WRONG_CODE = ("return [self._answer(self._open.pop(call), code, text)]", "return [self._answer(self._open.pop(call), 410, text)]")
"""Bugs of a provider that only test cases find."""


@cache
def project_files(document: str, topic: str = TOPIC, bug: tuple[str, str] = ("", "")) -> Mapping[str, bytes]:
    """The folder of product-info, with this document, and a bug in its provider."""
    toml = (PROTOCOLS / "1.0" / "protocol.toml").read_text().replace(TOPIC, topic)
    provider = handler_sources()["provider.py"].decode()
    assert bug[0] in provider
    sources = {f"handler/{name}": content for name, content in handler_sources().items()}
    handler = sandboxed_product_info("1.0").handler
    assert handler is not None
    return {
        **sources,
        "handler/provider.py": provider.replace(*bug).encode() if bug[0] else provider.encode(),
        "protocol.toml": f'{toml}\n[handler]\nentry-point = "{ENTRY_POINT}"\n'.encode(),
        "document.md": document.encode(),
        "manifest.json": json.dumps(handler.manifest).encode(),
    }


@cache
def implementation(document: str, topic: str = TOPIC, bug: tuple[str, str] = ("", "")) -> Implementation:
    """The real handler of product-info for an agreed document."""
    files = project_files(document, topic, bug)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        package = read_wheel(*load_project(Path(folder)).build_wheel(PLACEHOLDER))
    return Implementation(PLACEHOLDER, topic, package, files)


def case(title: str, product: str, outcome: Success | Failure) -> TestCase:
    """A test case of product-info."""
    request = {"messageId": "m1", "type": "REQUEST", "action": "getProductInfo", "productId": product}
    info = outcome.value if isinstance(outcome, Success) else None
    status = {"code": 200, "message": "Success"}
    if isinstance(outcome, Failure):
        status = {"code": outcome.code, "message": outcome.message}
    response: Value = {"messageId": "m1", "type": "RESPONSE", "status": status, "productInfo": info}
    arguments = {"productId": product}
    messages = (CaseMessage("json", request), CaseMessage("json", response))
    return TestCase(title, "getProductInfo", arguments, outcome, *messages, "As it should be.")


MOUSE = {"productId": "M1", "productName": "Mouse", "productDescription": "Clicks.", "price": 9.5, "currency": "USD"}
TEST_CASES = format_test_cases(
    [
        case("A mouse", "M1", Success(MOUSE)),
        case("No such product", "P99999", Failure(code=404, message="Not found")),
    ]
)
"""About a product that no shop of these tests sells: whoever calls a business function finds none."""


def _open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


@dataclass
class Script:
    """The answers of one side. Lists are used up from the front; then `Acceptance`.

    `bugs`: of each writing of the code, "" for none.

    `gate`: while it is clear, each call waits.
    """

    drafts: list[Verdict] = field(default_factory=lambda: [Proposal(DOCUMENT)])
    verdicts: list[Verdict | TreatyError] = field(default_factory=list)
    tests: str | None = None
    test_verdicts: list[Verdict] = field(default_factory=list)
    bugs: list[tuple[str, str]] = field(default_factory=list)
    code_error: TreatyError | None = None
    test_problem: str = ""
    judgement: FaultAdmitted | Rejection = field(default_factory=FaultAdmitted)
    topic: str = TOPIC
    delay: float = 0.0
    gate: asyncio.Event = field(default_factory=_open_gate)
    calls: list[tuple[str, str]] = field(default_factory=list)
    situations: list[NegotiationContext] = field(default_factory=list)
    closed: int = 0

    def names(self) -> list[str]:
        """The questions, in order."""
        return [name for name, _ in self.calls]


@dataclass
class ScriptedNegotiator:
    """One session's."""

    script: Script
    written: Implementation | None = None

    async def draft(self) -> Proposal | Rejection:
        await self._note("draft", "")
        verdict = self.script.drafts.pop(0)
        assert not isinstance(verdict, Acceptance)
        return verdict

    async def consider(self, document: str, summary: str, *, last: bool) -> Verdict:
        await self._note("consider", document)
        return self._next(self.script.verdicts)

    async def implement(self, document: str, *, error: str = "") -> Implementation:
        await self._note("implement", error)
        if self.script.code_error is not None:
            raise self.script.code_error
        bug = self.script.bugs.pop(0) if self.script.bugs else ("", "")
        self.written = implementation(document, self.script.topic, bug)
        return self.written

    async def draft_tests(self, document: str) -> Proposal | None:
        await self._note("draft_tests", document)
        return None if self.script.tests is None else Proposal(self.script.tests)

    async def consider_tests(self, test_cases: str, summary: str, *, last: bool) -> Verdict:
        await self._note("consider_tests", test_cases)
        return self._next(self.script.test_verdicts)

    async def test(self, test_cases: str) -> Implementation | str:
        await self._note("test", test_cases)
        assert self.written is not None
        return self.script.test_problem or self.written

    async def judge(self, description: str) -> FaultAdmitted | Rejection:
        await self._note("judge", description)
        return self.script.judgement

    async def answer(self, question: str) -> str:
        await self._note("answer", question)
        return f"You asked: {question}"

    async def aclose(self) -> None:
        self.script.closed += 1

    async def _note(self, name: str, about: str) -> None:
        self.script.calls.append((name, about))
        await asyncio.sleep(self.script.delay)
        await self.script.gate.wait()

    def _next(self, verdicts: list[Verdict] | list[Verdict | TreatyError]) -> Verdict:
        verdict = verdicts.pop(0) if verdicts else Acceptance()
        if isinstance(verdict, TreatyError):
            raise verdict
        return verdict


@dataclass
class ScriptedNegotiators:
    """Makes negotiators that follow one script, one session after the other."""

    script: Script = field(default_factory=Script)
    make: Callable[[Script], Negotiator] = ScriptedNegotiator
    closed: bool = False

    def open(self, situation: NegotiationContext) -> Negotiator:
        self.script.situations.append(situation)
        return self.make(self.script)

    def spent(self) -> ModelSpend:
        return ModelSpend()

    async def aclose(self) -> None:
        self.closed = True
