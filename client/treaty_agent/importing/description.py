"""The parts of a description that a reader has found: operations, and all that the protocol does not take over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Inexpressible(Exception):
    """An operation cannot be an operation of a manifest. Its text is the reason, in a phrase."""


@dataclass(frozen=True, slots=True)
class Omission:
    """A part of a description that the protocol lacks. `place`: such as `POST /pets`. `reason`: a phrase. `is_whole`: the
    operation is not imported; else it is imported without this part."""

    place: str
    reason: str
    is_whole: bool = True

    def __str__(self) -> str:
        return f"{'not imported' if self.is_whole else 'left out'}: {self.place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ImportedOperation:
    """An operation of a description, with its schemas in the dialect of manifests.

    `place`: its name in the description, such as `GET /pets/{petId}`. `wish`: the name that it shall have.
    `arguments`, `answer`: from an example of the description; empty if it has none.
    """

    place: str
    wish: str
    text: str
    parameters: Mapping[str, Any]
    result: Mapping[str, Any]
    errors: Mapping[int, str] = field(default_factory=dict)
    is_idempotent: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    answer: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportedDescription:
    """All that was read. `kind`: such as `OpenAPI 3.0.4`. `licence`: as it is written there, or empty. The texts are foreign."""

    kind: str
    title: str
    version: str
    about: str
    licence: str
    operations: tuple[ImportedOperation, ...]
    omissions: tuple[Omission, ...]
