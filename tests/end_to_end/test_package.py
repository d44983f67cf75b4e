"""The package as a user installs it: wheel and sdist are built, and the wheel works in an environment of its own."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import httpx
import pytest
from docs.site.archive import pack
from packaging.requirements import Requirement
from ports import free_port
from registry_process import Server

from treaty_consensus import __version__

ROOT = Path(__file__).parents[2]
OWN_WHEELS = {
    f"treaty-{path.parent.name.removeprefix('treaty_')}": path.parent for path in ROOT.glob("c*/treaty_*/pyproject.toml")
}
"""The packages of consensus/ and client/ that have a wheel of their own: its name, and their folder."""
PUBLIC_NAMES = """
import importlib, sys
package, missing = importlib.import_module(sys.argv[1]), []
for name in package.__all__:
    try:
        getattr(package, name)
    except Exception as error:
        missing.append(f"{name}: {error}")
print(*missing, sep="\\n")
"""


def build(output: Path) -> dict[str, Path]:
    """The wheel and the sdist, by their suffixes. No network: the build backend is that of this environment."""
    # The time of the files, so that the same sources give the same bytes.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(output)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return {path.suffix: path for path in output.iterdir() if path.name.startswith("treaty_agents-")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tmp_path_factory.mktemp("first"))


def closure(requirements: list[str]) -> set[str]:
    """The names of the distributions that these requirements install, by the metadata of this environment."""
    names: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        extras = {"", *requirement.extras}
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name in names and extras == {""}:
            continue
        names.add(requirement.name)
        for text in distribution(requirement.name).requires or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                needed.marker = None
                waiting.append(needed)
    return names


def needs(wheel: Path) -> list[str]:
    """The requirements of a wheel, without the packages that have a wheel of their own."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    texts = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist")]
    return [text for text in texts if Requirement(text).name not in OWN_WHEELS]


def environment(wheels: list[Path], place: Path, extra: str = "") -> Path:
    """Make a clean environment with wheels and the dependencies of one extra, or of none; the folder of its programs."""
    venv.create(place, with_pip=False, symlinks=True)
    target = place / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    needed = [text for wheel in wheels for text in needs(wheel)]
    # Links to the files that are installed here, instead of a download: the same files, and no others.
    texts = [text for text in needed if "extra ==" not in text]
    texts += [text.partition(";")[0] for text in needed if extra and f"extra == '{extra}'" in text]
    for name in closure(texts):
        for file in distribution(name).files or ():
            top = target / file.parts[0]
            source = Path(str(distribution(name).locate_file(file.parts[0])))
            # The project itself, which an extra of it requires, comes from the wheel.
            if name != "treaty-agents" and file.parts[0] != ".." and not top.exists() and source.exists():
                top.symlink_to(source)
    command = ["-m", "pip", "--python", str(place / "bin" / "python"), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([sys.executable, *command, *map(str, wheels)], check=True, capture_output=True)
    return place / "bin"


@pytest.fixture(scope="module")
def alone(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment without an extra."""
    return environment([built[".whl"]], tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def from_sdist(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the sdist."""
    place = tmp_path_factory.mktemp("sdist")
    with tarfile.open(built[".gz"]) as sdist:
        sdist.extractall(place, filter="data")
    (sources,) = place.iterdir()
    output = tmp_path_factory.mktemp("second")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(output)]
    subprocess.run(command, cwd=sources, check=True, capture_output=True)
    return next(output.glob("*.whl"))


def run(program: Path, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"TREATY_HOME": str(home), "PATH": "/usr/bin:/bin"}
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False, env=environment)


