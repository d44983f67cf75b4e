"""The agents' domains: one HTTPS server that hands out `/.well-known/did.json` for each Host it has a folder for.

    python domains.py --port PORT --root DIR --cert PEM --key PEM

serves DIR/HOST/did.json. It stands for as many web servers as there are domains.
"""

from __future__ import annotations

import argparse
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def serve(port: int, root: Path, certificate: Path, key: Path) -> None:
    """Serve until the process is ended."""

    class Documents(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = (self.headers.get("Host") or "").partition(":")[0]
            hosts = {folder.name: folder / "did.json" for folder in root.iterdir()}
            document = hosts.get(host)
            if self.path != "/.well-known/did.json" or document is None:
                self.send_error(404)
                return
            data = document.read_bytes()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet: the story is told elsewhere."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Documents)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--cert", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    arguments = parser.parse_args()
    serve(arguments.port, arguments.root, arguments.cert, arguments.key)
