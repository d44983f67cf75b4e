"""The stage: folders, ports and processes of the demo, and the way every actor finds the others.

Every actor is an operating-system process with a home of its own below one temporary folder. Hosts such as `shop.example` exist
only here: each actor is told `--resolve HOST=127.0.0.1:PORT` and the demo CA. Closing the stage ends every process that it
started.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from authority import DemoAuthority

from treaty_client.identity import Identity

REGISTRY = "registry.example"
HERE = Path(__file__).parent
BIN = Path(sys.executable).parent


class DemoFailed(Exception):
    """A step did not end as the story says it must."""


@dataclass
class Stage:
    """One temporary world. `domains`: every DID's domain. Use as a context manager."""

    root: Path
    domains: Sequence[str]
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.authority = DemoAuthority(self.root)
        self.ports = {name: free_port() for name in ("registry", "domains", "wheel", "statement", "fork")}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()

    def network(self, registry: str = "registry") -> list[str]:
        """The `--resolve` and `--ca` arguments of an actor that reaches the registry through that port: the registry or a
        liar."""
        hosts = {REGISTRY: self.ports[registry], **dict.fromkeys(self.domains, self.ports["domains"])}
        arguments = [part for host, port in hosts.items() for part in ("--resolve", f"{host}=127.0.0.1:{port}")]
        return [*arguments, "--ca", str(self.authority.certificate)]

    def home(self, name: str) -> Path:
        """The home of an actor."""
        home = self.root / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def found(self, domain: str) -> Identity:
        """Make a domain: a did:wba with its key in a home of its own, and its document on the domain's web server."""
        identity = Identity.create(domain)
        identity.save(self.home(domain) / "identity.json")
        folder = self.root / "domains" / domain
        folder.mkdir(parents=True)
        (folder / "did.json").write_text(json.dumps(identity.did_document()))
        return identity

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start an actor; what it prints goes to ROOT/NAME.log."""
        with (self.root / f"{name}.log").open("ab") as log:
            environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.root, env=environment)
        self._processes.append(process)
        return process

    def start_script(self, name: str, script: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one of this folder's scripts."""
        return self.start(name, sys.executable, str(HERE / script), *arguments)

    def treaty(self, home: str, *arguments: str, via: str = "registry", refused: bool = False) -> dict[str, Any]:
        """Run `treaty … --json` in the home of an actor and return what it printed. With `refused` it must fail, and the error
        returns."""
        command = [str(BIN / "treaty"), *arguments, "--home", str(self.home(home)), "--json", *self.network(via)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if (done.returncode != 0) != refused or not done.stdout.strip():
            raise DemoFailed(f"{' '.join(command)}\nstatus {done.returncode}\n{done.stdout}{done.stderr}")
        value: dict[str, Any] = json.loads(done.stdout)
        return value

    def log_of(self, name: str) -> str:
        """What an actor printed so far."""
        return (self.root / f"{name}.log").read_text(errors="replace")


def free_port() -> int:
    """A port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(what: str, process: subprocess.Popen[bytes], port: int, *, seconds: float = 60) -> None:
    """Wait until `port` accepts connections. Raises `DemoFailed` when the process ends before, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoFailed(f"{what} ended with status {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise DemoFailed(f"{what} did not listen within {seconds:.0f} s")


def wait_until_ready(url: str, process: subprocess.Popen[bytes], *, seconds: float = 60) -> None:
    """Wait until GET `url` answers 200; the certificate is not looked at, for this only asks whether somebody is there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoFailed(f"the server at {url} ended with status {process.returncode}")
        try:
            if httpx.get(url, verify=False, timeout=2).status_code == 200:  # noqa: S501
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise DemoFailed(f"{url} did not answer within {seconds:.0f} s")
