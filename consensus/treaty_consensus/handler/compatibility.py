"""Hold the verdict on two versions of a protocol: can an agent of one talk to an agent of the other?

    {"caller": "1.0", "provider": "1.1", "verdict": "breaking", "calls": 0, "reasons": [
      {"operation": "greet", "part": "arguments", "verdict": "breaking", "value": "{\\"name\\": \\"aaaa\\"}",
       "message": "The arguments of greet break the schema at $.name: \\"aaaa\\" is longer than 3 characters."}]}

Direction matters: the caller writes arguments and reads results. So there are two pairs, one with each version as the caller.
`treaty_sandbox.compatibility` makes the verdict. Specification: `docs/specification/handler-packages.md`, "Compatible versions".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

import msgspec
from packaging.version import Version

from ..codes import PublishCode
from ..errors import Refused
from ..protocol import ProtocolUri, parse_protocol_uri

Verdict: TypeAlias = Literal["compatible", "breaking", "undecided"]
Part: TypeAlias = Literal["operation", "kind", "roles", "idempotence", "arguments", "result", "messages"]

MAX_REASONS = 24
"""Reasons of one pair."""
MAX_MESSAGE = 400
MAX_VALUE = 600
"""Characters of a counterexample."""


class Reason(msgspec.Struct, frozen=True):
    """A fault of a pair, or a part that is not decided. `value`: the counterexample as JSON, or empty.

    `operation`: empty for all of them. `part`: for `arguments` the caller writes and the provider reads, for `result` the
    reverse.
    """

    operation: Annotated[str, msgspec.Meta(max_length=64)]
    part: Part
    verdict: Literal["breaking", "undecided"]
    message: Annotated[str, msgspec.Meta(max_length=MAX_MESSAGE + 1)]
    value: Annotated[str, msgspec.Meta(max_length=MAX_VALUE + 1)] = ""


class PairVerdict(msgspec.Struct, frozen=True):
    """Whether a caller of one version can use a provider of another, in the operations of the older version.

    `calls`: the calls of their vectors that were made between the two handlers. `reasons`: first those that break; at most
    `MAX_REASONS`.
    """

    caller: str
    provider: str
    verdict: Verdict
    calls: int
    reasons: Annotated[list[Reason], msgspec.Meta(max_length=MAX_REASONS)]

    @classmethod
    def of(cls, caller: str, provider: str, reasons: Iterable[Reason], calls: int) -> PairVerdict:
        """Return the verdict that follows from all reasons."""
        ordered = sorted(reasons, key=lambda reason: reason.verdict)
        verdict: Verdict = ordered[0].verdict if ordered else "compatible"
        return cls(caller, provider, verdict, calls, ordered[:MAX_REASONS])

    @property
    def breaking(self) -> list[str]:
        """Return the operations that break."""
        return [*dict.fromkeys(reason.operation for reason in self.reasons if reason.verdict == "breaking")]


class Compatibility(msgspec.Struct, frozen=True):
    """The verdict on a version and the one before it, its publisher's `before`.

    `backward`: a caller of the older version with a provider of the newer one. It decides whether the newer version may continue
    the older one. `forward`: a caller of the newer version with a provider of the older one.
    """

    before: str
    backward: PairVerdict
    forward: PairVerdict

    @property
    def pairs(self) -> tuple[PairVerdict, PairVerdict]:
        """Return both pairs."""
        return self.backward, self.forward


def check_continues(uri: ProtocolUri, compatibility: Compatibility) -> None:
    """Check that a version with a compatible number does not break callers of the one before it. Raises `Refused`
    (`publish.breaking`)."""
    before, backward = parse_protocol_uri(compatibility.before), compatibility.backward
    if backward.verdict != "breaking" or not uri.continues(before):
        return
    epoch, major = Version(before.version).epoch, Version(before.version).major + 1
    first = backward.reasons[0]
    example = f" For example {first.value}." if first.value else ""
    raise Refused(
        PublishCode.BREAKING,
        f"{uri.version} has the number of a version that continues {before.version}, and breaks its callers of "
        f"{', '.join(backward.breaking)}. {first.message}{example}",
        fix=f'Publish it as version "{f"{epoch}!" if epoch else ""}{major}.0", or undo the breaking changes.',
    )
