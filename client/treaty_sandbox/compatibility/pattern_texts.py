r"""Find texts that a pattern matches: those near its limits.

    ^[a-c]{2,3}$      aa, aaa, cc, ccc

The syntax is that of `treaty_consensus.handler.schema`: literals, classes, groups, alternatives and counts. Each text is a guess;
a validator decides. A pattern with anything else has fewer texts, or none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

MAX_TEXTS = 24
"""Texts of each part of a pattern, so that the work is bounded by its length."""
MAX_TEXT = 256
_COUNT = re.compile(r"\{([0-9]{1,4})(,([0-9]{0,4}))?\}")
_CLASSES = {"d": "09", "w": "aZ_", "s": " ", "D": "a-", "W": "- ", "S": "a0", "t": "\t", "n": "\n", "r": "\r"}
_ANY = "a0é"
_GROUP = re.compile(r"\((?:\?:|\?P?<[A-Za-z][A-Za-z0-9_]*>)?")


def texts(pattern: str) -> list[str]:
    """Return texts that the pattern may match, at most `MAX_TEXTS`."""
    try:
        reader = _Reader(pattern)
        made = reader.alternatives()
    except (IndexError, ValueError):
        return []
    return made if reader.at == len(pattern) else []


class _Reader:
    """Read a pattern from the left."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.at = 0

    def alternatives(self) -> list[str]:
        """Read up to the end of a group or of the pattern."""
        made = self._sequence()
        while self._next() == "|":
            self.at += 1
            made += self._sequence()
        return _some(made)

    def _sequence(self) -> list[str]:
        made = [""]
        while self._next() not in ("", "|", ")"):
            parts = self._repeated(self._atom())
            made = _some([begin + part for part in parts for begin in made])
        return made

    def _atom(self) -> list[str]:
        character = self._pattern[self.at]
        self.at += 1
        if character in "^$":
            return [""]
        if character == ".":
            return list(_ANY)
        if character == "[":
            return self._class()
        if character == "\\":
            return self._escape()
        if character == "(" and (group := _GROUP.match(self._pattern, self.at - 1)):
            self.at = group.end()
            made = self.alternatives()
            if self._next() != ")":
                raise ValueError("a group that this reader does not know")
            self.at += 1
            return made
        if character in "*+?{(":
            raise ValueError("a count without a part, or a look-around")
        return [character]

    def _escape(self) -> list[str]:
        character = self._pattern[self.at]
        self.at += 1
        if character in "bBAzZ":
            return [""]
        if character.isalnum() and character not in _CLASSES:
            raise ValueError("an escape that this reader does not know")
        return list(_CLASSES.get(character, character))

    def _class(self) -> list[str]:
        end = self._pattern.index("]", self.at + 1)
        body, self.at = self._pattern[self.at : end], end + 1
        if body.startswith("^"):
            return [each for each in "a0Z -_.é" if each not in body] or ["\u2603"]
        made: list[str] = []
        for low, high in re.findall(r"(\\?.)(?:-(\\?.))?", body, re.DOTALL):
            for part in filter(None, (low, high)):
                made += _CLASSES.get(part[1:], part[1:]) if part.startswith("\\") else part
        return made

    def _repeated(self, parts: list[str]) -> list[str]:
        counts: Sequence[int] = (1,)
        if (character := self._next()) and character in "*+?":
            self.at += 1
            counts = {"*": (0, 1, 2), "+": (1, 2), "?": (1, 0)}[character]
        elif count := _COUNT.match(self._pattern, self.at):
            self.at = count.end()
            least = int(count[1])
            most = int(count[3]) if count[3] else least + 1 if count[2] else least
            counts = tuple(dict.fromkeys((least, most)))
        if counts != (1,) and self._next() == "?":  # lazy
            self.at += 1
        return _some([part * count for count in counts for part in parts])

    def _next(self) -> str:
        return self._pattern[self.at : self.at + 1]


def _some(made: Sequence[str]) -> list[str]:
    return list(_short(dict.fromkeys(made)))


def _short(made: dict[str, None]) -> Iterator[str]:
    short = [text for text in made if len(text) <= MAX_TEXT]
    # From all over the list: each alternative and each end of a class has a text.
    step = max(1, -(-len(short) // MAX_TEXTS))
    yield from short[::step]
