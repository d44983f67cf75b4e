"""`/protocols`: one version in each of its forms, a protocol's versions, and search in two scripts."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import httpx
import msgspec
import pytest
from http_api import attach, described, post, problem, publish, put, say
from registries import TOPIC, Web, ballot, publication
from signers import NOW, ORIGIN, Signer, domain_signer, key_signer

from treaty_consensus import canonical, kinds
from treaty_registry.catalogue import queries
from treaty_registry.registry import Registry

JSON, MARKDOWN, BUNDLE = "application/json", "text/markdown; charset=utf-8", "application/vnd.treaty.bundle.v1+json"
HTML = "text/html; charset=utf-8"


async def test_a_record_says_everything_of_a_version(api: httpx.AsyncClient, alice: Signer, bob: Signer) -> None:
    statement = publication(alice)
    signed = await publish(api, alice, statement)
    theirs = await attach(api, bob, statement)
    own = [await attach(api, alice, statement, release) for release in ("1", "2")]
    record = (await api.get("/protocols/alice.example/product-info/1.0")).json()
    handlers = record.pop("handlers")
    assert record == {
        "uri": statement.body.uri,
        "namespace": "alice.example",
        "name": "product-info",
        "version": "1.0",
        "topic": TOPIC,
        "origin": "negotiated",
        "hash": hashlib.sha256(statement.document).hexdigest(),
        "size": len(statement.document),
        "publisher": alice.did,
        "statement": signed.id,
        "index": record["index"],
        "card": {"title": "product-info 1.0", "summary": "Ask for a product.", "tags": ["shop"], "licence": "Apache-2.0"},
        "aliases": [],
        "status": "active",
        "election": None,
    }
    assert [handler["statement"] for handler in handlers] == [own[1].id, own[0].id, theirs.id], "the publisher's newest first"
    assert isinstance(own[1].body, kinds.Handler)
    assert handlers[0] == {
        "by": alice.did,
        "filename": own[1].body.filename,
        "wheel": own[1].body.wheel.sha256,
        "size": own[1].body.wheel.size,
        "entry_point": own[1].body.entry_point,
        "bundle": own[1].body.bundle.sha256,
        "statement": own[1].id,
        "index": handlers[0]["index"],
        "status": "active",
    }
    for handler in handlers:
        wheel = await api.get(f"/blobs/sha256/{handler['wheel']}")
        assert hashlib.sha256(wheel.content).hexdigest() == handler["wheel"] and len(wheel.content) == handler["size"]


async def test_strangers_do_not_crowd_out_the_publisher(
    api: httpx.AsyncClient, alice: Signer, bob: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_HANDLERS", 3)
    statement = publication(alice)
    await publish(api, alice, statement)
    theirs = [await attach(api, bob, statement, release) for release in ("1", "2", "3")]
    own = [await attach(api, alice, statement, release) for release in ("1", "2")]
    record = (await api.get("/protocols/alice.example/product-info/1.0")).json()
    assert [handler["statement"] for handler in record["handlers"]] == [own[1].id, own[0].id, theirs[0].id]


async def test_statuses_are_in_the_record_at_once(api: httpx.AsyncClient, alice: Signer) -> None:
    old, new = publication(alice), publication(alice, version="2.0")
    for statement in (old, new):
        await publish(api, alice, statement)
    handler = await attach(api, alice, old)
    assert isinstance(handler.body, kinds.Handler)
    path = "/protocols/alice.example/product-info/1.0"
    await say(api, alice, kinds.Status(old.body.uri, "deprecated", successor=new.body.uri))
    record = (await api.get(path)).json()
    assert (record["status"], record["successor"]) == ("deprecated", new.body.uri)
    await say(api, alice, kinds.Status(old.body.uri, "revoked", wheel=handler.body.wheel.sha256))
    record = (await api.get(path)).json()
    assert record["handlers"][0]["status"] == "revoked" and record["status"] == "deprecated"
    await say(api, alice, kinds.Status(old.body.uri, "active"))
    record = (await api.get(path)).json()
    assert record["status"] == "active" and "successor" not in record and record["handlers"][0]["status"] == "revoked"


async def test_a_record_names_its_base_and_what_derives_from_it(
    api: httpx.AsyncClient, alice: Signer, bob: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_DERIVED", 2)
    made = publication(alice)
    await publish(api, alice, made)
    path = "/protocols/alice.example/product-info/1.0"
    record = (await api.get(path)).json()
    assert not {"base", "derived"} & record.keys()
    uris = []
    for number in range(3):
        plain = publication(bob, f"derived-{number}")
        body = msgspec.structs.replace(plain.body, base=kinds.Base(made.body.uri, made.body.document.sha256))
        await publish(api, bob, replace(plain, body=body))
        uris.append(body.uri)
        # At once: the cached answer is dropped with the publication.
        assert (await api.get(path)).json()["derived"] == uris[:2]
    assert (await api.get("/protocols/bob.example/derived-0/1.0")).json()["base"] == made.body.uri
    shown = (await api.get(path, headers={"Accept": "text/html,*/*;q=0.8"})).text
    assert all(f'href="/protocols/bob.example/derived-{number}/1.0"' in shown for number in range(3))


async def test_the_form_follows_suffix_then_accept(api: httpx.AsyncClient, alice: Signer) -> None:
    await publish(api, alice, publication(alice))
    cases = [
        ("", None, JSON),
        ("", "*/*", JSON),
        ("", "application/json", JSON),
        ("", "text/markdown", MARKDOWN),
        ("", "text/markdown;q=0.5, application/json;q=0.4", MARKDOWN),
        ("", "text/*", MARKDOWN),
        ("", BUNDLE, BUNDLE),
        ("", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", HTML),
        ("", "garbage, text/markdown", MARKDOWN),
        (".json", "text/markdown", JSON),
        (".md", "application/json", MARKDOWN),
        (".bundle", None, BUNDLE),
    ]
    path = "/protocols/alice.example/product-info/1.0"
    for suffix, accept, expected in cases:
        for query in ("", "?since=1"):  # without a query made outside the framework, then from memory
            for _ in range(2):
                response = await api.get(path + suffix + query, headers={} if accept is None else {"Accept": accept})
                assert response.status_code == 200 and response.headers["content-type"] == expected, (suffix, accept)
                assert "Accept" in response.headers["vary"].split(", ")


async def test_what_is_not_offered_is_not_acceptable(api: httpx.AsyncClient, alice: Signer) -> None:
    await publish(api, alice, publication(alice))
    path = "/protocols/alice.example/product-info/1.0"
    problem(await api.get(path, headers={"Accept": "image/png"}), 406, "http.media-type")
    problem(await api.get("/topics/" + TOPIC, headers={"Accept": "text/markdown"}), 406, "http.media-type")
    problem(await api.get(path + ".html"), 400, "protocol.name")


async def test_markdown_is_the_published_bytes(api: httpx.AsyncClient, alice: Signer) -> None:
    plain = publication(alice)
    document = "# 商品信息\r\n\r\n  trailing space \n\tno newline at the end: é \u2028".encode()
    body = kinds.Publish(
        plain.body.uri, TOPIC, kinds.Blob(canonical.hex_digest(document), len(document)), plain.body.card, "standard"
    )
    signed = alice.statement(body)
    for data in (document, plain.card):
        await put(api, data, signed)
    assert (await post(api, signed)).status_code == 201
    response = await api.get("/protocols/alice.example/product-info/1.0.md")
    assert response.content == document
    assert response.headers["etag"] == f'"{hashlib.sha256(document).hexdigest()}"'
    assert "immutable" in response.headers["cache-control"]


async def test_versions_are_ordered_by_what_they_mean(api: httpx.AsyncClient, alice: Signer) -> None:
    for version in ("1.10", "2.0", "1.9", "2.0rc1", "1.10.post1"):
        await publish(api, alice, publication(alice, version=version))
    answer = (await api.get("/protocols/alice.example/product-info")).json()
    page = {"Accept": "text/html"}
    assert (await api.get("/protocols/alice.example/product-info.json", headers=page)).json() == answer
    assert answer.keys() == {"namespace", "name", "versions"}
    assert [entry["uri"].rsplit("/", 1)[1] for entry in answer["versions"]] == ["2.0", "2.0rc1", "1.10.post1", "1.10", "1.9"]


async def test_impossible_names_and_queries_are_refused(api: httpx.AsyncClient) -> None:
    cases = [
        ("/protocols/alice.example/nothing/1.0", 404, "protocol.unknown"),
        ("/protocols/alice.example/nothing/1.0.md", 404, "protocol.unknown"),
        ("/protocols/alice.example/nothing/1.0.bundle", 404, "protocol.unknown"),
        ("/protocols/alice.example/nothing/1.0.bundle?since=1", 404, "protocol.unknown"),
        ("/protocols/alice.example/nothing/01.0", 400, "protocol.name"),
        ("/protocols/Alice.example/nothing/1.0", 400, "did.syntax"),
        ("/protocols/alice.example/No_thing/1.0", 400, "protocol.name"),
        ("/protocols/alice.example/nothing", 404, "protocol.unknown"),
        ("/protocols/alice.example/No_thing", 400, "protocol.name"),
        ("/protocols/alice.example", 404, "http.not-found"),
        ("/protocols/alice.example/a/1.0/more", 404, "http.not-found"),
        ("/protocols/alice.example/nothing/1.0.bundle?since=-1", 400, "http.request"),
        ("/protocols?limit=0", 400, "http.request"),
        ("/protocols?limit=101", 400, "http.request"),
        ("/protocols?limit=1_0", 400, "http.request"),
        ("/protocols?cursor=x", 400, "search.query"),
        ("/protocols?cursor=0-3-1_0", 400, "search.query"),
        ("/protocols?cursor=39-3-1", 400, "search.query"),
        ("/protocols?state=new", 400, "search.query"),
        ("/protocols?origin=Standard", 400, "search.query"),
        ("/protocols?signed=did:key", 400, "search.query"),
        ("/protocols?coverage=50", 400, "search.query"),
        ("/protocols?handler=code", 400, "search.query"),
        ("/protocols?namespace=Alice.example", 400, "search.query"),
        ("/protocols?namespace=a/b", 400, "search.query"),
        ("/protocols?topic=A", 400, "search.query"),
        ("/protocols?q=" + "a" * 401, 400, "http.request"),
        ("/protocols?q=" + "+".join(f"w{n}" for n in range(33)), 400, "search.query"),
    ]
    for path, status, code in cases:
        problem(await api.get(path), status, code)


async def test_search_reads_english_and_chinese_alike(api: httpx.AsyncClient, alice: Signer) -> None:
    shop = described(
        alice,
        "goods",
        title="商品信息查询协议",
        summary="买家向卖家查询商品的价格与库存。",
        tags=("retail",),
        topic="commerce/goods",
    )
    chat = described(
        alice, "small-talk", title="Small talk between Agents", summary="Greeting, weather; ＡＢＣ.", topic="social/chat"
    )
    mixed = described(alice, "weather", title="Weather 天气", summary="Ask for the forecast of a city.", topic="world/weather")
    for statement in (shop, chat, mixed):
        await publish(api, alice, statement)
    hits = {
        "商品": [shop],
        "商品查询": [shop],  # two of its three pairs
        "查询商品": [shop],
        "价格 库存": [shop],
        "价": [shop],
        "天气": [mixed],
        "weather 天气": [mixed, chat],
        "which protocol tells agents the weather?": [chat, mixed],
        "weather": [mixed, chat],
        "WEATH": [mixed, chat],
        "agents talk": [chat],
        "abc": [chat],
        "goods": [shop],
        "retail": [shop],
        "commerce": [shop],
        "agents 商品": [chat, shop],
        "协 天": [mixed, shop],
        "nowhere whatsoever": [],
        "…、。！": [],
        "'); drop table protocols; --": [],
        "": [mixed, chat, shop],
    }
    for q, expected in hits.items():
        answer = (await api.get("/protocols", params={"q": q})).json()
        assert [entry["uri"] for entry in answer["protocols"]] == [statement.body.uri for statement in expected], q
        assert answer["next"] is None
        scores = [entry["score"] for entry in answer["protocols"]]
        assert scores == sorted(scores, reverse=True) if q else scores == [None, None, None]


async def test_several_words_are_ranked_and_paged_by_their_score(api: httpx.AsyncClient, alice: Signer) -> None:
    cards = {
        "all": {"title": "Weather forecast", "summary": "For agents."},
        "rare": {"title": "Forecast", "summary": "For agents."},
        "often": {"title": "Weather", "summary": "For agents."},
        "low": {"title": "Other", "summary": "Weather, and more. For agents."},
        "none": {"title": "Other", "summary": "Nothing else."},
    }
    for name, card in cards.items():
        await publish(api, alice, described(alice, name, topic="world/air", tags=(), **card))
    ranked: list[tuple[str, int]] = []
    cursor: str | None = ""
    while cursor is not None:
        params = {"q": "forecast of the weather", "limit": "2", **({"cursor": cursor} if cursor else {})}
        page = (await api.get("/protocols", params=params)).json()
        ranked += [(entry["uri"].split("/")[-2], entry["score"]) for entry in page["protocols"]]
        cursor = page["next"]
    assert [name for name, _ in ranked] == ["all", "rare", "often", "low"]
    assert [score for _, score in ranked] == sorted({score for _, score in ranked}, reverse=True), "each is another one"
    assert 0 < ranked[-1][1] < ranked[0][1] <= 100
    # A filter that is rarer than the words leads, and those that have none of them are not ranked.
    for namespace, names in (("alice.example", {"all", "rare", "often", "low"}), ("bob.example", set())):
        params = {"q": "forecast weather", "namespace": namespace}
        page = (await api.get("/protocols", params=params)).json()
        assert {entry["uri"].split("/")[-2] for entry in page["protocols"]} == names
    # A cursor that a client made itself is a position, or refused.
    for cursor, status in (("s-50-9", 200), ("s-101-9", 400), ("s-1", 400), ("s-1-1-1", 400), ("s--1", 400), ("t-1-1", 400)):
        assert (await api.get("/protocols", params={"q": "forecast weather", "cursor": cursor})).status_code == status, cursor


async def test_search_stays_within_a_topic_and_below(api: httpx.AsyncClient, alice: Signer) -> None:
    for name, topic in (("a", "commerce"), ("b", "commerce/goods"), ("c", "commerce2/goods"), ("d", "commerce/goods/toys")):
        await publish(api, alice, publication(alice, name, topic=topic))
    for topic, names in (("commerce", "dba"), ("commerce/goods", "db"), ("commerce/goods/toys", "d"), ("other", "")):
        answer = (await api.get("/protocols", params={"topic": topic, "q": "ask product"})).json()
        assert [entry["uri"].split("/")[-2] for entry in answer["protocols"]] == list(names)


@pytest.mark.parametrize("q", ["", "product"])
async def test_pages_follow_each_other_without_gap_or_repetition(api: httpx.AsyncClient, alice: Signer, q: str) -> None:
    for number in range(7):
        await publish(api, alice, publication(alice, f"p{number}"))
    params, uris, pages = {"q": q, "limit": "3"}, [], 0
    while True:
        page = (await api.get("/protocols", params=params)).json()
        uris += [entry["uri"] for entry in page["protocols"]]
        pages += 1
        if page["next"] is None:
            break
        params["cursor"] = page["next"]
    assert pages == 3 and len(uris) == 7
    assert uris == sorted(uris, reverse=True), "equally good ones: newest first"


async def test_what_was_taken_back_is_not_found_but_still_there(api: httpx.AsyncClient, alice: Signer) -> None:
    statement, yanked = publication(alice), publication(alice, version="1.1")
    for made in (statement, yanked):
        await publish(api, alice, made)
    await say(api, alice, kinds.Status(yanked.body.uri, "yanked"))
    assert [entry["uri"] for entry in (await api.get("/protocols")).json()["protocols"]] == [statement.body.uri]
    versions = (await api.get("/protocols/alice.example/product-info")).json()["versions"]
    assert [entry["status"] for entry in versions] == ["yanked", "active"]
    assert (await api.get("/protocols/alice.example/product-info/1.1")).json()["status"] == "yanked"


async def test_path_namespaces_and_did_keys_have_uris_too(api: httpx.AsyncClient, web: Web) -> None:
    nested, bare = domain_signer("alice.example:users:bob"), key_signer("bare")
    web.serve(nested)
    for agent in (nested, bare):
        statement = publication(agent)
        await publish(api, agent, statement)
        path = statement.body.uri.removeprefix(f"https://{ORIGIN}")
        assert (await api.get(path)).json()["publisher"] == agent.did
        assert (await api.get(path.replace(":", "%3A"))).json()["publisher"] == agent.did


async def test_every_write_is_seen_by_the_next_read(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    statement = publication(alice)
    await publish(api, alice, statement)
    path = "/protocols/alice.example/product-info/1.0"
    for number, state in enumerate(("deprecated", "active", "yanked", "active") * 5):
        await say(api, alice, kinds.Status(statement.body.uri, state), issued=NOW + number)  # type: ignore[arg-type]
        record, page = await api.get(path), await api.get("/protocols/alice.example/product-info")
        assert record.json()["status"] == page.json()["versions"][0]["status"] == state
        await say(api, alice, ballot(registry, number))
        position = await api.get("/ballots", params={"topic": TOPIC, "did": alice.did})
        assert position.json() == {"seq": number + 1, "epoch": 0}
