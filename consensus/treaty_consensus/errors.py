"""Define the root of all errors, and the families that callers handle differently.

An error has a stable machine `code` (lower-case words joined by `-`, families joined by `.`), a sentence for a person and,
where one is known, the `fix`: the action to take. Codes are part of the interface: documented, tested, and never reused for
another meaning.
"""

from __future__ import annotations

from .printable import escaped

# Messages may quote foreign text of any length; logs and terminals need a bound.
MAX_TEXT = 8_192


class TreatyError(Exception):
    """Root of every error that Treaty raises on purpose.

    `code`: stable machine code such as `statement.signature-invalid`.
    `message`: one sentence, safe to show to anyone.
    `fix`: the action that the reader can take, or "".

    Message and fix are cut at `MAX_TEXT` characters and escaped (`printable.escaped`), because they may quote foreign text.
    """

    def __init__(self, code: str, message: str, *, fix: str = "") -> None:
        self.code = code
        self.message = escaped(message[:MAX_TEXT])
        self.fix = escaped(fix[:MAX_TEXT])
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.fix}".strip()


class Malformed(TreatyError):
    """Foreign input is not in its canonical form. Nothing beyond the fault was read."""


class TooLarge(TreatyError):
    """Input exceeds a documented cap. The cap is checked before parsing."""


class Unauthorized(TreatyError):
    """A signature does not verify, or its key is not the author's under the newest identity."""


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


class Untrusted(TreatyError):
    """A proof does not hold: a Merkle path, a checkpoint's signature, or a recomputed decision."""
