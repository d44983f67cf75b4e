"""Facets of `/protocols`: each value finds what it should, also after statuses, decisions, new handlers and withdrawals."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import pytest
from claims import answered, bundle_by, vector, wheel_with
from http_api import attach, post, problem, publish, put, say
from registries import TOPIC, Publication, Web, ballot, blob, log, publication
from signers import ORIGIN, Signer, domain_signer

from treaty_consensus import canonical, kinds
from treaty_registry.catalogue import retrieval
from treaty_registry.catalogue.facets import VALUES
from treaty_registry.keys import Operator
from treaty_registry.registry import Registry

ALL = {
    "1.json": vector("client", "ask", "tell"),
    "2.json": answered("server", "ask"),
    "3.json": answered("server", "tell"),
}
GITHUB = "https://token.actions.githubusercontent.com"
OWN = f"https://{ORIGIN}/sigstore"


async def found(api: httpx.AsyncClient, **params: str) -> list[str]:
    """The names of the protocols that a search finds, over all its pages."""
    names: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        response = await api.get("/protocols", params={**params, "limit": "2", **({"cursor": cursor} if cursor else {})})
        assert response.status_code == 200, response.text
        page = response.json()
        assert len(page["protocols"]) <= page["at_most"] or cursor
        names += [protocol["uri"].split("/")[-2] for protocol in page["protocols"]]
        cursor = page["next"]
    return names


async def attach_package(
    api: httpx.AsyncClient,
    agent: Signer,
    publication: Publication,
    vectors: Mapping[str, bytes],
    bundle: bytes,
    *,
    is_code_free: bool = False,
    release: str = "1",
) -> kinds.Handler:
    """Attach a package with these vectors and this bundle."""
    document = publication.body.document.sha256
    filename, wheel, entry_point = wheel_with(
        vectors, uri=publication.body.uri, document=document, is_code_free=is_code_free, release=release
    )
    body = kinds.Handler(publication.body.uri, document, filename, blob(wheel), entry_point, blob(bundle))
    signed = agent.statement(body)
    for data in (wheel, bundle):
        assert (await put(api, data, signed)).status_code in (201, 204)
    response = await post(api, signed)
    assert response.status_code == 201, response.text
    return body


@pytest.mark.parametrize("walk", [512, 3])
async def test_results_come_in_the_order_that_is_asked_for(
    api: httpx.AsyncClient, registry: Registry, alice: Signer, bob: Signer, monkeypatch: pytest.MonkeyPatch, walk: int
) -> None:
    # With few postings all are read and ordered; with more, an index is walked, a bounded part of it at a time.
    monkeypatch.setattr(retrieval, "MAX_WALK", walk)
    used = {"delta": 3, "alpha": 0, "echo": 3, "bravo": 7, "charlie": 0}
    for name, pairs in used.items():
        made = publication(bob if name == "bravo" else alice, name)
        await publish(api, bob if name == "bravo" else alice, made)
        await registry.pool.execute("update protocols set pairs = $1 where uri = $2", pairs, made.body.uri)
    expected = {
        "newest": ["charlie", "bravo", "echo", "alpha", "delta"],
        "use": ["bravo", "echo", "delta", "charlie", "alpha"],
        "name": sorted(used),
    }
    for sort, names in expected.items():
        assert await found(api, sort=sort) == names
        assert await found(api, sort=sort, q="product") == names
        assert await found(api, sort=sort, namespace="alice.example") == [name for name in names if name != "bravo"]
    page = (await api.get("/protocols", params={"sort": "use"})).json()
    assert page["order"] == "use" and [protocol["pairs"] for protocol in page["protocols"]][:3] == [7, 3, 3]
    problem(await api.get("/protocols", params={"sort": "size"}), 400, "search.query")
    problem(await api.get("/protocols", params={"sort": "use", "cursor": "0-1-2"}), 400, "search.query")
    shown = (await api.get("/protocols?sort=use", headers={"Accept": "text/html,*/*;q=0.8"})).text
    assert '<option value="use" selected>' in shown and "7 pairs proved its use" in shown


async def test_handlers_are_found_by_form_signer_and_coverage(api: httpx.AsyncClient, alice: Signer, bob: Signer) -> None:
    names = ("bare", "echo", "free", "built")
    bare, echo, free, built = (publication(alice, name) for name in names)
    for statement in (bare, echo, free, built):
        await publish(api, alice, statement)
    await attach(api, alice, echo)
    await attach_package(api, alice, free, ALL, bundle_by(OWN), is_code_free=True)
    await attach_package(api, alice, built, {"1.json": ALL["1.json"]}, bundle_by(GITHUB), release="2")
    await attach_package(api, bob, bare, ALL, bundle_by(OWN), is_code_free=True)  # a stranger's changes nothing
    expected = {
        ("handler", "none"): ["bare"],
        ("handler", "sandboxed"): ["built", "echo"],
        ("handler", "code-free"): ["free"],
        ("signed", "did"): ["free"],
        ("signed", "sigstore"): ["built"],
        ("signed", "github-actions"): ["built"],
        ("signed", "google"): [],
        ("coverage", "none"): ["echo"],
        ("coverage", "some"): ["built"],
        ("coverage", "all"): ["free"],
    }
    for (facet, value), protocols in expected.items():
        assert await found(api, **{facet: value}) == protocols, (facet, value)
    assert await found(api, signed="github-actions", coverage="some", handler="sandboxed", q="product", topic=TOPIC) == ["built"]
    assert await found(api, signed="did", coverage="some") == []


async def test_a_hostile_package_is_only_a_package_without_coverage(api: httpx.AsyncClient, alice: Signer) -> None:
    """What cannot be read says nothing. The process that reads it goes on, and so does the log."""
    hostile = {
        "deep.json": b"[" * 50_000,
        "list.json": ALL["1.json"].replace(b'"0"', b'["0"]'),
        "digits.json": vector("client", "ask", error="9" * 50_000),
        "many.json": vector("client", *["ask"] * 5_000, error=405),
    }
    statement = publication(alice, "p")
    await publish(api, alice, statement)
    for release, bundle in enumerate((b"{}", b'{"verificationMaterial":{"certificate":{"rawBytes":"AAAA"}}}'), 1):
        await attach_package(api, alice, statement, hostile, bundle, release=str(release))
        assert await found(api, coverage="none", handler="sandboxed") == ["p"]
    for signed in VALUES["signed"]:
        assert await found(api, signed=signed) == []
    await attach_package(api, alice, statement, {**hostile, **ALL}, bundle_by(OWN), release="3")
    assert await found(api, coverage="all", signed="did") == ["p"]


async def test_the_newest_usable_handler_of_the_publisher_counts(api: httpx.AsyncClient, alice: Signer) -> None:
    statement = publication(alice, "p")
    await publish(api, alice, statement)
    first = await attach_package(api, alice, statement, {}, bundle_by(GITHUB))
    second = await attach_package(api, alice, statement, ALL, bundle_by(OWN), is_code_free=True, release="2")
    assert await found(api, handler="code-free", signed="did", coverage="all") == ["p"]
    assert await found(api, handler="sandboxed") == await found(api, signed="sigstore") == []
    await say(api, alice, kinds.Status(statement.body.uri, "yanked", wheel=second.wheel.sha256))
    assert await found(api, handler="sandboxed", signed="github-actions", coverage="none") == ["p"]
    assert await found(api, handler="code-free") == []
    await say(api, alice, kinds.Status(statement.body.uri, "revoked", wheel=first.wheel.sha256))
    assert await found(api, handler="none") == ["p"]
    await say(api, alice, kinds.Status(statement.body.uri, "deprecated", wheel=second.wheel.sha256))
    assert await found(api, handler="code-free") == ["p"]


async def test_states_of_the_publisher(api: httpx.AsyncClient, alice: Signer) -> None:
    for name, state in (("a", "active"), ("b", "deprecated"), ("c", "yanked"), ("d", "revoked")):
        statement = publication(alice, name)
        await publish(api, alice, statement)
        if state != "active":
            await say(api, alice, kinds.Status(statement.body.uri, state))  # type: ignore[arg-type]
    for state, names in (("active", ["a"]), ("deprecated", ["b"]), ("yanked", ["c"]), ("revoked", ["d"]), ("", ["b", "a"])):
        assert await found(api, state=state) == names
        assert await found(api, state=state, q="product") == names
    await say(api, alice, kinds.Status(publication(alice, "d").body.uri, "active"))
    assert await found(api, state="active") == ["d", "a"] and await found(api, state="revoked") == []


async def test_origin_and_namespace(api: httpx.AsyncClient, alice: Signer, bob: Signer) -> None:
    await publish(api, alice, publication(alice, "a"))
    plain = publication(bob, "b")
    body = kinds.Publish(plain.body.uri, TOPIC, plain.body.document, plain.body.card, "standard")
    await publish(api, bob, Publication(body, plain.document, plain.card))
    assert await found(api, origin="standard") == await found(api, namespace="bob.example") == ["b"]
    assert await found(api, origin="negotiated") == await found(api, namespace="alice.example") == ["a"]
    assert await found(api, origin="standard", namespace="alice.example") == []
    assert await found(api, namespace="carol.example") == []


@pytest.mark.deep
async def test_states_of_the_network(newest: httpx.AsyncClient, registry: Registry, web: Web, alice: Signer, bob: Signer) -> None:
    carol = domain_signer("carol.example")
    web.serve(carol)
    statement, other = publication(alice), publication(bob)
    await publish(newest, alice, statement)
    await publish(newest, bob, other)
    document = statement.body.document.sha256
    seen = set()
    for epoch in range(6):
        for number, pair in enumerate(((alice, bob), (bob, carol), (alice, carol))):
            nid = canonical.hex_digest(b"%d %d" % (epoch, number))
            report = kinds.Report(TOPIC, nid, document, "agreed", epoch, registry.head.note.decode())
            await log(registry, report, *pair)
        for agent in (alice, bob, carol):
            await say(newest, agent, ballot(registry, epoch, document))
        assert await registry.decide()
        state = (await newest.get("/protocols/alice.example/product-info/1.0")).json()["election"]["state"]
        seen.add(state)
        for value in ("consensus", "provisional", "candidate", "former"):
            assert (await found(newest, state=value) != []) == (value == state), (epoch, value)
        uses = await registry.pool.fetch("select word from words where uses <= 0")
        assert uses == []
    assert "consensus" in seen and len(seen) > 1


async def test_a_withdrawn_blob_takes_its_facet_away(
    api: httpx.AsyncClient, registry: Registry, operator: Operator, alice: Signer
) -> None:
    statement = publication(alice, "p")
    await publish(api, alice, statement)
    handler = await attach_package(api, alice, statement, ALL, bundle_by(OWN))
    for blob_of, facet, value in ((handler.bundle, "signed", "did"), (handler.wheel, "coverage", "all")):
        assert await found(api, **{facet: value}) == ["p"]
        withdrawal = operator.state(kinds.Withdrawal(blob_of.sha256, "personal"), issued=registry.clock())
        assert (await post(api, withdrawal.statement)).status_code == 201
        assert await found(api, **{facet: value}) == []
    assert await found(api, handler="sandboxed") == ["p"]
    assert not (await registry.rebuild()).differed


@pytest.mark.deep
async def test_rebuild_reads_the_same_facets_from_the_blobs(api: httpx.AsyncClient, registry: Registry, alice: Signer) -> None:
    statement = publication(alice, "p")
    await publish(api, alice, statement)
    await attach_package(api, alice, statement, ALL, bundle_by(GITHUB), is_code_free=True)
    await say(api, alice, kinds.Status(statement.body.uri, "deprecated"))
    assert not (await registry.rebuild()).differed
    await registry.pool.execute("update handlers set signer = null, coverage = 'some'")
    await registry.pool.execute("update protocols set facets = '{}'")
    await registry.pool.execute("delete from postings where word like '=%'")
    assert {"handlers", "protocols", "postings"} <= {name for name, rows in (await registry.rebuild()).tables.items() if rows}
    assert await found(api, signed="github-actions", coverage="all", handler="code-free", state="deprecated") == ["p"]


async def test_an_empty_filter_is_none_and_an_unknown_value_is_refused(api: httpx.AsyncClient, alice: Signer) -> None:
    await publish(api, alice, publication(alice, "p"))
    names = ("topic", "state", "origin", "namespace", "signed", "coverage", "handler")
    assert await found(api, **dict.fromkeys(names, "")) == ["p"]
    for facet, values in VALUES.items():
        answer = problem(await api.get("/protocols", params={facet: "nonsense"}), 400, "search.query")
        assert all(value in answer["detail"] for value in values)


async def test_the_answer_says_its_order_and_a_bound(api: httpx.AsyncClient, alice: Signer) -> None:
    for number in range(5):
        await publish(api, alice, publication(alice, f"p{number}"))
    page = (await api.get("/protocols", params={"q": "product", "limit": "2"})).json()
    assert (page["order"], page["at_most"], len(page["protocols"])) == ("words", 5, 2)
    page = (await api.get("/protocols", params={"q": "p3"})).json()
    assert (page["order"], page["at_most"]) == ("words", 1)
    page = (await api.get("/protocols", params={"namespace": "alice.example"})).json()
    assert (page["order"], page["at_most"]) == ("newest", 5)


@pytest.mark.parametrize("text", ["=state/active", "state/active", "/commerce", "=handler/none"])
async def test_no_text_of_a_query_is_a_facet(api: httpx.AsyncClient, alice: Signer, text: str) -> None:
    statement = publication(alice, "p", topic="travel/hotel")
    await publish(api, alice, statement)
    assert await found(api, q=text) == []
