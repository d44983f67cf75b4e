"""`/speakers` and `/standing`: who speaks a protocol, what that has earned them, and why."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import open_electorates
import pytest
from http_api import problem, publish
from postgres_server import Postgres
from registries import TOPIC, Web, ballot, bucket, log, publication, settings_for
from signers import NOW, ORIGIN, Signer, domain_signer, key_signer

from treaty_consensus import kinds
from treaty_consensus.canonical import hex_digest
from treaty_consensus.election.arithmetic import ONE, decay, part
from treaty_consensus.kinds import Decision
from treaty_consensus.statement import parse
from treaty_registry.app import create_app
from treaty_registry.catalogue import standing
from treaty_registry.registry import Registry
from treaty_registry.settings import Quotas

X, Y = (hex_digest(name.encode()) for name in ("x", "y"))
EIGHTH = ONE // 8
_numbers: Iterator[int] = itertools.count()


@pytest.fixture
def agents(web: Web) -> tuple[Signer, ...]:
    signers = tuple(domain_signer(f"{name}.example") for name in ("alpha", "bravo", "charlie", "delta"))
    web.serve(*signers)
    return signers


async def report(registry: Registry, epoch: int, first: Signer, second: Signer, document: str, **other: Any) -> int:
    """Log a report; returns its leaf."""
    nid = hex_digest(b"negotiation %d" % next(_numbers))
    members = {"topic": TOPIC, "outcome": "agreed", **other}
    body = kinds.Report(members["topic"], nid, document, members["outcome"], epoch, registry.head.note.decode())
    return (await log(registry, body, first, second)).index


async def asked(api: httpx.AsyncClient, path: str, **params: str) -> dict[str, Any]:
    answer = await api.get(path, params=params)
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


async def standing_of(api: httpx.AsyncClient, did: str) -> dict[str, Any]:
    answer = await asked(api, f"/standing/{did}")
    assert answer["standing"] == str(sum(int(credit["now"]) for credit in answer["credits"])), "it is the sum of its credits"
    return answer


async def test_every_credit_is_explained(api: httpx.AsyncClient, registry: Registry, agents: tuple[Signer, ...]) -> None:
    alpha, bravo, charlie, delta = agents
    assert await asked(api, f"/standing/{alpha.did}") == {
        "did": alpha.did,
        "principal": None,
        "epoch": None,
        "roll": None,
        "electorate": None,
        "weight": "0",
        "standing": "0",
        "credits": [],
        "next": None,
    }
    index = await report(registry, 0, alpha, bravo, X)
    await report(registry, 0, charlie, delta, X)
    await registry.decide()
    for epoch in (1, 2):
        await report(registry, epoch, alpha, bravo, Y, topic=f"other/{epoch}")
        await report(registry, epoch, charlie, delta, Y, topic=f"other/{epoch}")
        await registry.decide()
    standing = await standing_of(api, alpha.did)
    assert (standing["did"], standing["principal"], standing["epoch"], standing["next"]) == (alpha.did, alpha.did, 2, None)
    oldest, middle, newest = reversed(standing["credits"])
    fading = decay(2, 13)
    assert oldest == {
        "epoch": 0,
        "reason": "reported",
        "topic": TOPIC,
        "hash": X,
        "index": index,
        "with": charlie.did,
        "whole": str(EIGHTH),
        "shared": 0,
        "earlier": 0,
        "amount": str(EIGHTH),
        "decay": str(fading),
        "now": str(part(EIGHTH, fading)),
        "why": f"1/8 of a full credit: an independent pair with {charlie.did} reported it too",
    }
    assert [int(credit["amount"]) for credit in (middle, newest)] == [EIGHTH * 4 // 5, EIGHTH * 4 // 6]
    assert newest["why"].endswith(f"; 4/6 of that, as 2 earlier credits were shared with {charlie.did}")
    assert newest["decay"] == str(ONE)
    roll = json.loads((await api.get(f"/blobs/sha256/{standing['roll']}")).content)
    row = next(row for row in roll["principals"] if row[0] == alpha.did)
    assert (roll["epoch"], row[5]) == (2, standing["standing"])


async def test_an_election_pays_too(api: httpx.AsyncClient, registry: Registry, agents: tuple[Signer, ...]) -> None:
    alpha, bravo, charlie, delta = agents
    statement = publication(alpha)
    await publish(api, alpha, statement)
    document = statement.body.document.sha256
    for epoch in range(3):
        for pair in ((alpha, bravo), (charlie, delta), (alpha, charlie)):
            await report(registry, epoch, *pair, document)
        for agent in agents:
            await log(registry, ballot(registry, epoch, document), agent)
        await registry.decide()
    newest = (await standing_of(api, alpha.did))["credits"][0]
    assert (newest["reason"], newest["epoch"], newest["earlier"], newest["whole"]) == ("elected", 2, 0, str(ONE))
    assert newest["why"].startswith("1/2^0 of a full credit: it was elected, and 0 clusters had reported it earlier; 4/5 of that")


async def test_standing_rests_while_its_principal_is_barred(
    api: httpx.AsyncClient, registry: Registry, agents: tuple[Signer, ...]
) -> None:
    alpha, bravo, charlie, delta = agents
    await report(registry, 0, alpha, bravo, X)
    await report(registry, 0, charlie, delta, X)
    await registry.decide()
    before = await standing_of(api, alpha.did)
    assert int(before["standing"]) == EIGHTH
    nid = hex_digest(b"equivocation")
    for document in (X, Y):
        await log(registry, kinds.Report(TOPIC, nid, document, "agreed", 1, registry.head.note.decode()), alpha, bravo)
    await registry.decide()
    barred = await asked(api, f"/standing/{alpha.did}")
    assert (barred["principal"], barred["standing"], len(barred["credits"])) == (alpha.did, "0", 1)
    assert int((await standing_of(api, charlie.did))["standing"]) == part(EIGHTH, decay(1, 13))


async def test_speakers_rank_by_standing_then_by_recency(
    newest: httpx.AsyncClient, registry: Registry, agents: tuple[Signer, ...], web: Web
) -> None:
    api = newest
    alpha, bravo, charlie, delta = agents
    await report(registry, 0, charlie, delta, Y)
    await report(registry, 0, alpha, bravo, Y)
    await registry.decide()
    second = await report(registry, 1, alpha, charlie, X)
    await report(registry, 1, bravo, charlie, X, outcome="failed")
    stranger, other = key_signer("stranger"), domain_signer("newcomer.example")
    web.serve(other)
    third = await report(registry, 1, stranger, other, X)
    assert await asked(api, "/speakers", topic="nobody/here") == {"speakers": [], "next": None}
    rows = (await asked(api, "/speakers", hash=X))["speakers"]
    assert [(entry["did"], entry["index"]) for entry in rows[:2]] == [(charlie.did, second), (alpha.did, second)]
    assert {entry["did"] for entry in rows[2:]} == {stranger.did, other.did}, "no roll has either of them yet"
    assert {(entry["principal"], entry["standing"], entry["index"]) for entry in rows[2:]} == {(None, "0", third)}
    fourth = await report(registry, 1, delta, bravo, X)
    rows = (await asked(api, "/speakers", hash=X))["speakers"]
    assert [entry["did"] for entry in rows[:4]] == [delta.did, bravo.did, charlie.did, alpha.did]
    assert rows[0] == {
        "did": delta.did,
        "topic": TOPIC,
        "hash": X,
        "principal": delta.did,
        "standing": str(EIGHTH),
        "reports": 1,
        "epoch": 1,
        "index": fourth,
    }
    in_topic = (await asked(api, "/speakers", topic=TOPIC))["speakers"]
    assert {(entry["did"], entry["hash"]) for entry in in_topic} == {
        *((agent.did, document) for agent in agents for document in (X, Y)),
        (stranger.did, X),
        (other.did, X),
    }


async def test_pages_show_everybody_once(
    api: httpx.AsyncClient, registry: Registry, agents: tuple[Signer, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha, bravo, charlie, delta = agents
    for document in (X, Y):
        await report(registry, 0, alpha, bravo, document, topic=document[:8])
        await report(registry, 0, charlie, delta, document, topic=document[:8])
        await report(registry, 0, alpha, key_signer("stranger"), document, topic=document[:8])
    await registry.decide()
    speakers = (await asked(api, "/speakers", hash=X))["speakers"]
    credits = (await asked(api, f"/standing/{alpha.did}"))["credits"]
    assert (len(speakers), len(credits)) == (5, 2)
    monkeypatch.setattr(standing, "MAX_SPEAKERS", 2)
    monkeypatch.setattr(standing, "MAX_CREDITS", 1)
    await report(registry, 1, alpha, bravo, hex_digest(b"z"))  # so that nothing is remembered from before
    for path, name, whole, params in (
        ("/speakers", "speakers", speakers, {"hash": X}),
        (f"/standing/{alpha.did}", "credits", credits, {}),
    ):
        rows, following = [], ""
        while following is not None:
            page = await asked(api, path, **params, **({"cursor": following} if following else {}))
            rows += page[name]
            following = page["next"]
        assert rows == whole


async def test_the_newest_speakers_are_the_ones_that_are_ranked(
    api: httpx.AsyncClient, registry: Registry, agents: tuple[Signer, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha, bravo, charlie, delta = agents
    monkeypatch.setattr(standing, "MAX_RANKED", 2)
    await report(registry, 0, alpha, bravo, X)
    await report(registry, 0, charlie, delta, X)
    assert {entry["did"] for entry in (await asked(api, "/speakers", hash=X))["speakers"]} == {charlie.did, delta.did}


async def test_impossible_questions_are_refused(api: httpx.AsyncClient, agents: tuple[Signer, ...]) -> None:
    did = agents[0].did
    cases = [
        ("/speakers", 400, "http.request: one `hash`"),
        (f"/speakers?hash={X}&topic={TOPIC}", 400, "http.request: one `hash`"),
        ("/speakers?topic=Nothing", 400, "http.request"),
        ("/topics?after=%00", 400, "http.request"),
        (f"/speakers?hash={X.upper()}", 400, "canonical.text"),
        ("/speakers?hash=abc", 400, "http.request"),
        (f"/speakers?hash={X}&cursor=1", 400, "http.request"),
        (f"/speakers?hash={X}&cursor=1-2-alice", 400, "http.request"),
        (f"/speakers?hash={X}&cursor=1-2-did:%00", 400, "http.request"),
        ("/standing/alice", 400, "did.syntax"),
        (f"/standing/{did}?cursor=1-x", 400, "http.request"),
        (f"/standing/{did}?cursor=1-99999999999999999999", 400, "http.request"),
    ]
    for path, status, code in cases:
        problem(await api.get(path), status, code)


@pytest.mark.threat(83)
async def test_a_domain_of_an_open_electorate_holds_the_standing(postgres: Postgres, tmp_path: Path) -> None:
    anchors = [open_electorates.anchor(number) for number in range(4)]
    helper, stranger = domain_signer("agents.elsewhere.example"), domain_signer("stranger.example")
    web, now = Web(), NOW
    web.serve(*anchors, helper, stranger)
    async with postgres.fresh() as database:
        settings = dataclasses.replace(
            settings_for(tmp_path / "registry", database),
            parameters=open_electorates.write(tmp_path, epoch_seconds=10),
            quotas=Quotas(bucket(100), bucket(1000), bucket(40)),
        )
        async with Registry.open(settings, clock=lambda: datetime.fromtimestamp(now, UTC), resolve=web.resolve) as registry:
            await log(registry, kinds.Grant("anchor-0.example", helper.did), anchors[0])
            await report(registry, 0, helper, anchors[1], X)
            await report(registry, 0, anchors[2], anchors[3], X)
            now += 10
            (decided,) = await registry.decide()
            assert isinstance(decided.decision, Decision) and decided.decision.electorate == "open"
            transport = httpx.ASGITransport(create_app(registry))  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}") as api:
                for did in (helper.did, anchors[0].did, "did:web:anchor-0.example"):
                    standing = await standing_of(api, did)
                    assert (standing["principal"], standing["standing"]) == ("anchor-0.example", str(EIGHTH))
                for did in (stranger.did, "did:wba:anchor-0.example:agents:a", "did:wba:anchor-0.example%3A8080"):
                    assert (await standing_of(api, did))["principal"] is None
                speakers = (await asked(api, "/speakers", hash=X))["speakers"]
                assert {entry["did"]: entry["principal"] for entry in speakers}[helper.did] == "anchor-0.example"
            await _check_the_reserve(registry, helper, stranger)
        again = dataclasses.replace(settings, new=False)
        async with Registry.open(again, clock=lambda: datetime.fromtimestamp(now, UTC), resolve=web.resolve) as registry:
            await _check_the_reserve(registry, helper, stranger, first=(30, 10))


async def _check_the_reserve(registry: Registry, helper: Signer, stranger: Signer, first: tuple[int, int] = (0, 0)) -> None:
    """Standing is known to the quotas at once, and after a restart: the last quarter of what everybody has is for whom it was
    granted. `first`: the next vouches of the two."""
    accepted = 0
    while True:
        body = kinds.Vouch(helper.did, first[0] + accepted)
        (outcome,) = await registry.submit([stranger.statement(body).leaf], source="192.0.2.1")
        if isinstance(outcome, Exception):
            assert outcome.code == "quota.total"
            break
        accepted += 1
    assert accepted == 30
    before = registry.head.size
    for seq in range(first[1], first[1] + 10):
        (outcome,) = await registry.submit([helper.statement(kinds.Vouch(stranger.did, seq)).leaf], source="198.51.100.1")
        assert not isinstance(outcome, Exception), outcome
    assert registry.head.size == before + 10
    leaves = await registry.leaves([before])
    assert parse(leaves[before]).author.text == helper.did
