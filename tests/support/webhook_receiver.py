"""A receiver of Standard Webhooks on a socket of this machine. It verifies each delivery with the library of the standard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from standardwebhooks import Webhook

SECRET = "whsec_" + "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3JldCE="


@dataclass
class Receiver:
    """`taken`: the ids and findings that were answered by 2xx. `tried`: the ids of all deliveries. `failing`: how many deliveries
    to refuse first, with `status`."""

    url: str = ""
    failing: int = 0
    status: int = 500
    tried: list[str] = field(default_factory=list)
    taken: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


def secret_in(folder: Path) -> Path:
    """Write the secret of the receiver."""
    path = folder / "webhook.secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return path


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver, as long as the block runs."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            event = Webhook(SECRET).verify(body, dict(self.headers))
            id_ = self.headers["webhook-id"]
            receiver.tried.append(id_)
            refuses = len(receiver.tried) <= receiver.failing
            if not refuses:
                receiver.taken.append((id_, event["data"]))
            self.send_response(receiver.status if refuses else 204)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """The sender was killed."""

    with Server(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
        yield receiver
        server.shutdown()
