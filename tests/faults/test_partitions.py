"""Fault: the network between a node's machine and the others is cut. Each host is a network namespace; needs root."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from node_processes import WITHIN, leaf
from postgres_pair import Member
from registry_process import PROGRAM
from signers import ORIGIN

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and ip")

BRIDGE = "treatybr0"
PORT = 8361


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass
class Host:
    """A network namespace with one address on the bridge."""

    number: int

    @property
    def name(self) -> str:
        """Of the namespace."""
        return f"treaty{self.number}"

    @property
    def address(self) -> str:
        """Of the host."""
        return f"10.213.7.{self.number}"

    @property
    def enter(self) -> tuple[str, ...]:
        """What comes before a command that runs on this host."""
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        """Take the cable out."""
        ip("link", "set", f"treatyv{self.number}", "down")

    def mend(self) -> None:
        """Put the cable in again."""
        ip("link", "set", f"treatyv{self.number}", "up")


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many hosts on one bridge."""
    all_hosts = [Host(number) for number in range(1, count + 1)]
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("link", "set", BRIDGE, "up")
        for host in all_hosts:
            ip("netns", "add", host.name)
            ip("link", "add", f"treatyv{host.number}", "type", "veth", "peer", "name", "eth0", "netns", host.name)
            ip("link", "set", f"treatyv{host.number}", "master", BRIDGE, "up")
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            ip("-n", host.name, "link", "set", "eth0", "up")
            ip("-n", host.name, "link", "set", "lo", "up")
        yield all_hosts
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    finally:
        for host in all_hosts:
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", host.name)
        with suppress(subprocess.CalledProcessError):
            ip("link", "del", BRIDGE)


async def curl(host: Host, path: str, *options: str) -> tuple[int, str]:
    """Ask the node of a host, from that host itself."""
    url = f"http://{host.address}:{PORT}{path}"
    command = [*host.enter, "curl", "-s", "-m", "30", "-w", "\n%{http_code}", *options, url]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    body, _, status = output.decode().rpartition("\n")
    return int(status), body


async def write(host: Host, number: int) -> tuple[int, str]:
    return await curl(host, "/statements", "-H", "Content-Type: application/json", "--data-binary", leaf(number).decode())


async def size(host: Host) -> int:
    status, body = await curl(host, "/checkpoint")
    assert status == 200
    return int(body.split("\n")[1])


@asynccontextmanager
async def node(folder: Path, host: Host, database: str) -> AsyncIterator[None]:
    data = folder / host.name
    if host.number > 2:
        data.mkdir()
        shutil.copytree(folder / "treaty2" / "keys", data / "keys")
    shared = ["--database", database, "--blobs", f"file://{folder}/blobs", "--head", f"file://{folder}/head"]
    own = ["--data", str(data), "--host", host.address, "--port", str(PORT), "--node", f"http://{host.address}:{PORT}"]
    new = ["--new"] if host.number == 2 else []
    command = [*host.enter, str(PROGRAM), "serve", *new, *shared, *own, "--origin", ORIGIN, "--base-url", f"https://{ORIGIN}"]
    with (folder / f"{host.name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, "--json", stdout=asyncio.subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(WITHIN):
            assert b"origin" in await process.stdout.readline(), (folder / f"{host.name}.log").read_text()
        yield
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_a_leader_that_is_cut_off_is_replaced_and_joins_again(data: Path) -> None:
    await asyncio.to_thread(data.chmod, 0o755)
    with hosts(3) as (base, one, other):
        primary = Member(data / "primary", 5432, base.address, base.enter)
        await primary.create(trusting="10.213.7.0/24")
        try:
            await primary.start()
            async with node(data, one, primary.url), node(data, other, primary.url):
                for number in range(4):
                    assert (await write((one, other)[number % 2], number))[0] == 201
                one.cut()
                # The other one leads as soon as PostgreSQL has given the silent session up.
                async with asyncio.timeout(WITHIN):
                    while (await write(other, 10))[0] not in (200, 201):  # noqa: ASYNC110 (another process)
                        await asyncio.sleep(0.2)
                newest = await size(other)
                assert newest == 7
                # On the host that is cut off the node serves what was signed, and takes nothing.
                assert await size(one) == 6
                assert (await write(one, 11))[0] == 503
                assert await size(one) == 6
                one.mend()
                async with asyncio.timeout(WITHIN):
                    while await size(one) < newest:  # noqa: ASYNC110 (another process)
                        await asyncio.sleep(0.2)
                    while (await write(one, 11))[0] not in (200, 201):  # noqa: ASYNC110 (another process)
                        await asyncio.sleep(0.2)
                assert await size(one) == 8
        finally:
            await primary.stop()
