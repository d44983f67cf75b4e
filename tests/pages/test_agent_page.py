"""The page of an agent: who it is, what it signed, speaks and votes for, and what it weighs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from http_api import problem, publish, say
from pages_read import browsing, everybody_reports, read
from registries import TOPIC, Web, ballot, publication
from signers import Signer, domain_signer, key_signer

from treaty_consensus import kinds
from treaty_registry.registry import Registry


@pytest.fixture
async def browser(registry: Registry) -> AsyncIterator[httpx.AsyncClient]:
    """A browser in front of the registry."""
    async with browsing(registry) as client:
        yield client


@pytest.fixture
def agents(web: Web) -> list[Signer]:
    """Four agents with domains."""
    identities = [domain_signer(f"{name}.example") for name in ("alpha", "bravo", "charlie", "delta")]
    web.serve(*identities)
    return identities


def path_of(agent: Signer) -> str:
    return f"/identities/{agent.did}"


async def test_it_says_who_the_agent_is(browser: httpx.AsyncClient, agents: list[Signer]) -> None:
    await publish(browser, agents[0], publication(agents[0]))
    page = await read(browser, path_of(agents[0]))
    answer = (await browser.get(path_of(agents[0]), headers={"Accept": "application/json"})).json()
    assert page.text.count(agents[0].did) > 1
    assert "domain alpha.example" in page.text
    for id_, key in answer["keys"].items():
        assert id_ in page.text
        assert key in page.text
    assert page.links[f"leaf {answer['index']}"] == f"/statements/{answer['statement']}"
    assert "No epoch has closed yet." in page.text


async def test_only_ballots_that_stand_are_shown_and_ranked(
    browser: httpx.AsyncClient, registry: Registry, agents: list[Signer]
) -> None:
    voter = agents[0]
    statements = [publication(agent, f"echo-{number}") for number, agent in enumerate(agents[:2])]
    for agent, publication_ in zip(agents, statements, strict=False):
        await publish(browser, agent, publication_)
    one, two = (entry.body.document.sha256 for entry in statements)
    await say(browser, voter, ballot(registry, 0, one))
    newest = await say(browser, voter, ballot(registry, 1, two, kinds.NONE, one))
    await say(browser, voter, ballot(registry, 0, one, topic="music"))
    await say(browser, voter, kinds.Ballot("music", 1, (), registry.head.note.decode()))
    page = await read(browser, path_of(voter))
    assert f"{TOPIC} bravo.example/echo-1 1.0 no consensus alpha.example/echo-0 1.0" in page.text
    assert f"/statements/{newest.id}" in page.targets
    assert "music" not in page.links
    rows = await registry.pool.fetch("select topic from ballots where did = $1 and ended is null", voter.did)
    assert [row["topic"] for row in rows] == [TOPIC]


async def test_statements_are_listed_by_kind_and_page(
    browser: httpx.AsyncClient, registry: Registry, agents: list[Signer]
) -> None:
    signed = [await say(browser, agents[0], kinds.Vouch(agents[1].did, 0))]
    signed += [await say(browser, agents[0], ballot(registry, seq)) for seq in range(35)]
    page = await read(browser, path_of(agents[0]))
    newest = [f"/statements/{statement.id}" for statement in reversed(signed[-30:])]
    # The ballot that stands has a link above the list, too.
    assert [target for target in page.targets if target in newest][1:] == newest, "newest first, and no more"
    assert f"/statements/{signed[5].id}" not in page.targets
    page = await read(browser, page.links["Older statements"].partition("#")[0])
    older = [f"/statements/{statement.id}" for statement in reversed(signed[:6])]
    assert [target for target in page.targets if target in older] == older
    assert not set(newest[1:]) & set(page.targets)
    assert "Older statements" not in page.links
    page = await read(browser, f"{path_of(agents[0])}?kind=vouch")
    assert f"vouch leaf {await _index(registry, signed[0].id)}" in page.text
    assert "ballot leaf" not in page.text
    page = await read(browser, f"{path_of(agents[0])}?kind=grant")
    assert "Nothing of this kind." in page.text


async def _index(registry: Registry, statement: str) -> int:
    index = await registry.pool.fetchval("select index from leaves where statement = $1", bytes.fromhex(statement))
    assert isinstance(index, int)
    return index


async def test_weight_standing_vouches_grants_and_speech(
    browser: httpx.AsyncClient, registry: Registry, agents: list[Signer]
) -> None:
    statement = publication(agents[0])
    await publish(browser, agents[0], statement)
    await say(browser, agents[0], kinds.Vouch(agents[1].did, 0))
    await say(browser, agents[0], kinds.Vouch(agents[2].did, 1))
    await say(browser, agents[0], kinds.Vouch(agents[2].did, 2, withdrawn=True))
    await say(browser, agents[0], kinds.Grant("alpha.example", agents[3].did))
    for epoch in range(2):
        await everybody_reports(registry, agents, statement.body.document.sha256, epoch)
        await registry.decide()
    page = await read(browser, path_of(agents[0]))
    assert "Its ballots weigh 1." in page.text
    assert "In a development electorate every DID of a domain weighs 1." in page.text
    assert page.links[agents[1].did] == path_of(agents[1])
    assert agents[2].did not in page.links
    assert f"{agents[3].did} may publish as alpha.example" in page.text
    assert f"in {TOPIC}, 6 reports, the newest in epoch 1" in page.text
    standing = (await browser.get(f"/standing/{agents[0].did}")).json()
    assert standing["credits"]
    for credit in standing["credits"]:
        assert credit["why"] in page.text
    assert "What the newest credits are worth now" in page.charts


async def test_a_key_has_no_vote_and_a_stranger_no_page(browser: httpx.AsyncClient) -> None:
    page = await read(browser, path_of(key_signer("somebody")))
    assert "It has no weight in elections now." in page.text
    assert "it has no vote" in page.text
    assert "It signed nothing here." in page.text
    await read(browser, "/identities/did:wba:stranger.example", 404)
    hostile = "/identities/did:wba:%3Cscript%3Ealert(1)%3Cb%3E"
    page = await read(browser, hostile, 400)
    assert "Malformed input" in page.text


async def test_impossible_queries_are_refused(browser: httpx.AsyncClient, agents: list[Signer]) -> None:
    await publish(browser, agents[0], publication(agents[0]))
    for query in ("kind=decision", "kind=%3Cscript%3E", "before=-1", "before=x", "before=99999999999999999999"):
        await read(browser, f"{path_of(agents[0])}?{query}", 400)
    response = await browser.get("/identities/did:wba:stranger.example", headers={"Accept": "application/json"})
    problem(response, 404, "identity.unknown")
