"""What the repository promises about itself: pinned dependencies, no hosts of package registries, licences, packages."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# Spelt in parts, so that this file does not name one either.
HOSTS = ("pypi" + ".org", "python" + "hosted", "registry.npm" + "js", "deb." + "debian.org", "crates" + ".io")


def tracked() -> list[Path]:
    """Every file git knows."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listing.decode().split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock", "tests/interop/anp.lock"])
def test_a_lock_pins_versions_and_hashes_and_names_no_host(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    pins = re.findall(r"^([a-z0-9._-]+)==\S+.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    requirements = re.findall(r"^[a-zA-Z0-9._-]+[=<>@ ].*?(?=^[a-zA-Z0-9]|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(pins) > 30
    assert len(requirements) == len(pins)
    assert all("--hash=sha256:" in requirement for requirement in requirements)
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text


def test_a_lock_has_every_dependency_of_the_project() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    extras = PROJECT["project"]["optional-dependencies"]
    dependencies = [
        *PROJECT["project"]["dependencies"],
        *extras["registry"],
        *extras["embedded"],
        *extras["aip"],
        *extras["handoff"],
    ]
    names = {re.split(r"[\[<>=; ]", requirement)[0] for requirement in dependencies} - {"treaty-agents"}
    assert names
    assert [name for name in sorted(names) if f"\n{name}==" not in text] == []


def test_no_tracked_file_names_the_host_of_a_package_registry() -> None:
    naming = [str(path) for path in tracked() if any(host in path.read_bytes().decode("utf-8", "replace") for host in HOSTS)]
    assert naming == []


def test_every_package_is_typed_and_in_the_wheel() -> None:
    packages = [ROOT / name for name in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    assert [package.name for package in packages if not (package / "py.typed").exists()] == []
    names = {
        "treaty_a2a",
        "treaty_agent",
        "treaty_aip",
        "treaty_anp",
        "treaty_client",
        "treaty_command",
        "treaty_consensus",
        "treaty_handler",
        "treaty_handoff",
        "treaty_io",
        "treaty_mcp",
        "treaty_registry",
        "treaty_routing",
        "treaty_sandbox",
    }
    assert {package.name for package in packages} == names


def test_fetching_imports_neither_numpy_nor_the_election() -> None:
    script = "import sys, treaty_command.main; print([n for n in sys.modules if n.startswith(('numpy', 'treaty_consensus.el'))])"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert output.strip() == b"[]"
