"""A web server for DID documents, beside whatever the test does: for registries that are processes of their own."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import trustme
from registries import did_document
from signers import Signer


@contextmanager
def did_host(folder: Path, *agents: Signer) -> Iterator[tuple[str, ...]]:
    """Serve the documents of agents at the roots of their domains; yields the options with which a registry finds them."""
    documents = {agent.did.rpartition(":")[2]: did_document(agent) for agent in agents}

    class Documents(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = documents[self.headers["Host"]]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*documents).configure_cert(tls)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Documents)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        hosts = [f"--resolve={host}=127.0.0.1:{server.server_address[1]}" for host in documents]
        yield (*hosts, f"--ca={folder / 'ca.pem'}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
