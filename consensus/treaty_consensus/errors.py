"""Define the root of all errors, and the families that callers handle differently.

An error has a stable machine `code` (lower-case words joined by `-`, families joined by `.`), a sentence for a person and,
where one is known, the `fix`: the action to take. Codes are part of the interface: documented, tested, and never reused for
another meaning.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Self

from .printable import escaped

# Messages may quote foreign text of any length; logs and terminals need a bound.
MAX_TEXT = 8_192


class Origin(StrEnum):
    """The party that can remove the cause of an error."""

    CALLER = "caller"
    """This side: the arguments of the call, the configuration, or this machine."""
    PEER = "peer"
    """The other agent."""
    NETWORK = "network"
    """The way to the other agent or host. Also a host that does not answer, because the two look the same."""
    REGISTRY = "registry"
    """A registry, or data that it serves."""


class TreatyError(Exception):
    """Root of every error that Treaty raises on purpose.

    `code`: stable machine code such as `statement.signature-invalid`.
    `message`: one sentence, safe to show to anyone.
    `fix`: the action that the reader can take, or "".
    `peer_code`: the code that the other agent gave as its reason, or "". It is text of the peer: at most 80 printable characters.
    `trace_id`: the id under which both sides log the call, or "".
    `clock_difference`: the seconds that this machine's clock is ahead of the side that refused the time of a signature, or None.
    `retry_after`: the seconds after which the same call may succeed, if the side that refused it said so; else None.

    Message and fix are cut at `MAX_TEXT` characters and escaped (`printable.escaped`), because they may quote foreign text.
    """

    default_origin: ClassVar[Origin] = Origin.CALLER
    """The origin of errors of this class whose code names none."""

    def __init__(self, code: str, message: str, *, fix: str = "") -> None:
        self.code = code
        self.message = escaped(message[:MAX_TEXT])
        self.fix = escaped(fix[:MAX_TEXT])
        self.peer_code = ""
        self.trace_id = ""
        self.clock_difference: float | None = None
        self.retry_after: float | None = None
        super().__init__(self.message)

    @property
    def family(self) -> str:
        """The name of the class of this module to which the error belongs, such as `Unavailable`."""
        return next(kind.__name__ for kind in type(self).__mro__ if kind.__module__ == __name__)

    @property
    def origin(self) -> Origin:
        """The party that can remove the cause. An error that the peer gave a code for is the peer's."""
        if self.peer_code:
            return Origin.PEER
        return getattr(self.code, "origin", None) or self.default_origin

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later and is safe to repeat."""
        by_code: bool | None = getattr(self.code, "retryable", None)
        return isinstance(self, Unavailable) if by_code is None else by_code

    def __copy__(self) -> Self:
        """Return this error for one raise more: a traceback and a `trace_id` belong to one call."""
        twin = type(self).__new__(type(self), *self.args)
        twin.__dict__.update(self.__dict__)
        twin.__cause__, twin.__suppress_context__ = self.__cause__, self.__suppress_context__
        return twin

    def __str__(self) -> str:
        return f"{self.message} {self.fix}".strip()


class Malformed(TreatyError):
    """Foreign input is not in its canonical form. Nothing beyond the fault was read."""


class TooLarge(TreatyError):
    """Input exceeds a documented cap. The cap is checked before parsing."""


class Unauthorized(TreatyError):
    """A signature does not verify, or its key is not the author's under the newest identity."""

    default_origin = Origin.PEER


class Refused(TreatyError):
    """Well-formed and authentic input breaks a rule. The code names the rule."""


class Conflict(Refused):
    """The place is taken by other data. A retry with the same input cannot succeed."""


class NotFound(TreatyError):
    """No data exist under this name."""


class Gone(TreatyError):
    """The bytes were withdrawn. Their log entry remains."""


class Unavailable(TreatyError):
    """A dependency did not answer. The same call may succeed later."""

    default_origin = Origin.NETWORK


class Untrusted(TreatyError):
    """A proof does not hold: a Merkle path, a checkpoint's signature, or a recomputed decision."""

    default_origin = Origin.REGISTRY
