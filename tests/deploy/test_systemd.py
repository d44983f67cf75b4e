"""systemd reads the units, and rates their confinement; they run confined here too, and their settings are ones that are read."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import operating_guides as guides
import pytest
from conftest import temporary_directory
from docs.generate.parts import completed
from machine import Machine, machine_of_namespaces, missing
from units import APPLIED, BEYOND, Unit

from treaty_registry.cli.variables import check_variables

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
PROGRAM = "/opt/treaty/bin/treaty-registry"
EXPOSURE = 20
"""The most that `systemd-analyze security` may find, in tenths: 100 is no confinement."""
SERVICES = sorted(path.name for path in FOLDER.glob("*.service"))

PLACES = [
    *("/", "/etc/treaty", "/opt", "/usr", "/var/lib", "/sys/fs/cgroup", "/proc/sys/kernel", "/dev", "/tmp", "/var/tmp", "/root"),
    *("/var/lib/treaty-registry", "/var/lib/treaty-mirror", "/var/lib/treaty-witness", "/var/backups/treaty-registry"),
]
PROBE = """
import json, os, pathlib, pwd, sys
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
print(json.dumps({
    "user": pwd.getpwuid(os.geteuid()).pw_name,
    "umask": os.umask(0),
    "capabilities": {status[name].strip() for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")} == {"0" * 16},
    "no_new_privs": status["NoNewPrivs"].strip(),
    "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in ("user", "ipc", "uts", "mnt")},
    "seen": len([name for name in os.listdir("/proc") if name.isdigit()]),
    "writable": [place for place in sys.argv[1:] if os.access(place, os.W_OK)],
    "devices": sorted(os.listdir("/dev")),
}))
"""

needs_namespaces = pytest.mark.skipif(missing() is not None, reason=str(missing()))
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
        output = analyze("verify", "--man=no", units / name).stderr
        return [line for line in output.splitlines() if str(units) in line]

    assert complaints() == []
    (units / name).write_text((units / name).read_text() + "Unknown=yes\n")
    assert complaints()


@needs_systemd
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_confined(units: Path, name: str) -> None:
    report = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", units / name)
    assert report.returncode == 0, report.stdout
    open_unit = re.sub(
        r"^(Protect|Restrict|Private|SystemCall|Capability).*\n", "", (units / name).read_text(), flags=re.MULTILINE
    )
    (units / name).write_text(open_unit)
    assert analyze("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", units / name).returncode != 0


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with temporary_directory() as folder, machine_of_namespaces(folder) as machine:
        machine.sh(guides.LIBRARIES)
        machine.sh("mkdir /var/lib/treaty-mirror /var/lib/treaty-witness; sleep 1000 > /dev/null 2>&1 &")
        yield machine


@needs_namespaces
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_runs_with_the_confinement_of_its_unit(machine: Machine, name: str) -> None:
    text = (FOLDER / name).read_text()
    unit = Unit(text)
    data = json.loads(machine.sh(shlex.join(unit.confined([sys.executable, "-c", PROBE, *PLACES]))))
    assert data["user"] == unit.user != "root"
    assert data["umask"] == 0o077
    assert data["capabilities"] and data["no_new_privs"] == "1"
    # The first process of the machine, and another one of root, are hidden: it sees itself.
    assert data["seen"] == 1
    # A backup is no server: it is in the user namespace of the machine, as the unit says.
    own = {name for name, value in data["namespaces"].items() if value != machine.sh(f"readlink /proc/self/ns/{name}").strip()}
    declared = {"user": "PrivateUsers=yes", "ipc": "PrivateIPC=yes", "uts": "ProtectHostname=yes", "mnt": "ProtectSystem=strict"}
    assert own == {namespace for namespace, line in declared.items() if f"\n{line}\n" in text}
    state = re.search(r"^StateDirectory=(.*)$", text, re.MULTILINE)
    assert state is not None
    backups = ["/var/backups/treaty-registry"] if "ReadWritePaths=" in text else []
    assert data["writable"] == ["/tmp", "/var/tmp", f"/var/lib/{state[1]}", *backups]
    assert data["devices"] == ["fd", "full", "null", "random", "shm", "tty", "urandom", "zero"]


def test_a_setting_that_no_test_applies_is_refused() -> None:
    text = (FOLDER / "treaty-registry.service").read_text()
    declared = set(Unit(text).settings)
    assert declared & BEYOND.keys() and declared <= APPLIED | BEYOND.keys()
    with pytest.raises(ValueError, match="RootDirectory"):
        Unit(text.replace("UMask=0077", "RootDirectory=/srv"))


def test_every_setting_is_one() -> None:
    text = (FOLDER / "registry.env").read_text()
    names = set(re.findall(r"^#? ?(TREATY_\w+)=", text, re.MULTILINE))
    assert len(names) > 5
    check_variables(names)


def test_deploy_names_no_setting_that_the_reference_lacks() -> None:
    reference = completed((FOLDER.parents[1] / "docs" / "reference" / "commands.md").read_text())
    settings = set(re.findall(r"\[env: (TREATY_\w+)", reference)) | {"TREATY_IMAGE"}  # of compose itself
    files = [path for path in FOLDER.parent.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    named = {name for path in files for name in re.findall(r"\bTREATY_\w+", path.read_text())}
    assert len(named) > 12
    assert named <= settings


def test_the_users_are_those_of_the_services() -> None:
    users = set(re.findall(r"^u (\S+)", (FOLDER / "treaty.sysusers").read_text(), re.MULTILINE))
    named = {match for name in SERVICES for match in re.findall(r"^User=(.*)$", (FOLDER / name).read_text(), re.MULTILINE)}
    assert users == named
