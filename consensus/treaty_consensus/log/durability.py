"""Say in a checkpoint where its leaves are besides the disk of the database that took them.

The log signs an extension line in its checkpoint (C2SP tlog-checkpoint):

    durability standbys=1 copies=2

Before the log signs such a head, every leaf of its tree is on that many synchronous standbys of the database, and in that many
copies of its tiles in stores of their own. It is the operator's word, as the rest of the checkpoint is. A log that promises
nothing has no such line. A reader passes over a word that it does not know, and counts a value that it cannot read as 0.

Specification: `docs/specification/log.md`, "Durability".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..canonical import parse_decimal
from ..errors import Malformed

_WORD = "durability"
MAX_PLACES = 100
"""The most standbys, and the most copies, that a line says. PostgreSQL has room for fewer standbys in most installations."""


@dataclass(frozen=True)
class Durability:
    """Where each leaf is before its head is signed: on how many synchronous standbys, and in how many copies of the tiles."""

    standbys: int = 0
    copies: int = 0

    @property
    def places(self) -> int:
        """Return the number of places besides the disk of the database."""
        return self.standbys + self.copies

    @property
    def extensions(self) -> tuple[str, ...]:
        """Return the extension lines of a checkpoint that promises this: one, or none where nothing is promised."""
        promised = [f"{name}={count}" for name, count in (("standbys", self.standbys), ("copies", self.copies)) if count]
        return (" ".join((_WORD, *promised)),) if promised else ()

    @classmethod
    def parse(cls, extensions: Iterable[str]) -> Durability:
        """Read what the extension lines of a checkpoint promise. Never fails: what it cannot read promises nothing."""
        line = next((line for line in extensions if line.partition(" ")[0] == _WORD), _WORD)
        values = dict(word.partition("=")[::2] for word in line.split(" ")[1:])
        return cls(_count(values.get("standbys")), _count(values.get("copies")))


def _count(text: str | None) -> int:
    try:
        return parse_decimal(text, limit=MAX_PLACES) if text is not None else 0
    except Malformed:
        return 0
