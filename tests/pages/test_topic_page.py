"""The page of a topic says what to speak and why, and where each number comes from."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import pytest
from http_api import described, post, publish, say
from pages_read import Page, browsing, everybody_reports, read
from registries import TOPIC, Web, ballot, publication
from signers import Signer, domain_signer

from treaty_client.audit import reasons
from treaty_client.audit.decision import Transcript
from treaty_consensus import kinds
from treaty_consensus.protocol import parse_protocol_uri
from treaty_registry.keys import Operator, load_operator
from treaty_registry.pages import charts
from treaty_registry.registry import Registry

PATH = f"/topics/{TOPIC}"
HOSTILE = '<script>alert(1)</script><b onload="x">\'&'


@pytest.fixture
async def browser(registry: Registry) -> AsyncIterator[httpx.AsyncClient]:
    """A browser in front of the registry."""
    async with browsing(registry) as client:
        yield client


@pytest.fixture
def operator(registry: Registry, tmp_path: Path) -> Operator:
    """The keys of the registry's operator."""
    return load_operator(tmp_path / "registry" / "keys")


@pytest.fixture
def agents(web: Web) -> list[Signer]:
    """Four agents with domains."""
    signers = [domain_signer(f"{name}.example") for name in ("alpha", "bravo", "charlie", "delta")]
    web.serve(*signers)
    return signers


async def elected(browser: httpx.AsyncClient, registry: Registry, agents: list[Signer]) -> tuple[str, str]:
    """Elect the first of two documents in epoch 2, over a second candidate. Return both."""
    one, two = publication(agents[0], "first"), publication(agents[1], "second")
    documents = []
    for agent, statement in ((agents[0], one), (agents[1], two)):
        await publish(browser, agent, statement)
        documents.append(statement.body.document.sha256)
    for epoch in range(3):
        await everybody_reports(registry, agents[:3], documents[0], epoch)
        for second in agents[:3]:
            await everybody_reports(registry, [second, agents[3]], documents[1], epoch)
        if epoch == 0:
            for agent in agents[:3]:
                await say(browser, agent, ballot(registry, 0, *documents))
            await say(browser, agents[3], ballot(registry, 0, documents[1], documents[0]))
        await registry.decide()
    return documents[0], documents[1]


async def test_missing_reports_are_shown_before_the_first_decision(
    browser: httpx.AsyncClient, registry: Registry, agents: list[Signer]
) -> None:
    statement = publication(agents[0])
    await publish(browser, agents[0], statement)
    page = await read(browser, PATH)
    assert "Nothing is decided here yet" in page.text
    assert "No pair of agents reported that it works. A candidate needs 3. 3 more must report it" in page.text
    await everybody_reports(registry, agents[:2], statement.body.document.sha256, 0)
    page = await read(browser, PATH)
    assert "1 pair of agents reported that it works. A candidate needs 3. 2 more must report it" in page.text
    assert [name for name in page.charts if name.startswith("The states")] == page.charts, "there is nothing else to draw"
    assert "Nothing was elected yet." in page.text
    assert f"--topic {TOPIC}" in page.text


async def test_one_sentence_says_what_to_speak_and_why(
    browser: httpx.AsyncClient, registry: Registry, agents: list[Signer]
) -> None:
    await elected(browser, registry, agents)
    page = await read(browser, PATH)
    sentence = "Speak alpha.example/first 1.0: it has been the consensus since epoch 2, preferred to the other candidate."
    assert sentence in page.text
    assert page.links["alpha.example/first 1.0"] == "/protocols/alpha.example/first/1.0"
    assert f"treaty audit '{registry.base_url}#{registry.log_key}' --topic {TOPIC}" in page.text
    assert "since epoch 2 alpha.example/first 1.0" in page.text


async def test_a_consensus_that_was_taken_back_is_not_recommended(
    browser: httpx.AsyncClient, registry: Registry, agents: list[Signer]
) -> None:
    _, second = await elected(browser, registry, agents)
    uri, successor = (f"{registry.base_url}/protocols/{name}/1.0" for name in ("alpha.example/first", "bravo.example/second"))
    await say(browser, agents[0], kinds.Status(uri, "revoked", successor=successor))
    page = await read(browser, PATH)
    assert "The elected protocol, alpha.example/first 1.0, was revoked by its publisher. Agents refuse it." in page.text
    assert "Its publisher names bravo.example/second 1.0 instead." in page.text
    assert f"treaty fetch {successor}" in page.text
    for words in ("Speak ", f"treaty fetch {uri}", "every condition to stay"):
        assert words not in page.text
    for path in ("/", "/topics"):
        listed = await read(browser, path)
        assert "alpha.example/first 1.0 was taken back; its publisher names bravo.example/second 1.0" in listed.text
        assert "speak alpha.example" not in listed.text
    assert "revoked" in (await read(browser, f"/ballots?topic={TOPIC}")).text
    await everybody_reports(registry, agents[:3], second, 3)
    await registry.decide()
    assert "Speak bravo.example/second 1.0" in (await read(browser, PATH)).text, "it inherits the votes"


