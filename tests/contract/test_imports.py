"""Each command imports its own libraries only, and every library of an extra is imported where it is missed with its name."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from treaty_io.extras import EXTRA_OF

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WATCHED = {"asyncio", "cryptography", "cyclopts", "httpx", "msgspec", "pydantic", "rich", *EXTRA_OF}
LOCAL = {"cryptography", "cyclopts", "msgspec"}
ONLINE = {*LOCAL, "asyncio", "httpx", "rich"}
MAY_IMPORT = {
    "--version": set[str](),
    "--help": {"cyclopts", "rich"},
    "trust list": LOCAL,
    "trust list --json": LOCAL,
    "identity show": LOCAL,
    "identity show --json": LOCAL,
    "search --help": {"cyclopts", "rich"},
    "search words": ONLINE,
    "fetch sha256:0": ONLINE,
    "topic a/b": ONLINE,
    "vote a/b none": ONLINE,
    "vouches": ONLINE,
    "standing": ONLINE,
    "speakers a/b": ONLINE,
    "discover nowhere.invalid": ONLINE,
    "equivocation none.json": {*LOCAL, "rich"},
    "audit --help": {*ONLINE, "numpy", "publicsuffixlist"},
}
"""The command lines, and those of `WATCHED` that they may import. Most fail, because the home trusts no registry."""
PROBE = """
import sys
from treaty_command.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("imported", *sys.modules)
"""


def imported(home: Path, code: str, *arguments: str) -> set[str]:
    """The watched libraries in a new process that ran `code`."""
    environment = {"TREATY_HOME": str(home), "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, env=environment)
    assert "Traceback" not in done.stderr
    return WATCHED & {name.partition(".")[0] for name in done.stdout.rpartition("imported")[2].split()}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an identity."""
    place = tmp_path_factory.mktemp("home")
    imported(place, PROBE, "identity", "new")
    return place


@pytest.mark.sample(4)
@pytest.mark.parametrize("command", MAY_IMPORT)
def test_a_command_imports_its_own_libraries_only(command: str, home: Path) -> None:
    assert imported(home, PROBE, *command.split()) - MAY_IMPORT[command] == set()


@pytest.mark.parametrize("command", ["status", "init"])
def test_only_a_server_imports_the_web_framework(command: str, home: Path) -> None:
    assert "litestar" not in imported(
        home, PROBE.replace("treaty_command.main", "treaty_registry.cli"), command, "--data", "/nowhere"
    )


def test_the_agent_class_imports_no_sigstore_or_network(home: Path) -> None:
    code = "import sys; from treaty_agent import Agent; print('imported', *sys.modules)"
    assert imported(home, code) <= {"asyncio", "cryptography", "msgspec"}


def test_the_extras_of_the_error_are_those_of_the_package() -> None:
    modules = {"a2a-sdk": "a2a", "dnspython": "dns", "grpcio": "grpc", "protobuf": "google", "pyjwt": "jwt", "pynacl": "nacl"}
    modules |= dict.fromkeys(("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"), "opentelemetry")
    # A library of several extras is the first one's; `naming_extras` of a package with an extra of its own says that one.
    listed = {
        modules.get(name := re.split(r"[^a-z0-9-]", requirement)[0], name.replace("-", "_")): extra
        for extra, requirements in reversed(PROJECT["optional-dependencies"].items())
        for requirement in requirements
        # Rich, which every installation has, needs markdown-it-py too: it is never missing.
        if extra != "embedded" and not requirement.startswith(("treaty-agents[", "markdown-it-py"))
    }
    # `requests` is Sigstore's own dependency, and our adapter imports it.
    assert dict(EXTRA_OF) == {**listed, "requests": "agent"}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("library", "code", "extra"),
    [
        ("sigstore", "from treaty_agent.agent.assembly import import_libraries; import_libraries(None)", "agent"),
        ("websockets", "from treaty_agent import Agent, Identity; Agent(Identity.create(), 'x')", "agent"),
        ("jsonschema_rs", "from treaty_agent import OpenAIModel", "agent"),
        ("grpc", "import treaty_aip", "aip"),
        ("numpy", "from treaty_command.main import main; main(['audit', '--json'])", "audit"),
        ("litestar", "from treaty_registry.cli import main; main(['serve', '--json', '--data', '/nowhere'])", "registry"),
    ],
)
def test_a_missing_library_is_an_error_that_names_its_extra(library: str, code: str, extra: str, tmp_path: Path) -> None:
    """The library is hidden by an entry of `sys.modules`; the wheel's test has an environment without it."""
    script = f"import sys; sys.modules[{library!r}] = None\n{code}"
    environment = {"TREATY_HOME": str(tmp_path), "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    output = done.stdout + done.stderr.splitlines()[-1] if done.stderr else done.stdout
    assert f"pip install '.[{extra}]'" in output and library in output
    assert not list(tmp_path.iterdir())


def test_no_text_installs_the_namesake_on_pypi() -> None:
    """It is another project's: a reader would run a stranger's code."""
    folders = ("consensus", "client", "registry", "protocols", "docs", "demo", "examples", "bench")
    pages = [
        *ROOT.glob("*.md"),
        *(page for folder in folders for kind in ("*.md", "*.py") for page in (ROOT / folder).rglob(kind)),
    ]
    assert len(pages) > 500
    wrong = re.compile(r"(?:pip install|uv add|pipx install) '?treaty\b(?!-)|\btreaty\[[a-z,]+\]")
    assert [str(page) for page in pages if wrong.search(page.read_text(encoding="utf-8"))] == []
