"""How long the machine of the Hello profile waits, and how much it puts up with; the source specification's numbers where it has
some."""

from __future__ import annotations

from dataclasses import dataclass

from . import frame


@dataclass(frozen=True)
class Timeouts:
    """Seconds, counted by the machine's own clock. `hello`: for the other Hello; `code`: for both codes after an agreement (15
    by the specification); `reply`: for an answer to a proposal, test cases, an error or a question, and as long for this side's
    own decision;
    `idle`: for anything at all in a running session."""

    hello: float = 10.0
    code: float = 15.0
    reply: float = 60.0
    idle: float = 600.0


@dataclass(frozen=True)
class Limits:
    """What one session may take.

    `rounds`, `test_rounds`: protocolNegotiation and testCasesNegotiation messages of both sides together, a repeated acceptance
    not counted (at most 10 by the specification). `fix_rounds`: errors that either side may report. `questions`: that either
    side may ask.
    `strict_sequence`: sequence numbers go up by exactly one; otherwise each is above its sender's last one.
    `early_frames`: that a source sends on the strength of an offered hash. `waiting_frames`, `waiting_bytes`: application
    messages that are kept, in each direction, until the session runs.
    """

    rounds: int = 10
    test_rounds: int = 10
    fix_rounds: int = 3
    questions: int = 16
    strict_sequence: bool = True
    early_frames: int = 16
    waiting_frames: int = 64
    waiting_bytes: int = frame.MAX_PAYLOAD
