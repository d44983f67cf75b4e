"""The domains of the agents: one HTTPS server that serves `/.well-known/did.json` for each domain.

It stands for as many web servers as there are domains: ROOT/DOMAIN/did.json is the document of DOMAIN, and the certificate is of
a throw-away authority. It runs in a thread of the process that makes it.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from authority import DemoAuthority


class DomainServer(ThreadingHTTPServer):
    """Serves the documents below `root` for the hosts in `domains`, on a port of loopback. Raises OSError if it is taken."""

    daemon_threads = True  # an open connection must not keep the process alive

    def __init__(self, port: int, root: Path, domains: Sequence[str], authority: DemoAuthority) -> None:
        super().__init__(("127.0.0.1", port), _Documents)
        self.files = {domain: root / domain / "did.json" for domain in domains}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.issue("domains", list(domains)))
        # The handshake happens at the first read, in the connection's own thread: a silent client must not block the others.
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @contextmanager
    def running(self) -> Iterator[int]:
        """Serve until the block ends; yields the port."""
        thread = threading.Thread(target=self.serve_forever, daemon=True)
        thread.start()
        try:
            yield self.server_address[1]
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


class _Documents(BaseHTTPRequestHandler):
    server: DomainServer
    timeout = 10  # seconds for a request; a silent connection then ends

    def do_GET(self) -> None:
        host = (self.headers.get("Host") or "").partition(":")[0]
        file = self.server.files.get(host)
        if self.path != "/.well-known/did.json" or file is None or not file.exists():
            self.send_error(404)
            return
        data = file.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal belongs to the demo's own lines."""
