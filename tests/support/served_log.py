"""A simulated registry behind a socket, for commands that run as processes of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

import httpx
from simulated_registry import BASE_URL, LOG_KEY, SimulatedRegistry


@dataclass
class Wire:
    """The registry behind a socket. `before`: called for every request, with how many bundles were asked for by now."""

    registry: SimulatedRegistry
    before: Callable[[int], None] = lambda bundles: None
    bundles: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def answer(self, path: str) -> tuple[int, bytes]:
        if "/entries/" in path:
            with self._lock:
                self.bundles[path] += 1
                self.before(self.bundles.total())
        status, body = self.registry.answer(httpx.Request("GET", BASE_URL + path))
        return status, self.registry.tamper(path, body)


@contextmanager
def served(wire: Wire) -> Iterator[str]:
    """The registry's name, as long as it is served."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = wire.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Who asked was killed."""

    with Server(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}#{LOG_KEY.verifier}"
        server.shutdown()
