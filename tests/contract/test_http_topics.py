"""`/topics` and `/ballots`: what stands for election, what was decided, and what a voter signs next."""

from __future__ import annotations

import hashlib

import httpx
from http_api import post, problem, publish, say
from registries import TOPIC, Web, ballot, log, publication
from signers import Signer, domain_signer

from treaty_consensus import canonical, kinds
from treaty_consensus.kinds import Decision
from treaty_consensus.log.proof import Receipt
from treaty_consensus.statement import MAX_LEAF, parse
from treaty_registry.registry import Registry


async def test_topics_are_listed_by_name(api: httpx.AsyncClient, alice: Signer, bob: Signer) -> None:
    assert (await api.get("/topics")).json() == {"topics": [], "next": None}
    await publish(api, alice, publication(alice, topic="b/c"))
    await publish(api, alice, publication(alice, version="1.1", topic="b/c"))
    await publish(api, bob, publication(bob, topic="a"))
    answer = (await api.get("/topics")).json()
    # By the suffix it is JSON for a browser too, as a static copy has it.
    assert (await api.get("/topics.json", headers={"Accept": "text/html"})).json() == answer
    assert answer["topics"] == [
        {"topic": "a", "protocols": 1, **dict.fromkeys(("consensus", "epoch", "uri", "status", "successor"))},
        {"topic": "b/c", "protocols": 2, **dict.fromkeys(("consensus", "epoch", "uri", "status", "successor"))},
    ]
    assert [entry["topic"] for entry in (await api.get("/topics?after=a")).json()["topics"]] == ["b/c"]


async def test_a_topic_before_its_first_decision(api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer) -> None:
    ours, theirs = publication(alice), publication(bob)
    for agent, statement in ((alice, ours), (bob, publication(bob, version="3.0"))):
        await publish(api, agent, statement)
    await say(api, alice, ballot(registry, 0, ours.body.document.sha256))
    answer = (await api.get(f"/topics/{TOPIC}")).json()
    assert answer.keys() == {"topic", "electorate", "epoch", "candidates", "matrix", "decision", "proof"}
    assert (answer["topic"], answer["electorate"], answer["epoch"]) == (TOPIC, "development", 0)
    assert answer["matrix"] is answer["decision"] is answer["proof"] is None
    assert [entry["uris"] for entry in answer["candidates"]] == [[ours.body.uri], [publication(bob, version="3.0").body.uri]]
    assert answer["candidates"][0]["hash"] == ours.body.document.sha256
    assert all(entry["state"] is None and entry["reports"] == 0 for entry in answer["candidates"])
    assert theirs.document == ours.document


async def test_decisions_are_shown_with_transcript_matrix_and_proof(api: httpx.AsyncClient, registry: Registry, web: Web) -> None:
    agents = [domain_signer(f"{name}.example") for name in ("alpha", "bravo", "charlie")]
    web.serve(*agents)
    statement = publication(agents[0])
    await publish(api, agents[0], statement)
    document = statement.body.document.sha256
    for epoch in range(3):
        for number, (first, second) in enumerate(((0, 1), (1, 2), (0, 2))):
            await log(registry, _report(registry, document, epoch, number), agents[first], agents[second])
        for agent in agents:
            await say(api, agent, ballot(registry, epoch, document))
        await registry.decide()
        await _check_decided(api, registry, document, epoch)
    record = (await api.get("/protocols/alpha.example/product-info/1.0")).json()
    topic = (await api.get(f"/topics/{TOPIC}")).json()
    assert record["election"] == {"state": "consensus", "epoch": 2, "decision": topic["decision"]["statement"]}
    assert topic["candidates"][0]["reports"] == 9
    (summary,) = (await api.get("/protocols")).json()["protocols"]
    assert summary["election"] == "consensus"
    listed = {"topic": TOPIC, "protocols": 1, "consensus": document, "epoch": 2, "uri": statement.body.uri}
    assert (await api.get("/topics")).json()["topics"] == [{**listed, "status": "active", "successor": None}]


