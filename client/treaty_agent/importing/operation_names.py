"""Give operations the names that a manifest takes, by one rule.

    find-pets, find_pets, "Find pets"      findPets
    2fast                                  operation2fast
    a second findPets                      findPets2

Words of letters and digits are joined; each but the first begins with a capital. Other characters are left out.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Za-z0-9]+")
_MAX = 60


class OperationNames:
    """The names of one protocol. The first operation with a name keeps it; further ones get a number."""

    def __init__(self) -> None:
        self._taken = set[str]()

    def new(self, wish: str) -> str:
        """Return a name that no operation has yet."""
        first, *others = _WORD.findall(wish[:400]) or ["operation"]
        stem = first[0].lower() + first[1:] + "".join(word[0].upper() + word[1:] for word in others)
        # A word of capitals alone, such as URL, would become uRL.
        stem = first.lower() + stem[len(first) :] if first.isupper() else stem
        stem = (stem if stem[0].isalpha() else f"operation{stem}")[:_MAX]
        name, number = stem, 2
        # By case, too: people and functions of other languages read `findpets` and `findPets` as one.
        while name.lower() in self._taken:
            name, number = f"{stem}{number}", number + 1
        self._taken.add(name.lower())
        return name
