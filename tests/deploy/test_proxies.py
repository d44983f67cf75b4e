"""The proxies of `deploy/proxy`, run for real: TLS, HTTP/2, bodies, and a client that lies about its address."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import go_programs
import httpx
import proxies
import pytest
from proxies import Proxy

from treaty_registry.networks import TrustedProxies

CLIENT = "127.0.0.5"
"""The address that the client sends from. The proxies are at 127.0.0.1."""
LIE = "203.0.113.9"


class Echo(BaseHTTPRequestHandler):
    """Answers with the headers that a registry would get."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        left = length
        while left:
            left -= len(self.rfile.read(min(left, 65536)))
        body = json.dumps({"headers": self.headers.items(), "peer": self.client_address[0], "body": length}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = answer  # noqa: N815 (the names that http.server calls)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def upstream() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


# The programs in Go take minutes of processor time to build, so `make test` has only those of the log.
@pytest.fixture(params=[pytest.param("caddy", marks=pytest.mark.deep), "nginx"])
def proxy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Proxy]:
    with upstream() as address:
        if request.param == "nginx":
            if shutil.which("nginx") is None and not Path("/usr/sbin/nginx").exists():
                pytest.skip("The system has no nginx (Debian: nginx-light).")
            with proxies.nginx(tmp_path, address) as running:
                yield running
        else:
            if shutil.which("go") is None:
                pytest.skip("There is no go command, so Caddy was not built.")
            program = go_programs.build("caddy", request.config.cache.mkdir("go")) / "caddy"
            with proxies.caddy(program, tmp_path, address) as running:
                yield running


def client_of(proxy: Proxy) -> httpx.Client:
    transport = httpx.HTTPTransport(verify=proxy.authority.trusting(), local_address=CLIENT, trust_env=False)
    return httpx.Client(base_url=f"https://localhost:{proxy.port}", transport=transport, timeout=60)


def test_a_client_cannot_choose_its_address(proxy: Proxy) -> None:
    lies = {"X-Forwarded-For": f"{LIE}, 10.0.0.1", "Forwarded": f"for={LIE}", "X-Real-IP": LIE}
    with client_of(proxy) as client:
        answer = client.get("/", headers=lies).json()
    forwarded = [value for name, value in answer["headers"] if name.lower() == "x-forwarded-for"]
    assert TrustedProxies.parse([answer["peer"]]).client(answer["peer"], forwarded) == CLIENT
    assert LIE not in str([item for item in answer["headers"] if item[0].lower() != "x-real-ip"])


def test_it_speaks_http_2_and_no_old_tls(proxy: Proxy) -> None:
    context = proxy.authority.trusting()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", proxy.port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        assert (tls.selected_alpn_protocol(), tls.version()) == ("h2", "TLSv1.3")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(proxy.authority.ca)
    with pytest.warns(DeprecationWarning):
        old.maximum_version = old.minimum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", proxy.port)) as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        old.wrap_socket(plain, server_hostname="localhost")


def test_a_proxy_passes_exactly_the_largest_body(proxy: Proxy) -> None:
    with client_of(proxy) as client:
        assert client.put("/", content=b"x" * (4 * 1024 * 1024)).json()["body"] == 4 * 1024 * 1024
        try:
            status = client.put("/", content=b"x" * (6 * 1024 * 1024)).status_code
        # It may answer and close before the whole body is sent.
        except httpx.TransportError:
            status = 413
    assert status in (413, 502)


def test_plain_http_leads_to_https(proxy: Proxy) -> None:
    with httpx.Client(trust_env=False) as client:
        answer = client.get(f"http://localhost:{proxy.plain}/log")
    assert answer.status_code == 308 and answer.headers["Location"].startswith("https://localhost")
