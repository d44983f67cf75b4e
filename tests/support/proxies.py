"""Reverse proxies of `deploy/proxy` as processes, with a certificate of the test's own, on free ports."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from debian_programs import debian_program
from ports import free_port
from tls_servers import TestAuthority

FILES = Path(__file__).parents[2] / "deploy" / "proxy"


@dataclass(frozen=True)
class Proxy:
    """A running proxy. `port`: that of https, `plain`: that of http."""

    port: int
    plain: int
    authority: TestAuthority


def changed(text: str, **values: str) -> str:
    """Return a file with other values, each of which it must contain."""
    for old, new in values.items():
        assert old in text, f"the file has no {old}"
        text = text.replace(old, new)
    return text


@contextmanager
def caddy(program: Path, folder: Path, upstream: str) -> Iterator[Proxy]:
    """Caddy with the Caddyfile, which reads all that differs from its environment."""
    proxy = _proxy(folder)
    tls = folder / "caddy"
    tls.mkdir()
    (tls / "own.caddy").write_text(f"tls {proxy.authority.certificate} {proxy.authority.key}\n")
    environment = {
        **os.environ,
        "HOME": str(folder),
        "HTTP_PORT": str(proxy.plain),
        "HTTPS_PORT": str(proxy.port),
        "REGISTRY": upstream,
        "REGISTRY_HOST": "localhost",
        "TLS_DIRECTORY": str(tls),
    }
    with _running([str(program), "run", "--config", str(FILES / "Caddyfile")], folder, environment, proxy):
        yield proxy


@contextmanager
def nginx(folder: Path, upstream: str) -> Iterator[Proxy]:
    """nginx with nginx.conf in the `http` context, where only name, ports and files differ."""
    proxy = _proxy(folder)
    site = changed(
        (FILES / "nginx.conf").read_text(),
        **{
            "registry.example": "localhost",
            "server 127.0.0.1:8080": f"server {upstream}",
            "/etc/ssl/treaty/chain.pem": str(proxy.authority.certificate),
            "/etc/ssl/treaty/key.pem": str(proxy.authority.key),
            "listen 443": f"listen 127.0.0.1:{proxy.port}",
            "listen [::]:443": f"listen [::1]:{proxy.port}",
            "listen 80": f"listen 127.0.0.1:{proxy.plain}",
            "listen [::]:80": f"listen [::1]:{proxy.plain}",
        },
    )
    (folder / "treaty.conf").write_text(site)
    with _nginx(folder, proxy):
        yield proxy


@contextmanager
def static_nginx(folder: Path, site: Path) -> Iterator[Proxy]:
    """nginx with nginx-static.conf over the static site in a folder."""
    proxy = _proxy(folder)
    text = changed(
        (FILES / "nginx-static.conf").read_text(),
        **{
            "static.example": "localhost",
            "/srv/treaty/site": str(site),
            "/etc/ssl/treaty/chain.pem": str(proxy.authority.certificate),
            "/etc/ssl/treaty/key.pem": str(proxy.authority.key),
            "listen 443": f"listen 127.0.0.1:{proxy.port}",
            "listen [::]:443": f"listen [::1]:{proxy.port}",
        },
    )
    (folder / "treaty.conf").write_text(text)
    with _nginx(folder, proxy):
        yield proxy


@contextmanager
def _nginx(folder: Path, proxy: Proxy) -> Iterator[None]:
    """nginx with treaty.conf of the folder."""
    paths = "".join(f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    site_file = f"http {{\naccess_log off;\n{paths}include {folder}/treaty.conf;\n}}\n"
    main = f"daemon off;\nerror_log stderr;\npid {folder}/pid;\nevents {{}}\n{site_file}"
    (folder / "nginx.conf").write_text(("user root;\n" if os.geteuid() == 0 else "") + main)
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or debian_program("nginx", "nginx")
    with _running([program, "-c", str(folder / "nginx.conf"), "-p", str(folder)], folder, dict(os.environ), proxy):
        yield


def _proxy(folder: Path) -> Proxy:
    return Proxy(free_port(), free_port(), TestAuthority(folder))


@contextmanager
def _running(command: list[str], folder: Path, environment: dict[str, str], proxy: Proxy) -> Iterator[None]:
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        # A wait for readiness: both begin to listen only after they have read their files.
        while socket.socket().connect_ex(("127.0.0.1", proxy.port)) != 0:
            assert process.poll() is None, (folder / "proxy.log").read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()
