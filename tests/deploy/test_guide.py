"""docs/guides/deploying.md is executed as root: from an empty machine to an open, witnessed and backed-up registry."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import operating_guides as guides
import pytest
from machine import CLONE, Machine, machine_of_namespaces, missing

from treaty_consensus.codes import LogCode

ROOT = Path(__file__).parents[2]

STARTING = ("observing.md",)
"""Pages whose commands start a process to try, in the folder of the one who reads."""

needs_namespaces = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture
def machine(data: Path) -> Iterator[Machine]:
    """A machine with the release and the units, before the first start."""
    with machine_of_namespaces(data) as machine:
        machine.path(f"{CLONE}/electorate.toml").write_text(guides.CONSTANTS)
        machine.sh(guides.LIBRARIES)
        machine.sh(guides.UNITS)
        yield machine


@pytest.mark.deep
@needs_namespaces
def test_the_guides_commands_make_a_whole_registry(machine: Machine) -> None:
    machine.sh(guides.OPEN)
    log_key = machine.sh(f'{guides.KEY}\necho "$LOG_KEY"').strip()
    assert log_key.startswith("registry.example+")
    machine.sh(guides.WITNESS, LOG_KEY=log_key)
    witness_key = machine.said("treaty-witness", r"key: (w1\.example\S+)")
    machine.sh(guides.NAME, WITNESS=f"http://127.0.0.1:8081#{witness_key}")
    machine.sh(guides.BACK_UP)
    audited = machine.sh(guides.DRILL.replace("treaty-registry audit", "treaty-registry audit --json"))
    assert json.loads(audited.strip().splitlines()[-1])["findings"] == []
    parameters = json.loads(machine.sh("treaty-registry parameters --json"))
    assert parameters["in_force"]["parameters"]["electorate"] == "open"
    assert machine.path("/etc/treaty/registry.env").stat().st_mode & 0o777 == 0o600
    assert not list(machine.path("/var/lib/treaty-drill").iterdir())


@needs_namespaces
@pytest.mark.deep
def test_a_registry_starts_after_guided_rotation_and_upgrade(machine: Machine) -> None:
    for commands in (guides.OPEN, guides.PREPARE, guides.ROTATE, guides.UPGRADE):
        machine.sh(commands)
    checkpoint = machine.sh("curl --silent --fail --retry 60 --retry-connrefused http://127.0.0.1:8080/checkpoint")
    assert checkpoint.count("— registry.example ") == 2


@needs_namespaces
@pytest.mark.deep
def test_root_calls_each_command_as_the_guides_have_it(machine: Machine) -> None:
    machine.sh(guides.OPEN)
    commands = [line for page in (guides.OPERATING, guides.MODERATION) for line in guides.commands(page)]
    ended = {command: machine.run(f"{command} < /dev/null") for command in commands}
    # The old keys sign still, a new registry has no witness and no backup, and no version has that URI.
    refused = {command.split()[1]: done.stdout + done.stderr for command, done in ended.items() if done.returncode}
    assert refused.keys() == {"retire-keys", "doctor", "withdraw"}
    assert "rotation.overlap" in refused["retire-keys"] and "blob.unknown" in refused["withdraw"]
    assert set(machine.sh("find /var/lib/treaty-registry -printf '%u\\n'").split()) == {"treaty"}


def test_a_page_of_commands_says_how_to_call_them() -> None:
    pages = {page.name: page.read_text() for page in guides.GUIDES.glob("*.md")}
    bare = {name for name, text in pages.items() if any("--data" not in line for line in guides.commands(text))}
    assert {"deploying.md", "moderation.md", "operating.md"} <= bare
    assert "\n## How to call a command\n" in pages["operating.md"]
    assert [name for name in bare - {"operating.md", *STARTING} if "#how-to-call-a-command" not in pages[name]] == []


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("runuser") is None, reason="Only root can become another user.")
def test_roots_command_enters_the_units_settings(tmp_path: Path) -> None:
    settings = '# A=1\nTREATY_REGISTRY_WITNESS=https://a#k https://b#k\nTREATY_QUOTED="a b"\nTREATY_REGISTRY_DATA=/mine'
    (tmp_path / "registry.env").write_text(settings)
    tmp_path.chmod(0o755)
    script = (ROOT / "deploy" / "systemd" / "treaty-registry").read_text()
    for old, new in {
        "user=treaty\n": "user=nobody\n",
        "/etc/treaty/registry.env\n": f"{tmp_path}/registry.env\n",
        "/opt/treaty/bin/treaty-registry ": '/usr/bin/env -- sh -c \'id -un; umask; env; printf "%s" "$*"\' - ',
    }.items():
        assert script.count(old) == 1
        script = script.replace(old, new)
    done = subprocess.run(["sh", "-c", script, "sh", "backup", "a  folder"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert (lines[:2], lines[-1]) == (["nobody", "0077"], "backup a  folder")
    assert {"TREATY_REGISTRY_WITNESS=https://a#k https://b#k", "TREATY_QUOTED=a b", "TREATY_REGISTRY_DATA=/mine"} < set(lines)
    assert not any(line.startswith("A=") for line in lines)


def test_it_names_every_code_of_a_restore() -> None:
    from treaty_registry.codes import CopyCode

    named = set(re.findall(r"`((?:backup|copy|log)\.[a-z-]+)`", guides.DEPLOYING))
    assert {*CopyCode, LogCode.EXISTS} <= named