async def test_a_consensus_is_not_preferred_to_an_equal_candidate(
    browser: httpx.AsyncClient, registry: Registry, agents: list[Signer]
) -> None:
    one, two = await elected(browser, registry, agents)
    for agent in (agents[0], agents[3]):
        await say(browser, agent, ballot(registry, 1, two, one))
    await everybody_reports(registry, agents[1:3], one, 3)
    await everybody_reports(registry, [agents[0], agents[3]], two, 3)
    await registry.decide()
    page = await read(browser, PATH)
    assert "Speak alpha.example/first 1.0: it has been the consensus since epoch 2, preferred to 0 of 1 others." in page.text


async def test_a_consensus_says_how_strong_it_is_and_how_few_decide(
    browser: httpx.AsyncClient, registry: Registry, web: Web, agents: list[Signer]
) -> None:
    statement, release = publication(agents[0], "first"), publication(agents[0], "first", "1.1")
    document = statement.body.document.sha256
    base = kinds.Base(statement.body.uri, document)
    await publish(browser, agents[0], statement)
    await publish(browser, agents[0], replace(release, body=msgspec.structs.replace(release.body, base=base)))
    await say(browser, agents[0], ballot(registry, 0, release.body.document.sha256))
    for epoch in range(3):
        await everybody_reports(registry, agents[:3], document, epoch)
        await registry.decide()
    page = await read(browser, PATH)
    (voter,) = (row for row in page.tables[2] if row[0] == agents[0].did)
    assert voter[3:] == ["ballot", "alpha.example/first 1.0"], "a ballot on another version counts for the line"
    assert "3 of 3 principals accept it, with 100.0 % of all weight." in page.text
    assert "100.0 % of the votes accept it, 0.0 % reject it, and 0.0 % do neither." in page.text
    users = "alpha.example/first 1.0 100.0 % (to speak), alpha.example/first 1.1 0.0 %."
    assert f"each with its share of the users: {users}" in page.text
    assert "This is a version of the line that speaks alpha.example/first 1.0." in page.text
    assert "Few decide here" not in page.text
    newcomers = [domain_signer(f"newcomer-{number}.example") for number in range(28)]
    web.serve(*newcomers)
    for newcomer in newcomers:
        await say(browser, newcomer, kinds.Ballot("other/topic", 0, ((kinds.NONE,),), registry.head.note.decode()))
    for uri in (statement.body.uri, release.body.uri):
        await say(
            browser, agents[0], kinds.Status(uri, "deprecated", successor=release.body.uri if uri == statement.body.uri else None)
        )
    await everybody_reports(registry, agents[:3], document, 3)
    await registry.decide()
    page = await read(browser, PATH)
    assert "3 of 31 principals accept it, with 9.6 % of all weight." in page.text
    assert "Few decide here: the votes have less than a tenth of all weight." in page.text
    assert "Its publisher names alpha.example/first 1.1 instead." in page.text
    await everybody_reports(registry, agents[:3], release.body.document.sha256, 4)
    await registry.decide()
    page = await read(browser, PATH)
    assert "Speak alpha.example/first 1.1" in page.text
    assert [row[:2] for row in page.tables[3][1:]] == [[str(epoch), "100.0 %"] for epoch in range(5)], "the history of the line"


async def test_the_numbers_are_those_of_the_decision(
    browser: httpx.AsyncClient, registry: Registry, agents: list[Signer]
) -> None:
    documents = await elected(browser, registry, agents)
    page = await read(browser, PATH)
    answer = (await browser.get(PATH, headers={"Accept": "application/json"})).json()
    transcript = msgspec.convert(answer["decision"]["transcript"], Transcript)
    order = [documents[0], documents[1], "none"]
    assert transcript.order == order
    choices = [*(candidate.hash for candidate in transcript.candidates), "none"]
    matrix = page.tables[0]
    assert matrix[0] == ["preferred over", "1", "2", "none"]
    for place, choice in enumerate(order):
        votes = transcript.pairwise[choices.index(choice)]
        expected = [reasons.share(votes[choices.index(other)], transcript.total) for other in order]
        expected[place] = "–"
        assert matrix[place + 1][1:] == expected
    for link, target in (
        (f"leaf {answer['decision']['index']}", f"/statements/{answer['decision']['statement']}"),
        ("its proof in the log", f"/proofs/{answer['decision']['statement']}"),
    ):
        assert page.links[link] == target
        assert (await browser.get(target)).status_code == 200
    (transcript_link,) = (href for text, href in page.links.items() if text.endswith(("bytes", "KiB")))
    assert json.loads((await browser.get(transcript_link)).content) == answer["decision"]["transcript"]


