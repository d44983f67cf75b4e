"""Serve the requests of an ASGI application in turns of the networks that they come from."""

from __future__ import annotations

from ..asgi import ASGI, Receive, Scope, Send
from ..network.turns import asker_at
from .rounds import Rounds


class InTurns:
    """An application around another one. Each request, and each part of its body, waits for a turn of its network. For one event
    loop."""

    def __init__(self, app: ASGI) -> None:
        """Wait before `app`, which reads a body before it works on it."""
        self._app = app
        # A request is read in one iteration of the loop, and its work may begin in the next one.
        self._rounds = Rounds(iterations=2)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "http":
            network = asker_at((scope.get("client") or (None, 0))[0])
            if not self._rounds.take(network):
                await self._rounds.wait(network)
            receive = self._rounds.after(receive, network)
        await self._app(scope, receive, send)