def test_the_installed_client_works_without_an_extra(alone: Path, tmp_path: Path) -> None:
    assert run(alone / "treaty", "--version", home=tmp_path).stdout == f"{__version__}\n"
    assert run(alone / "treaty-registry", "--version", home=tmp_path).stdout == f"{__version__}\n"
    assert run(alone / "treaty", "--help", home=tmp_path).returncode == 0
    result = run(alone / "treaty", "identity", "new", home=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "did:key:" in run(alone / "treaty", "identity", "show", home=tmp_path).stdout
    searched = run(alone / "treaty", "search", "words", "--json", home=tmp_path)
    assert "registry.not-trusted" in searched.stdout
    assert searched.returncode == 5


@pytest.mark.parametrize(
    ("program", "arguments", "extra"),
    [
        ("treaty", ["publish", "folder"], "agent"),
        ("treaty", ["call", "shop.example"], "agent"),
        ("treaty", ["config"], "agent"),
        ("treaty", ["audit"], "audit"),
        ("treaty-registry", ["serve", "--data", "data"], "registry"),
        ("python", ["-c", "import treaty_aip"], "aip"),
        ("python", ["-c", "from treaty_agent import Agent, Identity; Agent(Identity.create(), 'x')"], "agent"),
    ],
)
def test_a_missing_extra_is_named_and_nothing_changes(
    alone: Path, program: str, arguments: list[str], extra: str, tmp_path: Path
) -> None:
    done = run(alone / program, *arguments, home=tmp_path / "home")
    assert done.returncode == 1
    assert f"pip install '.[{extra}]'" in done.stderr
    assert program == "python" or ("system.missing" in done.stderr and "Traceback" not in done.stderr)
    assert not (tmp_path / "home").exists()


def own_wheels(name: str, output: Path) -> list[Path]:
    """Build the wheel of one package, and those of the packages that it requires."""
    folders, waiting = dict[str, Path](), [name]
    while waiting:
        name = waiting.pop()
        folder = folders[name] = OWN_WHEELS[name]
        required = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
        own = [text.partition("==") for text in required if text.partition("==")[0] in OWN_WHEELS]
        assert {version for _, _, version in own} <= {__version__}
        waiting += [other for other, _, _ in own if other not in folders]
    for folder in folders.values():
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(output)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return sorted(output.iterdir())


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["treaty-anp", "treaty-sandbox", "treaty-client"])
def test_a_package_is_installed_with_those_below_it_alone(name: str, tmp_path: Path) -> None:
    wheels = own_wheels(name, tmp_path / "dist")
    assert 4 <= len(wheels) < len(OWN_WHEELS) + (name == "treaty-client")
    python = environment(wheels, tmp_path / "alone") / "python"
    done = run(python, "-c", PUBLIC_NAMES, name.replace("-", "_"), home=tmp_path)
    assert done.returncode == 0, done.stderr
    # The names of the audit and of watching need the extras `audit` and `watch`.
    missing = [
        line for line in done.stdout.splitlines() if line and "pip install" not in line and "needs the library" not in line
    ]
    assert missing == []


@pytest.mark.deep
def test_the_same_sources_give_the_same_files(built: dict[str, Path], tmp_path: Path) -> None:
    again = build(tmp_path)
    digests = [{kind: hashlib.sha256(path.read_bytes()).hexdigest() for kind, path in files.items()} for files in (built, again)]
    assert digests[0] == digests[1]


def test_the_sdist_has_the_sources_of_the_wheel(built: dict[str, Path]) -> None:
    with tarfile.open(built[".gz"]) as sdist:
        packed = {name[name.index("/treaty_") + 1 :] for name in sdist.getnames() if "/treaty_" in name}
    with zipfile.ZipFile(built[".whl"]) as wheel:
        modules = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert modules - packed == set()


@pytest.mark.deep
def test_the_wheel_of_the_sdist_has_the_same_files(built: dict[str, Path], from_sdist: Path) -> None:
    contents = []
    for path in (built[".whl"], from_sdist):
        with zipfile.ZipFile(path) as wheel:
            contents.append({name: wheel.read(name) for name in wheel.namelist() if ".dist-info/RECORD" not in name})
    assert contents[0].keys() == contents[1].keys()
    assert contents[0] == contents[1]


