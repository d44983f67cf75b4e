"""The generator of large registries: the registry's own audit accepts them. The lists of a topic have bounds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from bench.bulk import CROWDED, Bulk
from bench.publishing import resolving
from msgspec import structs
from registries import Web, log, open_registry, publication, publish
from signers import ORIGIN, domain_signer

from treaty_consensus import kinds
from treaty_registry.catalogue.statuses import MAX_URIS
from treaty_registry.log.fence import read_fence
from treaty_registry.operator import maintenance
from treaty_registry.registry import Registry
from treaty_registry.serving import topics
from treaty_registry.serving.views import Views
from treaty_registry.settings import Settings
from treaty_registry.storage.postgres import connect


@pytest.mark.deep
async def test_a_generated_registry_passes_the_audit_of_the_product(tmp_path: Path, database: str) -> None:
    bulk = Bulk(tmp_path / "registry", ORIGIN, database, voters=8)
    await bulk.fill(40, 90)
    await bulk.fill(60, 300)
    assert (bulk.protocols, bulk.leaves) == (60, 300)
    settings = Settings(tmp_path / "registry", database=database)
    async with Registry.open(settings, resolve=resolving(bulk.voters)) as registry:
        record = await asyncio.to_thread(read_fence, tmp_path / "registry" / "head", ORIGIN)
        async with connect(database) as connection, connect(database) as reader:
            report = await maintenance.audit(connection, reader, registry.blobs, record)
            assert await connection.fetchval("select count(*) from protocols") == 60
        assert report.findings == [] and report.size == registry.head.size >= 300
        assert report.blobs == 60 + 30 + 8, "documents, a card for both versions, and the DID documents of the voters"
        views = Views(registry)
        listed = {entry.topic: entry.protocols for entry in (await views.elections.topics("")).topics}
        assert sum(listed.values()) == 60
        small = bulk.protocol(14)
        assert small.topic == CROWDED and listed[CROWDED] == 6
        record_ = await views.protocol(small.path, "json")
        assert small.hash.encode() in record_.body


async def test_a_candidate_shows_its_oldest_versions_alone(
    tmp_path: Path, database: str, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "_CANDIDATES", topics._CANDIDATES.replace(f"limit {MAX_URIS}", "limit 2"))
    author = domain_signer("alice.example")
    web.serve(author)
    async with open_registry(tmp_path / "registry", database, web) as registry:
        uris, first = list[str](), publication(author)
        for version in ("1.0", "1.1", "1.2"):
            statement = publication(author, version=version)
            # The document of the first one in each version.
            statement = replace(
                statement, body=structs.replace(statement.body, document=first.body.document), document=first.document
            )
            await publish(registry, author, statement)
            uris.append(statement.body.uri)
        await log(registry, kinds.Status(uris[0], "deprecated"), author)
        topic_view = await Views(registry).elections.election(statement.body.topic, registry.head)
        (candidate,) = topic_view.candidates
        # All are its publisher's, so the mildest status is its own.
        assert (candidate.uris, candidate.status) == ([uris[1], uris[0]], "active")
        (listed,) = (await Views(registry).elections.topics("")).topics
        assert listed.protocols == 3
