"""A plain static file server as a network: it knows paths and files, and no query, no `Accept` and no API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network


@dataclass(frozen=True)
class StaticFolders(Network):
    """A network of static servers: host → the folder that it serves. Every other host is down. `missed`: paths without a file."""

    folders: Mapping[str, Path] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    def client(self, *, timeout: float | None = None) -> BoundedClient:
        return BoundedClient(transport=httpx.MockTransport(self._answer))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        folder = self.folders.get(request.url.host)
        if folder is None:
            raise httpx.ConnectError("nobody listens", request=request)
        file = folder / request.url.path.lstrip("/")
        if request.method != "GET" or not file.is_file():
            self.missed.append(request.url.path)
            return httpx.Response(404, stream=httpx.ByteStream(b"<html>404 Not Found</html>"))
        return httpx.Response(200, stream=httpx.ByteStream(file.read_bytes()))
