"""Make a text that a simple pattern matches: characters, classes, groups, alternatives and counts.

    sample("^[A-Z]{3}-[0-9]+$", 0)      "AAA-0"

The patterns are those of the dialect of manifests, without look-around. A guess may be wrong: the schema judges it.
"""

from __future__ import annotations

import re

MAX_TEXT = 1_000
_COUNT = re.compile(r"\{([0-9]{1,4})(,([0-9]{0,4}))?\}")
_GROUP = re.compile(r"\((?:\?:|\?P?<[A-Za-z][A-Za-z0-9_]*>)?")
_CLASS = re.compile(r"\[(\^?)((?:\\.|[^\]\\])+)\]", re.DOTALL)
_OF_ESCAPE = {"d": "0", "w": "a", "s": " ", "D": "a", "W": "-", "S": "a", "n": "\n", "t": "\t", "r": "\r"}
_OTHERS = "aA0-_ .x"


def sample(pattern: str, least: int) -> str:
    """Return a text. `least`: its length, as far as a repetition allows it. Raises `ValueError` if it is too hard."""
    short = _Sampler(pattern, 0).text()
    return short if len(short) >= least else _Sampler(pattern, least - len(short)).text()


class _Sampler:
    """`extra`: further repetitions of the first atom that has no end."""

    def __init__(self, pattern: str, extra: int) -> None:
        self._pattern, self._extra, self._at = pattern, extra, 0

    def text(self) -> str:
        text = self._alternatives(0)
        if self._at < len(self._pattern) or len(text) > MAX_TEXT:
            raise ValueError("too hard")
        return text

    def _alternatives(self, depth: int) -> str:
        """Read up to the end of a group, and return the first alternative."""
        if depth > 16:
            raise ValueError("too deep")
        first = self._sequence(depth)
        while self._pattern.startswith("|", self._at):
            self._at += 1
            self._sequence(depth)
        return first

    def _sequence(self, depth: int) -> str:
        parts: list[str] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            parts.append(self._counted(self._atom(depth)))
            if sum(map(len, parts)) > MAX_TEXT:
                raise ValueError("too long")
        return "".join(parts)

    def _atom(self, depth: int) -> str:
        character = self._pattern[self._at]
        if character in "^$":
            self._at += 1
            return ""
        if character == "(":
            self._at = _GROUP.match(self._pattern, self._at).end()  # type: ignore[union-attr]  # it begins with the bracket
            inside = self._alternatives(depth + 1)
            self._at += 1
            return inside
        if character == "[":
            return self._class()
        if character == "\\":
            self._at += 2
            letter = self._pattern[self._at - 1 : self._at]
            if letter in _OF_ESCAPE:
                return _OF_ESCAPE[letter]
            if letter in ("b", "A", "z", "Z"):
                return ""
            if not letter or letter.isalnum():
                raise ValueError("too hard")
            return letter
        self._at += 1
        return "a" if character == "." else character

    def _class(self) -> str:
        match = _CLASS.match(self._pattern, self._at)
        if match is None:
            raise ValueError("too hard")
        self._at = match.end()
        inside = match[2]
        if match[1]:
            try:
                return next(other for other in _OTHERS if re.match(match[0], other))
            except (StopIteration, re.error) as error:
                raise ValueError("too hard") from error
        return _OF_ESCAPE.get(inside[1], inside[1]) if inside[0] == "\\" else inside[0]

    def _counted(self, text: str) -> str:
        match = _COUNT.match(self._pattern, self._at)
        if match:
            least, most = int(match[1]), int(match[3] or MAX_TEXT) if match[2] else int(match[1])
            self._at = match.end()
        elif self._pattern.startswith(("*", "+", "?"), self._at):
            least, most = {"*": (0, MAX_TEXT), "+": (1, MAX_TEXT), "?": (0, 1)}[self._pattern[self._at]]
            self._at += 1
        else:
            return text
        self._at += self._pattern.startswith("?", self._at)  # reluctant
        more = min(self._extra, most - least)
        self._extra -= more
        return text * min(least + more, MAX_TEXT) if text else ""
