"""Hold the traits that all forms of one manifest have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ..values import Value

ABSENT: Final = "$absent"
# An id is kept while its request is open.
MAX_ID: Final = 256
# A message with a larger integer is no JSON that the other side reads (RFC 7493 §2.2).
_MAX_INTEGER = 2**53 - 1
# The interface of manifests whose ids may be integers.
_INTEGER_IDS = 5

Path: TypeAlias = tuple[str, ...]
MessageId: TypeAlias = str | int
"""1 and "1" are different ids."""


@dataclass(frozen=True, slots=True)
class FormTraits:
    """`absent`: the places of `$absent` in any form. `has_integer_ids`: whether an integer is an id too. `refusals`: code of the
    interpreter → the code that the protocol has in its place."""

    absent: frozenset[Path] = frozenset()
    has_integer_ids: bool = False
    refusals: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, messages: Mapping[str, Mapping[str, Value]], interface: int, refusals: Mapping[int, int]) -> FormTraits:
        """Return the traits of a manifest whose `messages` passed the rules."""
        absent = (place for forms in messages.values() for form in forms.values() for place in _absent((), form))
        return cls(frozenset(absent), interface >= _INTEGER_IDS, refusals)

    def id_of(self, value: object) -> MessageId | None:
        """Return the value at the place of an id, or None if it is none that can be kept."""
        if isinstance(value, str):
            return value if len(value) <= MAX_ID else None
        # `True` is an `int`.
        is_id = self.has_integer_ids and type(value) is int and abs(value) <= _MAX_INTEGER
        return value if is_id and isinstance(value, int) else None


def _absent(path: Path, node: Value) -> Iterator[Path]:
    if node == ABSENT:
        yield path
    elif isinstance(node, Mapping):
        for name, child in node.items():
            yield from _absent((*path, name), child)
