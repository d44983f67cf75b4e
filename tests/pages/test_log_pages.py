"""The pages of the log and of its entries, over the real application."""

from __future__ import annotations

import httpx
import pytest
from http_api import attach, problem, publish, say
from registries import ballot, publication
from shown_entries import HTML, page
from signers import NOW, ORIGIN, Signer

from treaty_consensus import kinds
from treaty_consensus.canonical import b64encode
from treaty_consensus.log.checkpoint import KeyTerm, LogKeys
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.log.note import KeyType, SignerKey, sign
from treaty_consensus.sigstore_leaf import RekordLeaf
from treaty_registry.pages import log
from treaty_registry.pages.log import MAX_ENTRIES, MAX_VALUES, decode, signature_lines
from treaty_registry.registry import Registry

EVIL = "<script>alert(1)</script>"


async def test_the_log_shows_its_head_line_by_line(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    await say(api, alice, ballot(registry, 0))
    view = await page(api, "/log")
    origin, size, root, *_ = registry.head.note.decode().split("\n")
    assert all(part in view.text for part in (origin, size, root, str(registry.log_key), str(registry.clock_key)))
    assert "No witness has cosigned it." in view.text
    assert f"/statements/{(await api.get('/log')).json()['parameters']}" in view.links
    titles = [attributes["aria-label"] for tag, attributes in view.tags if tag == "svg"]
    assert len(titles) == 2 and f"The tree of {size} leaves" in (titles[0] or "")
    assert (await api.get("/log")).json()["size"] == registry.head.size


async def test_pages_of_entries_are_bounded_and_cover_the_log(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer
) -> None:
    for number in range(15):
        await say(api, alice, ballot(registry, number))
        await say(api, bob, ballot(registry, number))
    seen: list[int] = []
    path: str | None = "/log"
    while path:
        view = await page(api, path)
        indexes = [int((attributes.get("id") or "").removeprefix("leaf-")) for tag, attributes in view.tags if tag == "li"]
        assert 0 < len(indexes) <= MAX_ENTRIES
        seen += indexes
        path = next((link for link in view.links if link == f"/log?before={indexes[-1]}"), None)
    assert seen == [*range(registry.head.size)][::-1]
    assert "No entries before this one." in (await page(api, "/log?before=0")).text
    assert (await page(api, f"/log?before={10**17}")).text.count("votes in a topic") <= MAX_ENTRIES
    for wrong in ("x", "-1", "01", "9" * 19):
        problem(await api.get(f"/log?before={wrong}"), 400, "http.request")


async def test_an_entry_is_decoded_member_by_member(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    statement = publication(alice)
    signed = await publish(api, alice, statement)
    view = await page(api, f"/statements/{signed.id}")
    index = registry.head.size - 1
    for part in (
        statement.body.uri,
        statement.body.topic,
        statement.body.card.sha256,
        alice.key_id,
        leaf_hash(signed.leaf).hex(),
        f"leaf {index}",
    ):
        assert part in view.text
    for link in (f"/topics/{statement.body.topic}", f"/identities/{alice.did}", f"/hashes/{statement.body.document.sha256}"):
        assert link in view.links
    assert f"treaty verify {statement.body.uri}" in view.text and "treaty audit" in view.text
    proof = next(attributes for tag, attributes in view.tags if tag == "section" and "data-proof" in attributes)
    assert proof["data-proof"] == signed.id and proof["data-key"] == str(registry.log_key)
    again = await api.get(f"/statements/{signed.id}")
    assert again.content == signed.leaf and again.headers["vary"] == "Accept"


async def test_every_kind_of_a_real_log_has_a_page(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer
) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    await attach(api, alice, statement)
    await say(api, alice, kinds.Status(statement.body.uri, "deprecated"))
    await say(api, alice, kinds.Grant("alice.example", bob.did))
    await say(api, alice, kinds.Vouch(bob.did, 0))
    await say(api, alice, ballot(registry, 0, statement.body.document.sha256, kinds.NONE))
    await registry.decide()
    leaves = await registry.leaves(range(registry.head.size))
    pages_of = {}
    for index, leaf in leaves.items():
        entry = decode(index, leaf, registry.origin)
        assert entry.id is not None and entry.says and all(member.meaning for member in entry.members), entry.kind
        pages_of[entry.kind] = (await page(api, f"/statements/{entry.id}")).text
    expected = {"genesis", "parameters", "identity", "publish", "handler", "status", "grant", "vouch", "ballot"}
    assert expected <= pages_of.keys()
    assert all(hash_ in pages_of["ballot"] for hash_ in (statement.body.document.sha256, kinds.NONE))


def test_the_signatures_of_a_checkpoint_are_named() -> None:
    names = (ORIGIN, KeyType.ED25519), (f"{ORIGIN}/clock", KeyType.COSIGNATURE), ("witness.example/w1", KeyType.COSIGNATURE)
    keys = [SignerKey(name, kind, bytes([place]) * 32) for place, (name, kind) in enumerate(names)]
    note = sign(f"{ORIGIN}\n1\nAAAA\n", [*keys, SignerKey(ORIGIN, KeyType.ED25519, bytes([9]) * 32)], time=NOW)
    lines = signature_lines(note, LogKeys((KeyTerm(keys[0].verifier, keys[1].verifier),)))
    assert [line.role for line in lines] == ["log", "clock", "witness", "other"]
    assert [line.time for line in lines] == [None, NOW, NOW, None]
    assert lines[2].name == "witness.example/w1" and lines[2].key_id == keys[2].verifier.id.hex()


async def test_an_unknown_statement_is_a_page_about_that(api: httpx.AsyncClient) -> None:
    response = await api.get(f"/statements/{'0' * 64}", headers=HTML)
    assert response.status_code == 404 and "statement.unknown" in response.text
    assert (await api.get("/statements/x", headers=HTML)).status_code == 400


def test_sigstore_and_unknown_leaves_are_shown() -> None:
    leaf = RekordLeaf(b"d" * 32, b"signature", b"no certificate").encode()
    entry = decode(7, leaf, "registry.example")
    assert (entry.kind, entry.id, entry.index) == ("hashedrekord", None, 7)
    values = [link.text for member in entry.members for link in member.values]
    assert values == [(b"d" * 32).hex(), b64encode(b"signature")]
    for strange in (b"", b"\xff", b"{}", b"[]", leaf[:-1]):
        assert decode(0, strange, "registry.example").kind == "unknown"


async def test_foreign_text_is_text(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    # A ballot's checkpoint is the longest text of an agent's own that the log takes unread beyond its first lines.
    signed = alice.statement(kinds.Ballot("a/b", 0, ((kinds.NONE,),), f"{EVIL}\n'\"&\u202e\n"))
    (outcome,) = await registry.submit([signed.leaf])
    entry = decode(5, signed.leaf, registry.origin)
    assert EVIL in entry.json and EVIL in entry.members[-1].values[0].text
    if hasattr(outcome, "index"):
        await page(api, f"/statements/{signed.id}")
    html = (await api.get(f"/log?before={registry.head.size}", headers=HTML)).text
    assert EVIL not in html


def test_long_statements_are_cut(alice: Signer) -> None:
    choices = tuple((f"{number:064x}",) for number in range(32))
    many = decode(0, alice.statement(kinds.Ballot("a", 0, (*choices, (kinds.NONE,)), "x\n" * 2000), issued=NOW).leaf, "x.example")
    tiers = next(member for member in many.members if member.name == "tiers")
    assert len(tiers.values) == MAX_VALUES and tiers.more == 33 - MAX_VALUES
    far = decode(0, alice.statement(kinds.Vouch(alice.did, 0), issued=2**53 - 1).leaf, "x.example")
    assert far.issued == 2**53 - 1


@pytest.mark.parametrize("size", [0, 1, 2, 38, 255, 256, 257, 65_536, 1_000_003, 2**40 + 2**20 + 77, 2**63 - 1])
def test_the_picture_of_the_tree_adds_up_and_is_bounded(size: int) -> None:
    layout = log.layout(size)
    assert sum(part.leaves for part in layout.subtrees) == size
    assert all(0 <= part.left <= part.right <= log.WIDTH for part in layout.subtrees)
    for level in layout.levels:
        assert level.full * 256 + level.partial == size >> 8 * level.number
        assert len(level.boxes) <= log.MAX_BOXES + 1 and all(box.x + 40 <= log.WIDTH for box in level.boxes)
        last = level.boxes[-1]
        assert last.count == (level.partial or 256) and last.path is not None
