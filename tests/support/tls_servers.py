"""Servers with TLS for tests: certificates of an authority made in the test, and a PostgreSQL that takes TLS only."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from ports import free_port

USER = "nobody"
"""PostgreSQL refuses to run as root. A test that root runs starts it as this user."""


class TestAuthority:
    """A certificate authority, and the files of a server certificate for `127.0.0.1`, in a folder that the server can read."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.authority, folder = trustme.CA(), folder / "tls"
        folder.mkdir()
        certificate = self.authority.issue_cert("127.0.0.1", "localhost")
        self.ca, self.certificate, self.key = (folder / name for name in ("ca.pem", "server.pem", "server.key"))
        self.authority.cert_pem.write_to_path(str(self.ca))
        certificate.cert_chain_pems[0].write_to_path(str(self.certificate))
        certificate.private_key_pem.write_to_path(str(self.key))
        self.key.chmod(0o600)

    def trusting(self) -> ssl.SSLContext:
        """A client's context that trusts this authority alone."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


@contextmanager
def tls_postgres() -> Iterator[tuple[str, TestAuthority]]:
    """The URL of a PostgreSQL that refuses connections without TLS, and its authority.

    It is the system's: the embedded server is built without TLS.
    """
    programs = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
    if programs is None:
        pytest.skip("The system has no PostgreSQL with TLS (Debian: postgresql).")
    folder, port = Path(tempfile.mkdtemp(prefix="treaty-tls-")), free_port()
    authority = TestAuthority(folder)
    user = USER if os.geteuid() == 0 else None
    if user is not None:
        for path in (folder, folder / "tls", *(folder / "tls").iterdir()):
            shutil.chown(path, user)
    data, log = folder / "data", (folder / "server.log").open("wb")
    initdb = [
        str(programs / "initdb"),
        "-D",
        str(data),
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-locale",
        "--no-sync",
    ]
    subprocess.run(initdb, check=True, capture_output=True, cwd=folder, user=user)
    (data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 trust\n")
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "ssl": "on",
        "ssl_cert_file": authority.certificate,
        "ssl_key_file": authority.key,
        "fsync": "off",
    }
    command = [str(programs / "postgres"), "-D", str(data), *(f"--{name}={value}" for name, value in settings.items())]
    server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, user=user)
    try:
        ends = time.monotonic() + 60
        ready = [str(programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
        while subprocess.run(ready, check=False, capture_output=True).returncode != 0:
            assert server.poll() is None and time.monotonic() < ends, (folder / "server.log").read_text()[-2000:]
            time.sleep(0.1)
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres", authority
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
        log.close()
        shutil.rmtree(folder, ignore_errors=True)
