"""Data directories of earlier releases, kept as files: `tests/releases/databases/NAME.tar.xz`.

Each holds `registry/` (keys, head, blobs), `tables/` (each table in PostgreSQL's text format, as its release left it), and
`seen.json` (the notes and receipts that readers got then). A release adds its own, before it is published:

    PYTHONPATH=tests/support python tests/support/releases.py NAME [PROGRAM]

PROGRAM is the `treaty-registry` of that release. The keys are made for this and sign nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import tarfile
import tempfile
from pathlib import Path

import httpx
from did_host import did_host
from http_api import post, publish
from registries import publication
from registry_process import PROGRAM, empty
from signers import ORIGIN, domain_signer, key_signer

from treaty_consensus import kinds
from treaty_registry.storage.embedded import embedded_postgres
from treaty_registry.storage.postgres import Connection, connect, migrations

FOLDER = Path(__file__).parents[1] / "releases" / "databases"
AUTHORS = (key_signer("author"), domain_signer("alpha.example"))


async def make(name: str, program: Path, folder: Path) -> None:
    """Run a release in an empty folder, write something of every kind that it has, and keep the result."""
    with did_host(folder, AUTHORS[1]) as options:
        async with empty(folder / "registry", "--origin", ORIGIN, *options) as server:
            server.program = program
            await server.start()
            assert await server.ready()
            seen = await _write(f"http://127.0.0.1:{server.port}")
            assert await server.stop() == 0
    (folder / "seen.json").write_text(json.dumps(seen, indent=1))
    (folder / "tables").mkdir()
    async with embedded_postgres(folder / "registry") as url, connect(url) as connection:
        for table in await _tables(connection):
            await connection.copy_from_table(table, output=folder / "tables" / table)
    FOLDER.mkdir(exist_ok=True)
    with tarfile.open(FOLDER / f"{name}.tar.xz", "w:xz") as archive:
        for part in ("registry/keys", "registry/head", "registry/blobs", "tables", "seen.json"):
            archive.add(folder / part, part)


async def _write(base_url: str) -> dict[str, list[str]]:
    seen: dict[str, list[str]] = {"notes": [], "receipts": []}
    async with httpx.AsyncClient(base_url=base_url, timeout=60, trust_env=False) as api:
        for author in AUTHORS:
            for version in ("1.0", "1.1"):
                protocol = publication(author, version=version)
                statement = await publish(api, author, protocol)
                seen["receipts"].append((await api.get(f"/proofs/{statement.id}")).text)
            answer = await post(api, author.statement(kinds.Status(protocol.body.uri, "deprecated")))
            assert answer.status_code == 201, answer.text
            seen["notes"].append((await api.get("/checkpoint")).text)
    return seen


def unpack(name: str, folder: Path) -> None:
    """Unpack the files of a release."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    for path in (folder / "registry" / "keys").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)


async def load(connection: Connection, folder: Path) -> None:
    """Fill an empty database as the release left it: with its migrations, and the rows of its tables.

    Fails when a migration of the release is not in this one, to the byte: then its databases cannot be updated.
    """
    applied = dict(line.split("\t") for line in (folder / "tables" / "migrations").read_text().splitlines())
    await connection.execute("create table migrations (name text primary key, sha256 text not null)")
    for name, sql in migrations():
        if name in applied:
            assert hashlib.sha256(sql.encode()).hexdigest() == applied.pop(name), f"{name} has changed"
            await connection.execute(sql)
    assert not applied, "a migration was removed"
    for table in await _tables(connection):
        await connection.execute(f"delete from {table}")
        await connection.copy_to_table(table, source=folder / "tables" / table)


async def _tables(connection: Connection) -> list[str]:
    rows = await connection.fetch("select tablename from pg_tables where schemaname = 'public' order by tablename")
    return [row["tablename"] for row in rows]


def seen(folder: Path) -> tuple[list[bytes], list[bytes]]:
    """Return the notes and the receipts that readers of a release got."""
    data = json.loads((folder / "seen.json").read_text())
    return [note.encode() for note in data["notes"]], [receipt.encode() for receipt in data["receipts"]]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="treaty-") as directory:
        Path(directory).chmod(0o755)  # PostgreSQL may run as another user
        asyncio.run(make(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else PROGRAM, Path(directory)))
