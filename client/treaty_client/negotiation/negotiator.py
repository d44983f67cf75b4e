"""The port between a session and whoever decides what it says while a protocol is negotiated: a model, a script, a person.

A session has its own negotiator, made by a `Negotiators` for the side and the peer at hand, and closed with it. Its methods are
called one at a time, in the order of the wire; each has the whole history in its object if it keeps it. None of them has a
deadline of its own: the session's timeouts cancel them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from treaty_consensus.handler import HandlerPackage

from .documents import Fetch

SideName: TypeAlias = Literal["source", "destination"]


@dataclass(frozen=True)
class Requirement:
    """What the side that connects wants, in its owner's words. `topic`: where the result would be published, or ""."""

    text: str
    input: str = ""
    output: str = ""
    topic: str = ""


@dataclass(frozen=True)
class Capability:
    """A business function that the side which is connected to offers: its name, what it is for, and the JSON Schemas of its
    arguments (an object) and its result."""

    name: str
    description: str
    arguments: Mapping[str, object]
    result: Mapping[str, object]


@dataclass(frozen=True)
class Situation:
    """Whom a negotiator speaks for, and with. `requirement` is the source's, `capabilities` the destination's. `documents`: gets
    the base of a text that consists of changes, from the registries that the agent trusts; without it such texts are refused."""

    side: SideName
    local: str
    peer: str
    requirement: Requirement | None = None
    capabilities: tuple[Capability, ...] = ()
    documents: Fetch | None = None


@dataclass(frozen=True)
class Proposal:
    """A text to propose, in full, and what changed in it since the peer's last one ("" in the first)."""

    text: str
    summary: str = ""


@dataclass(frozen=True)
class Accept:
    """The peer's last proposal will do."""


@dataclass(frozen=True)
class Reject:
    """There will be no agreement. `reason` is told to the peer."""

    reason: str


@dataclass(frozen=True)
class Guilty:
    """This side's code is at fault, and will be mended."""


Verdict: TypeAlias = Accept | Reject | Proposal


@dataclass(frozen=True)
class Implementation:
    """A handler written for an agreed document, which its test cases passed in the sandbox; with what publishing it takes.

    `files`: a project folder as `treaty_client.project` reads it, path to content. `package`: the wheel built from it for
    `uri`, a placeholder until it is published.
    """

    uri: str
    topic: str
    package: HandlerPackage
    files: Mapping[str, bytes] = field(repr=False)


class Negotiator(Protocol):
    """One session's. Every method may raise `TreatyError`, which ends the session as rejected (while proposals go back and forth)
    or as failed; its message may be told to the owner, never to the peer."""

    async def draft(self) -> Proposal | Reject:
        """The first proposal, from the requirement."""

    async def consider(self, document: str, summary: str, *, last: bool) -> Verdict:
        """Judge the peer's proposal. `last`: a further one may not be made."""

    async def implement(self, document: str, *, error: str = "") -> Implementation:
        """Write the handler for the agreed document, once or, with what was wrong as `error`, once more. It has been tried in the
        sandbox: it loads, plays both roles against each other, and passes the agreed test cases as far as there are any."""

    async def draft_tests(self, document: str) -> Proposal | None:
        """Test cases for the agreed document; None to do without."""

    async def consider_tests(self, test_cases: str, summary: str, *, last: bool) -> Verdict:
        """Judge the peer's test cases."""

    async def test(self, test_cases: str) -> Implementation | str:
        """Run the agreed test cases against this side's code in the sandbox, and mend it where it fails. Returns the
        implementation that passes them, the one that `implement` returned or a mended one; else what is wrong."""

    async def judge(self, description: str) -> Guilty | Reject:
        """The peer says that this side's messages are wrong: whose fault is it?"""

    async def answer(self, question: str) -> str:
        """Answer a question of the peer about the negotiation."""

    async def aclose(self) -> None:
        """End what it runs. Never raises."""


class Negotiators(Protocol):
    """Makes negotiators; what `Agent(negotiators=…)` takes. For one event loop."""

    def open(self, situation: Situation) -> Negotiator:
        """A negotiator for one session."""

    async def aclose(self) -> None:
        """Close what they share."""
