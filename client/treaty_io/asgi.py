"""The types of an ASGI 3 application (https://asgi.readthedocs.io)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
ASGI = Callable[[Scope, Receive, Send], Awaitable[None]]
