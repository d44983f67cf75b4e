"""Receipts promise where a leaf is, and are given once it is there: copies of the tiles, and standbys of the database."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from registries import grant, settings_for
from signers import ORIGIN, key_signer
from simulated_registry import LOG_KEY

from treaty_consensus.errors import Unavailable, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint, LogKeys
from treaty_consensus.log.durability import Durability
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.log.note import text_of
from treaty_consensus.log.proof import Receipt
from treaty_consensus.log.tiles import Bundle, TreeEdge, decode_bundle, encode_bundle, parse_path
from treaty_registry.data_directory import record_at
from treaty_registry.log.checkpoints import CheckpointSigner, Head
from treaty_registry.log.entry import Logged
from treaty_registry.log.tile_copy import TileCopy
from treaty_registry.registry import Registry
from treaty_registry.settings import Settings
from treaty_registry.storage.postgres import connect, synchronous_standbys

WRITER = key_signer("writer")


def leaf(number: int) -> bytes:
    return WRITER.statement(grant(WRITER, number)).leaf


@pytest.mark.parametrize("durability", [Durability(), Durability(copies=2), Durability(1), Durability(3, 100)])
def test_a_checkpoint_says_where_its_leaves_are(durability: Durability) -> None:
    checkpoint = Checkpoint("log.example", 1, bytes(32), durability.extensions)
    assert Durability.parse(Checkpoint.parse(checkpoint.format()).extensions) == durability
    assert len(durability.extensions) == bool(durability.places)


@pytest.mark.parametrize(
    ("line", "durability"),
    [
        ("durability copies=2 standbys=1", Durability(1, 2)),
        ("durability standbys=1 copies=2 continents=3 far", Durability(1, 2)),
        ("durability standbys=01 copies=101", Durability()),
        ("durability copies=-1", Durability()),
        ("durability", Durability()),
        ("durability2 copies=2", Durability()),
    ],
)
def test_a_reader_takes_the_words_that_it_knows(line: str, durability: Durability) -> None:
    assert Durability.parse(["another extension", line]) == durability


@pytest.fixture
def place(tmp_path: Path, database: str) -> Settings:
    """Two stores, of which each leaf must be in one."""
    stores = {name: f"file://{tmp_path / name}" for name in ("blobs", "head", "one", "other")}
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    return replace(
        settings_for(tmp_path / "data", database),
        blobs=stores["blobs"],
        head=stores["head"],
        tiles=(stores["one"], stores["other"]),
        durability=Durability(copies=1),
    )


def broken(store: Path) -> None:
    """Have a store write nothing: a file is where its folder was."""
    store.rename(store.with_suffix(".away"))
    store.touch()


def mended(store: Path) -> None:
    store.unlink()
    store.with_suffix(".away").rename(store)


def held(store: Path, size: int) -> list[bytes]:
    bundle = Bundle(0, size)
    path = store / bundle.path[1:]
    return decode_bundle(path.read_bytes(), size) if path.exists() else []


async def receipt_of(registry: Registry, number: int) -> Receipt:
    (outcome,) = await registry.submit([leaf(number)])
    assert isinstance(outcome, Logged)
    return Receipt.parse(outcome.receipt)


def said(note: bytes) -> Durability:
    return Durability.parse(Checkpoint.parse(text_of(note)).extensions)


async def test_a_leaf_is_in_a_copy_before_its_head_is_signed(
    place: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed: list[int] = []
    sign = CheckpointSigner.sign

    def watched(self: CheckpointSigner, edge: object, *arguments: object) -> Head:
        size = edge.size  # type: ignore[attr-defined]
        assert not size or any(len(held(tmp_path / store, size)) == size for store in ("one", "other"))
        signed.append(size)
        return sign(self, edge, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(CheckpointSigner, "sign", watched)
    async with Registry.open(place) as registry:
        receipt = await receipt_of(registry, 1)
        assert signed[-1] == registry.head.size == receipt.index + 1
        assert said(receipt.checkpoint) == said(registry.head.note) == Durability(copies=1)
    # What was promised once is promised for every later leaf: the whole tree is there.
    async with Registry.open(replace(place, new=False, durability=Durability(copies=2))) as registry:
        assert said((await receipt_of(registry, 2)).checkpoint) == Durability(copies=2)
        size = registry.head.size
        assert held(tmp_path / "one", size) == held(tmp_path / "other", size) != []
    monkeypatch.undo()
    async with Registry.open(replace(place, new=False, durability=Durability())) as registry:
        assert said((await receipt_of(registry, 3)).checkpoint) == Durability()


async def test_a_receipt_waits_for_as_many_copies_as_it_promises(place: Settings, tmp_path: Path) -> None:
    async with Registry.open(place) as registry:
        before = registry.head.size
        broken(tmp_path / "one")
        assert (await receipt_of(registry, 1)).index == before  # the other store has it
        broken(tmp_path / "other")
        (outcome,) = await registry.submit([leaf(2)])
        assert isinstance(outcome, Unavailable)
        assert registry.head.size == before + 1
        assert isinstance(registry.leader.fault, Unavailable)
        assert registry.leader.fault.code == "log.copies"
        mended(tmp_path / "other")
        # It was committed, and is shown to nobody before it is in a copy.
        assert (await receipt_of(registry, 2)).index == before + 1
        assert len(held(tmp_path / "other", before + 2)) == before + 2
        mended(tmp_path / "one")
        assert (await receipt_of(registry, 3)).index == before + 2


async def test_only_leaves_of_a_lost_commit_are_replaced(place: Settings, tmp_path: Path) -> None:
    place = replace(place, tiles=place.tiles[:1])
    async with Registry.open(place) as registry:
        size = registry.head.size
        # As a leader of a database that was lost with its disk left them: committed, and neither recorded nor signed.
        lost = tmp_path / "one" / Bundle(0, size + 1).path[1:]
        lost.parent.mkdir(parents=True, exist_ok=True)
        lost.write_bytes(b"other leaves")
        (outcome,) = await registry.submit([leaf(1)])
        # Another leader may have signed them, so this one looks at the record first.
        assert isinstance(outcome, Unavailable)
        assert lost.read_bytes() == b"other leaves"
        assert (await receipt_of(registry, 1)).index == size
        assert len(held(tmp_path / "one", size + 1)) == size + 1


class Leaves:
    """A reader of leaves that a database lost, and has others in their place."""

    def __init__(self, *leaves: bytes) -> None:
        self.leaves = leaves

    @property
    def edge(self) -> TreeEdge:
        return TreeEdge().appended(map(leaf_hash, self.leaves))[0]

    async def tile(self, path: str, edge: TreeEdge) -> bytes:
        tile = parse_path(path)
        return encode_bundle(self.leaves[: tile.width]) if isinstance(tile, Bundle) else edge.tiles[tile]


async def test_a_returning_leader_trusts_no_unsigned_tile(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    reader = Leaves(b"1", b"2", b"lost")
    copy = TileCopy(f"file://{tmp_path}/one", lambda: LogKeys.pinned(LOG_KEY.verifier), reader)  # type: ignore[arg-type]
    await copy.follow(reader.edge, begins=True)
    # The database that took over never had the third leaf, which was not signed.
    reader.leaves = (b"1", b"2")
    await copy.follow(reader.edge, begins=True)
    reader.leaves = (b"1", b"2", b"3")
    with pytest.raises(Unavailable):
        await copy.follow(reader.edge)
    await copy.follow(reader.edge, begins=True)
    assert held(tmp_path / "one", 3) == [b"1", b"2", b"3"]


async def test_a_database_behind_a_copys_checkpoint_is_not_signed(place: Settings) -> None:
    async with Registry.open(place) as registry:
        await receipt_of(registry, 1)
        for copy in registry.tiles.copies:
            await copy.publish(registry.head)
        with pytest.raises(Untrusted) as refused:
            await registry.tiles.hold(TreeEdge(), begins=True)
        assert refused.value.code == "log.damaged"


@pytest.mark.parametrize(
    ("names", "waits", "count"),
    [
        ("", "on", 0),
        ("*", "on", 1),
        ("one, other", "on", 1),
        ("FIRST 2 (one, other, third)", "remote_apply", 2),
        ("any 3 (*)", "on", 3),
        ("2 (one, other)", "on", 2),
        ("2 (one, other)", "remote_write", 0),
        ("*", "local", 0),
    ],
)
async def test_the_standbys_that_a_commit_waits_for_are_counted(database: str, names: str, waits: str, count: int) -> None:
    async with connect(database) as connection:
        # In the session alone: the server's own would have every commit of other tests wait.
        await connection.execute(f"set synchronous_commit = {waits}")

        class Named:
            async def fetchval(self, query: str, setting: str) -> object:
                return names if setting == "synchronous_standby_names" else await connection.fetchval(query, setting)

        assert await synchronous_standbys(Named()) == count  # type: ignore[arg-type]


async def test_an_unmet_promise_of_standbys_is_not_signed(place: Settings) -> None:
    async with Registry.open(place):
        pass
    before = record_at(str(place.head), ORIGIN)
    with pytest.raises(Unavailable) as refused:
        async with Registry.open(replace(place, new=False, durability=Durability(standbys=1))):
            pass
    assert refused.value.code == "log.copies"
    assert record_at(str(place.head), ORIGIN) == before
