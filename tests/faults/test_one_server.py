"""Fault: an operator's commands beside a running registry, from units and shells of another user, in namespaces of their own.

One PostgreSQL serves the folder all the time, it keeps its owner, and nothing that was acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import operating_guides as guides
import pytest
from conftest import temporary_directory
from fault_oracle import Seen, check_acknowledged, check_history, check_tables
from machine import Machine, machine_of_namespaces, missing
from registry_process import Server
from steady_writers import steady_writers

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

DATA, BACKUP = "/var/lib/treaty-registry", "/var/backups/treaty-registry"
PROGRAM = "/opt/treaty/bin/treaty-registry"
PRIVATE = "treaty-private.service"
"""A backup into a folder that the registry does not see, so that the command opens the database itself."""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """A machine with a registry that runs as the guide says."""
    with temporary_directory() as folder, machine_of_namespaces(folder) as machine:
        machine.sh(guides.LIBRARIES)
        machine.sh(guides.UNITS)
        unit = machine.path("/etc/systemd/system/treaty-backup.service").read_text()
        changed = unit.replace(f" backup {BACKUP}", " backup /tmp/private --json")
        assert changed != unit
        machine.path(f"/etc/systemd/system/{PRIVATE}").write_text(changed)
        machine.sh("treaty-registry init && systemctl start treaty-registry")
        yield machine


@pytest.fixture
async def server(machine: Machine) -> Server:
    """Its registry, ready, as clients of this host reach it."""
    log = await asyncio.to_thread(machine.sh, "curl --silent --fail --retry 60 --retry-connrefused http://127.0.0.1:8080/log")
    return Server(Path(DATA), machine.reach(8080), about=json.loads(log), program=machine.program("treaty-registry"))


def starts(machine: Machine) -> int:
    """How often a PostgreSQL was started on the folder."""
    return len(re.findall(r"starting PostgreSQL", machine.path(f"{DATA}/postgres/log").read_text()))


def owners(machine: Machine) -> set[str]:
    """The users to whom anything of the folder belongs."""
    return set(machine.sh(f"find {DATA} -printf '%u\\n'").split())


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.deep)])
async def test_backups_of_confined_units_start_no_second_server(machine: Machine, server: Server, rounds: int) -> None:
    before, seen = starts(machine), Seen()
    async with steady_writers(server, seen, f"backups {rounds}", rate=60 if rounds > 1 else 10):
        for number in range(1, rounds + 1):
            await asyncio.to_thread(machine.sh, "systemctl start treaty-backup")
            await asyncio.to_thread(machine.sh, f"systemctl start {PRIVATE}")
            done = [json.loads(line) for line in machine.journal("treaty-private").splitlines() if '"leaves"' in line]
            assert len(done) >= number and done[-1]["leaves"] == done[-1]["size"] > 0
            await asyncio.sleep(1.5)  # two looks of the registry at its server
    assert starts(machine) == before
    assert len(seen.acknowledged) > rounds
    await check_acknowledged(server, seen)
    await check_history(server, seen)
    if rounds > 1:
        await check_tables(server)
    assert owners(machine) == set(machine.sh(f"find {BACKUP} -printf '%u\\n'").split()) == {"treaty"}
    assert not machine.path("/tmp/private").exists()


@pytest.mark.deep
@pytest.mark.parametrize("command", ["migrate", pytest.param("audit", marks=pytest.mark.deep)])
async def test_a_command_of_root_leaves_the_cluster_to_its_owner(machine: Machine, server: Server, command: str) -> None:
    before, seen = starts(machine), Seen()
    await asyncio.to_thread(machine.sh, f"{PROGRAM} {command} --data {DATA}")
    async with steady_writers(server, seen, command):
        await asyncio.sleep(1)
    assert owners(machine) == {"treaty"}
    assert starts(machine) == before
    assert seen.acknowledged and not seen.refusals
    await check_acknowledged(server, seen)
    await check_history(server, seen)


@pytest.mark.deep
@pytest.mark.usefixtures("server")
def test_a_rotation_by_root_is_one_of_the_registry(machine: Machine) -> None:
    before = starts(machine)
    machine.sh(f"{PROGRAM} prepare-rotation --data {DATA}")
    assert owners(machine) == {"treaty"}
    # As a command of root of an older release left them.
    machine.sh(f"chown -R root {DATA}/keys/next")
    refused = machine.run(f"{PROGRAM} rotate --data {DATA}")
    assert refused.returncode == 1
    output = refused.stdout + refused.stderr
    assert "system.file" in output and f"Permission denied: {DATA}/keys/next" in output and "runs as treaty" in output
    machine.sh("systemctl restart treaty-registry")
    machine.said("treaty-registry", "(the keys of the next rotation cannot be read)")
    machine.sh("curl --silent --fail --retry 60 --retry-connrefused http://127.0.0.1:8080/health/ready")
    machine.sh("systemctl start treaty-backup")
    keys = machine.path(f"{BACKUP}/keys")
    assert (keys / "log.key").exists() and not (keys / "next").exists()
    machine.sh(f"chown -R treaty {DATA}/keys/next")
    machine.sh(f"{PROGRAM} rotate --data {DATA}")
    machine.sh("systemctl start treaty-backup")
    assert (keys / "next" / "log.key").exists()
    assert owners(machine) == {"treaty"}
    assert starts(machine) == before + 1


@pytest.mark.usefixtures("server")
def test_a_user_who_may_not_read_the_folder_is_told_whose_it_is(machine: Machine) -> None:
    refused = machine.run(f"runuser --user treaty-witness -- {PROGRAM} migrate --data {DATA}")
    output = refused.stdout + refused.stderr
    assert refused.returncode == 1
    assert "settings.directory" in output and "belongs to treaty" in output and "runs as treaty-witness" in output
    assert owners(machine) == {"treaty"}


@pytest.mark.deep
def test_a_log_that_root_makes_in_the_folder_of_a_user_is_his(machine: Machine) -> None:
    folder = "/var/lib/treaty-drill"
    machine.sh(f"{PROGRAM} init --data {folder} --origin registry.example")
    assert set(machine.sh(f"find {folder} -printf '%u\\n'").split()) == {"treaty"}
    # Root cannot write there as that user, and says so.
    refused = machine.run(f"mkdir -m 0700 /srv/closed; {PROGRAM} backup /srv/closed/backup --data {folder}")
    output = refused.stdout + refused.stderr
    assert refused.returncode == 1
    assert "system.file" in output and "owner of the data directory" in output
    machine.sh(f"find {folder} -mindepth 1 -delete")
