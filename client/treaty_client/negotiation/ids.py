"""Comparing what a handler sends with what a test case shows, where the handler draws ids of its own.

A test case was written before anybody knew the session's seed, so it has a text such as `msg001` where a handler writes
`derive_id(seed, 1)`. What stands for what is learnt from the first message in which they meet and holds for the session: one
text an id, one id a text. Everything else is compared exactly; `1`, `1.0` and `true` are three values.
"""

from __future__ import annotations

import json
import re

from treaty_handler import Value, decode_json, derive_id, encode_json

from .test_cases import Message

MAX_IDS = 1_024
MAX_COMPARED = 128 * 1024
"""Bytes of a message that is compared; the test cases have at most half as many together."""
MAX_TEXTS = 128
"""Ids that are met in one session; each costs a search in every text that is filled."""
_LENGTH = len(derive_id("", 0))


class Ids:
    """The ids of the handlers that have these seeds, and the texts that stand for them."""

    def __init__(self, *seeds: str) -> None:
        self._drawn = frozenset(derive_id(seed, number) for seed in seeds for number in range(MAX_IDS))
        self._texts: dict[str, str] = {}

    def matches(self, expected: Message, data: bytes) -> bool:
        """Whether `data` is the expected message but for ids; then what stands for them is remembered."""
        if len(data) > MAX_COMPARED:
            return False
        if expected.notation == "json":
            try:
                return self.same(expected.content, decode_json(data))
            except ValueError:
                return False
        return self._same_text(expected.data.decode("latin-1"), data.decode("latin-1"))

    def same(self, expected: Value, actual: Value) -> bool:
        """Whether two JSON values are the same but for ids."""
        match expected, actual:
            case dict(), dict():
                return expected.keys() == actual.keys() and all(self.same(expected[name], actual[name]) for name in expected)
            case list(), list():
                return len(expected) == len(actual) and all(map(self.same, expected, actual))
            case str(), str():
                return self._same_text(expected, actual)
            case _:
                return json.dumps(expected) == json.dumps(actual)

    def fill(self, message: Message) -> bytes:
        """A message of a test case with the ids in the places of the texts that stand for them."""
        if message.notation == "json":
            return encode_json(self._filled(message.content))
        return self._filled_text(message.data.decode("latin-1")).encode("latin-1")

    def _same_text(self, expected: str, actual: str) -> bool:
        found = {actual[start : start + _LENGTH] for start in range(len(actual) - _LENGTH + 1)} & self._drawn
        if not found:
            return expected == actual
        if len(found) > MAX_TEXTS:
            return False
        pieces = re.split(f"({'|'.join(sorted(found))})", actual)
        learnt: dict[str, str] = {}
        position = 0
        for index in range(0, len(pieces), 2):
            if not expected.startswith(pieces[index], position):
                return False
            position += len(pieces[index])
            if index + 1 < len(pieces):
                text = self._text_at(expected, position, pieces[index + 1], pieces[index + 2], learnt)
                if text is None:
                    return False
                position += len(text)
        if position != len(expected) or len(self._texts | learnt) > MAX_TEXTS:
            return False
        self._texts |= learnt
        return True

    def _text_at(self, expected: str, position: int, drawn: str, following: str, learnt: dict[str, str]) -> str | None:
        """The text that stands for an id at this place: what is known, else the shortest before what follows in the message."""
        known = {**self._texts, **learnt}
        if drawn in known:
            return known[drawn] if expected.startswith(known[drawn], position) else None
        end = expected.find(following, position + 1) if following else len(expected)
        text = expected[position:end] if end > position else ""
        if not text or text in known.values():
            return None
        learnt[drawn] = text
        return text

    def _filled(self, value: Value) -> Value:
        match value:
            case dict():
                return {name: self._filled(item) for name, item in value.items()}
            case list():
                return [self._filled(item) for item in value]
            case str():
                return self._filled_text(value)
            case _:
                return value

    def _filled_text(self, text: str) -> str:
        ids = {known: drawn for drawn, known in self._texts.items()}
        if not ids:
            return text
        longest_first = sorted(ids, key=len, reverse=True)
        pattern = rf"(?<![A-Za-z0-9_-])(?:{'|'.join(map(re.escape, longest_first))})(?![A-Za-z0-9_-])"
        return re.sub(pattern, lambda match: ids[match[0]], text)
