"""A machine lives by the guides: every command as root, word by word, on a Debian that systemd boots, while clients write.

It is installed, opened, witnessed, backed up by its timer's unit, restored for a drill, rotated, upgraded and rebooted. No
statement that was acknowledged is lost, the log has one history, and one PostgreSQL at a time serves its folder.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import operating_guides as guides
import pytest
from debian_machine import DebianMachine, debian_machine, lacking
from fault_oracle import Seen, check_acknowledged, check_history, check_tables
from machine import CLONE, Machine
from registry_process import Server
from steady_readers import answered, steady_readers
from steady_writers import steady_writers

from treaty_consensus.log.proof import Receipt

pytestmark = [pytest.mark.deep, pytest.mark.skipif(lacking() is not None, reason=str(lacking()))]

DATA = "/var/lib/treaty-registry"
BACKUPS = 5
RATE = 60
"""Statements a second."""
READY = "curl --silent --show-error --fail --retry 60 --retry-delay 1 --retry-connrefused http://127.0.0.1:8080/health/ready"
RESTARTS = 3
IMPATIENT = """
mkdir -p /run/systemd/system/treaty-registry.service.d
printf '[Service]\\nWatchdogSec=3s\\nTimeoutAbortSec=1s\\n' > /run/systemd/system/treaty-registry.service.d/impatient.conf
systemctl daemon-reload
systemctl restart treaty-registry
"""
MIGRATION = "alter table leaves add column noted text not null default 'earlier';"
"""Of the next release: it locks the table that every write needs."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianMachine]:
    with debian_machine(tmp_path_factory.mktemp("treaty-machine")) as machine:
        machine.path(f"{CLONE}/electorate.toml").write_text(guides.CONSTANTS)
        yield machine


