"""The processes of a game day: a registry with witnesses, three nodes on an object store, and a mirror of a registry with TLS."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from database_relay import Relay
from faulty_machine import FaultyMachine, faulty_machine
from mirrors import MirrorProcess, mirror_process
from node_processes import Cluster, cluster
from object_server import BUCKET, object_server
from open_electorates import write as write_electorate
from ports import free_port
from postgres_process import another_process
from registries import grant
from registry_process import Server, empty
from signers import NOW, key_signer
from tls_servers import TestAuthority
from witness_process import WitnessProcess, witness_process

from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.witness import SIZE_TYPE

_AHEAD = 1_000_000


class Door:
    """A proxy in front of a witness. `lies`: it claims to have cosigned more leaves than the log has."""

    def __init__(self, witness: WitnessProcess) -> None:
        self._witness = witness
        self.lies = False

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        with suppress(OSError, asyncio.IncompleteReadError, httpx.HTTPError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.partition("\r\n")[0].split(" ")
            lengths = [int(line.split(":")[1]) for line in head.lower().split("\r\n") if line.startswith("content-length:")]
            body = await reader.readexactly(lengths[0]) if lengths else b""
            if self.lies and method == "POST":
                status, kind, content = 409, SIZE_TYPE, f"{_AHEAD}\n".encode()
            else:
                answer = await self._witness.ask(body, method, path)
                status, kind, content = answer.status_code, answer.headers.get("Content-Type", ""), answer.content
            lines = f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
            writer.write(lines.encode() + content)
            await writer.drain()
        writer.close()


class Cut(Relay):
    """A relay whose connections may be cut. `cut`: no new one is made."""

    cut = False

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """See `Relay.serve`."""
        if self.cut:
            to_client.transport.abort()
            return
        await super().serve(client, to_client)


@dataclass
class Stage:
    """All processes, with the ports of their metrics by job."""

    folder: Path
    disk: Path
    alone: FaultyMachine
    witnesses: list[WitnessProcess]
    door: Door
    nodes: Cluster
    relay: Cut
    store: int
    secure: Server
    authority: TestAuthority
    mirror: MirrorProcess
    targets: dict[str, list[int]]


def tell(number: signal.Signals, *pids: int) -> None:
    """Send a signal to processes of the game day."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def pid_of(process: asyncio.subprocess.Process | None) -> int:
    """Return the id of a process that was started."""
    assert process is not None
    return process.pid


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    pids = []
    for place in Path("/proc").iterdir():
        with suppress(OSError):
            if place.name.isdecimal() and f"\nPPid:\t{pid}\n" in (place / "status").read_text():
                pids.append(int(place.name))
    return pids


