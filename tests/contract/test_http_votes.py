"""`/votes`: the ballots of a DID, and what its reports imply beside them; also as `treaty vote --check`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_api import problem, publish, say, serving
from pages_read import everybody_reports
from ports import free_port
from registries import TOPIC, Web, ballot, publication
from shown_entries import page
from signers import Signer, domain_signer

from treaty_command.main import main
from treaty_consensus import kinds
from treaty_registry.registry import Registry


async def asked(api: httpx.AsyncClient, did: str, topic: str | None = None) -> dict[str, Any]:
    answer = await api.get("/votes", params={"did": did} | ({"topic": topic} if topic else {}))
    assert answer.status_code == 200
    value: dict[str, Any] = answer.json()
    return value


async def test_a_ballot_shows_its_renewing_or_contradicting_use(api: httpx.AsyncClient, registry: Registry, web: Web) -> None:
    alice, *others = agents = [domain_signer(f"{name}.example") for name in ("alice", "bob", "carol", "dave")]
    web.serve(*agents)
    one, two = publication(alice, "one"), publication(others[0], "two")
    for author, statement in ((alice, one), (others[0], two)):
        await publish(api, author, statement)
    first, second = one.body.document.sha256, two.body.document.sha256
    assert (await asked(api, alice.did))["votes"] == []
    assert (await asked(api, alice.did, TOPIC))["votes"] == [
        {"topic": TOPIC, "tiers": None, "first": [], "cast": None, "since": None, "use": None}
    ]
    await say(api, alice, ballot(registry, 0, first))
    for epoch in range(3):
        await everybody_reports(registry, agents, first if epoch < 2 else second, epoch)
        answer = await asked(api, alice.did)
        (vote,) = answer["votes"]
        document, since = (first, 0) if epoch < 2 else (second, 2)
        assert vote["use"] == {"hashes": [document], "counterparties": 3, "since": since, "newest": epoch}
        assert (vote["tiers"], vote["first"], vote["cast"], vote["since"]) == ([[first]], [first], 0, 0)
        assert (answer["epoch"], answer["renews"], answer["names"][first]) == (epoch, True, one.body.uri)
        assert await registry.decide()
    await say(api, alice, ballot(registry, 1, first))
    (vote,) = (await asked(api, alice.did, TOPIC))["votes"]
    assert (vote["cast"], vote["since"]) == (3, 0), "the same ranking was reaffirmed"
    text = (await page(api, f"/ballots?topic={TOPIC}&did={alice.did}")).text
    assert "Does its use renew the vote?" in text
    assert "It voted for something else than it used then and uses now." in text
    await say(api, alice, kinds.Ballot(TOPIC, 2, (), registry.head.note.decode()))
    assert (await asked(api, alice.did))["votes"] == [], "a ballot that was taken back does not stand"
    problem(await api.get("/votes"), 400, "http.request")
    problem(await api.get("/votes?did=alice"), 400, "did.syntax")
    problem(await api.get(f"/votes?did={alice.did}&topic=A"), 400, "topic.name")


async def test_an_owner_is_told_when_its_votes_and_its_use_disagree(
    registry: Registry, web: Web, tmp_path: Path, alice: Signer, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(tmp_path / "home")]

    async def treaty(*arguments: str) -> str:
        await asyncio.to_thread(main, [*arguments, *home])
        return " ".join(capsys.readouterr().out.split())

    async with serving(registry, free_port()) as url:
        await treaty("trust", "add", f"{url}#{registry.log_key}")
        (tmp_path / "home" / "policy.toml").write_text("max_age = 1_000_000_000\n")  # the registry's clock stands still
        document = tmp_path / "did.json"
        did = json.loads(await treaty("identity", "new", "shop.example", "--document", str(document), "--json"))["did"]
        web.documents[did] = document.read_bytes()
        async with httpx.AsyncClient(base_url=url) as api:
            await publish(api, alice, publication(alice))
        size = registry.head.size
        assert "You have no ballot." in await treaty("vote", "--check")
        assert registry.head.size == size, "nothing was sent"
        voted = await treaty("vote", TOPIC, "none")
        assert "use that began later replaces it" in voted and f"treaty vote {TOPIC} --check" in voted
        size = registry.head.size
        output = await treaty("vote", "--check")
        assert f"{TOPIC}: unused" in output and "The ballot is none. It was cast in epoch 0" in output
        value = json.loads(await treaty("vote", TOPIC, "--check", "--json"))
        assert (value["votes"][0]["case"], value["votes"][0]["left_percent"]) == ("unused", 100)
        assert registry.head.size == size
