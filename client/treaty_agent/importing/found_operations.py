"""Collect the operations of a description, one at a time, and the reasons of all that cannot be one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .description import MAX_EXAMINED, ImportedOperation, Inexpressible, Omission
from .schema_import import one_line


class FoundOperations:
    """The operations so far, and the omissions."""

    def __init__(self) -> None:
        self.operations: list[ImportedOperation] = []
        self.omissions: list[Omission] = []

    def each(self, noun: str, items: Sequence[Any], key: str = "name") -> Iterator[tuple[str, Any]]:
        """Yield each item with its place: the noun and the member `key`, or its number. At most `MAX_EXAMINED` of them."""
        for number, item in enumerate(items[:MAX_EXAMINED], 1):
            name = item.get(key) if isinstance(item, dict) else None
            yield f"{noun} {one_line(name, 120) if isinstance(name, str) else number}", item
        if len(items) > MAX_EXAMINED:
            self.omissions.append(Omission(f"each further {noun}", f"only {MAX_EXAMINED} are looked at"))

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