class Operator:
    """Does what the guides say, and notes how long each step takes and how many servers PostgreSQL has."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.seconds: dict[str, float] = {}
        self.servers: set[int] = set()

    async def does(self, step: str, commands: str, **variables: str) -> str:
        """Carry out the commands of a step. Fails with the first of them."""
        begun = time.monotonic()
        printed = await asyncio.to_thread(self.machine.sh, commands, **variables)
        self.seconds[step] = round(time.monotonic() - begun, 1)
        self.servers.add(len(list(self._postmasters())))
        return printed

    def _postmasters(self) -> Iterator[Path]:
        """Yield the first process of each PostgreSQL of the machine."""
        space = Path(f"/proc/{self.machine.leader}/ns/pid").readlink()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                parent = re.findall(r"\d+", (process / "stat").read_text().rpartition(")")[2])[0]
                names = [(Path("/proc") / number / "comm").read_text().strip() for number in (process.name, parent)]
                if names[0] == "postgres" != names[1] and (process / "ns/pid").readlink() == space:
                    yield process

    def starts(self) -> int:
        """Return how often a PostgreSQL was started on the folder."""
        return len(re.findall(r"starting PostgreSQL", self.machine.path(f"{DATA}/postgres/log").read_text()))

    async def witness(self) -> None:
        """Run the witness that the guide has other parties run, and name it."""
        key = (await self.does("key", f'{guides.KEY}\necho "$LOG_KEY"')).strip()
        await self.does("witness", guides.WITNESS, LOG_KEY=key)
        of_witness = await asyncio.to_thread(self.machine.said, "treaty-witness", r"key: (w1\.example\S+)")
        await self.does("name", guides.NAME, WITNESS=f"http://127.0.0.1:8081#{of_witness}")

    async def server(self) -> Server:
        """Return its registry, as clients of this host reach it."""
        about = json.loads(await asyncio.to_thread(self.machine.sh, "curl --silent --fail http://127.0.0.1:8080/log"))
        return Server(Path(DATA), self.machine.reach(8080), about=about, program=self.machine.program("treaty-registry"))


async def published(server: Server, seen: Seen) -> None:
    """Wait until the witnessed checkpoint has each leaf that was acknowledged: it follows a commit by some seconds."""
    size = max(Receipt.parse(receipt).index for _, receipt in seen.acknowledged) + 1
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as api, asyncio.timeout(180):
        while int((await api.get("/checkpoint")).text.split("\n")[1]) < size:  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.2)


async def test_no_command_of_the_guides_loses_what_was_acknowledged(machine: DebianMachine) -> None:
    operator, seen = Operator(machine), Seen()
    await asyncio.to_thread(machine.sh, guides.LIBRARIES)
    await asyncio.to_thread(machine.sh, guides.UNITS)
    # One client sends as much as many do.
    await asyncio.to_thread(machine.sh, "echo TREATY_REGISTRY_QUOTA=1000 >> /etc/treaty/registry.env")
    await operator.does("open", guides.OPEN)
    await operator.witness()
    server = await operator.server()
    starts, begun = operator.starts(), time.monotonic()
    async with steady_writers(server, seen, "machine", RATE):
        await operator.does("backup 1", guides.BACK_UP)
        for number in range(2, BACKUPS + 1):
            await asyncio.sleep(1.5)  # two looks of the registry at its server
            await operator.does(f"backup {number}", "systemctl start treaty-backup")
        assert operator.starts() == starts
        await operator.does("drill", guides.DRILL)
        await operator.does("next keys", guides.PREPARE)
        await operator.does("rotation", guides.ROTATE)
        await operator.does("backup with the new keys", "systemctl start treaty-backup")
        assert operator.starts() == starts
        migrations = machine.path(f"{CLONE}/registry/treaty_registry/storage/migrations")
        (migrations / "9999_next.sql").write_text(MIGRATION)
        await operator.does("upgrade", guides.UPGRADE)
        lasted = time.monotonic() - begun
    assert (operator.starts(), operator.servers) == (starts + 1, {1})  # the one more is of the upgrade
    await published(server, seen)
    await check_acknowledged(server, seen)
    await asyncio.to_thread(machine.reboot)
    await operator.does("ready after a reboot", READY)
    server.port, server.program = machine.reach(8080), machine.program("treaty-registry")
    await published(server, seen)
    await check_acknowledged(server, seen)
    await check_history(server, seen)
    await check_tables(server)
    assert set((await operator.does("owners", f"find {DATA} -printf '%u\\n'")).split()) == {"treaty"}
    print(f"{len(seen.acknowledged)} receipts and {len(seen.checkpoints)} checkpoints in {lasted:.0f} s; {operator.seconds}")


def test_systemd_filters_the_calls_of_a_service(machine: DebianMachine) -> None:
    for name in ("registry", "witness"):
        status = machine.sh(f"cat /proc/$(systemctl show --property MainPID --value treaty-{name})/status")
        assert "\nSeccomp:\t2\n" in status and "\nCapBnd:\t0000000000000000\n" in status


async def test_a_restart_refuses_no_read(machine: DebianMachine) -> None:
    await asyncio.to_thread(machine.sh, READY)
    async with steady_readers(machine.reach(8080), "/checkpoint") as seen:
        await answered(seen)
        seen.clear()  # the way into the machine was not open at once
        for _ in range(RESTARTS):
            await asyncio.to_thread(machine.sh, "systemctl restart treaty-registry")
            await answered(seen)
    assert set(seen) == {"answered"}
    await asyncio.to_thread(machine.sh, IMPATIENT)
    main = machine.sh("systemctl show --property MainPID --value treaty-registry").strip()
    machine.sh(f"kill -STOP {main}")
    async with asyncio.timeout(120):
        while machine.sh("systemctl show --property NRestarts --value treaty-registry").strip() != "1":  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    await asyncio.to_thread(machine.sh, READY)
    machine.sh("systemctl stop treaty-registry")
    assert machine.run("curl --silent http://127.0.0.1:8080/health/live").returncode == 7
