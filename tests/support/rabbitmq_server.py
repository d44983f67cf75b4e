"""A real RabbitMQ server for tests: the system's, or Debian's packages, unpacked without root into a folder that is kept.

The server runs as one process group on loopback, with an `epmd` of its own, so that it meets no other Erlang program.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from build_cache import kept
from ports import free_port

PACKAGES = (
    "rabbitmq-server",
    "erlang-asn1",
    "erlang-base",
    "erlang-crypto",
    "erlang-eldap",
    "erlang-inets",
    "erlang-mnesia",
    "erlang-os-mon",
    "erlang-parsetools",
    "erlang-public-key",
    "erlang-runtime-tools",
    "erlang-ssl",
    "erlang-syntax-tools",
    "erlang-tools",
    "erlang-xmerl",
)
_START = 300.0
"""Seconds to wait for the server: Erlang starts slowly on a busy machine."""


def installation() -> Path:
    """Return the root of an unpacked installation. Raises `CalledProcessError` where apt has no such packages."""
    # pytest's cache, also for a run that turned the plugin of that name off.
    return kept(Path(__file__).parents[2] / ".pytest_cache" / "d" / "debian" / "rabbitmq", _unpack)


def _unpack(folder: Path) -> None:
    # apt drops its rights for a download, unless it may not write into the folder.
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=place, check=True, capture_output=True)
        for package in sorted(Path(place).glob("*.deb")):
            subprocess.run(["dpkg", "-x", package, folder / "root"], check=True, capture_output=True)
    # Debian's script has the place of a system-wide installation in it.
    script = folder / "bin" / "erl"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\nexec "$BINDIR/erlexec" "$@"\n')
    script.chmod(0o755)


@dataclass
class RabbitServer:
    """A server with its data. It can be killed and started again."""

    root: Path
    data: Path
    port: int
    _ports: tuple[int, int]
    tls_port: int = 0
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def tls_url(self) -> str:
        """The address for encrypted connections; see `rabbitmq(tls=…)`."""
        return f"amqps://guest:guest@127.0.0.1:{self.tls_port}/"

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        library = self.root / "root" / "usr" / "lib"
        runtime = next((library / "erlang").glob("erts-*"))
        home = next((library / "rabbitmq" / "lib").glob("rabbitmq_server-*"))
        epmd, distribution = self._ports
        environment = {
            "HOME": str(self.data),
            "PATH": f"{self.root / 'bin'}:{library / 'erlang' / 'bin'}:{os.environ['PATH']}",
            "ROOTDIR": str(library / "erlang"),
            "BINDIR": str(runtime / "bin"),
            "EMU": "beam",
            "PROGNAME": "erl",
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_HOME": str(home),
            "RABBITMQ_PLUGINS_DIR": str(home / "plugins"),
            "RABBITMQ_NODENAME": "treaty@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(self.data / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.data / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(self.data / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.data / "advanced"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.data / "plugins"),
            # One scheduler: on a shared machine, more of them only take turns.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1",
        }
        log = (self.data / "server.log").open("ab")
        for command in ([str(runtime / "bin" / "epmd"), "-port", str(epmd)], ["sh", str(home / "sbin" / "rabbitmq-server")]):
            # A session of its own: the script starts the server as a child, and both are killed together.
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            self._processes.append(process)
        log.close()
        ends = time.monotonic() + _START
        while not self._answers():
            assert self._processes[-1].poll() is None and time.monotonic() < ends, (self.data / "server.log").read_text()[-2000:]
            time.sleep(0.2)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return len(connection.recv(7)) == 7
        return False

    def kill(self) -> None:
        """End the server at once, with all its processes, as a crash of the machine would."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()


@contextmanager
def rabbitmq(*, tls: tuple[Path, Path, Path] | None = None) -> Iterator[RabbitServer]:
    """A running server with empty data, which ends with the block. `tls`: files of the authority, the certificate and the key."""
    root = installation()
    port, epmd, distribution = free_port(), free_port(), free_port()
    data = Path(tempfile.mkdtemp(prefix="treaty-rabbitmq-"))
    server = RabbitServer(root, data, port, (epmd, distribution))
    if tls is not None:
        server.tls_port = free_port()
        options = zip(("cacertfile", "certfile", "keyfile"), tls, strict=True)
        lines = [f"listeners.ssl.default = {server.tls_port}", *(f"ssl_options.{name} = {path}" for name, path in options)]
        (data / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(data, ignore_errors=True)