async def _check_decided(api: httpx.AsyncClient, registry: Registry, document: str, epoch: int) -> None:
    answer = (await api.get(f"/topics/{TOPIC}")).json()
    shown = answer["decision"]
    assert (shown["epoch"], answer["epoch"]) == (epoch, epoch + 1)
    leaf = canonical.b64decode(shown["leaf"], limit=MAX_LEAF)
    decision = parse(leaf)
    assert decision.id == shown["statement"] and isinstance(decision.body, Decision)
    assert shown["index"] == Receipt.parse(answer["proof"].encode()).index
    Receipt.parse(answer["proof"].encode()).verify(leaf, registry.log_key)
    transcript = (await api.get(f"/blobs/sha256/{decision.body.transcript.sha256}")).content
    assert hashlib.sha256(transcript).hexdigest() == decision.body.transcript.sha256
    assert canonical.dumps(shown["transcript"]) == transcript
    assert answer["matrix"] == shown["transcript"]["pairwise"]
    (candidate,) = answer["candidates"]
    assert candidate["state"] == ("candidate", "provisional", "consensus")[epoch] == dict(decision.body.states)[document]
    assert candidate["support"] == shown["transcript"]["candidates"][0]["support"] != "0"


async def test_a_withdrawal_is_told_and_votes_for_it_are_refused(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer
) -> None:
    ours, newer = publication(alice), publication(alice, version="2.0")
    await publish(api, alice, ours)
    await publish(api, alice, newer)
    # A stranger without weight publishes the same bytes again. That takes no withdrawal back.
    copy = publication(bob)
    assert copy.document == ours.document
    await publish(api, bob, copy)
    await say(api, alice, kinds.Status(ours.body.uri, "yanked", successor=newer.body.uri))
    items_in_answer = (await api.get(f"/topics/{TOPIC}")).json()["candidates"]
    assert [(entry["uris"][0], entry["status"], entry["successor"]) for entry in items_in_answer] == [
        (ours.body.uri, "yanked", newer.body.uri),
        (newer.body.uri, "active", None),
    ]
    refused = ballot(registry, 0, newer.body.document.sha256, ours.body.document.sha256)
    size = registry.head.size
    sentence = f"ballot.tiers: {ours.body.uri} was yanked by its publisher.*{newer.body.uri}"
    problem(await post(api, alice.statement(refused)), 422, sentence)
    assert registry.head.size == size
    await say(api, alice, kinds.Status(ours.body.uri, "active"))
    await say(api, alice, refused)


async def test_a_voter_learns_seq_and_epoch(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    params = {"topic": TOPIC, "did": alice.did}
    for seq in range(3):
        assert (await api.get("/ballots", params=params)).json() == {"seq": seq, "epoch": 0}
        await say(api, alice, ballot(registry, seq))
    await registry.decide()
    assert (await api.get("/ballots", params=params)).json() == {"seq": 3, "epoch": 1}
    assert (await api.get("/ballots", params=params | {"topic": "another"})).json() == {"seq": 0, "epoch": 1}


async def test_impossible_topics_and_voters_are_refused(api: httpx.AsyncClient, alice: Signer) -> None:
    cases = [
        ("/topics/nothing/here", 404, "topic.unknown"),
        ("/topics/nothing/here.bundle", 404, "topic.unknown"),
        ("/topics/Nothing", 400, "topic.name"),
        ("/topics/Nothing.bundle", 400, "topic.name"),
        ("/topics/a/b/c/d/e", 400, "topic.name"),
        (f"/topics/{TOPIC}.md", 406, "http.media-type"),
        (f"/ballots?topic=A&did={alice.did}", 400, "topic.name"),
        (f"/ballots?topic={TOPIC}&did=alice", 400, "did.syntax"),
        (f"/ballots?topic={TOPIC}", 400, "http.request"),
    ]
    for path, status, code in cases:
        problem(await api.get(path), status, code)


def _report(registry: Registry, document: str, epoch: int, number: int) -> kinds.Report:
    nid = canonical.hex_digest(b"%d %d" % (epoch, number))
    return kinds.Report(TOPIC, nid, document, "agreed", epoch, registry.head.note.decode())
