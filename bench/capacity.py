"""What a machine can do and needs: reads and statements a second, disk, memory, and the time of a backup, a restore and an audit.

    PYTHONPATH=tests/support python -m bench.capacity [VERSIONS]

The rates are rows of `make bench`, measured here in the same run. For the rest it publishes versions of protocols, each of two
blobs, over HTTP to a registry with its embedded PostgreSQL. `capacity.json` is the last run, with its machine; the guide to
deploying has its table. Sizes do not depend on the load of the machine; times do.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from http_api import publish
from registries import publication
from registry_process import PROGRAM, Server, empty
from signers import ORIGIN, key_signer

from treaty_registry.storage.embedded import embedded_postgres
from treaty_registry.storage.postgres import connect

from . import RESULTS, report
from .contest import hold
from .reading import GROUP as READING
from .voting import GROUP as VOTING

RESULT = RESULTS / "capacity.json"
_AT_ONCE = 8
_ROUNDS = 5
_RATES = ("document", "search", "record", "vote", "batch")


async def rates() -> dict[str, float]:
    """Return the figures of the rows, by their names."""
    found: dict[str, float] = {}
    for group in (READING, VOTING):
        rows = [row for row in group.rows if row.name in _RATES]
        found |= {result.row.name: result.figure for result in await hold(group, rows, _ROUNDS, lambda _name: None)}
    return found


def size(folder: Path) -> int:
    """Return the bytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def resident(pid: int) -> int:
    """Return the resident bytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def timed(*arguments: object) -> float:
    """Return the seconds of a command of `treaty-registry`."""
    began = time.monotonic()
    subprocess.run([PROGRAM, *map(str, arguments), "--json"], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


async def fill(server: Server, versions: int) -> float:
    """Publish versions, and return the statements per second."""
    agents = [key_signer(f"author {number}") for number in range(_AT_ONCE)]
    began = time.monotonic()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=120, trust_env=False) as api:

        async def one(number: int) -> None:
            for version in range(versions // _AT_ONCE):
                await publish(api, agents[number], publication(agents[number], version=f"{version}.0"))

        await asyncio.gather(*map(one, range(_AT_ONCE)))
    return versions / (time.monotonic() - began)


async def measure(versions: int, folder: Path) -> dict[str, float]:
    """Return the figures for a log of so many versions."""
    async with empty(folder / "registry", "--origin", ORIGIN, "--quota", "1000") as server:
        await server.start()
        assert await server.ready() and server.process is not None
        before = await _database(folder)
        rate = await fill(server, versions)
        found = {
            "versions": versions,
            "published_per_second": rate,
            "database_bytes_per_statement": (await _database(folder) - before) / versions,
            "blob_bytes_per_statement": size(folder / "registry" / "blobs") / versions,
            "registry_resident_bytes": resident(server.process.pid),
            "backup_seconds": timed("backup", folder / "backup", "--data", server.data),
            "second_backup_seconds": timed("backup", folder / "backup", "--data", server.data),
        }
        await server.stop()
    found["backup_bytes_per_statement"] = size(folder / "backup") / versions
    found["restore_seconds"] = timed(
        "restore", folder / "backup", "--data", folder / "again", "--record", folder / "registry" / "head"
    )
    found["audit_seconds"] = timed("audit", "--data", folder / "again")
    return found


async def _database(folder: Path) -> int:
    async with embedded_postgres(folder / "registry") as url, connect(url) as connection:
        return int(await connection.fetchval("select pg_database_size(current_database())"))


def main() -> None:
    before = os.getloadavg()[1]
    with tempfile.TemporaryDirectory(prefix="treaty-") as directory:
        Path(directory).chmod(0o755)  # PostgreSQL may run as another user
        found = asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000, Path(directory)))
    about = {"machine": report.machine(), "measured": time.strftime("%Y-%m-%d"), "load_before": round(before, 1)}
    rounded = {name: round(value, 2) for name, value in found.items()}
    per_second = {name: round(value) for name, value in asyncio.run(rates()).items()}
    RESULT.write_text(json.dumps({**about, "per_second": per_second, **rounded}, indent=1) + "\n")
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