async def test_a_loser_learns_its_victor_and_lacking_conditions(
    browser: httpx.AsyncClient, registry: Registry, agents: list[Signer]
) -> None:
    await elected(browser, registry, agents)
    page = await read(browser, PATH)
    answer = (await browser.get(PATH, headers={"Accept": "application/json"})).json()
    transcript = msgspec.convert(answer["decision"]["transcript"], Transcript)
    assert "It lost: 75.0 % of all votes prefer alpha.example/first 1.0, 25.0 % this." in page.text
    names = {candidate["hash"]: parse_protocol_uri(candidate["uris"][0]).label for candidate in answer["candidates"]}
    loser = next(candidate for candidate in transcript.candidates if candidate.state != "consensus")
    sentences = [*reasons.reasons(loser, transcript, names)]
    assert sentences
    assert all(f"It {reason}." in page.text for reason in sentences), "the sentences of `treaty topic --explain`"


async def test_support_is_shown_by_cluster_by_voter_and_over_epochs(
    browser: httpx.AsyncClient, registry: Registry, agents: list[Signer]
) -> None:
    _, second = await elected(browser, registry, agents)
    await say(browser, agents[0], ballot(registry, 1, second))  # after the decision, so it is not shown
    page = await read(browser, PATH)
    _, clusters, voters, epochs = page.tables
    assert sorted(row[0] for row in clusters[1:]) == [agent.did for agent in agents]
    by_voter = {row[0]: row for row in voters[1:]}
    assert by_voter[agents[0].did][3:] == ["ballot", "alpha.example/first 1.0"]
    assert by_voter[agents[3].did][3:] == ["ballot", "bravo.example/second 1.0"]
    assert [row[0] for row in epochs[1:]] == ["0", "1", "2"]
    assert len([name for name in page.charts if "end of each epoch" in name]) == 1


async def test_a_withdrawn_transcript_leaves_the_answer(
    browser: httpx.AsyncClient, registry: Registry, operator: Operator, agents: list[Signer]
) -> None:
    await elected(browser, registry, agents)
    digest = await registry.pool.fetchval("select transcript from decisions order by index desc limit 1")
    withdrawal = operator.state(kinds.Withdrawal(digest.hex(), "personal"), issued=registry.clock())
    assert (await post(browser, withdrawal.statement)).status_code == 201
    page = await read(browser, PATH)
    assert "Speak alpha.example/first 1.0: it has been the consensus since epoch 2." in page.text
    assert "The transcript of this decision was withdrawn." in page.text
    assert page.tables == []


async def test_titles_cannot_break_out(browser: httpx.AsyncClient, registry: Registry, agents: list[Signer]) -> None:
    statement = described(agents[0], "evil", title=HOSTILE, summary=HOSTILE, topic=TOPIC)
    await publish(browser, agents[0], statement)
    for epoch in range(2):
        await everybody_reports(registry, agents[:3], statement.body.document.sha256, epoch)
        await registry.decide()
        page = await read(browser, PATH)
        assert HOSTILE in page.text


async def test_a_program_still_gets_json(browser: httpx.AsyncClient, agents: list[Signer]) -> None:
    await publish(browser, agents[0], publication(agents[0]))
    for accept in ("*/*", "application/json"):
        response = await browser.get(PATH, headers={"Accept": accept})
        assert response.headers["content-type"] == "application/json"
    page = await read(browser, "/topics/nothing/here", 404)
    assert "topic.unknown" in page.text


def test_labels_of_charts_are_escaped() -> None:
    drawn = [
        charts.heat_map([HOSTILE], [[0]], 0, HOSTILE),
        charts.bars([charts.Bar(HOSTILE, [charts.BarPart(1, 0, HOSTILE)])], 1, HOSTILE),
        charts.lines([HOSTILE], [charts.Curve(HOSTILE, 9, [None, 1])], 1, HOSTILE),
        charts.state_picture({"candidate": [HOSTILE]}, HOSTILE),
        charts.meter(2, 3, 1, 1, 0, HOSTILE),
    ]
    for svg in drawn:
        page = Page(str(svg))
        assert page.charts == [HOSTILE]
        assert page.scripts == page.handlers == []
