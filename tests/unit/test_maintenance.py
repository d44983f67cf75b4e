"""Audit and rebuild: a healthy registry has no findings; whatever is changed in the database is found, and put right if it can
be."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from registries import Web, ballot, contents, log, open_registry, publication, publish
from signers import domain_signer

from treaty_consensus import kinds
from treaty_consensus.errors import Untrusted
from treaty_consensus.sigstore_leaf import CertificateLeaf
from treaty_registry.log import tables as log_tables
from treaty_registry.log.fence import read_fence
from treaty_registry.operator import maintenance
from treaty_registry.operator.maintenance import Audited
from treaty_registry.registry import Registry
from treaty_registry.storage.postgres import connect

AGENTS = [domain_signer(f"{name}.example") for name in ("alpha", "bravo", "charlie")]
TOPIC = "commerce/product-info"


@dataclass
class Place:
    """A registry with something of everything in its log, and how to look at it from outside."""

    registry: Registry
    data: Path
    database: str

    async def audit(self) -> Audited:
        record = await asyncio.to_thread(read_fence, self.data / "head", self.registry.origin)
        async with connect(self.database) as connection, connect(self.database) as reader:
            return await maintenance.audit(connection, reader, self.registry.blobs, record)

    async def change(self, *statements: str) -> None:
        async with connect(self.database) as connection:
            for statement in statements:
                await connection.execute(statement)


@pytest.fixture
async def place(tmp_path: Path, database: str, web: Web) -> AsyncIterator[Place]:
    async with open_registry(tmp_path / "registry", database, web) as registry:
        web.serve(*AGENTS)
        statement = publication(AGENTS[0])
        await publish(registry, AGENTS[0], statement)
        await log(registry, kinds.Status(statement.body.uri, "deprecated"), AGENTS[0])
        await log(registry, kinds.Grant("alpha.example", AGENTS[1].did), AGENTS[0])
        for first, second in ((0, 1), (1, 2), (2, 0)):
            nid = f"{first}{second}" * 32
            note = registry.head.note.decode()
            body = kinds.Report(TOPIC, nid, statement.body.document.sha256, "agreed", 0, note)
            await log(registry, body, AGENTS[first], AGENTS[second])
        for agent in AGENTS:
            await log(registry, ballot(registry, 0, statement.body.document.sha256), agent)
        await registry.append(CertificateLeaf(b"certificate").encode())
        assert len(await registry.decide()) == 1
        await asyncio.gather(*(registry.append(CertificateLeaf(b"filling %d" % number).encode()) for number in range(260)))
        yield Place(registry, tmp_path / "registry", database)


@pytest.mark.deep
async def test_an_audit_of_a_healthy_registry_changes_nothing(place: Place) -> None:
    before = await contents(place.registry)
    report = await place.audit()
    assert report == Audited(place.registry.head.size, place.registry.head.root, 1, report.blobs, [])
    assert report.blobs == 7, "a document, a card, three DID documents, a transcript, a roll"
    assert await contents(place.registry) == before


@pytest.mark.deep
async def test_rebuilding_a_healthy_registry_differs_in_nothing(place: Place) -> None:
    before = await contents(place.registry)
    rebuilt = await place.registry.rebuild()
    assert (rebuilt.size, rebuilt.root) == (place.registry.head.size, place.registry.head.root)
    assert set(rebuilt.tables.values()) == {0}
    assert not rebuilt.differed
    assert {"facts", "tiles", "blobs", "protocols", "decisions"} <= rebuilt.tables.keys()
    assert await contents(place.registry) == before
    await log(place.registry, ballot(place.registry, 1), AGENTS[0])


DERIVED: Sequence[tuple[str, str]] = [
    ("facts", "delete from facts where key like 'ballot/%'"),
    ("facts", 'update facts set fact = \'{"type":"grant","index":1}\' where key like \'grant/%\''),
    ("facts", 'insert into facts values (\'grant/evil/did\', \'{"type":"grant","index":1}\')'),
    ("tiles", "update tiles set hashes = set_byte(hashes, 40, get_byte(hashes, 40) # 1)"),
    ("tiles", "insert into tiles values (3, 3, 'x')"),
    ("blobs", "update blobs set withdrawn = 1"),
    ("blobs", "delete from blobs"),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("table", "damage"), DERIVED)
async def test_a_changed_table_is_found_and_put_right(place: Place, table: str, damage: str) -> None:
    healthy = await contents(place.registry)
    await place.change(damage)
    assert await contents(place.registry) != healthy
    findings = (await place.audit()).findings
    assert any(f"table {table}" in finding for finding in findings), findings
    rebuilt = await place.registry.rebuild()
    assert {name for name, rows in rebuilt.tables.items() if rows} == {table}
    assert await contents(place.registry) == healthy
    assert (await place.audit()).findings == []


@pytest.mark.deep
async def test_whatever_the_catalogue_loses_comes_back(place: Place) -> None:
    healthy = await contents(place.registry)
    lost = {}
    for table in (await place.registry.rebuild()).tables.keys() - {"leaves", "head"}:
        lost[table] = await place.registry.pool.fetchval(f"select count(*) from {table}")
        await place.change(f"delete from {table}")
    assert sum(map(bool, lost.values())) > 8, "a fixture that fills most tables"
    rebuilt = await place.registry.rebuild()
    assert {table: rows for table, rows in rebuilt.tables.items() if rows} == {t: rows for t, rows in lost.items() if rows}
    assert await contents(place.registry) == healthy


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "damage",
    [
        "update leaves set leaf = set_byte(leaf, 30, get_byte(leaf, 30) # 1) where index = 5",
        "update leaves set statement = sha256('other') where index = 5",
        "update leaves set statement = null where index = 5",
        "delete from leaves where index = 5",
        "delete from leaves where index = 275",
        "update head set root = sha256('other')",
        "update leaves l set leaf = other.leaf from leaves other where l.index = 30 and other.index = 31",
    ],
)
async def test_damage_to_the_log_itself_is_found_and_not_papered_over(place: Place, damage: str) -> None:
    await place.change(damage)
    damaged = await contents(place.registry)
    assert (await place.audit()).findings
    with pytest.raises(Untrusted):
        await place.registry.rebuild()
    assert await contents(place.registry) == damaged


@pytest.mark.deep
async def test_a_missing_and_a_damaged_blob_are_found(place: Place) -> None:
    folder = place.data / "blobs" / "sha256"
    files = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: b'"principals"' in path.read_bytes())
    files = files[:2] + files[-1:]  # the last one is the roll, which projections read
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-1] + b"x")
    os.truncate(files[2], 3)
    findings = [finding for finding in (await place.audit()).findings if finding.startswith("The blob")]
    assert sorted(findings) == sorted(
        [
            f"The blob {files[0].name} is missing.",
            f"The blob {files[1].name} is damaged.",
            f"The blob {files[2].name} is damaged.",
        ]
    )


async def test_a_fence_that_the_log_does_not_reach_is_found(place: Place) -> None:
    place.registry.leader.fence.advance(place.registry.head.size + 1, b"\1" * 32)
    (finding,) = (await place.audit()).findings
    assert "fork" in finding


@pytest.mark.deep
async def test_the_audit_runs_on_a_snapshot_while_others_write(place: Place) -> None:
    for seq in range(1, 21):
        await log(place.registry, ballot(place.registry, seq), AGENTS[0])
        report = await place.audit()
        assert report.findings == []
    assert report.size == place.registry.head.size


REFUSE_PROTOCOLS = """
    create function refuse() returns trigger language plpgsql as $$ begin raise exception 'interrupted'; end $$;
    create trigger refuse before insert on protocols execute function refuse();
"""


@pytest.mark.deep
async def test_an_interrupted_rebuild_leaves_everything_as_it_was(place: Place) -> None:
    await place.change("delete from protocols", "update blobs set withdrawn = 1", REFUSE_PROTOCOLS)
    before = await contents(place.registry)
    async with connect(place.database) as reader:
        with pytest.raises(Exception, match="interrupted"):
            await maintenance.rebuild(place.registry.leader.connection, reader, place.registry.blobs)
    assert await contents(place.registry) == before
    assert await log_tables.read_head(place.registry.pool) == (place.registry.head.size, place.registry.head.root)
