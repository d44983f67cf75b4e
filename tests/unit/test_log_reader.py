"""Reading the log: every proof verifies, at the newest head and at older ones, and nothing above a head is served."""

from __future__ import annotations

import asyncio

import pytest
from registries import grant, log
from signers import key_signer

from treaty_consensus.errors import Malformed, NotFound
from treaty_consensus.log.merkle import Frontier, leaf_hash, verify_consistency, verify_inclusion
from treaty_consensus.log.proof import Receipt
from treaty_consensus.log.tiles import Bundle, Tile, decode_bundle
from treaty_consensus.sigstore_leaf import CertificateLeaf
from treaty_registry.registry import Head, Registry

SIZE = 600


@pytest.fixture
async def heads(registry: Registry) -> list[Head]:
    """Heads of a log that grew to 600 leaves, in steps."""
    seen = [registry.head]
    while registry.head.size < SIZE:
        count = min(97, SIZE - registry.head.size)
        first = registry.head.size
        leaves = [CertificateLeaf(b"certificate %d" % (first + n)).encode() for n in range(count)]
        await asyncio.gather(*map(registry.append, leaves))
        seen.append(registry.head)
    return seen


async def test_inclusion_at_every_head(registry: Registry, heads: list[Head]) -> None:
    leaves = await registry.leaves(range(SIZE))
    assert sorted(leaves) == list(range(SIZE))
    for head in heads:
        proofs = await registry.inclusion(range(head.size), head)
        for index in range(head.size):
            verify_inclusion(index, head.size, leaf_hash(leaves[index]), proofs[index], head.root)


async def test_consistency_from_every_size_to_every_head(registry: Registry, heads: list[Head]) -> None:
    roots = {head.size: head.root for head in heads}
    for new in heads:
        for old in roots:
            if old <= new.size:
                proof = await registry.consistency(old, new)
                verify_consistency(old, new.size, roots[old], new.root, proof)
        assert await registry.consistency(new.size, new) == []
        assert await registry.consistency(0, new) == []


async def test_every_tile_at_every_width_is_what_a_client_computes(registry: Registry, heads: list[Head]) -> None:
    leaves = await registry.leaves(range(SIZE))
    for index in range(-(-SIZE // 256)):
        width = min(256, SIZE - 256 * index)
        hashes = b"".join(leaf_hash(leaves[256 * index + n]) for n in range(width))
        for part in {1, 2, width // 2, width - 1, width}:
            assert await registry.tile(Tile(0, index, part).path) == hashes[: 32 * part]
            bundle = await registry.tile(Bundle(index, part).path)
            assert bundle is not None
            assert decode_bundle(bundle, part) == [leaves[256 * index + n] for n in range(part)]
    upper = await registry.tile(Tile(1, 0, 2).path)
    assert upper is not None
    subtree = Frontier()
    for index in range(256):
        subtree.append(leaf_hash(leaves[index]))
    assert (upper[:32], len(upper)) == (subtree.root(), 64)


async def test_what_is_above_a_head_is_not_there(registry: Registry, heads: list[Head]) -> None:
    old, size = heads[1], heads[1].size
    assert await registry.tile(Tile(0, 0, size).path, old) is not None
    assert await registry.tile(Tile(0, 0, size + 1).path, old) is None
    assert await registry.tile(Bundle(0, size + 1).path, old) is None
    assert await registry.tile(Tile(0, 3, 1).path) is None
    assert await registry.tile(Tile(2, 0, 1).path) is None
    for call in (registry.leaves([size], old), registry.inclusion([size], old), registry.consistency(size + 1, old)):
        with pytest.raises(NotFound):
            await call
    for call in (registry.leaves([-1]), registry.inclusion([0, SIZE]), registry.consistency(-1)):
        with pytest.raises(NotFound):
            await call


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "path", ["/tile/0/0", "/tile/0/000.p/256", "/tile/0/000.p/0", "/tile/64/000", "/tile/x/000", "", "/etc/passwd"]
)
async def test_what_is_no_tile(registry: Registry, path: str) -> None:
    with pytest.raises(Malformed):
        await registry.tile(path)


async def test_receipts_by_statement(registry: Registry, heads: list[Head]) -> None:
    writer = key_signer("writer")
    statement = writer.statement(grant(writer))
    logged = await log(registry, statement.body, writer)
    for _ in range(3):
        await registry.append(CertificateLeaf(b"more").encode())
    receipt = Receipt.parse(await registry.receipt(logged.id))
    assert receipt.verify(statement.leaf, registry.log_key, registry.clock_key).checkpoint.size == registry.head.size
    assert receipt.index == logged.index == SIZE
    with pytest.raises(NotFound) as refused:
        await registry.receipt("ab" * 32)
    assert refused.value.code == "statement.unknown"
    with pytest.raises(NotFound):
        await registry.receipt(logged.id, heads[0])
    with pytest.raises(Malformed):
        await registry.receipt("AB" * 32)