def child(name: str) -> int:
    """Return the child of this process whose command line has a word."""
    return next(pid for pid in children(os.getpid()) if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes())


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Path]:
    """A file system in memory. Only root may mount one."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0755", "treaty-game-day", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """Start everything; nothing of it runs on after the block."""
    metrics = {name: free_port() for name in ("alone", "a", "b", "c", "secure", "mirror")}
    async with AsyncExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk", 1200))
        (folder / "alone").mkdir(mode=0o755)
        options = ("--blobs", f"file://{disk}/blobs", "--tiles", f"file://{folder}/tiles", "--quota", "1000000")
        alone = await stack.enter_async_context(
            faulty_machine(folder / "alone", "--metrics-address", str(metrics["alone"]), *options)
        )
        witnesses = [
            await stack.enter_async_context(witness_process(folder / f"witness-{number}", _key(alone.server)))
            for number in (1, 2)
        ]
        door, port = Door(witnesses[0]), free_port()
        await stack.enter_async_context(await asyncio.start_server(door.answer, "127.0.0.1", port))
        await alone.server.stop()
        names = [f"http://127.0.0.1:{port}#{witnesses[0].key}", f"{witnesses[1].about['url']}#{witnesses[1].key}"]
        alone.server.options += tuple(part for name in names for part in ("--witness", name))
        await alone.start()

        (folder / "store").mkdir()
        stack.enter_context(object_server(folder / "store"))
        nodes, relay = await _nodes(stack, folder, [metrics[name] for name in "abc"])

        (folder / "secure").mkdir(mode=0o755)
        authority = TestAuthority(folder / "secure")
        tls = ("--tls-cert", str(authority.certificate), "--tls-key", str(authority.key))
        # An epoch of half a minute, which has nothing to decide.
        electorate = ("--quota", "1000000", "--parameters", str(write_electorate(folder / "secure", 30)))
        secure = await stack.enter_async_context(
            empty(folder / "secure" / "registry", "--metrics-address", str(metrics["secure"]), *tls, *electorate)
        )
        await secure.start()
        assert await secure.ready()
        mirror = await stack.enter_async_context(mirror_process(folder / "mirror", secure.about["name"]))
        mirror.options = ("--metrics-address", str(metrics["mirror"]), "--ca", str(authority.ca))
        await mirror.start()
        assert await mirror.ready(), mirror.about
        targets = {
            "treaty-alone": [metrics["alone"]],
            "treaty-nodes": [metrics[name] for name in "abc"],
            "treaty-secure": [metrics["secure"]],
            "treaty-mirror": [metrics["mirror"]],
        }
        yield Stage(folder, disk, alone, witnesses, door, nodes, relay, child("moto.server"), secure, authority, mirror, targets)


async def _nodes(stack: AsyncExitStack, folder: Path, metrics: list[int]) -> tuple[Cluster, Cut]:
    """Start three nodes on a PostgreSQL and an object store; the last one reaches PostgreSQL through a relay."""
    place = folder / "nodes"
    (place / "database").mkdir(mode=0o755, parents=True)
    place.chmod(0o755)
    holder = await another_process(place / "database")
    stack.push_async_callback(holder.communicate, b"")
    socket = place / "database" / "postgres"
    url = f"postgresql://postgres@/postgres?host={socket}"
    shared = ("--blobs", f"s3://{BUCKET}/blobs", "--head", f"s3://{BUCKET}/head", "--quota", "1000000")
    group = await stack.enter_async_context(cluster(place, 0, database=url, options=shared))
    relay = await stack.enter_async_context(Cut.listening(place / "relay", socket / ".s.PGSQL.5432"))
    assert isinstance(relay, Cut)
    for number, port in enumerate(metrics):
        group.database = relay.url if number == 2 else url
        group.shared = (*shared, "--metrics-address", str(port))
        await group.add()
    group.database = url
    return group, relay


def _key(server: Server) -> VerifierKey:
    return VerifierKey.parse(server.about["key"])


async def traffic(stage: Stage) -> None:
    """Write and read at all registries, some times a second, until cancelled."""
    servers = [(stage.alone.server, "http"), (stage.secure, "https"), *((node, "http") for node in stage.nodes.nodes)]
    async with (
        httpx.AsyncClient(trust_env=False, timeout=30, verify=stage.authority.trusting()) as client,
        asyncio.TaskGroup() as group,
    ):
        for number, (server, scheme) in enumerate(servers):
            for worker in range(3):
                group.create_task(_write(client, f"{scheme}://127.0.0.1:{server.port}", server, f"writer {number} {worker}"))
            group.create_task(_read(client, f"{scheme}://127.0.0.1:{server.port}"))


async def _write(client: httpx.AsyncClient, url: str, server: Server, name: str) -> None:
    writer = key_signer(name)
    for number in itertools.count():
        leaf = writer.statement(grant(writer, number), log=server.about["origin"], issued=NOW).leaf
        with suppress(httpx.HTTPError):
            await client.post(f"{url}/statements", content=leaf, headers={"Content-Type": "application/json"})
        await asyncio.sleep(0.5)


async def _read(client: httpx.AsyncClient, url: str) -> None:
    async with asyncio.TaskGroup() as group:
        for number in itertools.count():
            group.create_task(_get(client, f"{url}/protocols?q=word{number}"))
            await asyncio.sleep(0.25)


async def _get(client: httpx.AsyncClient, url: str) -> None:
    with suppress(httpx.HTTPError):
        await client.get(url, headers={"Accept": "application/json"})


def away(path: Path) -> Path:
    """Move a folder away, and put a file in its place, so that nothing can be written there."""
    moved = path.with_name(f"{path.name}-away")
    path.rename(moved)
    path.touch()
    return moved


def back(path: Path) -> None:
    """Bring the folder back."""
    path.unlink()
    path.with_name(f"{path.name}-away").rename(path)


def clear(folder: Path) -> None:
    """Remove a folder with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)
