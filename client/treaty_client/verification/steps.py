"""The ten steps that come before a line of a handler runs: their numbers, and the one error that names the step which failed.

    1 resolve       at a registry of the policy, to its bundle
    2 checkpoint    signed by the pinned key of the log, cosigned by its clock recently, consistent with the newest one seen
    3 inclusion     every statement is in the log of that checkpoint
    4 statements    each is signed by keys of its authors as the log knows them, and admissible: namespace, tenure, uniqueness
    5 document      its bytes are those of the hash
    6 handler       one for this runtime, not yanked, by a publisher of the policy
    7 wheel         its bytes are those of the handler statement, and it keeps the rules for wheels
    8 attestation   the Sigstore bundle verifies, binds this URI, hash and entry point, and is by somebody who may sign
    9 status        neither protocol nor handler is yanked, revoked or withdrawn
    10 lock         publisher, tenure and signer are those of treaty.lock; kept in the store and recorded there

The numbers are the same in the code, the documentation and the errors. When a step fails nothing is run and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from treaty_consensus.errors import TreatyError


class Step(IntEnum):
    """A step by name; its value is its number."""

    RESOLVE = 1
    CHECKPOINT = 2
    INCLUSION = 3
    STATEMENTS = 4
    DOCUMENT = 5
    HANDLER = 6
    WHEEL = 7
    ATTESTATION = 8
    STATUS = 9
    LOCK = 10

    @property
    def title(self) -> str:
        """The step's name in lower case."""
        return self.name.lower()


class VerificationFailed(TreatyError):
    """A step of the verification failed; what was asked for must not be used.

    `step`: its number. `code`, `message` and `fix` are those of the rule that was broken. `evidence`: for a log that contradicts
    itself, the two signed checkpoints that prove it, else empty.
    """

    def __init__(self, step: int, code: str, message: str, fix: str = "", *, evidence: tuple[bytes, ...] = ()) -> None:
        super().__init__(code, message, fix=fix)
        self.step = Step(step)
        self.evidence = evidence

    def __str__(self) -> str:
        return f"Step {self.step.value} ({self.step.title}): {super().__str__()}"


@contextmanager
def taking(step: Step) -> Iterator[None]:
    """Whatever is refused inside is refused at this step."""
    try:
        yield
    except VerificationFailed:
        raise
    except TreatyError as error:
        raise VerificationFailed(step, error.code, error.message, error.fix) from error
