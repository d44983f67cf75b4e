"""Collect the operations of a description, one at a time, and the reasons of all that cannot be one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Malformed

from .description import ImportedOperation, Inexpressible, Omission
from .schema_import import SchemaBudget, one_line

MAX_EXAMINED = 512
"""Operations of a description that are looked at. A manifest takes 64 of them."""


class FoundOperations:
    """The operations so far, and the omissions. `budget`: of all schemas of the description."""

    def __init__(self, only: Collection[str] = ()) -> None:
        """`only`: the names or places of the operations to take; all if it is empty."""
        self.operations: list[ImportedOperation] = []
        self.omissions: list[Omission] = []
        self.budget = SchemaBudget()
        self._only, self._missing = frozenset(only), set(only)

    def named(self, noun: str, items: Iterable[Any], key: str = "name") -> Iterator[tuple[str, Any]]:
        """Yield each wanted item with its place: the noun and its member `key`, or its number."""
        names = [(item.get(key) if isinstance(item, dict) else None, item) for item in items]
        places = [
            f"{noun} {one_line(name, 120) if isinstance(name, str) else number}" for number, (name, _) in enumerate(names, 1)
        ]
        yield from self.wanted((place, name, item) for place, (name, item) in zip(places, names, strict=True))

    def wanted(self, items: Iterable[tuple[str, Any, Any]]) -> Iterator[tuple[str, Any]]:
        """Yield place and item of those that are wanted by place or name, at most `MAX_EXAMINED`."""
        count = 0
        for place, name, item in items:
            if self._only and not (place in self._only or (isinstance(name, str) and name in self._only)):
                continue
            self._missing -= {place, name} if isinstance(name, str) else {place}
            count += 1
            if count > MAX_EXAMINED:
                self.omissions.append(Omission("all further operations", f"at most {MAX_EXAMINED} are looked at"))
                return
            yield place, item

    @contextmanager
    def reading(self, place: str) -> Iterator[None]:
        """Note the reason if the operation that is read inside is `Inexpressible`."""
        try:
            yield
        except Inexpressible as error:
            self.omissions.append(Omission(place, str(error)))

    def add(self, operation: ImportedOperation, left_out: Iterable[str]) -> None:
        """Take an operation. `left_out`: its parts that have no place in a protocol, each in a phrase."""
        self.operations.append(operation)
        self.omissions += [Omission(operation.place, reason, is_whole=False) for reason in left_out]

    def check_wishes(self) -> None:
        """Check that each name of `only` was found. Raises `Malformed` (`system.usage`)."""
        if self._missing:
            fault = f"The description has no operation {one_line(min(self._missing), 80)!r}."
            raise Malformed(SystemCode.USAGE, fault, fix="Leave --only out to see all of them.")