@pytest.fixture
def registry_program(built: dict[str, Path], tmp_path: Path) -> Path:
    """`treaty-registry` of a wheel with a small site: `tests/contract/test_site.py` builds the real one."""
    with tarfile.open(built[".gz"]) as sdist:
        sdist.extractall(tmp_path / "sources", filter="data")
    (sources,) = (tmp_path / "sources").iterdir()
    (tmp_path / "html" / "guides").mkdir(parents=True)
    for name in ("index.html", "guides/calling.html"):
        (tmp_path / "html" / name).write_text(f"<!doctype html><title>{name}</title>")
    pack(tmp_path / "html", sources / "registry" / "treaty_registry" / "site.zip")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "dist")]
    subprocess.run(command, cwd=sources, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    program = environment([wheel], tmp_path / "installed", "embedded") / "treaty-registry"
    begun = run(program, "init", "--data", str(tmp_path / "data"), "--origin", "registry.example", home=tmp_path)
    assert begun.returncode == 0, begun.stderr
    return program


@pytest.mark.deep
async def test_an_installed_registry_serves_pages_and_docs(registry_program: Path, tmp_path: Path) -> None:
    server = Server(tmp_path / "data", free_port(), program=registry_program)
    await server.start()
    try:
        assert await server.ready()
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{server.port}", headers={"Accept": "text/html"}, trust_env=False
        ) as client:
            for path, words in (("/docs/", "index.html"), ("/docs/guides/calling.html", "guides/calling.html"), ("/", "Treaty")):
                answer = await client.get(path)
                assert (answer.status_code, words in answer.text) == (200, True), path
            assets = set(re.findall(r'(?:href|src)="(/[^"]+\.(?:css|js|svg)[^"]*)"', answer.text))
            assert assets
            assert [path for path in assets if (await client.get(path)).status_code != 200] == []
    finally:
        assert await server.stop() == 0


@pytest.mark.parametrize(
    ("place", "package", "module"),
    [("aip/0.0.1", "treaty_aip", "gateway.py"), ("message-routing/1.0", "treaty_routing", "environment.py")],
)
def test_a_linked_handler_is_in_the_wheel_and_the_sdist_as_files(
    built: dict[str, Path], place: str, package: str, module: str
) -> None:
    sources = {path.name: path.read_bytes() for path in (ROOT / "protocols" / place / "handler").glob("*.py")}
    assert module in sources
    with zipfile.ZipFile(built[".whl"]) as wheel:
        packed = {name.rpartition("/")[2]: wheel.read(name) for name in wheel.namelist() if f"{package}/handler/" in name}
    with tarfile.open(built[".gz"]) as sdist:
        members = [member for member in sdist.getmembers() if f"/{package}/handler/" in member.name]
        kept = {
            member.name.rpartition("/")[2]: extracted.read() for member in members if (extracted := sdist.extractfile(member))
        }
        assert all(member.isreg() for member in members)
    assert (packed, kept) == (sources, sources)


@pytest.mark.deep
def test_an_installed_base_runs_the_program_of_message_routing(from_sdist: Path, tmp_path: Path) -> None:
    python = environment([from_sdist], tmp_path / "routing", "") / "python"
    readme = (ROOT / "protocols" / "message-routing" / "README.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    done = run(python, "-c", snippet, home=tmp_path)
    assert done.stdout == "\nuser: rain\nassistant: Verses about rain\n", done.stderr


@pytest.mark.deep
def test_an_installed_aip_runs_its_example_and_readme(from_sdist: Path, tmp_path: Path) -> None:
    python = environment([from_sdist], tmp_path / "aip", "aip") / "python"
    where = run(python, "-c", "import treaty_aip.handler; print(treaty_aip.handler.__file__)", home=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(tmp_path), where.stderr
    done = run(python, str(ROOT / "protocols" / "aip" / "example"), "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "protocols" / "aip" / "README.md").read_text(), re.DOTALL)
    # Any free ports, as others may use the ones of the page.
    done = run(python, "-c", re.sub(r"localhost:\d+", "localhost:0", snippet), home=tmp_path)
    assert done.stdout == "You said: Is anyone there?\n", done.stderr
