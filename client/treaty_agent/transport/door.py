"""Define the interface of a door: another protocol at a path of an agent's port, such as A2A."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from treaty_io.asgi import Receive, Scope, Send

if TYPE_CHECKING:
    from .application import Application


class Door(ABC):
    """Answers POST requests at one path. `path`: below the root of the application. `card`: the members of its interface in the
    agent card, beside `url`; none without a place in the card."""

    path: ClassVar[str]
    card: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    async def answer(self, application: Application, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Answer a request whose body is read. The application has counted it, and refused web pages. Raises `TreatyError` before
        the answer has begun."""

    @abstractmethod
    async def aclose(self) -> None:
        """End the work of earlier requests. Called when the application ends; safe to repeat."""
