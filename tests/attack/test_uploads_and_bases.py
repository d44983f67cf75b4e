"""Attack: statements that are refused, or that are cheap, must not use up what others need: room for uploads, room in bundles."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from registries import Publication, Web, blob, log, publication, publish, refuse
from signers import Signer, domain_signer, key_signer

from treaty_consensus import kinds
from treaty_consensus.errors import Unavailable
from treaty_registry.admission.statements import MAX_BASES
from treaty_registry.admission.upload_room import MAX_WAITING
from treaty_registry.admission.uploads import Uploads
from treaty_registry.log.entry import Logged
from treaty_registry.registry import Registry
from treaty_registry.storage.blobs import BlobStore

STRANGER, ALICE = key_signer("stranger"), domain_signer("alice.example")


async def upload(registry: Registry, agent: Signer, publication: Publication) -> None:
    leaf = agent.statement(publication.body).leaf
    for digest, data in publication.blobs.items():
        await registry.put_blob(digest, leaf, data)


@pytest.mark.threat(82)
async def test_a_statement_that_is_refused_prolongs_no_upload(registry: Registry, web: Web) -> None:
    statement = publication(STRANGER)
    await upload(registry, STRANGER, statement)
    await registry.pool.execute("update pending_blobs set expires = now() + interval '150 seconds'")
    before = await registry.pool.fetch("select sha256, expires from pending_blobs order by sha256")
    elsewhere = msgspec.structs.replace(statement.body, uri=publication(ALICE).body.uri)  # in a namespace of somebody else
    for agent, body in ((STRANGER, elsewhere), (domain_signer("nohost.example"), statement.body)):
        assert isinstance(await _outcome(registry, agent.statement(body).leaf), str)
    assert await registry.pool.fetch("select sha256, expires from pending_blobs order by sha256") == before
    await registry.pool.execute("update pending_blobs set expires = now() + interval '60 seconds'")
    assert (await refuse(registry, STRANGER.statement(statement.body))).code == "blob.missing", (
        "it might be gone before it is logged"
    )


async def _outcome(registry: Registry, leaf: bytes) -> str | Logged:
    (outcome,) = await registry.submit([leaf])
    return outcome if isinstance(outcome, Logged) else outcome.code


@pytest.mark.threat(82)
async def test_a_did_is_learned_while_strangers_fill_the_uploads(registry: Registry, web: Web) -> None:
    await registry.pool.execute(
        "insert into pending_blobs (sha256, size, expires) values ($1, $2, now() + interval '1 hour')", b"\0" * 32, MAX_WAITING
    )
    statement = publication(STRANGER)
    with pytest.raises(Unavailable) as error:
        await upload(registry, STRANGER, statement)
    assert error.value.code == "quota.sender"
    web.serve(ALICE)
    await log(registry, kinds.Grant("alice.example", STRANGER.did), ALICE)


@pytest.mark.threat(82)
async def test_uploads_count_before_their_sum_is_read_again(
    registry: Registry, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (publication(STRANGER, name) for name in ("first", "second"))
    monkeypatch.setattr("treaty_registry.admission.upload_room._SUM_SECONDS", 3600)
    room = len(first.document) + len(first.card)
    monkeypatch.setattr("treaty_registry.admission.upload_room.MAX_WAITING", room)
    await upload(registry, STRANGER, first)
    with pytest.raises(Unavailable) as error:
        await upload(registry, STRANGER, second)
    assert error.value.code == "quota.sender"
    assert await registry.pool.fetchval("select sum(size) from pending_blobs") == room


@pytest.fixture
def small_room(monkeypatch: pytest.MonkeyPatch) -> int:
    """A room of four uploads of `one_upload`, and a sum that is read each time."""
    size = len(one_upload(STRANGER, 0)[1])
    monkeypatch.setattr("treaty_registry.admission.upload_room.MAX_WAITING", 4 * size)
    monkeypatch.setattr("treaty_registry.admission.upload_room._SUM_SECONDS", 0)
    return size


def one_upload(agent: Signer, number: int) -> tuple[str, bytes, bytes]:
    """The digest of a document, the document, and a statement that names it."""
    statement = publication(agent, f"protocol-{number}")  # of one length for every number below ten
    return statement.body.document.sha256, statement.document, agent.statement(statement.body).leaf


async def send(registry: Registry, agent: Signer, number: int, source: str) -> None:
    digest, data, leaf = one_upload(agent, number)
    await registry.put_blob(digest, leaf, data, source=source)


async def waiting(registry: Registry) -> set[str]:
    return {row["sha256"].hex() for row in await registry.pool.fetch("select sha256 from pending_blobs where expires > now()")}


@pytest.mark.threat(349)
async def test_a_part_of_the_room_for_uploads_is_kept_for_standing(
    registry: Registry, web: Web, small_room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, network in enumerate(("192.0.2.1", "198.51.100.1", "203.0.113.1")):
        await send(registry, key_signer(f"stranger {number}"), number, network)
    before = await waiting(registry)
    with pytest.raises(Unavailable) as refused:
        await send(registry, STRANGER, 3, "192.0.3.1")
    assert refused.value.code == "quota.sender"
    assert await waiting(registry) == before
    web.serve(ALICE)
    monkeypatch.setattr(registry.intake.quota, "_standing", lambda did: did == ALICE.did)
    await send(registry, ALICE, 4, "192.0.2.9")
    assert await waiting(registry) == before | {one_upload(ALICE, 4)[0]}


@pytest.mark.threat(349)
async def test_the_newest_upload_of_the_greediest_network_falls_out(registry: Registry, small_room: int) -> None:
    greedy = [(f"greedy {number}", number, f"192.0.2.{number + 1}") for number in range(3)]
    for name, number, source in greedy:
        await send(registry, key_signer(name), number, source)
    await send(registry, STRANGER, 3, "198.51.100.1")
    expected_uploads = {one_upload(key_signer(name), number)[0] for name, number, _ in greedy[:2]}
    assert await waiting(registry) == expected_uploads | {one_upload(STRANGER, 3)[0]}
    digest, data, _ = one_upload(key_signer("greedy 2"), 2)
    assert not await registry.blobs.get(digest) and data
    # The greedy network gets nothing back by it: its next upload would make it the greediest again.
    with pytest.raises(Unavailable) as refused:
        await send(registry, key_signer("greedy 2"), 2, "192.0.2.3")
    assert refused.value.code == "quota.sender"
    # Nor by claiming the bytes of another one.
    await send(registry, STRANGER, 3, "198.51.100.1")
    assert await waiting(registry) == expected_uploads | {one_upload(STRANGER, 3)[0]}


class SlowStore:
    """A store that takes a while over each deletion, as one far away does."""

    def __init__(self, store: BlobStore) -> None:
        self._store, self.deleted, self.at_once, self._now = store, 0, 0, 0

    async def delete(self, digest: str) -> None:
        self._now += 1
        self.at_once = max(self.at_once, self._now)
        await asyncio.sleep(0.02)
        self._now -= 1
        self.deleted += 1


async def test_many_uploads_expire_in_steps_that_each_last(registry: Registry) -> None:
    rows = [(number.to_bytes(32, "big"), 1) for number in range(1, 201)]
    await registry.pool.executemany(
        "insert into pending_blobs (sha256, size, expires) values ($1, $2, now() - interval '1 second')", rows
    )
    store = SlowStore(registry.blobs)
    uploads = Uploads(registry.pool, store)  # type: ignore[arg-type]
    assert await uploads.expire() == 200
    assert store.deleted == 200 and store.at_once <= 32
    assert await registry.pool.fetchval("select count(*) from pending_blobs") == 0


@pytest.mark.threat(82)
async def test_a_chain_of_bases_is_bounded(registry: Registry, tmp_path: Path) -> None:
    def based(version: int, base: kinds.Publish | None) -> Publication:
        statement = publication(STRANGER, version=f"{version}.0")
        body = kinds.Publish(
            statement.body.uri,
            statement.body.topic,
            blob(statement.document),
            blob(statement.card),
            "negotiated",
            base=kinds.Base(base.uri, base.document.sha256) if base else None,
        )
        return Publication(body, statement.document, statement.card)

    base: kinds.Publish | None = None
    for version in range(MAX_BASES + 1):
        statement = based(version, base)
        outcome = await publish(registry, STRANGER, statement)
        assert isinstance(outcome, Logged), outcome
        base = statement.body
    last = based(MAX_BASES + 1, base)
    await upload(registry, STRANGER, last)
    assert (await refuse(registry, STRANGER.statement(last.body))).code == "publish.base"
    first, second = based(100, None), based(101, based(100, None).body)
    for statement in (first, second):
        await upload(registry, STRANGER, statement)
    outcomes = await registry.submit([STRANGER.statement(statement.body).leaf for statement in (first, second)])
    assert isinstance(outcomes[0], Logged)
    assert not isinstance(outcomes[1], Logged) and outcomes[1].code == "protocol.unknown"
