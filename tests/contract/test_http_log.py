"""`/checkpoint`, `/tile/…` and `/log`: from the tiles alone anybody recomputes the root that the checkpoint signs."""

from __future__ import annotations

import httpx
from http_api import problem, say
from registries import ballot
from signers import NOW, ORIGIN, Signer

from treaty_consensus import __version__, statement
from treaty_consensus.amendment import constitution_of
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.grease import GREASE
from treaty_consensus.kinds import Genesis
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.merkle import Frontier, leaf_hash, root, root_nodes
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.tiles import TILE_WIDTH, Bundle, Tile, decode_bundle, node_hashes, tiles_for, width_at
from treaty_registry.cache_control import SHARED
from treaty_registry.registry import Registry

NDJSON = {"Content-Type": "application/x-ndjson"}


async def test_the_log_says_its_name_and_keys(api: httpx.AsyncClient, registry: Registry) -> None:
    answer = (await api.get("/log")).json()
    assert answer == {
        "origin": ORIGIN,
        "key": str(registry.log_key),
        "clock_key": str(registry.clock_key),
        "operator": registry.operator,
        "electorate": "development",
        "parameters": statement.parse((await registry.leaves([1]))[1]).id,
        "constitution": constitution_of(development_parameters()),
        "announced": None,
        "holds": None,
        "epoch": 0,
        "opened": NOW,
        "closes": None,
        "size": 2,
        "rotations": [],
        "contact": None,
        "clients": {"least": "0.1.0", "recommended": __version__},
        GREASE: True,
        "reach": [],
    }
    genesis = statement.parse(decode_bundle((await api.get("/tile/entries/000.p/2")).content, 2)[0]).body
    assert isinstance(genesis, Genesis)
    assert (genesis.log_key, genesis.clock_key, genesis.operator) == (answer["key"], answer["clock_key"], answer["operator"])


async def test_the_tiles_recompute_the_root(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    await _fill(api, registry, alice, 300)
    note = (await api.get("/checkpoint")).content
    head = open_checkpoint(note, VerifierKey.parse((await api.get("/log")).json()["key"])).checkpoint
    assert head.size == registry.head.size > TILE_WIDTH
    frontier = Frontier()
    for index in range(-(-head.size // TILE_WIDTH)):
        bundle = Bundle(index, width_at(Bundle(index), head.size))
        for entry in decode_bundle((await api.get(bundle.path)).content, bundle.width):
            frontier.append(leaf_hash(entry))
    assert frontier.root() == head.root
    tiles: dict[Tile, bytes] = {}
    for tile in tiles_for(root_nodes(head.size), head.size):
        tiles[tile] = (await api.get(tile.path)).content
    assert root(head.size, node_hashes(root_nodes(head.size), head.size, tiles)) == head.root


async def test_every_width_of_a_tile_is_a_prefix_of_it(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    await _fill(api, registry, alice, 256)
    for kind in ("0", "entries"):
        early = (await api.get(f"/tile/{kind}/000.p/3")).content  # cut from the whole before that is in memory
        whole = (await api.get(f"/tile/{kind}/000")).content
        for width in (1, 2, 3, 100, 255):
            response = await api.get(f"/tile/{kind}/000.p/{width}")
            part = response.content
            assert whole.startswith(part) and response.headers["cache-control"].endswith("immutable")
            assert response.headers["content-type"] == "application/octet-stream"
            assert len(decode_bundle(part, width) if kind == "entries" else part) == (width if kind == "entries" else 32 * width)
        assert whole.startswith(early) and len(early) < len(whole)


async def test_a_partial_tile_grows_under_new_names_only(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    before = await api.get("/tile/0/000.p/2")
    problem(await api.get("/tile/0/000.p/4"), 404, "log.missing")
    await _fill(api, registry, alice, 2)
    assert (await api.get("/tile/0/000.p/2")).content == before.content
    wider = (await api.get("/tile/0/000.p/4")).content
    assert wider.startswith(before.content) and len(wider) == 4 * 32


async def test_paths_have_one_spelling(api: httpx.AsyncClient) -> None:
    for path in ("/tile/0/000", "/tile/1/000.p/1", "/tile/entries/000.p/200", "/tile/entries/001.p/1", "/tile/0/x999/999"):
        problem(await api.get(path), 404, "log.missing")
    for path in (
        "/tile/0/0",
        "/tile/0/000.p/0",
        "/tile/0/000.p/256",
        "/tile/64/000",
        "/tile/00/000",
        "/tile/0/x000/000",
        "/tile/x",
    ):
        problem(await api.get(path), 400, "log.form")
    for path in ("/tile", "/tile/"):
        assert (await api.get(path)).status_code in (400, 404)


async def test_the_checkpoint_is_the_newest(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    first = await api.get("/checkpoint")
    assert first.headers["content-type"] == "text/plain; charset=utf-8" and first.headers["cache-control"] == SHARED
    await say(api, alice, ballot(registry, 0))
    second = await api.get("/checkpoint", headers={"If-None-Match": first.headers["etag"]})
    assert second.status_code == 200
    signed = open_checkpoint(second.content, registry.log_key, registry.clock_key)
    assert signed.checkpoint.size == registry.head.size and signed.time is not None
    same = await api.get("/checkpoint", headers={"If-None-Match": second.headers["etag"]})
    assert same.status_code == 304 and same.content == b""


async def _fill(api: httpx.AsyncClient, registry: Registry, agent: Signer, count: int) -> None:
    """Log `count` leaves more: ballots, and the identity of who cast them."""
    for begin in range(0, count - 1, 256):
        numbers = range(begin, min(begin + 256, count - 1))
        leaves = [agent.statement(ballot(registry, seq)).leaf for seq in numbers]
        response = await api.post("/statements", content=b"\n".join(leaves), headers=NDJSON)
        assert response.status_code == 200 and response.content.count(b'"status":201') == len(leaves)
