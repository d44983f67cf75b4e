"""A liar between client and registry: an HTTPS reverse proxy that changes what passes through it.

    python proxy.py MODE --port PORT --upstream https://127.0.0.1:PORT --cert PEM --key PEM

MODE `wheel` flips a byte of every handler wheel; `statement` swaps a byte inside the publish statement of every bundle. The
client is never patched: the attack is on the wire, where an attacker would be.
"""

from __future__ import annotations

import argparse
import base64
import json
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding", "keep-alive"}


def forge_statement(bundle: bytes) -> bytes:
    """The bundle with another topic in its publish statement: still JSON, still well-formed, no longer what was signed."""
    value = json.loads(bundle)
    for entry in value["leaves"]:
        leaf = json.loads(base64.b64decode(entry["leaf"]))
        payload = base64.b64decode(leaf.get("payload", ""))
        if b'"type":"publish"' in payload:
            leaf["payload"] = base64.b64encode(payload.replace(b"product-info", b"product-1nfo", 1)).decode()
            entry["leaf"] = base64.b64encode(json.dumps(leaf, separators=(",", ":")).encode()).decode()
    return json.dumps(value, separators=(",", ":")).encode()


def flip_wheel(body: bytes) -> bytes:
    """A zip with one byte changed in its middle; anything else as it is."""
    if not body.startswith(b"PK"):
        return body
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


def tamper(mode: str, path: str, body: bytes) -> bytes:
    """What the proxy answers in place of `body`."""
    if mode == "statement" and ".bundle" in path:
        return forge_statement(body)
    if mode == "wheel" and path.startswith("/blobs/"):
        return flip_wheel(body)
    return body


def serve(mode: str, port: int, upstream: str, certificate: Path, key: Path) -> None:
    """Serve until the process is ended."""
    client = httpx.Client(base_url=upstream, verify=False)  # noqa: S501 (a liar does not care who it lies about)

    class Liar(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = client.get(self.path, headers={"Accept": self.headers.get("Accept", "*/*")})
            body = tamper(mode, self.path, answer.content)
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet: the story is told elsewhere."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Liar)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["wheel", "statement"])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--cert", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    arguments = parser.parse_args()
    serve(arguments.mode, arguments.port, arguments.upstream, arguments.cert, arguments.key)
