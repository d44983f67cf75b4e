"""A lock installs exactly what it locks, whatever an index lists later.

An index on loopback lists a newer version beside each locked file. Its packages are empty and have the metadata of the real ones,
so a resolver has the same reasons as on the day of a release to take the newer version. uv, pip and the packages that build the
project are real.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from email.message import Message
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
REAL = frozenset(("editables", "hatchling", "packaging", "pathspec", "pip", "pluggy", "trove-classifiers", "uv"))
"""The packages that an installation runs."""
PIN = re.compile(r"^([a-z0-9._-]+)==([^ ;\\\n]+)(?: ; ([^\\\n]+?))?(?: \\)?$", re.MULTILINE)


def pins(lock: Path) -> dict[str, str]:
    """Return the version of each package that a lock names for this platform."""
    matches = PIN.findall(lock.read_text())
    return {canonicalize_name(name): version for name, version, marker in matches if not marker or Marker(marker).evaluate()}


class Package:
    """The wheel of one version, made of the installed distribution of that name."""

    def __init__(self, folder: Path, name: str, version: str) -> None:
        self.path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        self._name, self._version = name, version
        with zipfile.ZipFile(self.path, "w") as archive:
            self._write(archive)

    @cached_property
    def sha256(self) -> str:
        """The hash of the file, in hexadecimal."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def _write(self, archive: zipfile.ZipFile) -> None:
        info = f"{self._name.replace('-', '_')}-{self._version}.dist-info"
        contents = {
            f"{info}/METADATA": bytes(self._metadata),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        if self._name in REAL and not Version(self._version).is_postrelease:
            contents |= self._installed_files()
        for path, content in contents.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (0o100755 if "/scripts/" in path else 0o100644) << 16  # pip looks for a regular file
            archive.writestr(entry, content)
        record = "".join(f"{path},sha256={digest(content)},{len(content)}\n" for path, content in contents.items())
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")

    @property
    def _metadata(self) -> Message:
        metadata = Message()
        metadata["Metadata-Version"], metadata["Name"], metadata["Version"] = "2.1", self._name, self._version
        try:
            installed = distribution(self._name).metadata
        except PackageNotFoundError:  # of the image's build alone
            return metadata
        for field in ("Requires-Dist", "Provides-Extra"):
            for text in installed.get_all(field) or ():
                metadata[field] = text
        return metadata

    def _installed_files(self) -> dict[str, bytes]:
        contents = {}
        for file in distribution(self._name).files or ():
            place = Path(str(distribution(self._name).locate_file(file)))
            if file.parts[0] == ".." and file.name == "uv":
                contents[f"uv-{self._version}.data/scripts/uv"] = place.read_bytes()
            elif (
                file.parts[0] != ".."
                and (".dist-info" not in file.parts[0] or file.name == "entry_points.txt")
                and file.suffix != ".pyc"
            ):
                contents[str(file)] = place.read_bytes()
        return contents


def digest(content: bytes) -> str:
    """Return a hash in the form of a RECORD."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


class Index:
    """The simple index (PEP 503) of packages, on loopback, and locks that name its files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packages: dict[str, dict[str, Package]] = {}
        index = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = index.page(self.path)
                self.send_response(200 if content else 404)
                self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: the output of a test shows its faults."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple/"

    def page(self, path: str) -> bytes:
        """Return the list of a package, or a file; nothing for all else."""
        if match := re.fullmatch(r"/simple/([^/]+)/", path):
            versions = self._packages.get(canonicalize_name(match[1]), {}).values()
            return "".join(
                f'<a href="/files/{one.path.name}#sha256={one.sha256}">{one.path.name}</a>\n' for one in versions
            ).encode()
        file = self._folder / path.removeprefix("/files/").rpartition("/")[2]
        return file.read_bytes() if file.is_file() else b""

    def lock(self, source: Path, target: Path) -> dict[str, str]:
        """List the packages of a lock, a newer version of each too, and write the lock of these files. Return its pins."""
        lines = []
        for name, version, marker in PIN.findall(source.read_text()):
            versions = self._packages.setdefault(canonicalize_name(name), {})
            # A release that every requirement of the others admits, and that comes after the locked one.
            for listed in (version, f"{Version(version).base_version}.post9"):
                versions[listed] = versions.get(listed) or Package(self._folder, name, listed)
            lines.append(f"{name}=={version}{marker and f' ; {marker}'} \\\n    --hash=sha256:{versions[version].sha256}\n")
        target.write_text("".join(lines))
        return pins(target)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    index = Index(tmp_path_factory.mktemp("index"))
    thread = threading.Thread(target=index.server.serve_forever)
    thread.start()
    yield index
    index.server.shutdown()
    thread.join()
    index.server.server_close()


def environment(index: Index, folder: Path, **more: str) -> dict[str, str]:
    """Return the variables of a machine whose only index is this one."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PIP_INDEX_URL": index.url,
        "PIP_CONFIG_FILE": os.devnull,
        "UV_DEFAULT_INDEX": index.url,
        "UV_CACHE_DIR": str(folder / "uv"),
        "UV_NO_CONFIG": "1",
        **more,
    }


def clone(index: Index, folder: Path) -> Path:
    """Return a tree of this project whose locks name the files of the index."""
    tree = folder / "tree"
    tree.mkdir()
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE", "consensus", "client", "registry", "protocols"):
        (tree / name).symlink_to(ROOT / name)
    for name in ("requirements.lock", "requirements-dev.lock"):
        index.lock(ROOT / name, tree / name)
    return tree


def run(*command: object, environment: dict[str, str], folder: Path) -> str:
    """Run a command, and return its output."""
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def locked(versions: dict[str, str]) -> dict[str, str]:
    """Return the versions without those of pip and setuptools, which Python brings, and of the project."""
    return {name: version for name, version in versions.items() if name not in ("pip", "setuptools", "treaty-agents")}


def installed(python: Path) -> dict[str, str]:
    """Return the version of each package of an environment."""
    names = json.loads(subprocess.run([str(python), "-c", LIST], capture_output=True, check=True).stdout)
    return locked({canonicalize_name(name): version for name, version in names})


LIST = "import json, importlib.metadata as m; print(json.dumps([(d.name, d.version) for d in m.distributions()]))"


@pytest.mark.parametrize(
    ("target", "lock", "offline"),
    [
        ("runtime", "requirements.lock", False),
        # uv finds no index here: a machine whose index only pip's configuration names.
        pytest.param("runtime", "requirements.lock", True, marks=pytest.mark.deep),
        pytest.param("development", "requirements-dev.lock", False, marks=pytest.mark.deep),
    ],
)
def test_make_installs_exactly_the_lock(index: Index, tmp_path: Path, target: str, lock: str, offline: bool) -> None:
    tree = clone(index, tmp_path)
    variables = environment(index, tmp_path, **({"UV_OFFLINE": "1"} if offline else {}))
    output = run("make", f"PYTHON={sys.executable}", f".venv/{target}", environment=variables, folder=tree)
    assert "uv pip check" in output  # make ends with its status
    versions = installed(tree / ".venv" / "bin" / "python")
    uv = {"uv": pins(tree / "requirements-dev.lock")["uv"]}  # installs all others
    assert versions == locked(pins(tree / lock)) | uv


@pytest.mark.deep
@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("lock", ["requirements.lock", "deploy/container/build.lock", "deploy/container/runtime.lock"])
def test_guide_and_image_install_exactly_the_lock(index: Index, tmp_path: Path, lock: str, newest: bool) -> None:
    """With the pip that Python brings (23.2.1 of 3.11), and with the newest one."""
    expected = index.lock(ROOT / lock, tmp_path / "copy.lock")
    python = tmp_path / "environment" / "bin" / "python"
    variables = environment(index, tmp_path)
    run(sys.executable, "-m", "venv", tmp_path / "environment", environment=variables, folder=tmp_path)
    pip = [sys.executable, "-m", "pip", "--python", python] if newest else [python, "-m", "pip"]
    install = [*pip, "install", "--no-deps", "--require-hashes", "--requirement", tmp_path / "copy.lock"]
    run(*install, environment=variables, folder=tmp_path)
    # What the lock lacks of its own packages' requirements is found here.
    run(*pip, "check", environment=variables, folder=tmp_path)
    assert installed(python) == locked(expected)


def test_every_installation_of_a_lock_resolves_nothing() -> None:
    """A command without `--no-deps` asks the index for versions that the lock does not have."""
    pages = [ROOT / "Makefile", ROOT / "README.md", ROOT / "deploy/container/Containerfile", *(ROOT / "docs").rglob("*.md")]
    commands = [
        line
        for page in pages
        for line in page.read_text().splitlines()
        if "--require-hashes" in line and "install" in line.lower() and "--index-url" not in line  # of handlers
    ]
    assert len(commands) >= 6
    assert [command for command in commands if "--no-deps" not in command] == []
