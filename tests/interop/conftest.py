"""The official Python SDK of ANP, in an environment of its own: nothing of it is installed beside Treaty."""

from __future__ import annotations

import fcntl
import hashlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

HERE = Path(__file__).parent
LOCK = HERE / "anp.lock"


PATIENCE = 60.0
"""Seconds for a line of the SDK, before the test fails."""


class Sdk:
    """A process in which the SDK runs; it reads lines of JSON, and writes some."""

    def __init__(self, python: Path, script: Path) -> None:
        self._process = subprocess.Popen(
            [str(python), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def call(self, function: str, **arguments: object) -> Any:
        """The result of a function of the script. Raises AssertionError with the SDK's own words when it fails."""
        self.tell(call=function, arguments=arguments)
        answer = self.event()
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def tell(self, **value: object) -> None:
        """Write a line."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(value).encode() + b"\n")
        self._process.stdin.flush()

    def event(self) -> Any:
        """The next line that it writes. Raises queue.Empty when none comes."""
        return json.loads(self._lines.get(timeout=PATIENCE))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(timeout=PATIENCE)
        self._reader.join()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line)


Environment: TypeAlias = Callable[[str, str, str], Path]


@pytest.fixture(scope="session")
def environment(request: pytest.FixtureRequest) -> Environment:
    """Makes an environment of its own for some requirements, which name every hash: `environment(name, requirements, python)` is
    the interpreter in it. It is made once for each state of them and each interpreter, and kept in pytest's cache."""

    def make(name: str, requirements: str, python: str) -> Path:
        version = subprocess.run([python, "-VV"], check=True, capture_output=True).stdout
        digest = hashlib.sha256(requirements.encode() + version).hexdigest()[:16]
        folder = request.config.cache.mkdir(name) / digest
        made = folder / "bin" / "python"
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "complete").exists():
                subprocess.run([python, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
                (folder / "requirements").write_text(requirements)
                install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--require-hashes"]
                where = ["--python", str(made), "-r", str(folder / "requirements")]
                subprocess.run([*install, *where], check=True)
                (folder / "complete").touch()
        return made

    return make


@pytest.fixture(scope="session")
def sdk_python(environment: Environment) -> Path:
    """An interpreter that has the SDK."""
    return environment("anp", LOCK.read_text(), sys.executable)


Scripts: TypeAlias = Callable[[str], Any]
"""Runs one of the scripts in `sdk/`, in the environment of its SDK."""


def _scripts(python: Path) -> Scripts:
    @contextmanager
    def run(name: str) -> Iterator[Sdk]:
        sdk = Sdk(python, HERE / "sdk" / name)
        try:
            yield sdk
        finally:
            sdk.close()

    return run


@pytest.fixture(scope="session")
def sdk_script(sdk_python: Path) -> Scripts:
    """The scripts of the ANP SDK."""
    return _scripts(sdk_python)


@pytest.fixture(scope="session")
def a2a_script(environment: Environment) -> Scripts:
    """The scripts of the official A2A SDK."""
    return _scripts(environment("a2a", (HERE / "a2a.lock").read_text(), sys.executable))


@pytest.fixture(scope="session")
def mcp_script(environment: Environment) -> Scripts:
    """The scripts of the official MCP SDK."""
    return _scripts(environment("mcp", (HERE / "mcp.lock").read_text(), sys.executable))


@pytest.fixture(scope="module")
def sdk(sdk_script: Callable[[str], Any]) -> Iterator[Sdk]:
    """The SDK's did:wba authentication."""
    with sdk_script("authentication.py") as running:
        yield running
