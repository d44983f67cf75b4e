"""The numbers of the ten verification steps, and the error that names the step that failed.

    1 resolve       the registry is one of the policy, and the bundle is of the name that was asked for
    2 checkpoint    signed by the pinned key of the log, cosigned by its clock recently, consistent with the newest one seen
    3 inclusion     every statement is in the log of that checkpoint
    4 statements    each is signed by keys of its authors as the log knows them, and admissible: namespace, tenure, uniqueness
    5 document      its bytes have the published hash
    6 handler       one for this runtime, not taken back, by a publisher of the policy
    7 wheel         its bytes have the hash in the handler statement, and it follows the rules for wheels
    8 attestation   the Sigstore bundle verifies, binds this URI, hash and entry point, and its signer may sign for the publisher
    9 status        neither protocol nor handler is yanked, revoked or withdrawn
    10 lock         publisher, tenure and signer are those of treaty.lock; then it is stored and recorded there

The code, the documentation and the errors use the same numbers. If a step fails, nothing is run or stored. The functions are in
`ten_steps`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn, TypeVar

from treaty_consensus.errors import Origin, TreatyError, Untrusted

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


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
    """A verification step failed; the result must not be used.

    `step`: its number. `code`, `message`, `fix`: those of the rule that was broken. `evidence`: the two signed checkpoints that
    prove that a log contradicts itself, else empty.
    """

    default_origin = Origin.REGISTRY

    def __init__(self, step: int, code: str, message: str, fix: str = "", *, evidence: tuple[bytes, ...] = ()) -> None:
        super().__init__(code, message, fix=fix)
        self.step = Step(step)
        self.evidence = evidence

    @property
    def family(self) -> str:
        """The family of the broken rule's error; `Untrusted` where the step itself found the fault."""
        return self.__cause__.family if isinstance(self.__cause__, TreatyError) else Untrusted.__name__

    @property
    def origin(self) -> Origin:
        """The origin of that error."""
        return self.__cause__.origin if isinstance(self.__cause__, TreatyError) else super().origin

    @property
    def retryable(self) -> bool:
        """Whether that error may pass, for example because a host could not be reached."""
        return self.__cause__.retryable if isinstance(self.__cause__, TreatyError) else super().retryable

    def __str__(self) -> str:
        return f"Step {self.step.value} ({self.step.title}): {super().__str__()}"


@contextmanager
def taking(step: Step) -> Iterator[None]:
    """Turn each `TreatyError` of the block into `VerificationFailed` with this step; an error that names its step already is
    kept.
    """
    begun = time.perf_counter()
    try:
        yield
        milliseconds = round((time.perf_counter() - begun) * 1000, 1)
        _log.debug("checked", extra={"step": step.value, "title": step.title, "ms": milliseconds})
    # An inner step is the more precise one.
    except VerificationFailed:
        raise
    except TreatyError as error:
        raise VerificationFailed(step, error.code, error.message, error.fix) from error


def outcome(work: Callable[[], _T]) -> Callable[[], _T]:
    """Do the work, and return a function that returns or raises what it did."""
    try:
        result = work()
    except TreatyError as error:
        failure = error  # the name `error` is deleted at the end of the clause

        def fail() -> NoReturn:
            raise failure

        return fail
    return lambda: result
