"""In an open electorate the pages show domains, their clusters and their trust."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from http_api import publish, say
from open_electorates import ANCHORS, anchor, write
from pages_read import browsing, everybody_reports, read
from registries import TOPIC, Web, ballot, publication
from signers import NOW, ORIGIN, domain_signer

from treaty_consensus import kinds
from treaty_consensus.errors import Refused
from treaty_registry.registry import Registry
from treaty_registry.settings import Settings

PERIOD = 3600


async def test_voters_are_domains_in_their_anchors_cluster(tmp_path: Path, database: str, web: Web) -> None:
    voters = [anchor(number) for number in range(4)]
    newcomer, delegate = domain_signer("newcomer.example"), domain_signer("delegate.example:users:dora")
    web.serve(*voters, newcomer, delegate)
    seconds = [NOW]
    settings = Settings(tmp_path / "registry", new=True, origin=ORIGIN, database=database, parameters=write(tmp_path, PERIOD))
    async with (
        Registry.open(settings, clock=lambda: datetime.fromtimestamp(seconds[0], UTC), resolve=web.resolve) as registry,
        browsing(registry) as browser,
    ):
        statement = publication(voters[0])
        document = statement.body.document.sha256
        await publish(browser, voters[0], statement)
        await say(browser, voters[0], kinds.Vouch(newcomer.did, 0))
        await say(browser, voters[3], kinds.Grant(ANCHORS[3], delegate.did))
        await say(browser, voters[3], kinds.Grant(ANCHORS[3], voters[0].did))  # which speaks for its own domain all the same
        for voter in voters[:2]:
            await say(browser, voter, ballot(registry, 0, document))
        await say(browser, delegate, ballot(registry, 0, kinds.NONE))
        for epoch in range(3):  # so long, until the vouch counts
            await everybody_reports(registry, [*voters, newcomer], document, epoch)
            seconds[0] += PERIOD
            with suppress(Refused):  # the registry's own task may look at the clock at the same moment
                await registry.schedule.close_if_due()
        page = await read(browser, f"/topics/{TOPIC}")
        clusters, voices = page.tables[1:3]
        assert {row[0] for row in clusters[1:]} <= set(ANCHORS)
        by_voter = {row[0].split()[0]: row for row in voices[1:]}
        assert by_voter[ANCHORS[0]][3:] == ["ballot and reports", "anchor-0.example/product-info 1.0"]
        assert by_voter[ANCHORS[3]][0] == f"{ANCHORS[3]} {delegate.did}", "the ballot of the DID that has its grant"
        assert by_voter[ANCHORS[3]][3:] == ["ballot", "no consensus"]
        params = {"did": voters[0].did, "topic": TOPIC}
        (vote,) = (await browser.get("/votes", params=params, headers={"Accept": "application/json"})).json()["votes"]
        use = {"hashes": [document], "counterparties": 1, "since": 0, "newest": 2}
        assert (vote["cast"], vote["use"]) == (0, use), "of the peers those that it vouches for"
        page = await read(browser, f"/ballots?topic={TOPIC}&did={voters[0].did}")
        assert "A vote fades: half of it is gone after horizon_epochs epochs" in page.text
        assert "It uses what it voted for, so the vote is renewed in each epoch." in page.text
        page = await read(browser, f"/identities/{newcomer.did}")
        assert "It speaks for newcomer.example, which holds trust of" in page.text
        assert f"It owes most of that to the side of {ANCHORS[0]}." in page.text
        page = await read(browser, f"/identities/{voters[0].did}")
        assert "It is an anchor." in page.text
