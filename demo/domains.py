"""The domains of the agents: one HTTPS server that serves `/.well-known/did.json` for each domain.

It stands for as many web servers as there are domains: ROOT/DOMAIN/did.json is the document of DOMAIN, and the certificate is of
a throw-away authority. Other paths are asked from the domain's agent, if it has one. It runs in threads of the process that makes
it.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from authority import DemoAuthority


class DomainServer(ThreadingHTTPServer):
    """Serves the documents below `root` for the hosts in `domains`, on a port of loopback. `agents`: the port of the agent behind
    a domain, which may change. Raises OSError if the port is taken."""

    daemon_threads = True  # an open connection must not keep the process alive

    def __init__(self, port: int, root: Path, domains: Sequence[str], authority: DemoAuthority) -> None:
        super().__init__(("127.0.0.1", port), _Documents)
        self.files = {domain: root / domain / "did.json" for domain in domains}
        self.agents: dict[str, int] = {}
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
        file, port = self.server.files.get(host), self.server.agents.get(host)
        if self.path == "/.well-known/did.json" and file is not None and file.exists():
            self.answer(200, {"Content-Type": "application/json"}, file.read_bytes())
        elif port is not None:
            self.forward(port)
        else:
            self.send_error(404)

    def forward(self, port: int) -> None:
        """Ask an agent on this machine, whose certificate is not checked: it is for other names than loopback."""
        condition = {name: value for name, value in self.headers.items() if name.lower() == "if-none-match"}
        unchecked = ssl._create_unverified_context()  # noqa: S323
        try:
            with closing(HTTPSConnection("127.0.0.1", port, timeout=self.timeout, context=unchecked)) as connection:
                connection.request("GET", self.path, headers=condition)
                reply = connection.getresponse()
                kept = ("content-type", "cache-control", "etag")
                headers = {name: value for name, value in reply.getheaders() if name.lower() in kept}
                self.answer(reply.status, headers, reply.read())
        except (OSError, HTTPException):
            self.send_error(502)

    def answer(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal belongs to the demo's own lines."""
