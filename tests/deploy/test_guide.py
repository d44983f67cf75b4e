"""The operator's guide is executed: from empty folders to an open, witnessed and backed-up registry, by its units' commands."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import units
from ports import free_port
from registry_process import PROGRAM

from treaty_registry.storage.embedded import embedded_postgres

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "deploying.md").read_text()
OPERATING = (ROOT / "docs" / "guides" / "operating.md").read_text()
ELECTORATE = (ROOT / "docs" / "guides" / "electorate.md").read_text()
FOLDERS = (
    "/etc/systemd/system",
    "/etc/treaty",
    "/var/lib/treaty-registry",
    "/var/lib/treaty-witness",
    "/var/lib/treaty-drill",
    "/var/backups",
    "/usr/local/bin",
    "/opt/treaty/bin",
)
SERVICES = ("treaty-registry.service", "treaty-witness.service")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class Machine:
    """A folder for the root of a machine, in which the guide's commands run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ports = {"8080": str(free_port()), "8081": str(free_port())}
        for folder in (*FOLDERS[:2], *FOLDERS[4:], "/bin", "/run", "/clone/deploy/systemd"):
            (root / folder[1:]).mkdir(parents=True)
        for path in (ROOT / "deploy" / "systemd").iterdir():
            (root / "clone/deploy/systemd" / path.name).write_text(self.here(path.read_text()))
        (root / "clone/electorate.toml").write_text(blocks(ELECTORATE, "toml")[0])
        for name, program in {"bin/systemctl": Path(units.__file__), "opt/treaty/bin/treaty-registry": PROGRAM}.items():
            self.program(name, f'exec "{sys.executable}" "{program}" "$@"')
        if os.geteuid() != 0:
            self.program("bin/id", "echo 0")
            self.program("bin/runuser", 'shift 3\nexec "$@"')
        # The host's proxy and name are not here: the port of the registry is.
        with (root / "clone/deploy/systemd/registry.env").open("a") as settings:
            settings.write(f"TREATY_REGISTRY_PORT={self.ports['8080']}\n")

    def here(self, text: str) -> str:
        """Return a text of the guide or of a unit with the folders and ports of this machine."""
        text = text.replace("user=treaty\n", f"user={getpass.getuser()}\n")
        for folder in FOLDERS:
            text = re.sub(rf"(?<![\w/]){folder}\b", str(self.root / folder[1:]), text)
        return re.sub(r"\b(8080|8081)\b", lambda found: self.ports[found[0]], text)

    def program(self, name: str, script: str) -> None:
        (self.root / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.root / name).chmod(0o755)

    async def sh(self, script: str, **variables: str) -> str:
        """Run commands to the first that fails; return their output."""
        environment = {
            "PATH": f"{self.root / 'bin'}:{self.root / 'usr/local/bin'}:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/bin",
            "UNITS": str(self.root / "etc/systemd/system"),
            "UNITS_RUN": str(self.root / "run"),
            "HOME": str(self.root),
            **variables,
        }
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", self.here(script)),
            cwd=self.root / "clone",
            env=environment,
            stdout=pipe,
            stderr=pipe,
        )
        output, errors = await process.communicate()
        logs = "".join(path.read_text()[-2000:] for path in (self.root / "run").glob("*.log"))
        assert process.returncode == 0, f"{script}\n{output.decode()}{errors.decode()}{logs}"
        return output.decode()

    async def said(self, unit: str, pattern: str) -> str:
        """Wait until a service has printed something."""
        log = self.root / "run" / f"{unit}.log"
        while not (found := re.search(pattern, log.read_text())):  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.1)
        return found[1]


@pytest.fixture
async def machine(data: Path) -> AsyncIterator[Machine]:
    machine = Machine(data)
    try:
        yield machine
    finally:
        for service in SERVICES:
            await asyncio.to_thread(units.stop, service, data / "run")
        for folder in ("treaty-registry", "treaty-drill"):
            if (data / "var/lib" / folder).exists():
                async with embedded_postgres(data / "var/lib" / folder):
                    pass  # a failed run leaves its PostgreSQL: attach to it, and stop it


async def test_its_commands_make_an_open_witnessed_and_backed_up_registry(machine: Machine) -> None:
    install, begin, key, witness, name, back_up, drill = blocks(GUIDE, "sh")
    async with asyncio.timeout(300):
        await machine.sh(install)
        await machine.sh(begin)
        log_key = (await machine.sh(f'{key}\necho "$LOG_KEY"')).strip()
        assert log_key.startswith("registry.example+")
        await machine.sh(witness, LOG_KEY=log_key)
        witness_key = await machine.said("treaty-witness.service", r"key: (w1\.example\S+)")
        await machine.sh(name, WITNESS=f"http://127.0.0.1:8081#{witness_key}".replace("8081", machine.ports["8081"]))
        await machine.sh(back_up)
        audited = await machine.sh(
            drill.replace("treaty-registry audit", "treaty-registry audit --json").replace("find ", ": find ")
        )
    assert json.loads(audited.strip().splitlines()[-1])["findings"] == []
    parameters = json.loads(await machine.sh("treaty-registry parameters --json"))
    assert parameters["in_force"]["parameters"]["electorate"] == "open"
    settings = machine.root / "etc/treaty/registry.env"
    assert settings.stat().st_mode & 0o777 == 0o600


@pytest.mark.deep
async def test_a_rotation_as_the_guide_has_it_leaves_a_registry_that_starts(machine: Machine) -> None:
    install, begin = blocks(GUIDE, "sh")[:2]
    prepare, rotate, _ = blocks(OPERATING, "sh")
    async with asyncio.timeout(300):
        await machine.sh(install)
        await machine.sh(begin)
        await machine.sh(prepare)
        await machine.sh(rotate)
        await machine.sh("systemctl restart treaty-registry")
        checkpoint = await machine.sh("curl --silent --fail --retry 60 --retry-connrefused http://127.0.0.1:8080/checkpoint")
    assert checkpoint.count("— registry.example ") == 2


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("runuser") is None, reason="Only root can become another user.")
def test_the_command_of_root_enters_user_settings_and_folder_of_the_unit(tmp_path: Path) -> None:
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
    said = done.stdout.splitlines()
    assert (said[:2], said[-1]) == (["nobody", "0077"], "backup a  folder")
    assert {"TREATY_REGISTRY_WITNESS=https://a#k https://b#k", "TREATY_QUOTED=a b", "TREATY_REGISTRY_DATA=/mine"} < set(said)
    assert not any(line.startswith("A=") for line in said)


def test_it_names_every_code_of_a_restore() -> None:
    from treaty_registry.codes import BackupCode, CopyCode

    named = set(re.findall(r"`((?:backup|copy)\.[a-z-]+)`", GUIDE))
    assert {*CopyCode, BackupCode.NOT_EMPTY} <= named
