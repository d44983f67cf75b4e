"""The one error root, and the families that callers tell apart.

An error carries a stable machine `code` (lower-case words joined by `-`, families joined by `.`), a sentence for a person and,
where there is one, the `fix`: what to do about it. Codes are interface: documented, tested, never reused for another meaning.
"""

from __future__ import annotations

from .printable import escaped

MAX_TEXT = 8_192


class TreatyError(Exception):
    """Root of every error Treaty raises on purpose.

    `code`: stable machine code such as `statement.signature-invalid`. `message`: one sentence, safe to show to anyone.
    `fix`: what the reader can do, or "". Both are cut at `MAX_TEXT` characters and `printable.escaped`, whatever they quote.
    """

    def __init__(self, code: str, message: str, *, fix: str = "") -> None:
        self.code = code
        self.message = escaped(message[:MAX_TEXT])
        self.fix = escaped(fix[:MAX_TEXT])
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.fix}".strip()


class Malformed(TreatyError):
    """Foreign input that is not in its one canonical form. Nothing was read beyond the point of the fault."""


class TooLarge(TreatyError):
    """Input over a documented cap; checked before it is parsed."""


class Unauthorized(TreatyError):
    """A signature does not verify, or its key is not the author's under the newest identity."""


class Refused(TreatyError):
    """Well-formed and authentic, but a rule says no. The rule's name is in the code."""


class Conflict(Refused):
    """Something else already stands in this place; retrying the same input cannot succeed."""


class NotFound(TreatyError):
    """Nothing of that name is here."""


class Gone(TreatyError):
    """It was here; its bytes were withdrawn, its log entry remains."""


class Unavailable(TreatyError):
    """A dependency did not answer; the same call may succeed later."""


class Untrusted(TreatyError):
    """A proof does not hold: a Merkle path, a checkpoint's signature, a recomputed decision."""
