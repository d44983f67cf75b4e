"""The package as a user installs it: wheel and sdist are built, and the wheel works in an environment of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from treaty_consensus import __version__

ROOT = Path(__file__).parents[2]


def build(output: Path) -> dict[str, Path]:
    """The wheel and the sdist, by their suffixes. No network: the build backend is that of this environment."""
    # The time of the files, so that the same sources give the same bytes.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(output)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return {path.suffix: path for path in output.iterdir() if path.name.startswith("treaty-")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tmp_path_factory.mktemp("first"))


def closure(requirements: list[str]) -> set[str]:
    """The names of the distributions that these requirements install, by the metadata of this environment."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        extras = {"", *requirement.extras}
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name in found and extras == {""}:
            continue
        found.add(requirement.name)
        for text in distribution(requirement.name).requires or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                needed.marker = None
                waiting.append(needed)
    return found


@pytest.fixture(scope="module")
def alone(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a clean environment with the wheel and the dependencies of no extra."""
    place = tmp_path_factory.mktemp("alone")
    venv.create(place, with_pip=False, symlinks=True)
    target = place / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    with zipfile.ZipFile(built[".whl"]) as wheel:
        metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        needed = [
            line.partition(": ")[2] for line in wheel.read(metadata).decode().splitlines() if line.startswith("Requires-Dist")
        ]
    # Links to the files that are installed here, instead of a download: the same files, and no others.
    for name in closure([text for text in needed if "extra ==" not in text]):
        for file in distribution(name).files or ():
            top = target / file.parts[0]
            source = Path(str(distribution(name).locate_file(file.parts[0])))
            if file.parts[0] != ".." and not top.exists() and source.exists():
                top.symlink_to(source)
    command = ["-m", "pip", "--python", str(place / "bin" / "python"), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([sys.executable, *command, str(built[".whl"])], check=True, capture_output=True)
    return place / "bin"


def run(program: Path, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"TREATY_HOME": str(home), "PATH": "/usr/bin:/bin"}
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False, env=environment)


def test_the_installed_client_works_without_an_extra(alone: Path, tmp_path: Path) -> None:
    assert run(alone / "treaty", "--version", home=tmp_path).stdout == f"{__version__}\n"
    assert run(alone / "treaty-registry", "--version", home=tmp_path).stdout == f"{__version__}\n"
    assert run(alone / "treaty", "--help", home=tmp_path).returncode == 0
    made = run(alone / "treaty", "identity", "new", home=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "did:key:" in run(alone / "treaty", "identity", "show", home=tmp_path).stdout
    searched = run(alone / "treaty", "search", "words", "--json", home=tmp_path)
    assert "registry.none" in searched.stdout
    assert searched.returncode == 5


@pytest.mark.parametrize(
    ("program", "arguments", "extra"),
    [
        ("treaty", ["publish", "folder"], "agent"),
        ("treaty", ["call", "shop.example"], "agent"),
        ("treaty", ["config"], "agent"),
        ("treaty", ["audit"], "audit"),
        ("treaty-registry", ["serve", "--data", "data"], "registry"),
        ("python", ["-c", "from treaty_client import Agent, Identity; Agent(Identity.create(), 'x')"], "agent"),
    ],
)
def test_a_missing_extra_is_named_and_nothing_changes(
    alone: Path, program: str, arguments: list[str], extra: str, tmp_path: Path
) -> None:
    done = run(alone / program, *arguments, home=tmp_path / "home")
    assert done.returncode == 1
    assert f"pip install 'treaty[{extra}]'" in done.stderr
    assert program == "python" or ("system.extra" in done.stderr and "Traceback" not in done.stderr)
    assert not (tmp_path / "home").exists()


def test_the_same_sources_give_the_same_files(built: dict[str, Path], tmp_path: Path) -> None:
    again = build(tmp_path)
    digests = [{kind: hashlib.sha256(path.read_bytes()).hexdigest() for kind, path in files.items()} for files in (built, again)]
    assert digests[0] == digests[1]


def test_the_sdist_has_the_sources_of_the_wheel(built: dict[str, Path]) -> None:
    with tarfile.open(built[".gz"]) as sdist:
        kept = {name.partition("/")[2].partition("/")[2] for name in sdist.getnames()}
    with zipfile.ZipFile(built[".whl"]) as wheel:
        modules = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert modules - kept == set()
