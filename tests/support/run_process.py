"""`make run` as a process: a registry with its catalogue and the web server of three domains, on free ports."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ports import free_port

ROOT = Path(__file__).parents[2]
DOMAINS_READY = "README.md goes on"
"""`make run` says this last, when the domains and the registry can be used."""


@dataclass(frozen=True)
class Run:
    """A process of `make run` in a folder with the log of its output."""

    folder: Path
    port: int
    web_port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        return self.folder / "registry"

    @property
    def database(self) -> Path:
        return self.data / "postgres" / "postmaster.pid"

    def said(self) -> str:
        return (self.folder / "run.log").read_text()

    def wait_for(self, text: str) -> None:
        while text not in self.said():
            assert self.process.poll() is None, self.said()
            time.sleep(0.1)

    def wait_until_gone(self) -> None:
        """Wait until the registry and its database have ended; a test that waits for ever is a failure too."""
        while self.database.exists() or accepts(self.port):
            time.sleep(0.1)


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def start(folder: Path, port: int, web_port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    ports = ("--port", str(port), "--web-port", str(web_port))
    command = [sys.executable, "demo/run.py", *ports, "--data", str(folder / "registry")]
    return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"})


@contextmanager
def make_run(folder: Path) -> Iterator[Run]:
    """`make run` on free ports.

    SIGTERM ends it: where a shell started these tests in the background, they and all that they start ignore SIGINT.
    """
    port, web_port = free_port(), free_port()
    with (folder / "run.log").open("wb") as log:
        run = Run(folder, port, web_port, start(folder, port, web_port, log))
    try:
        yield run
    finally:
        run.process.terminate()
        run.process.wait(timeout=60)


def run_script(run: Run, work: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run the shell commands of a user beside `make run`, up to the first that fails.

    `work`: the folder of the user, which gets `.treaty-registry`, `.venv` and `examples`. The ports in `script` are those of the
    documents, and become those of the run. The user has no home and no settings of Treaty.
    """
    work.mkdir(exist_ok=True)
    (work / ".treaty-registry").symlink_to(run.data)
    for name in (".venv", "examples"):
        (work / name).symlink_to(ROOT / name)
    script = script.replace("127.0.0.1:8080", f"127.0.0.1:{run.port}").replace(
        "https://8080.localhost", f"https://{run.port}.localhost"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TREATY_")}
    environment["HOME"] = str(work.parent)
    command = ["bash", "-c", f"set -eu\n{script}"]
    return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=600)
