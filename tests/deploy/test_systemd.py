"""systemd reads the units, and rates their confinement; their settings are ones that the registry reads."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from treaty_registry.cli.variables import check_variables

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
PROGRAM = "/opt/treaty/bin/treaty-registry"
EXPOSURE = 20
"""The most that `systemd-analyze security` may find, in tenths: 100 is no confinement."""
SERVICES = sorted(path.name for path in FOLDER.glob("*.service"))

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="The system has no systemd-analyze.")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with a program that exists here."""
    for path in FOLDER.iterdir():
        (tmp_path / path.name).write_text(path.read_text().replace(PROGRAM, "/bin/true"))
    return tmp_path


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *map(str, arguments)], capture_output=True, text=True, check=False)


@needs_systemd
@pytest.mark.parametrize("name", [*SERVICES, "treaty-backup.timer"])
def test_systemd_understands_every_line(units: Path, name: str) -> None:
    def complaints() -> list[str]:
        said = analyze("verify", "--man=no", units / name).stderr
        return [line for line in said.splitlines() if str(units) in line]

    assert complaints() == []
    (units / name).write_text((units / name).read_text() + "Unknown=yes\n")
    assert complaints()


@needs_systemd
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_confined(units: Path, name: str) -> None:
    found = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", units / name)
    assert found.returncode == 0, found.stdout
    open_unit = re.sub(
        r"^(Protect|Restrict|Private|SystemCall|Capability).*\n", "", (units / name).read_text(), flags=re.MULTILINE
    )
    (units / name).write_text(open_unit)
    assert analyze("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", units / name).returncode != 0


def test_every_setting_is_one() -> None:
    text = (FOLDER / "registry.env").read_text()
    names = set(re.findall(r"^#? ?(TREATY_\w+)=", text, re.MULTILINE))
    assert len(names) > 5
    check_variables(names)


def test_deploy_names_no_setting_that_the_table_lacks() -> None:
    table = (FOLDER.parents[1] / "docs" / "reference" / "settings.md").read_text()
    known = set(re.findall(r"^\| `(TREATY_\w+)`", table, re.MULTILINE)) | {"TREATY_IMAGE"}  # of compose itself
    files = [path for path in FOLDER.parent.rglob("*") if path.is_file()]
    named = {name for path in files for name in re.findall(r"\bTREATY_\w+", path.read_text())}
    assert len(named) > 12
    assert named <= known


def test_the_users_are_those_of_the_services() -> None:
    users = set(re.findall(r"^u (\S+)", (FOLDER / "treaty.sysusers").read_text(), re.MULTILINE))
    named = {match for name in SERVICES for match in re.findall(r"^User=(.*)$", (FOLDER / name).read_text(), re.MULTILINE)}
    assert users == named
