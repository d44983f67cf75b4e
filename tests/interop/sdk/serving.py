"""Runs inside the environment of an SDK with uvicorn: serve an application over https until the input ends."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any, TextIO

import uvicorn


class AnnouncedServer(uvicorn.Server):
    """A server that says its port, and stops when the input ends."""

    def __init__(self, config: uvicorn.Config, out: TextIO) -> None:
        super().__init__(config)
        self._out = out

    async def startup(self, sockets: Any = None) -> None:
        """Open the port."""
        await super().startup(sockets)
        print(json.dumps({"port": self.servers[0].sockets[0].getsockname()[1]}), file=self._out, flush=True)
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        sys.stdin.read()
        self.should_exit = True


def serve(app: Any, certificate: str, out: TextIO) -> None:
    """Serve an ASGI application. `certificate`: a PEM file with certificate and key."""
    config = uvicorn.Config(app, port=0, ssl_certfile=certificate, log_config=None, timeout_graceful_shutdown=1)
    AnnouncedServer(config, out).run()
